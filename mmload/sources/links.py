"""Follows links that stay inside a source's root, and those that lead out only if that is allowed.

Links decide what a build reads: in a folder from a stranger, one may name any file of this machine.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from mmload.errors import RecipeError, SourceError

_FOLLOWED = 40
"""Links one behind the other, as many as Linux follows."""

_KEPT = 4096
"""Folders whose place is remembered."""

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def is_absent(error: OSError) -> bool:
    """Whether there can be no file of that name; not where the system refuses (no permission, a stale NFS handle)."""
    return error.errno in _ABSENT


class Links:
    """What may be followed below one root. Looks at no file before it is asked about one.

    Args:
        root: the source's root, which may itself be a link.
        allow_outside: follow every link.

    Raises:
        RecipeError: if ``allow_outside`` is not a bool.
    """

    def __init__(self, root: str | Path, allow_outside: bool) -> None:
        if not isinstance(allow_outside, bool):
            raise RecipeError(f"allow_outside is {allow_outside!r}; use true or false")
        self.root, self.allow_outside = Path(root), allow_outside
        self._places: dict[str, str] = {}

    def revision(self, path: str | Path) -> str:
        """A file's size and modification time, or ``missing``; its folder was checked before.

        Raises:
            SourceError: if the file is a link out of the root.
            OSError: if the system refuses to say whether the file is there, which must not read as ``missing``.
        """
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                self.check(path)
                status = os.stat(path)
        except ValueError:  # a name that the file system cannot write
            return "missing"
        except OSError as error:
            if not is_absent(error):
                raise
            return "missing"
        return f"{status.st_size} {status.st_mtime_ns}"

    def check(self, path: str | Path) -> None:
        """Raises SourceError if a path leads out of the root, itself or by one of the folders that it names."""
        if not self.allow_outside:
            self._check(path, self._place(os.fspath(path)))

    def check_folder(self, path: str | Path) -> None:
        """The same of a folder; cheap where it is asked again."""
        if not self.allow_outside:
            self._check(path, self._folder(os.fspath(path)))

    def _check(self, path: str | Path, place: str) -> None:
        if place != self._real and not place.startswith(os.path.join(self._real, "")):
            raise SourceError(
                f"{path} leads out of {self.root} by a link, to {place:.200}; set allow_outside to follow such links"
            )

    @cached_property
    def _real(self) -> str:
        return os.path.realpath(self.root)

    def _place(self, path: str) -> str:
        """``os.path.realpath``, with the folders' remembered: two calls of the system a file instead of one a level."""
        for _ in range(_FOLLOWED):
            folder, name = os.path.split(path)
            if name in ("", ".", ".."):
                return os.path.realpath(path)
            folder = self._folder(folder)
            path = os.path.join(folder, name)
            try:
                path = os.path.join(folder, os.readlink(path))
            except OSError as error:  # no link; what cannot be asked must not pass as none
                if error.errno != errno.EINVAL and not is_absent(error):
                    raise
                return path
        return path

    def _folder(self, path: str) -> str:
        place = self._places.get(path)
        if place is None:
            if len(self._places) >= _KEPT:
                self._places.clear()
            place = self._places[path] = os.path.realpath(path)
        return place


@contextmanager
def reading(root: Path) -> Iterator[None]:
    """What the system refuses while a source is looked through (a folder that goes away, no permission) in one line.

    Raises:
        SourceError: naming the path.
    """
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"cannot read {error.filename or root} ({error.strerror or error}); fix it, or remove it"
        ) from error
