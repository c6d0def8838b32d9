"""Where the files are that a list names: on a disk, in object storage, and whether they may be read."""

from __future__ import annotations

import os
import posixpath
from typing import NamedTuple, Protocol

from mmload.cloud.urls import Location, is_url, place
from mmload.errors import SourceError, UsageError
from mmload.sources.files import EXTENSIONS, inner_name
from mmload.sources.links import Links
from mmload.sources.remote_files import RemoteFiles
from mmload.sources.tables import Row

OBJECT = "object"
"""The revision of what lies in object storage: nothing is asked about it before it is read."""


class Item(NamedTuple):
    """One sample: its id in the list (may be empty), its file or URL, its target's index, its revision."""

    id: str
    file: str
    target: int
    revision: str

    @property
    def name(self) -> str:
        """Its id, else its file."""
        return self.id or self.file


class Finder(Protocol):
    """Makes an item of a row: where its file is, if it may be there.

    Attributes:
        urls: reads the items that lie in object storage; None while there is none.
    """

    urls: RemoteFiles | None

    def item(self, row: Row, index: int) -> Item:
        """The item of row ``index``; raises SourceError if its file may not be read."""


class LocalFinder:
    """Finds files of a folder. See :class:`Finder`.

    Args:
        folder: what paths are relative to.
        links: which links may be followed; with ``allow_outside`` a path may also be absolute or a URL.
        by_id: the rows name files without their endings.
    """

    def __init__(self, folder: str, links: Links, by_id: bool) -> None:
        self._folder, self._links, self._by_id = folder, links, by_id
        self.urls: RemoteFiles | None = None
        self._endings = [".pt", *EXTENSIONS, *(ending.upper() for ending in EXTENSIONS)]

    def item(self, row: Row, index: int) -> Item:
        """See :class:`Finder`."""
        found = _of_url(row, self._folder, self._links.allow_outside) if is_url(row.path) else None
        if isinstance(found, Location):
            self.urls = self.urls or RemoteFiles(folder_of(found))
            return Item(row.id or "", found.url, index, OBJECT)
        given = row.path if found is None else str(found)
        name = given if self._links.allow_outside else inner_name(given)
        if name is None or "\0" in name:
            raise SourceError(
                f"{row.where}: the path {row.path!r:.80} leaves {self._folder}; set allow_outside to follow it"
            )
        path = os.path.join(self._folder, name)
        self._links.check_folder(os.path.dirname(path))
        file, revision = self._by_ending(name, path) if self._by_id else (name, self._links.revision(path))
        return Item(row.id or "", file, index, revision)

    def _by_ending(self, name: str, path: str) -> tuple[str, str]:
        """The ID's file; tries the ending that was found last first, as most files share it."""
        for ending in self._endings:
            revision = self._links.revision(path + ending)
            if revision != "missing":
                self._endings.remove(ending)
                self._endings.insert(0, ending)
                return name + ending, revision
        return name + ".pt", "missing"


class RemoteFinder:
    """Finds objects below a URL. See :class:`Finder`.

    Args:
        files: what paths are relative to.
        allow_outside: whether a row may name the URL of any object.
    """

    def __init__(self, files: RemoteFiles, allow_outside: bool) -> None:
        self._files, self._allow_outside = files, allow_outside
        self.urls: RemoteFiles | None = files

    def item(self, row: Row, index: int) -> Item:
        """See :class:`Finder`."""
        if is_url(row.path):
            found = _of_url(row, str(self._files), self._allow_outside)
            name = found.url if isinstance(found, Location) else None
        else:
            name = inner_name(row.path)
        if name is None:
            raise SourceError(f"{row.where}: the path {row.path!r:.80} leaves {self._files}; name an object below it")
        return Item(row.id or "", name, index, OBJECT)


def _of_url(row: Row, folder: str, allowed: bool) -> object:
    """The place that a row names by a URL."""
    if not allowed:
        raise SourceError(
            f"{row.where}: {row.path!r:.80} is a URL, outside of {folder}; to read what the list names anywhere, add "
            "--set allow_outside=true"
        )
    try:
        return place(row.path)
    except UsageError as error:
        raise SourceError(f"{row.where}: {error}") from error


def below(root: Location, name: str, what: str) -> Location:
    """The place ``root/name``; ``name`` may be empty.

    Raises:
        SourceError: if the name leaves the root; ``what`` says what it is the name of.
    """
    inner = inner_name(name) if name else ""
    if inner is None:
        raise SourceError(f"{what} is {name!r:.80}, which leaves {root}; give the place itself as the root")
    return Location(root.scheme, root.bucket, root.key(inner))


def folder_of(path: Location) -> Location:
    """The place around an object."""
    return Location(path.scheme, path.bucket, posixpath.dirname(path.prefix))
