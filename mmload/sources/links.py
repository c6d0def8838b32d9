"""Decides which names and links below a root may be followed, and finds listed files under another spelling.

It reads no file, and walks folders once each however links lead.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, product
from pathlib import Path

from mmload.errors import SourceError
from mmload.runtime.lazy_property import lazy_property
from mmload.sources import TIME_MARK
from mmload.sources.annotation_values import Findings

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def is_absent(error: OSError) -> bool:
    """Returns whether an error means that no such file exists; False for permissions or a stale NFS handle."""
    return error.errno in _ABSENT


MAX_DEPTH = 100
"""Folders inside one another in a class."""


class Links:
    """Rules on which symbolic links below a root, which may be one, may be followed: with ``allow_outside`` every one.

    It accesses a file only when that file is checked.
    """

    def __init__(self, root: str | Path, allow_outside: bool) -> None:
        self.root, self.allow_outside = Path(root), allow_outside
        self._checked: set[str] = set()
        self._findings = Findings()

    def find(self, folder: str | Path, name: str) -> tuple[str, str]:
        """Finds a listed file, and returns its name relative to the folder and its :meth:`revision`.

        If there is none of exactly this name, it is the only one whose name differs in nothing but the Unicode form, as
        macOS writes names in another one, or the case of the ending.

        Raises:
            SourceError: if the file is, or lies behind, a link out of the root.
        """
        revision = self._revision_below(folder, name)
        if revision != "missing":
            return name, revision
        revisions = ((each, self._revision_below(folder, each)) for each in _spellings(name))
        found = [each for each in revisions if each[1] != "missing"]
        if len(found) != 1:
            return name, revision
        ((spelling, revision),) = found
        self._findings.add(
            "files found by a name that differs in its Unicode form or the case of its ending",
            f"{name!a:.80} is {spelling!a:.80}",
        )
        return spelling, revision

    def find_first(self, folder: str | Path, names: Sequence[str]) -> tuple[str, str]:
        """Finds the first of some names that is a file as :meth:`find` does; names as they are before other spellings.

        Where there is none, it returns the first name, and "missing".
        """
        exact = ((name, self._revision_below(folder, name)) for name in names)
        found = chain(exact, (self.find(folder, name) for name in names))
        return next((each for each in found if each[1] != "missing"), (names[0], "missing"))

    def notes(self) -> tuple[str, ...]:
        """Returns a note on the files that :meth:`find` found under another name since the last call."""
        notes, self._findings = self._findings.notes(), Findings()
        return notes

    def _revision_below(self, folder: str | Path, name: str) -> str:
        path = os.path.join(folder, name)
        self.check_folder(path.rpartition("/")[0])  # a quarter of the time of os.path.dirname
        return self.revision(path)

    def revision(self, path: str | Path) -> str:
        """Returns a file's size and modification time, or ``missing``; the caller has checked its folder.

        Raises:
            SourceError: if the file is a link out of the root.
            OSError: if the system cannot tell whether the file exists, which must not pass as ``missing``.
        """
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                self.check(path)
                status = os.stat(path)
        except ValueError:  # a name that the file system cannot represent
            return "missing"
        except OSError as error:
            if not is_absent(error):
                raise
            return "missing"
        return f"{status.st_size} {TIME_MARK}{status.st_mtime_ns}"

    def check(self, path: str | Path) -> None:
        """Raises SourceError if a path leads out of the root, itself or by one of the folders that it names."""
        if self.allow_outside:
            return
        real = os.path.realpath(path)
        if real != self._real and not real.startswith(os.path.join(self._real, "")):
            raise SourceError(
                f"{path} leads out of {self.root} by a link, to {real:.200}; to follow such links, add "
                "--set allow_outside=true"
            )

    def check_folder(self, path: str | Path) -> None:
        """Raises SourceError if a folder leads out of the root; looks at each once."""
        if (text := os.fspath(path)) not in self._checked:
            self.check(path)
            self._checked.add(text)

    @lazy_property
    def _real(self) -> str:
        return os.path.realpath(self.root)


def _spellings(name: str) -> list[str]:
    """Returns the other spellings of a name: the Unicode forms of its folder and its stem, each case of the ending."""
    folder, file = posixpath.split(name)
    stem, ending = posixpath.splitext(file)
    endings = (ending, ending.lower(), ending.upper(), ending.title())
    parts = product(_unicode_forms(folder), _unicode_forms(stem), endings)
    return sorted({posixpath.join(folder, stem + ending) for folder, stem, ending in parts} - {name})


def _unicode_forms(text: str) -> set[str]:
    return {text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)}


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Returns whether an entry is a folder or a link to one; a link that leads back to itself counts as a file.

    Raises:
        OSError: if the system cannot tell: a class must not be left out because of that.
    """
    try:
        return entry.is_dir()
    except OSError as error:
        if not is_absent(error):
            raise
        return False


def walk(folder: str, above: tuple[tuple[int, int], ...], links: Links) -> Iterator[tuple[str, list[str]]]:
    """Walks like ``os.walk`` with links followed, but never into a folder that is being walked already (``above``)."""
    links.check_folder(folder)
    status = os.stat(folder)
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    if len(above) > MAX_DEPTH:
        raise SourceError(f"{folder[:200]} ... is over {MAX_DEPTH} folders deep; no class is")
    with os.scandir(folder) as found:
        entries = list(found)
    yield folder, [entry.name for entry in entries if not is_folder(entry)]
    for entry in entries:
        if is_folder(entry):
            yield from walk(entry.path, (*above, here), links)


@contextmanager
def reading(root: object) -> Iterator[None]:
    """Turns system errors while a source is scanned (a folder that disappears, no permission) into one line.

    Raises:
        SourceError: naming the path.
    """
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"cannot read {error.filename or root} ({error.strerror or error}); fix it, or remove it"
        ) from error
