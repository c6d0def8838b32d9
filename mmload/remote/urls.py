"""URLs of object storage: ``s3://bucket/prefix``, ``gs://``, ``az://container/prefix``, ``file:///folder``, ``memory://``.

No credentials stand in a URL: whatever looks like some is refused, and never shown.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mmload.errors import UsageError, choices, without_secrets

PARALLEL = 16
"""Default number of concurrent requests."""

SCHEMES = ("s3", "gs", "az", "file", "memory")

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # one slash is what a Path leaves of two; a drive has one letter


def is_url(place: str | os.PathLike[str]) -> bool:
    """Returns whether a place is given as a URL rather than a path."""
    return isinstance(place, str) and "://" in place and _URL.match(place) is not None


def check_no_url(place: str | os.PathLike[str], advice: str) -> None:
    """Checks that a place is a path on this machine and not a URL, even one that went through ``pathlib.Path``.

    Raises:
        UsageError: with the advice.
    """
    text = os.fspath(place)
    if _URL.match(text) and not os.path.exists(text):
        url = re.sub(r"^(?!file)([^:]+):/(?!/)", r"\1://", text)  # as it was before it went through a Path
        raise UsageError(f"{without_secrets(url)} is a URL, and a path on this machine is needed: {advice}")


@dataclass(frozen=True)
class Location:
    """Place in object storage.

    Attributes:
        scheme: one of :data:`SCHEMES`.
        bucket: the bucket or container; "" for files.
        prefix: the beginning of the names of all objects of this place, without slashes around it; may be "".
    """

    scheme: str
    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        """URL in one canonical spelling."""
        if self.scheme == "file":
            return f"file:///{self.prefix}"
        return f"{self.scheme}://{self.bucket}{'/' if self.prefix else ''}{self.prefix}"

    def __str__(self) -> str:
        return self.url

    def key(self, name: str) -> str:
        """Returns the full key of an object."""
        return "/".join(filter(None, (self.prefix, name)))


def place(text: str | os.PathLike[str]) -> Path | Location:
    """Returns the location of an object-storage URL, or the path of a local path or ``file://`` URL.

    Raises:
        UsageError: as :func:`location`.
    """
    if not is_url(text):
        return Path(text)
    found = location(os.fspath(text))
    return Path(f"/{found.prefix}") if found.scheme == "file" else found


def location(url: str) -> Location:
    """Parses a URL of object storage.

    Raises:
        UsageError: if it is no URL of object storage, or has credentials or a query in it.
    """
    shown = re.sub(r"\?.*", "?...", without_secrets(url))
    if not is_url(url):
        raise UsageError(f"{shown} is not a URL; give one as s3://BUCKET/PREFIX")
    parts = urlsplit(url if url.lower().startswith("file:") else url.replace("#", "%23"))
    if parts.scheme not in SCHEMES:
        raise UsageError(f"{shown} begins with {parts.scheme}://; the URLs of object storage are {choices(SCHEMES)}")
    if parts.username is not None or parts.query or (parts.scheme != "file" and ":" in parts.netloc):
        raise UsageError(
            f"{shown} has credentials or options in it; give them as the environment variables of the store, "
            "and the URL without them"
        )
    path = unquote(parts.path) if parts.scheme == "file" else parts.path.replace("%23", "#")
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        raise UsageError(f"{shown} names another machine; write file:///FOLDER with three slashes")
    if parts.scheme in ("s3", "gs", "az") and not parts.netloc:
        raise UsageError(f"{shown} names no bucket; give {parts.scheme}://BUCKET/PREFIX")
    names = [name for name in path.split("/") if name]
    if "." in names or ".." in names:
        raise UsageError(f"{shown} has . or .. in its path; write it without them")
    return Location(parts.scheme, parts.netloc if parts.scheme != "file" else "", "/".join(names))
