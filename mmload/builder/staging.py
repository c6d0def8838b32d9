"""The working folder of a build, ``.NAME.building`` beside the destination: locked, recovered, and moved into place.

At the end, the dataset is moved to its destination in one step. After a crash at any time there is either the old
dataset or the new one, and the build can resume from the finished shards.

    .NAME.building/
      lock               held while a build is alive; its content identifies the folder
      workers            held while one of its worker processes is alive
      plan.json          recipe and source of the build, and how it was asked for
      notes/             seals, and the lines for samples.jsonl and skipped.jsonl
      dataset/           the new dataset
      parts/             shards that are written by several processes at once, each in a folder of its own, then moved
      swap.json          identifies the new dataset, while the old one is exchanged for it
      replaced/          the old dataset, until its files are removed
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from mmload.builder.destination import remove_dataset, standing
from mmload.builder.staging_files import (
    MARK,
    PARTS,
    PLAN,
    SWAP,
    check_made_by_build,
    check_only_own,
    remove_own,
    remove_set_aside,
    remove_working_folder,
)
from mmload.errors import BuildError
from mmload.runtime.durable_files import (
    TOKEN_BYTES,
    exchange,
    folder_lock,
    lock,
    open_lock,
    remove,
    sync,
    sync_folder,
    write_atomically,
)
from mmload.runtime.regular_files import read_regular
from mmload.store.checksum import crc32
from mmload.store.manifest import FILE_NAME, Manifest
from mmload.store.shard_table import FileRecord
from mmload.store.shard_writer import BuildPaths
from mmload.store.unfinished import staging_folder

_WAIT_FOR_WORKERS = 10.0  # seconds; orphans notice within milliseconds that their build has ended


class Staging:
    """The locked working folder of one build. A context manager; recovers an interrupted swap on creation.

    Args:
        out: the destination, with no symbolic link in it.

    Attributes:
        left: the new path of files in the replaced dataset's folder that did not belong to it; None: there were none.

    Raises:
        BuildError: if the folder cannot be created, another build holds its lock, or it was not created by a build.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.paths = build_paths(out)
        self.left: Path | None = None
        try:
            self._lock = self._hold()
            self._recover()
            remove(self.paths.folder / PARTS)  # of parts that were killed: the lock says that none is running
        except OSError as error:
            raise BuildError(f"cannot write beside {out} ({error.strerror}); choose another place") from error

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def plan(self) -> dict[str, Any] | None:
        """The plan of the build in this folder; None if the folder is new."""
        return plan_of(self.paths)

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Discard the build in the folder and start this plan."""
        remove(self.paths.folder / PLAN)
        remove_own(self.paths.folder)
        self.paths.dataset.mkdir()
        write_atomically(self.paths.folder / PLAN, json.dumps(plan))

    def committed(self, plan: Mapping[str, Any]) -> bool:
        """Whether a build of this plan was killed after its commit, with only the cleanup remaining."""
        return is_of(self.plan(), plan) and not self.paths.dataset.exists()

    def commit(self, manifest: Manifest, *, replaces: str | None) -> None:
        """Write the manifest, move the dataset to its destination, remove the replaced dataset and the working folder.

        Args:
            manifest: the new dataset's.
            replaces: :attr:`Manifest.contents` of the dataset at the destination that may be replaced; None: no
                dataset may be replaced.

        Raises:
            BuildError: if writing fails, or the destination contains something that may not be replaced.
        """
        try:
            write_manifest(self.paths, manifest)
            there = standing(self.out)
            if there is None:
                self.paths.dataset.rename(self.out)
            elif there.contents == replaces:
                self._swap()
            else:
                raise BuildError(
                    f"the dataset at {self.out} has appeared while it was built; move it elsewhere, then run the same "
                    "again"
                )
            sync_folder(self.out.parent)
            self.discard()
        except OSError as error:
            raise BuildError(f"cannot move the dataset to {self.out} ({error.strerror})") from error

    def discard(self) -> None:
        """Remove the folder."""
        self._drop_replaced()
        remove_working_folder(self.paths.folder)
        remove_set_aside(self.paths.folder)

    @property
    def _replaced(self) -> Path:
        return self.paths.folder / "replaced"

    def _swap(self) -> None:
        """Exchange the dataset at the destination for the new one; if that takes two renames, it is absent in between.

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

    def _drop_replaced(self) -> None:
        """Remove the old dataset's own files, and move all other files in its folder beside the destination."""
        if not self._replaced.is_dir() or remove_dataset(self._replaced):
            return
        number = 1
        while os.path.lexists(left := self.out.with_name(f"{self.out.name}.left-{number}")):
            number += 1
        self._replaced.rename(left)
        self.left = left

    def _hold(self) -> BinaryIO:
        """Acquire the lock; retry if the build that held it has removed the file meanwhile."""
        path = self.paths.folder / "lock"
        while True:
            if not os.path.lexists(self.paths.folder):
                self.paths.folder.mkdir(parents=True, exist_ok=True)
            try:
                check_made_by_build(self.paths.folder, has_plan(self.paths))
                file = open_lock(path)
            except FileNotFoundError:
                continue
            if not lock(file):
                file.close()
                raise BuildError(f"another build is writing {self.out}; wait for it to end")
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                try:
                    check_only_own(self.paths.folder)
                    self._mark(file)
                    self.await_workers()
                except BaseException:
                    file.close()
                    raise
                return file
            file.close()

    def _mark(self, file: BinaryIO) -> None:
        if os.fstat(file.fileno()).st_size != len(MARK):
            file.truncate(0)
            file.write(MARK)
            sync(file)

    def await_workers(self) -> None:
        """Wait until no worker of a killed build, or one that was given up, can still be writing.

        Raises:
            BuildError: if that takes long.
        """
        until = time.monotonic() + _WAIT_FOR_WORKERS
        with open_lock(self.paths.folder / "workers") as file:
            while not lock(file):
                if time.monotonic() > until:
                    raise BuildError(f"workers of an earlier build are still writing {self.out}; end them first")
                time.sleep(0.02)

    def _recover(self) -> None:
        """Complete the swap of a build that was killed during its commit, or just after it."""
        dataset, swap = self.paths.dataset, _json(self.paths.folder / SWAP)
        if swap is not None and (dataset / FILE_NAME).is_file() and _digest(dataset) != swap.get("manifest"):
            dataset.rename(self._replaced)  # already exchanged: this is the old one
        if self._replaced.exists() and not self.out.exists():
            done = (dataset / FILE_NAME).is_file()
            (dataset if done else self._replaced).rename(self.out)
            sync_folder(self.out.parent)
        remove(self.paths.folder / SWAP)
        self._drop_replaced()


def join_lists(
    paths: BuildPaths, file: Callable[[str, int], Path], split: str, shards: Sequence[int], name: str
) -> FileRecord:
    """Concatenate the shards' lines into one file of the split.

    Args:
        paths: of the build.
        file: ``BuildPaths.samples_file`` or ``BuildPaths.skipped_file``.
        split: the split's name.
        shards: the shards' numbers, in order.
        name: the joined file's name.

    Raises:
        BuildError: if writing fails.
    """
    joined = paths.dataset / split / name
    crc = size = 0
    try:
        joined.parent.mkdir(parents=True, exist_ok=True)
        with moved_into_place(paths, joined) as out:
            for part in (file(split, index) for index in shards):
                with open(part, "rb") as lines:
                    while block := lines.read(1 << 20):
                        out.write(block)
                        crc = crc32(block, crc)
                        size += len(block)
    except OSError as error:
        raise BuildError(
            f"cannot write {joined} ({error.strerror}); what is sealed is kept: make room, then run the same again"
        ) from error
    return FileRecord(bytes=size, crc32=f"{crc:08x}")


@contextmanager
def moved_into_place(paths: BuildPaths, place: Path) -> Iterator[BinaryIO]:
    """A file that is written beside the dataset and then moved into it, durably.

    So a dataset contains none that is unfinished, also if another process of the same build moves it away meanwhile.
    """
    partial = paths.folder / "notes" / f"{place.name}.{secrets.token_hex(TOKEN_BYTES)}.partial"
    partial.parent.mkdir(exist_ok=True)  # without parents: they go when another process commits
    try:
        with open(partial, "xb") as file:
            yield file
            sync(file)
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(place.parent)


def write_manifest(paths: BuildPaths, manifest: Manifest) -> None:
    """Write the manifest of the new dataset.

    Raises:
        OSError: if a file system operation fails.
    """
    with moved_into_place(paths, paths.dataset / FILE_NAME) as file:
        file.write(manifest.dumps().encode("utf-8", "backslashreplace"))


def killed_at_its_end(out: Path, plan: Mapping[str, Any]) -> bool:
    """Whether a kill in the last steps of this build, or of a repair, may have left the folder beside a destination.

    Then the destination may be complete, or temporarily missing, and the leftovers must be removed.
    """
    paths = build_paths(out)
    begun = plan_of(paths)
    aside = any((paths.folder / name).exists() for name in ("replaced", SWAP))
    return paths.folder.exists() and (aside or begun is None or is_of(begun, plan))


def drop_leftovers(out: Path) -> None:
    """Remove the leftovers of a killed repair, unless the folder is in use, or a build can resume from it."""
    if os.path.lexists(staging_folder(out)):
        with suppress(BuildError), Staging(out) as staging:
            if staging.plan() is None:
                staging.discard()


def has_finished_shards(paths: BuildPaths) -> bool:
    """Whether the build in a working folder has finished at least one shard."""
    return any((paths.folder / "notes").glob("*/*.json"))


def is_of(begun: Mapping[str, Any] | None, plan: Mapping[str, Any]) -> bool:
    """Whether a build has this recipe and source, regardless of versions."""
    return begun is not None and all(begun.get(key) == plan[key] for key in ("recipe", "fingerprint"))


def build_paths(out: Path) -> BuildPaths:
    """The paths in the working folder of a destination."""
    return BuildPaths(staging_folder(out))


def plan_of(paths: BuildPaths) -> dict[str, Any] | None:
    """The plan of the build in a working folder; None if there is none that can be read."""
    return _json(paths.folder / PLAN)


def has_plan(paths: BuildPaths) -> bool:
    """Whether a working folder contains the plan of a build."""
    return {"recipe", "fingerprint"} <= (plan_of(paths) or {}).keys()


def _json(path: Path) -> dict[str, Any] | None:
    try:
        body = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _digest(dataset: Path) -> str:
    """The SHA-256 of a dataset's manifest."""
    return hashlib.sha256(read_regular(dataset / FILE_NAME)).hexdigest()


def attend(paths: BuildPaths) -> BinaryIO:
    """A lock that a worker process holds while it is alive, so that no other build starts meanwhile."""
    file = open_lock(paths.folder / "workers")
    while not lock(file, shared=True):
        time.sleep(0.02)  # a starting build holds it to check for live workers
    return file
