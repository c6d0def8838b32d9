"""Follows symbolic links that stay inside a source's root; others only if that is allowed.

Links decide what a build reads: in an untrusted folder, one may point to any file of this machine.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmload.errors import RecipeError, SourceError
from mmload.runtime.lazy_property import lazy_property

_FOLLOWED = 40
"""The longest chain of links, as on Linux."""

_CACHED = 4096
"""Folders whose real path is cached."""

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def is_absent(error: OSError) -> bool:
    """Whether the error means that no such file exists; false for permissions or a stale NFS handle."""
    return error.errno in _ABSENT


class Links:
    """The links that may be followed below one root. It accesses no file until it is asked about one.

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
        self._real_paths: dict[str, str] = {}

    def revision(self, path: str | Path) -> str:
        """A file's size and modification time, or ``missing``; its folder was checked before.

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
        return f"{status.st_size} {status.st_mtime_ns}"

    def check(self, path: str | Path) -> None:
        """Raises SourceError if a path leads out of the root, itself or by one of the folders that it names."""
        if not self.allow_outside:
            self._check(path, self._real_path(os.fspath(path)))

    def check_folder(self, path: str | Path) -> None:
        """The same for a folder; cached."""
        if not self.allow_outside:
            self._check(path, self._folder(os.fspath(path)))

    def _check(self, path: str | Path, real: str) -> None:
        if real != self._real and not real.startswith(os.path.join(self._real, "")):
            raise SourceError(
                f"{path} leads out of {self.root} by a link, to {real:.200}; to follow such links, add "
                "--set allow_outside=true"
            )

    @lazy_property
    def _real(self) -> str:
        return os.path.realpath(self.root)

    def _real_path(self, path: str) -> str:
        """``os.path.realpath`` with cached folders: two system calls a file instead of one for each level."""
        for _ in range(_FOLLOWED):
            folder, name = os.path.split(path)
            if name in ("", ".", ".."):
                return os.path.realpath(path)
            folder = self._folder(folder)
            path = os.path.join(folder, name)
            try:
                path = os.path.join(folder, os.readlink(path))
            except OSError as error:  # not a link; other errors must not pass as that
                if error.errno != errno.EINVAL and not is_absent(error):
                    raise
                return path
        return path

    def _folder(self, path: str) -> str:
        real = self._real_paths.get(path)
        if real is None:
            if len(self._real_paths) >= _CACHED:
                self._real_paths.clear()
            real = self._real_paths[path] = os.path.realpath(path)
        return real


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
