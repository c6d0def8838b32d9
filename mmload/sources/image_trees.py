"""Folders of images, on a disk or in object storage: which folders and files there are, in torchvision's order."""

from __future__ import annotations

import os
import posixpath
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from mmload.cloud.client import Found
from mmload.errors import SourceError
from mmload.runtime.lazy_property import lazy_property
from mmload.sources.files import inner_name, need_folder
from mmload.sources.links import Links, is_absent
from mmload.sources.remote_files import RemoteFiles

MAX_DEPTH = 100
"""Folders inside one another in a class."""


class ImageTree(Protocol):
    """Folders of files below a root. Names are relative to it, with forward slashes; "" is the root itself."""

    @property
    def place(self) -> Path | RemoteFiles:
        """Where the files are read."""

    def need(self, folder: str, what: str) -> None:
        """Raises SourceError unless there is such a folder; ``what`` says which one to give."""

    def folders(self, folder: str) -> list[str]:
        """The names of the folders in a folder, sorted."""

    def files(self, folder: str) -> Iterator[str]:
        """The names of all files below a folder, as sorted(os.walk) gives folders, sorted in each."""

    def revision(self, name: str) -> str:
        """Text that changes when a file does."""

    def at(self, folder: str) -> str:
        """A folder as messages show it."""


class LocalTree:
    """Folders on a disk. See :class:`ImageTree`.

    A link to a folder above it is not followed; torchvision follows it until the path is too long.

    Args:
        root: the folder.
        links: which links may be followed.
    """

    def __init__(self, root: Path, links: Links) -> None:
        self.place, self._links = root, links

    def need(self, folder: str, what: str) -> None:
        """See :class:`ImageTree`."""
        need_folder(self.place / folder, what)

    def folders(self, folder: str) -> list[str]:
        """See :class:`ImageTree`."""
        with os.scandir(self.place / folder) as entries:
            return sorted(entry.name for entry in entries if _is_folder(entry))

    def files(self, folder: str) -> Iterator[str]:
        """See :class:`ImageTree`."""
        skip = len(os.path.join(self.place, ""))
        for parent, names in sorted(_walk(os.path.join(self.place, folder), (), self._links)):
            for name in sorted(names):
                yield os.path.join(parent, name)[skip:].replace(os.sep, "/")

    def revision(self, name: str) -> str:
        """Size and modification time."""
        return self._links.revision(os.path.join(self.place, name))

    def at(self, folder: str) -> str:
        """See :class:`ImageTree`."""
        return str(self.place / folder)


class RemoteTree:
    """Prefixes in object storage as folders. It is listed once. See :class:`ImageTree`.

    Args:
        root: its objects.
    """

    def __init__(self, root: RemoteFiles) -> None:
        self.place = root

    def need(self, folder: str, what: str) -> None:
        """See :class:`ImageTree`."""
        if not self._below(folder):
            raise SourceError(f"there is nothing at {self.at(folder)}; give {what}")

    def folders(self, folder: str) -> list[str]:
        """See :class:`ImageTree`."""
        skip = len(posixpath.join(folder, ""))
        inner = (self._found[index].name[skip:].partition("/") for index in self._below(folder))
        return sorted({name for name, slash, _ in inner if slash})

    def files(self, folder: str) -> Iterator[str]:
        """See :class:`ImageTree`."""
        yield from sorted((self._found[index].name for index in self._below(folder)), key=posixpath.split)

    def revision(self, name: str) -> str:
        """Size, and entity tag or time of the last change."""
        return self._found[bisect_left(self._found, name, key=lambda found: found.name)].revision

    def at(self, folder: str) -> str:
        """See :class:`ImageTree`."""
        return f"{self.place}/{folder}" if folder else str(self.place)

    def _below(self, folder: str) -> range:
        """The objects below a folder."""
        start = posixpath.join(folder, "")
        after = f"{start[:-1]}0"  # the character that follows a slash
        first, last = (bisect_left(self._found, name, key=lambda found: found.name) for name in (start, after))
        return range(first, last if start else len(self._found))

    @lazy_property
    def _found(self) -> list[Found]:
        """All objects, by name."""
        found = self.place.listed()
        for name, _, _ in found:
            if inner_name(name) != name:
                raise SourceError(f"{self.place} has an object whose name is no plain path: {name!r:.200}; rename it")
        return sorted(found)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder or a link to one; a link that leads back to itself is a file that cannot be read.

    Raises:
        OSError: if the system cannot tell: a class must not be left out because of that.
    """
    try:
        return entry.is_dir()
    except OSError as error:
        if not is_absent(error):
            raise
        return False


def _walk(folder: str, above: tuple[tuple[int, int], ...], links: Links) -> Iterator[tuple[str, list[str]]]:
    """``os.walk`` with links followed, but never into a folder that is being walked already (``above``)."""
    links.check_folder(folder)
    status = os.stat(folder)
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    if len(above) > MAX_DEPTH:
        raise SourceError(f"{folder[:200]} ... is over {MAX_DEPTH} folders deep; no class is")
    with os.scandir(folder) as found:
        entries = list(found)
    yield folder, [entry.name for entry in entries if not _is_folder(entry)]
    for entry in entries:
        if _is_folder(entry):
            yield from _walk(entry.path, (*above, here), links)
