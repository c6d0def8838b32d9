"""Text of a manifest: JSON with a format, a version and a checksum, written, parsed, and converted to typed records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from mmload.errors import DamagedError, VersionError, one_line, shown
from mmload.store.checksum import crc32

T = TypeVar("T")


def convert_json(
    body: Any, kind: type[T], path: str, hook: Callable[[type, Any], Any] | None = None, advice: str = ""
) -> T:
    """Converts plain JSON values to a record.

    The hook converts a plain value to a type that msgspec does not know. Messages name the path, and may have advice.

    Raises:
        DamagedError: if a value does not fit; names the file, the place in it, and what is expected.
    """
    try:
        return msgspec.convert(body, kind, dec_hook=hook, str_keys=True)
    except (ValueError, RecursionError, OverflowError) as error:  # ValueError: lone surrogates in a key
        raise DamagedError(f"{path} is damaged: {one_line(str(error))}; {advice or 'rebuild the dataset'}") from error


FORMAT = "mmload dataset"
VERSION = 2
VERSIONS = "versions"
"""Key of the manifest for earlier versions, and the folder of their manifests."""

_END_LENGTH = len(',\n "crc32": "01234567"\n}\n')


def sealed_text(body: Mapping[str, Any]) -> str:
    """Returns a manifest's text, with its checksum; equal plain data in equal order gives equal text."""
    content = {key: value for key, value in body.items() if key not in ("format", "version", "crc32")}
    full = {"format": FORMAT, "version": VERSION} | content
    return _sealed(json.dumps(full, indent=1, ensure_ascii=False, allow_nan=False).removesuffix("\n}"))


def parsed_text(text: str, path: str) -> dict[str, Any]:
    """Returns a manifest's content as plain data, if text and version are right; messages name the path of its file.

    Raises:
        DamagedError: if it is no JSON, not of this format, or not as mmload wrote it.
        VersionError: if it is of another version of the format.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is not JSON ({error}); rebuild the dataset") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise DamagedError(
            f'{path} is not the manifest of a dataset that this mmload can read: it has no "format": "{FORMAT}"; '
            "build the dataset again"
        )
    version = body.get("version")
    if type(version) is not int or version != VERSION:
        raise VersionError(
            f"{path} has format version {shown(version)}, this mmload reads version {VERSION}; upgrade mmload, or "
            "build the dataset again"
        )
    if text != _sealed(text[:-_END_LENGTH]):
        raise DamagedError(
            f"{path} is damaged: it does not end with the crc32 of the text before it, as mmload writes it; "
            "rebuild the dataset"
        )
    return {key: value for key, value in body.items() if key not in ("format", "version", "crc32")}


def _sealed(start: str) -> str:
    """Returns the text of a manifest from the text before its checksum."""
    return f'{start},\n "crc32": "{crc32(start.encode("utf-8", "backslashreplace")):08x}"\n}}\n'
