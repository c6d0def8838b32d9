"""Where a build writes: the folder ``.NAME.building`` beside the destination, held by one build at a time.

Comes in: a destination. Goes out: a :class:`~mmload.store.Site` to write shards in, and at the end one rename of the
whole dataset into place. A crash at any moment leaves the old dataset or the new one, and sealed shards to go on from.

    .NAME.building/
      lock, workers      held while a build, or one of its worker processes, lives
      plan.json          what is being built, of what
      notes/             seals, and the lines for samples.jsonl and skipped.jsonl
      dataset/           what becomes the dataset
      replaced/          the old dataset, for the moment between two renames
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from mmload.checksum import crc32
from mmload.errors import BuildError
from mmload.manifest import FILE_NAME, FileRecord, Manifest
from mmload.store import Site, remove, sync, sync_folder, write_atomically

_WAIT_FOR_WORKERS = 10.0  # seconds; orphans notice within milliseconds that their build is gone


class Staging:
    """One build's hold on the folder beside its destination. A context manager; recovers an interrupted swap on entry.

    Args:
        out: the destination, with no symbolic link in it.

    Raises:
        BuildError: if the folder cannot be created, or another build holds it.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.site = _site(out)
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
        return _plan(self.site)

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Forget whatever is in the folder and start on this plan."""
        for name in ("plan.json", "notes", "dataset"):
            remove(self.site.folder / name)
        self.site.dataset.mkdir()
        write_atomically(self.site.folder / "plan.json", json.dumps(plan))

    def committed(self, plan: Mapping[str, Any]) -> bool:
        """Whether a build of this plan was killed after its dataset was in place, and only had to clean up."""
        return self.plan() == plan and not self.site.dataset.exists()

    def join(self, file: Callable[[str, int], Path], split: str, shards: Sequence[int], name: str) -> FileRecord:
        """Join the shards' lines into one file of the split.

        Args:
            file: ``Site.samples_file`` or ``Site.skipped_file``.
            split: the split's name.
            shards: the shards' numbers, in order.
            name: the joined file's name.

        Raises:
            BuildError: if the disk refuses.
        """
        joined = self.site.dataset / split / name
        try:
            joined.parent.mkdir(parents=True, exist_ok=True)
            return _join([file(split, index) for index in shards], joined)
        except OSError as error:
            raise BuildError(
                f"cannot write {joined} ({error.strerror}); what is sealed is kept: make room, then run the same again"
            ) from error

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest, move the dataset to its destination, drop what it replaces and the folder itself.

        Raises:
            BuildError: if the disk refuses, or there is something at the destination that is no dataset.
        """
        try:
            write_atomically(self.site.dataset / FILE_NAME, manifest.dumps())
            if (self.out / FILE_NAME).is_file():
                self.out.rename(self._replaced)
            self.site.dataset.rename(self.out)
            sync_folder(self.out.parent)
            self.discard()
        except OSError as error:
            raise BuildError(f"cannot move the dataset to {self.out} ({error.strerror})") from error

    def discard(self) -> None:
        """Drop the folder; the plan goes late, for :meth:`committed`, and the lock last."""
        late = ("plan.json", "lock")
        for entry in sorted(self.site.folder.iterdir(), key=lambda path: (path.name in late, path.name != late[0])):
            remove(entry)
        self.site.folder.rmdir()

    @property
    def _replaced(self) -> Path:
        return self.site.folder / "replaced"

    def _hold(self) -> BinaryIO:
        """Take the lock; again if the build that held it removed the file just then."""
        while True:
            self.site.folder.mkdir(parents=True, exist_ok=True)
            path = self.site.folder / "lock"
            try:
                lock = open(path, "ab")  # noqa: SIM115  # held until __exit__
            except FileNotFoundError:
                continue
            if not _lock(lock):
                lock.close()
                raise BuildError(f"another build is writing {self.out}; wait for it to end")
            if path.exists() and os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                self._await_workers()
                return lock
            lock.close()

    def _await_workers(self) -> None:
        """Wait until no worker of a build that was killed can still be writing."""
        until = time.monotonic() + _WAIT_FOR_WORKERS
        with open(self.site.folder / "workers", "ab") as file:
            while not _lock(file):
                if time.monotonic() > until:
                    raise BuildError(f"workers of an earlier build are still writing {self.out}; end them first")
                time.sleep(0.02)

    def _recover(self) -> None:
        """Finish what a build was doing when it was killed between, or just after, the two renames of its commit."""
        if self._replaced.exists() and not self.out.exists():
            done = (self.site.dataset / FILE_NAME).is_file()
            (self.site.dataset if done else self._replaced).rename(self.out)
            sync_folder(self.out.parent)
        remove(self._replaced)


def killed_at_its_end(out: Path, plan: Mapping[str, Any]) -> bool:
    """Whether the folder beside a destination may be what a kill left in the last steps of this build, or of a repair.

    Then the destination may be whole, or missing for now, and what is left has to go.
    """
    site = _site(out)
    return site.folder.exists() and ((site.folder / "replaced").exists() or _plan(site) in (None, plan))


def _site(out: Path) -> Site:
    return Site(out.parent / f".{out.name}.building")


def _plan(site: Site) -> dict[str, Any] | None:
    try:
        plan = json.loads((site.folder / "plan.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return plan if isinstance(plan, dict) else None


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


def attend(site: Site) -> BinaryIO:
    """What a worker process holds while it lives, so that no other build starts under it; close it, or exit."""
    file = open(site.folder / "workers", "ab")  # noqa: SIM115  # held while the worker lives
    while not _lock(file, shared=True):
        time.sleep(0.02)  # a build that is just starting looks whether anybody is here
    return file


def _lock(file: BinaryIO, shared: bool = False) -> bool:
    """Take the lock for as long as the file is open; the system drops it with the process."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        if shared:
            return True  # it has no shared locks; workers there end with their build
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
