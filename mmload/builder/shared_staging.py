"""The working folder of a build that several processes share, on one machine or on many; see :mod:`.staging`.

It appears in one step, complete with its plan; shards are moved into it (:mod:`mmload.builder.private_shards`); the
dataset leaves it by one rename; and it goes in one step, so that a part that still works finds no place to write to.
All four need only atomic renames, so any number of processes may do them at once. The lock, where the file system has
locks, keeps builds by one process out: these hold it alone, parts share it.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from mmload.builder.destination import standing
from mmload.builder.planned_build import asked, difference
from mmload.builder.staging import Staging, build_paths, has_finished_shards, has_plan, is_of, plan_of, write_manifest
from mmload.builder.staging_files import (
    MARK,
    PLAN,
    SWAP,
    check_made_by_build,
    check_only_own,
    remove_set_aside,
)
from mmload.errors import BuildError
from mmload.runtime.durable_files import TOKEN_BYTES, lock, open_lock, remove, sync_folder, write_atomically
from mmload.store.manifest import Manifest

_TRIES = 100
_PART = "--part"


class SharedStaging:
    """The working folder of the parts of a build. A context manager; several processes may be in it at once.

    Args:
        out: the destination, with no symbolic link in it.
        plan: of the build; all parts must have the same.
        command: how this part was asked for.

    Raises:
        BuildError: if the folder cannot be created, another build works in it, or it holds another build.
    """

    def __init__(self, out: Path, plan: Mapping[str, Any], command: Sequence[str]) -> None:
        self.out, self.paths = out, build_paths(out)
        self._plan, self._command = plan, command
        try:
            self._lock = self._join()
        except OSError as error:
            raise BuildError(f"cannot write beside {out} ({error.strerror}); choose another place") from error

    def __enter__(self) -> SharedStaging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def commit(self, manifest: Manifest) -> None:
        """Move the dataset to its destination. Another part may be doing the same.

        Raises:
            BuildError: if the destination contains something, or writing fails; if that is the same dataset, another
                part has committed it.
        """
        check_only_own(self.paths.folder)
        try:
            write_manifest(self.paths, manifest)
            if standing(self.out) is not None:
                raise BuildError(f"the dataset at {self.out} has appeared while it was built")
            self.paths.dataset.rename(self.out)
            sync_folder(self.out.parent)
        except OSError as error:
            raise BuildError(f"cannot move the dataset to {self.out} ({error.strerror})") from error

    def discard(self) -> None:
        """Remove the folder, as far as other parts are not removing it, too."""
        self._set_aside(self._lock)
        remove_set_aside(self.paths.folder)

    def _set_aside(self, file: BinaryIO) -> None:
        """Give the folder another name, if it is still the one whose lock this is."""
        folder = self.paths.folder
        with suppress(OSError):  # another part has done so
            if os.path.samestat(os.fstat(file.fileno()), (folder / "lock").stat()):
                folder.rename(self._unused_name())

    def _unused_name(self) -> Path:
        folder = self.paths.folder
        return folder.with_name(f"{folder.name}.{secrets.token_hex(TOKEN_BYTES)}.partial")

    def _join(self) -> BinaryIO:
        """Share the lock of the folder; create the folder if there is none."""
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):  # another part has committed, and removes the folder
                if not os.path.lexists(self.paths.folder):
                    self._create()
                check_made_by_build(self.paths.folder, has_plan(self.paths))
                file = open_lock(self.paths.folder / "lock")
                try:
                    usable = self._is_usable(file)
                except BaseException:
                    file.close()
                    raise
                if usable:
                    return file
                file.close()
        raise BuildError(f"{self.paths.folder} appears and disappears; look which builds of {self.out} run at once")

    def _is_usable(self, file: BinaryIO) -> bool:
        """Whether the folder holds the plan, once its lock is shared; False: it has gone, or is removed as it has none.

        Raises:
            BuildError: if it belongs to another build.
        """
        folder = self.paths.folder
        if not lock(file, shared=True):
            raise BuildError(f"a build without {_PART} is writing {self.out}; wait for it to end")
        if not os.path.samestat(os.fstat(file.fileno()), (folder / "lock").stat()):
            return False
        if (folder / SWAP).exists() or (folder / "replaced").exists():
            raise BuildError(f"{folder} is of a build that was killed at its end; run it again without {_PART} first")
        begun = plan_of(self.paths)
        if begun is None or ("probe" not in begun and not has_finished_shards(self.paths)):  # nothing to go on from
            check_only_own(folder)
            self._set_aside(file)
            remove_set_aside(folder)
            return False
        if any(begun.get(key) != value for key, value in self._plan.items()):
            unlike = difference(begun, self._plan, "remove that folder")
            raise BuildError(f"{folder} holds an unfinished build {unlike}; no part removes the shards of others")
        return True

    def _create(self) -> None:
        """Make the folder beside its place, complete, and rename it; if another part is faster, theirs is taken."""
        folder = self.paths.folder
        new = self._unused_name()
        new.mkdir(parents=True)
        try:
            (new / "lock").write_bytes(MARK)
            for name in ("notes", "dataset"):
                (new / name).mkdir()
            write_atomically(new / PLAN, json.dumps({**self._plan, **asked(_without_part(self._command))}))
            with suppress(OSError):  # it is there already
                new.rename(folder)
        finally:
            remove(new)
        sync_folder(folder.parent)


def drop_committed(out: Path, plan: Mapping[str, Any]) -> None:
    """Remove what a killed part has left beside the dataset of its plan: one may begin anew just after the commit."""
    folder = build_paths(out).folder
    if os.path.lexists(folder):
        with suppress(BuildError), Staging(out) as staging:
            begun = staging.plan()
            if begun is None or is_of(begun, plan):
                staging.discard()
    remove_set_aside(folder)


def _without_part(command: Sequence[str]) -> list[str]:
    """The words that build everything: what a message should show for an unfinished build."""
    words = [word for word in command if not word.startswith(f"{_PART}=") and word != "--commit"]
    if _PART in words:
        at = words.index(_PART)
        del words[at : at + 2]
    return words
