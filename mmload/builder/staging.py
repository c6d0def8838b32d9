"""The working folder of a build, ``.NAME.building`` beside the destination: one protocol for one process and for many.

    .NAME.building/
      lock               held while a build is alive; its content identifies the folder
      workers            held while one of its worker processes is alive
      plan.json          recipe, source and command line of the build
      parts/             shards that are being written, each in a folder of its own (:mod:`mmload.builder.shard_job`)
      notes/             seals, and the lines for samples.jsonl and skipped.jsonl
      dataset/           the finished shards of the new dataset
      swap.json          identifies the new dataset, while the old one is exchanged for it
      replaced/          the old dataset, until its files are removed

The folder appears in one step, with its mark; finished shards are moved into it; the dataset leaves it in one step. All
of these are atomic renames, so any number of processes may do them at once, on any number of machines. After a crash
at any time there is either the old dataset or the new one, and the build can resume from the finished shards.

The lock, where the file system has locks, distinguishes two kinds of builds. A build without ``--part`` holds it alone:
it may discard what another build has left, and replace a dataset. Parts of a build share it: none removes anything of
the others, and the folder gets another name before it is removed, so that a part that still works finds no place to
write to.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from mmload.builder.build_plans import COLUMN, UPDATES, difference, has_same_recipe, have_same_plan, unfinished_advice
from mmload.builder.destination import (
    MARK,
    PARTS,
    PLAN,
    SWAP,
    VERSION,
    check_made_by_build,
    check_only_own,
    dataset_at,
    remove_dataset,
    remove_own,
    remove_set_aside,
    remove_working_folder,
)
from mmload.builder.finished_shards import BuildPaths
from mmload.builder.split_records import write_blocks
from mmload.builder.version_commit import add_to_dataset
from mmload.errors import BuildError, StoreError
from mmload.runtime.durable_files import (
    TOKEN_BYTES,
    exchange,
    folder_lock,
    lock,
    open_lock,
    remove,
    sync_folder,
    write_atomically,
)
from mmload.runtime.regular_files import read_regular
from mmload.store.manifest import FILE_NAME, Manifest, read
from mmload.store.unfinished import staging_folder

_WAIT_FOR_WORKERS = 10.0  # seconds; orphans notice within milliseconds that their build has ended
_TRIES = 100  # another process may remove the folder between two checks, but not indefinitely


class Staging:
    """The locked working folder of a build. A context manager; completes an interrupted exchange on creation.

    Args:
        out: the destination, with no symbolic link in it.
        plan: plan of the build; an unfinished build with this plan resumes. None: no plan is written, and an existing
            one stays.
        shared: whether parts of this build may work in the folder at the same time; else the lock is held alone.
        overwrite: discard finished shards of another plan.

    Attributes:
        committed: whether a build of this plan was killed after its commit, with only the cleanup remaining.
        foreign_files: new path of files in the replaced dataset's folder that did not belong to it; None: none.

    Raises:
        BuildError: if the folder cannot be created, another build holds its lock, it was not created by a build, or it
            has finished shards of another plan.
    """

    def __init__(
        self, out: Path, plan: Mapping[str, Any] | None = None, *, shared: bool = False, overwrite: bool = False
    ) -> None:
        self.out, self.shared = out, shared
        self.paths = BuildPaths(staging_folder(out))
        self.committed = False
        self.foreign_files: Path | None = None
        self._wanted, self._overwrite = plan, overwrite
        try:
            self._lock = self._enter()
        except OSError as error:
            advice = f"make {out.parent} writable, with some room" if os.path.lexists(out) else "choose another place"
            raise BuildError(f"cannot write beside {out} ({error.strerror}); {advice}") from error
        self.paths = self.paths.with_plan()

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def plan(self) -> dict[str, Any] | None:
        """Returns the plan of the build in this folder; None if there is none that can be read."""
        return _json(self.paths.folder / PLAN)

    def commit(self, manifest: Manifest, *, replaces: str | None = None) -> None:
        """Writes the manifest, moves the dataset to its destination, and removes a replaced dataset and the folder.

        ``replaces`` is :attr:`Manifest.contents` of the dataset that may be replaced; None: none may be.

        Raises:
            BuildError: if writing fails, or the destination contains something that may not be replaced. If that is
                the same dataset, another part has committed it.
        """
        check_only_own(self.paths.folder)
        if not self.shared:
            self.await_workers()
        try:
            write_manifest(self.paths, manifest)
            dataset = dataset_at(self.out)
            if dataset is None:
                self.paths.dataset.rename(self.out)
            elif dataset.contents == replaces:
                self._swap()
            else:
                raise BuildError(
                    f"the dataset at {self.out} appeared during the build; move it elsewhere, "
                    "then run the same command again"
                )
            sync_folder(self.out.parent)
            self.discard()
        except OSError as error:
            raise BuildError(f"cannot move the dataset to {self.out} ({error.strerror})") from error

    def add_version(self, manifest: Manifest, after: str) -> None:
        """Moves the new shards and lists into the dataset at the destination, and replaces its manifest.

        Nothing that the dataset has is changed or removed: a reader goes on. A kill leaves the old version or the new
        one, as the manifest is replaced last, in one step.

        Raises:
            BuildError: if writing fails, or the dataset has another version meanwhile.
        """
        check_only_own(self.paths.folder)
        if not self.shared:
            self.await_workers()
        try:
            write_manifest(self.paths, manifest)
            write_atomically(self.paths.folder / VERSION, json.dumps({"after": after, "contents": manifest.contents}))
            add_to_dataset(self.paths.dataset, self.out, manifest, after)
            self.discard()
        except OSError as error:
            raise BuildError(f"cannot add a version to {self.out} ({error.strerror})") from error

    def complete_version(self) -> bool:
        """Completes a new version that a process was adding when it was killed, or is adding; returns whether."""
        dataset = self.paths.dataset
        with suppress(BuildError, StoreError, FileNotFoundError):
            self.paths.check_there()
            version = _json(self.paths.folder / VERSION)
            if version is not None and (dataset / FILE_NAME).is_file() and (self.out / FILE_NAME).is_file():
                add_to_dataset(dataset, self.out, read(dataset), str(version.get("after")))
                return True
        return False

    def discard(self) -> None:
        """Removes what is left of the folder."""
        if self.shared:
            self._set_aside(self._lock)
        elif self.paths.folder.exists():
            self._drop_replaced()
            remove_working_folder(self.paths.folder)
        remove_set_aside(self.paths.folder)

    def await_workers(self) -> None:
        """Waits until no worker of a killed or abandoned build can still be writing.

        Raises:
            BuildError: if that takes long.
        """
        until = time.monotonic() + _WAIT_FOR_WORKERS
        with open_lock(self.paths.folder / "workers") as file:
            while not lock(file):
                if time.monotonic() > until:
                    raise BuildError(f"workers of an earlier build are still writing {self.out}; end them first")
                time.sleep(0.02)

    # The folder: creation, lock and removal.

    def _enter(self) -> BinaryIO:
        """Acquires the lock; creates the folder if there is none."""
        folder = self.paths.folder
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):  # the build that held the lock has removed the folder meanwhile
                if not os.path.lexists(folder):
                    self._create()
                has_plan = {"recipe", "fingerprint"} <= (self.plan() or {}).keys()
                check_made_by_build(folder, has_plan)
                file = open_lock(folder / "lock")
                try:
                    usable = self._is_usable(file)
                except BaseException:
                    file.close()
                    raise
                if usable:
                    return file
                file.close()
        raise BuildError(f"{folder} appears and disappears; look which builds of {self.out} run at once")

    def _create(self) -> None:
        """Creates the folder under a temporary name and renames it; if another process was faster, its folder stays."""
        folder = self.paths.folder
        new = self._unused_name()
        new.mkdir(parents=True)
        try:
            (new / "lock").write_bytes(MARK)
            if self._wanted is not None:
                (new / "dataset").mkdir()
                write_atomically(new / PLAN, json.dumps(self._wanted))
            with suppress(OSError):  # it is there already
                new.rename(folder)
        finally:
            remove(new)
        sync_folder(folder.parent)

    def _is_usable(self, file: BinaryIO) -> bool:
        """Locks the file; returns whether the folder can be used; if False, it was removed and has to be created."""
        folder = self.paths.folder
        if not lock(file, shared=self.shared):
            other = "a build without --part" if self.shared else "another build"
            raise BuildError(f"{other} is writing {self.out}; wait for it to end")
        if not os.path.samestat(os.fstat(file.fileno()), (folder / "lock").stat()):
            return False
        check_only_own(folder)
        if not self.shared:
            self.await_workers()
            self._recover()
            remove(folder / PARTS)  # of processes that were killed: the lock says that none is running
        elif any((folder / name).exists() for name in (SWAP, "replaced")):
            raise BuildError(
                f"{folder} belongs to a build that was killed at its end; run it again without --part first"
            )
        else:
            self.complete_version()
        if self._wanted is None or self._has_plan(self._wanted):
            return True
        check_only_own(folder)
        self._set_aside(file)
        remove_set_aside(folder)
        return False

    def _has_plan(self, plan: Mapping[str, Any]) -> bool:
        """Returns whether the build in the folder has this plan; False if there is no build to resume."""
        folder, begun = self.paths.folder, self.plan()
        self.committed = has_same_recipe(begun, plan) and not self.paths.dataset.exists()
        if begun is None or self.committed or have_same_plan(begun, plan):
            return begun is not None
        updates = UPDATES in plan or not (self.out / FILE_NAME).exists()
        if COLUMN in plan and COLUMN not in begun and has_finished_shards(self.paths):
            raise BuildError(f"{folder} holds an unfinished {unfinished_advice(begun)}")
        if UPDATES in begun and updates and COLUMN not in begun and not self.shared:
            return False  # an update of an earlier state of the source, or of a dataset that is gone: nobody needs it
        if self.shared or (has_finished_shards(self.paths) and not self._overwrite):
            unlike = difference(begun, plan, "remove that folder" if self.shared else "add --overwrite")
            others = "; no part removes the shards of others" if self.shared else ""
            raise BuildError(f"{folder} holds an unfinished {unlike}{others}")
        return False

    def _set_aside(self, file: BinaryIO) -> None:
        """Renames the folder, if the lock file still belongs to it."""
        folder = self.paths.folder
        with suppress(OSError):  # another part has done so
            if os.path.samestat(os.fstat(file.fileno()), (folder / "lock").stat()):
                aside = self._unused_name()
                folder.rename(aside)
                if not os.path.samestat(os.fstat(file.fileno()), (aside / "lock").stat()):
                    aside.rename(folder)  # of a later command: another part had set aside the one that was looked at

    def _unused_name(self) -> Path:
        folder = self.paths.folder
        return folder.with_name(f"{folder.name}.{secrets.token_hex(TOKEN_BYTES)}.partial")

    # Replacement of the old dataset by the new one.

    @property
    def _replaced(self) -> Path:
        return self.paths.folder / "replaced"

    def _swap(self) -> None:
        """Exchanges the dataset at the destination for the new one; if that takes two renames, it is absent in between.

        The folder's lock keeps a report from being recorded in one manifest and written to the other.
        """
        write_atomically(self.paths.folder / SWAP, json.dumps({"manifest": _digest(self.paths.dataset)}))
        with folder_lock(self.out):
            if exchange(self.paths.dataset, self.out):
                self.paths.dataset.rename(self._replaced)
            else:
                self.out.rename(self._replaced)
                self.paths.dataset.rename(self.out)
        remove(self.paths.folder / SWAP)

    def _recover(self) -> None:
        """Completes what a build or an update was doing that was killed during its commit, or just after it."""
        dataset, swap = self.paths.dataset, _json(self.paths.folder / SWAP)
        if self.complete_version():
            remove_own(self.paths.folder)
            remove(self.paths.folder / PLAN)
        remove(self.paths.folder / VERSION)
        if swap is not None and (dataset / FILE_NAME).is_file() and _digest(dataset) != swap.get("manifest"):
            dataset.rename(self._replaced)  # already exchanged: this is the old one
        if self._replaced.exists() and not self.out.exists():
            done = (dataset / FILE_NAME).is_file()
            (dataset if done else self._replaced).rename(self.out)
            sync_folder(self.out.parent)
        remove(self.paths.folder / SWAP)
        self._drop_replaced()

    def _drop_replaced(self) -> None:
        """Removes the old dataset's own files, and moves all other files in its folder beside the destination."""
        if not self._replaced.is_dir() or remove_dataset(self._replaced):
            return
        number = 1
        while os.path.lexists(folder := self.out.with_name(f"{self.out.name}.left-{number}")):
            number += 1
        self._replaced.rename(folder)
        self.foreign_files = folder


def write_manifest(paths: BuildPaths, manifest: Manifest) -> None:
    """Writes the manifest of the new dataset.

    Raises:
        OSError: if a file system operation fails.
    """
    write_blocks(paths, paths.dataset / FILE_NAME, [manifest.dumps().encode("utf-8", "backslashreplace")])


def drop_leftovers(out: Path, plan: Mapping[str, Any] | None = None, *, shared: bool = False) -> Path | None:
    """Removes what a repair or a build of this plan, killed at its end, has left beside a finished dataset.

    The folder stays if it is in use, or if a build of another plan can resume from it. A part of a build takes it
    ``shared``: another part that is late may be about to look into it, and would be refused.

    Returns:
        :attr:`Staging.foreign_files`.
    """
    folder, foreign_files = staging_folder(out), None
    if os.path.lexists(folder):
        with suppress(BuildError, StoreError), Staging(out, shared=shared) as staging:
            begun = staging.plan()
            if begun is None or (
                plan is not None
                and COLUMN not in begun
                and has_same_recipe(begun, plan)
                and begun.get(UPDATES) != read(out).contents  # else an update that goes on
            ):
                staging.discard()
            foreign_files = staging.foreign_files
    remove_set_aside(folder)
    return foreign_files


def hold_worker_lock(paths: BuildPaths) -> BinaryIO:
    """Returns a lock that a worker process holds while it is alive, so that no other build starts meanwhile."""
    file = open_lock(paths.folder / "workers")
    while not lock(file, shared=True):
        time.sleep(0.02)  # a starting build holds it to check for live workers
    return file


def has_finished_shards(paths: BuildPaths) -> bool:
    """Returns whether the build in a working folder has finished at least one shard."""
    return any((paths.folder / "notes").glob("*/*.json"))


def _json(path: Path) -> dict[str, Any] | None:
    with suppress(OSError, ValueError, RecursionError):
        body = json.loads(read_regular(path))
        return body if isinstance(body, dict) else None
    return None


def _digest(dataset: Path) -> str:
    """Returns the SHA-256 of a dataset's manifest."""
    return hashlib.sha256(read_regular(dataset / FILE_NAME)).hexdigest()
