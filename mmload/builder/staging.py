"""The working folder of a build, ``.NAME.building`` beside the destination: locked, recovered, and moved into place.

At the end, the dataset takes its place in one step. A crash at any moment leaves the old dataset or the new one, and
finished shards to continue from.

    .NAME.building/
      lock               held while a build lives; its content says whose folder this is
      workers            held while one of its worker processes lives
      plan.json          what is being built, of what
      notes/             seals, and the lines for samples.jsonl and skipped.jsonl
      dataset/           what becomes the dataset
      swap.json          which dataset is the new one, while the old one is exchanged for it
      replaced/          the old dataset, until its files are removed
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from mmload.builder.destination import remove_dataset, staging_folder, standing
from mmload.builder.staging_files import (
    MARK,
    PLAN,
    SWAP,
    check_made_by_build,
    check_only_own,
    is_leftover,
    remove_own,
)
from mmload.errors import BuildError
from mmload.runtime.durable_files import (
    exchange,
    folder_lock,
    lock,
    open_lock,
    remove,
    remove_partials,
    sync,
    sync_folder,
    write_atomically,
)
from mmload.runtime.regular_files import read_regular
from mmload.store.checksum import crc32
from mmload.store.manifest import FILE_NAME, FileRecord, Manifest
from mmload.store.shard_writer import BuildPaths

_WAIT_FOR_WORKERS = 10.0  # seconds; orphans notice within milliseconds that their build is gone


class Staging:
    """The locked working folder of one build. A context manager; recovers an interrupted swap on creation.

    Args:
        out: the destination, with no symbolic link in it.

    Attributes:
        left: where the files are now that were in the replaced dataset's folder and not its own; None: there were none.

    Raises:
        BuildError: if the folder cannot be created, another build holds it, or no build made it.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.paths = _build_paths(out)
        self.left: Path | None = None
        try:
            self._lock = self._hold()
            self._recover()
        except OSError as error:
            raise BuildError(f"cannot write beside {out} ({error.strerror}); choose another place") from error

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def plan(self) -> dict[str, Any] | None:
        """The plan that the build in this folder was begun with; None if it is new."""
        return _plan(self.paths)

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Forget the build in the folder and start on this plan."""
        remove(self.paths.folder / PLAN)
        remove_own(self.paths.folder)
        self.paths.dataset.mkdir()
        write_atomically(self.paths.folder / PLAN, json.dumps(plan))

    def committed(self, plan: Mapping[str, Any]) -> bool:
        """Whether a build of this plan was killed after its dataset was in place, and only had to clean up."""
        return _is_of(self.plan(), plan) and not self.paths.dataset.exists()

    def has_finished_shards(self) -> bool:
        """Whether a shard of the build in this folder is finished."""
        return any((self.paths.folder / "notes").glob("*/*.json"))

    def join(self, file: Callable[[str, int], Path], split: str, shards: Sequence[int], name: str) -> FileRecord:
        """Join the shards' lines into one file of the split.

        Args:
            file: ``BuildPaths.samples_file`` or ``BuildPaths.skipped_file``.
            split: the split's name.
            shards: the shards' numbers, in order.
            name: the joined file's name.

        Raises:
            BuildError: if the disk refuses.
        """
        joined = self.paths.dataset / split / name
        try:
            joined.parent.mkdir(parents=True, exist_ok=True)
            return _join([file(split, index) for index in shards], joined)
        except OSError as error:
            raise BuildError(
                f"cannot write {joined} ({error.strerror}); what is sealed is kept: make room, then run the same again"
            ) from error

    def commit(self, manifest: Manifest, *, replaces: str | None) -> None:
        """Write the manifest, move the dataset to its destination, drop what it replaces and the folder itself.

        Args:
            manifest: the new dataset's.
            replaces: :attr:`Manifest.contents` of the dataset at the destination that may be replaced; None: no
                dataset may.

        Raises:
            BuildError: if the disk refuses, or there is something at the destination that may not be replaced.
        """
        try:
            remove_partials(self.paths.dataset / FILE_NAME)  # of a build that was killed here
            write_atomically(self.paths.dataset / FILE_NAME, manifest.dumps())
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
        """Drop the folder; the plan goes late, for :meth:`committed`, and the lock last."""
        self._drop_replaced()
        leftovers = [path for path in self.paths.folder.iterdir() if is_leftover(path.name)]
        for path in (*leftovers, self.paths.folder / "workers", self.paths.folder / SWAP):
            remove(path)
        remove_own(self.paths.folder)
        for name in (PLAN, "lock"):
            remove(self.paths.folder / name)
        with suppress(OSError):  # another build may be waiting in it
            self.paths.folder.rmdir()

    @property
    def _replaced(self) -> Path:
        return self.paths.folder / "replaced"

    def _swap(self) -> None:
        """Exchange the dataset at the destination for the new one; where that takes two renames, it is absent between.

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
        """Remove the old dataset's own files, and move what else is in its folder beside the destination."""
        if not self._replaced.is_dir() or remove_dataset(self._replaced):
            return
        number = 1
        while os.path.lexists(left := self.out.with_name(f"{self.out.name}.left-{number}")):
            number += 1
        self._replaced.rename(left)
        self.left = left

    def _hold(self) -> BinaryIO:
        """Take the lock; again if the build that held it removed the file just then."""
        path = self.paths.folder / "lock"
        while True:
            if not os.path.lexists(self.paths.folder):
                self.paths.folder.mkdir(parents=True, exist_ok=True)
            try:
                check_made_by_build(self.paths.folder, _has_plan(self.paths))
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
                    self._await_workers()
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

    def _await_workers(self) -> None:
        """Wait until no worker of a build that was killed can still be writing."""
        until = time.monotonic() + _WAIT_FOR_WORKERS
        with open_lock(self.paths.folder / "workers") as file:
            while not lock(file):
                if time.monotonic() > until:
                    raise BuildError(f"workers of an earlier build are still writing {self.out}; end them first")
                time.sleep(0.02)

    def _recover(self) -> None:
        """Finish what a build was doing when it was killed during, or just after, the swap of its commit."""
        dataset, swap = self.paths.dataset, _json(self.paths.folder / SWAP)
        if swap is not None and (dataset / FILE_NAME).is_file() and _digest(dataset) != swap.get("manifest"):
            dataset.rename(self._replaced)  # they were exchanged: this is the old one
        if self._replaced.exists() and not self.out.exists():
            done = (dataset / FILE_NAME).is_file()
            (dataset if done else self._replaced).rename(self.out)
            sync_folder(self.out.parent)
        remove(self.paths.folder / SWAP)
        self._drop_replaced()


def killed_at_its_end(out: Path, plan: Mapping[str, Any]) -> bool:
    """Whether the folder beside a destination may be what a kill left in the last steps of this build, or of a repair.

    Then the destination may be whole, or missing for now, and what is left has to go.
    """
    paths = _build_paths(out)
    begun = _plan(paths)
    aside = any((paths.folder / name).exists() for name in ("replaced", SWAP))
    return paths.folder.exists() and (aside or begun is None or _is_of(begun, plan))


def drop_leftovers(out: Path) -> None:
    """Remove what a kill left of a repair, unless something is at work there, or a build goes on from it."""
    if os.path.lexists(staging_folder(out)):
        with suppress(BuildError), Staging(out) as staging:
            if staging.plan() is None:
                staging.discard()


def _is_of(begun: Mapping[str, Any] | None, plan: Mapping[str, Any]) -> bool:
    """Whether a build has this recipe and source, built by any versions."""
    return begun is not None and all(begun.get(key) == plan[key] for key in ("recipe", "fingerprint"))


def _build_paths(out: Path) -> BuildPaths:
    return BuildPaths(staging_folder(out))


def _plan(paths: BuildPaths) -> dict[str, Any] | None:
    return _json(paths.folder / PLAN)


def _has_plan(paths: BuildPaths) -> bool:
    return {"recipe", "fingerprint"} <= (_plan(paths) or {}).keys()


def _json(path: Path) -> dict[str, Any] | None:
    try:
        body = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _digest(dataset: Path) -> str:
    """The SHA-256 of a dataset's manifest."""
    return hashlib.sha256(read_regular(dataset / FILE_NAME)).hexdigest()


def _join(parts: Sequence[Path], joined: Path) -> FileRecord:
    crc = size = 0
    with open(joined, "wb") as out:
        for part in parts:
            with open(part, "rb") as lines:
                while block := lines.read(1 << 20):
                    out.write(block)
                    crc = crc32(block, crc)
                    size += len(block)
        sync(out)
    return FileRecord(bytes=size, crc32=f"{crc:08x}")


def attend(paths: BuildPaths) -> BinaryIO:
    """A lock that a worker process holds while it lives, so that no other build starts meanwhile."""
    file = open_lock(paths.folder / "workers")
    while not lock(file, shared=True):
        time.sleep(0.02)  # a build that is just starting holds it to see whether workers live
    return file
