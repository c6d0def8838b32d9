"""The ranks that scripts/rank_memory measures and kills: processes with a loader each, which do what they are told."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mmload
from mmload.augment import Normalize, RandomCrop, RandomHorizontalFlip
from mmload.loader import Loader
from mmload.records import FieldSpec
from mmload.runtime import processes, shared_segment
from mmload.store.manifest import FILE_NAME, SAMPLES_NAME, Manifest, SplitRecord
from mmload.store.shard_table import FileRecord, ShardRecord, ShardTable

SIDE, CROP, BATCH = 224, 192, 64
PERIOD = 251  # rows of equal pixels are so many rows apart: pixels of row r are r % 251

Task = Callable[[Loader], Any]


def make_rows(path: Path, rows: int) -> Path:
    """A dataset whose rows have one value each."""
    folder = path / "train" / "000000"
    folder.mkdir(parents=True)
    fields = {"images": FieldSpec(dtype="uint8", shape=(3, SIDE, SIDE))}
    block = np.repeat(np.arange(PERIOD, dtype=np.uint8), 3 * SIDE * SIDE)
    with open(folder / "images.memmap", "wb") as file:
        for start in range(0, rows, PERIOD):
            file.write(block[: min(PERIOD, rows - start) * 3 * SIDE * SIDE].data)
    (path / "train" / SAMPLES_NAME).touch()
    files = {"images": FileRecord(bytes=rows * 3 * SIDE * SIDE, crc32="00000000")}
    empty = FileRecord(bytes=0, crc32="00000000")
    shards = ShardTable.of([ShardRecord(rows=rows, files=files)])
    split = SplitRecord(rows=rows, fields=fields, mean=(0.5,) * 3, std=(0.3,) * 3, samples=empty, shards=shards)
    manifest = Manifest(recipe={}, fingerprint="", splits={"train": split})
    (path / FILE_NAME).write_text(manifest.dumps(), encoding="utf-8")
    return path


def pss(process: int) -> int:
    """Bytes of memory of a process; a page that n processes share counts as 1/n."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024


@contextmanager
def control_group(limit: int) -> Iterator[Path | None]:
    """A control group with a limit of memory, version 1 or 2; None if it cannot be made."""
    mount = Path("/sys/fs/cgroup")
    first = mount / "memory"
    group = (first if first.is_dir() else mount) / f"mmload-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if first.is_dir() else "memory.max")).write_text(str(limit))
    except OSError:
        yield None
        return
    try:
        yield group
    finally:
        for _ in range(100):
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def checked_epoch(loader: Loader) -> int:
    """The wrong rows of an epoch over all rows, as this rank reads them."""
    wrong = 0
    for batch in loader:
        lowest, highest = batch.images.flatten(1).aminmax(dim=1)
        expected = (batch.ids % PERIOD).to(torch.uint8)
        wrong += int(((lowest != expected) | (highest != expected)).sum())
    return wrong


def cpu_of_epoch(loader: Loader) -> float:
    """CPU seconds of this process for an epoch of crops."""
    collate = mmload.Collate(RandomCrop(CROP), RandomHorizontalFlip(), Normalize.imagenet())
    with Loader(loader.split, batch_size=BATCH, shuffle=True, tier="memory", threads=1, collate=collate) as crops:
        for batch in crops:  # fills, or finds, the copy and compiles
            del batch
        began = time.process_time()
        for batch in crops:
            del batch
        return time.process_time() - began


def reason(loader: Loader) -> str:
    """Why the loader reads its rows where it does."""
    text: str = loader.stats()["tier_reason"]
    return text


class Ranks:
    """Ranks of one machine, each a process with a loader over all rows. A context manager; at its end all are killed.

    Args:
        count: how many.
        path: the dataset.
        tier: of the loaders.
        share: whether processes may share memory.
        group: the control group that they are put into before they read.
        quick: fork them from a server that has imported everything, and leave out torch.distributed.
    """

    def __init__(
        self, count: int, path: Path, *, tier: str, share: bool = True, group: Path | None = None, quick: bool = False
    ) -> None:
        store = path.with_name(f"{path.name}-{secrets.token_hex(4)}")  # where ranks meet; a used one has old addresses
        self._arguments = (path, tier, share, group, 0 if quick else count, store)
        self._quick = quick
        self._ranks: dict[int, tuple[Any, Connection]] = {}
        self._count = count

    def __enter__(self) -> Ranks:
        self.restart()
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._ranks):
            self.kill(number)

    @property
    def pids(self) -> list[int]:
        """The processes' numbers."""
        return [process.pid for process, _ in self._ranks.values()]

    def restart(self) -> None:
        """Start the ranks that are not there."""
        before = processes.START_METHOD
        processes.START_METHOD = "forkserver" if self._quick else "spawn"
        try:
            missing = sorted(set(range(self._count)) - set(self._ranks))
            for number in missing:
                self._ranks[number] = processes.start_process(serve, number, *self._arguments, daemon=True)
            for number in missing:
                self._ranks[number][1].recv()
        finally:
            processes.START_METHOD = before

    def kill(self, number: int) -> None:
        """End a rank as ``kill -9`` does."""
        process, _ = self._ranks.pop(number)
        process.kill()
        process.join()

    def begin(self, task: Task) -> None:
        """Have every rank do something."""
        for _, pipe in self._ranks.values():
            with suppress(BrokenPipeError):  # killed; end() says so
                pipe.send(task)

    def end(self, dead: Any = None) -> list[Any]:
        """What each rank answers, or ``dead`` for one that was killed."""
        answers = []
        for _, pipe in self._ranks.values():
            try:
                answers.append(pipe.recv())
            except (EOFError, ConnectionResetError):
                if dead is None:
                    raise
                answers.append(dead)
        return answers

    def all(self, task: Task, dead: Any = None) -> list[Any]:
        """What each rank answers."""
        self.begin(task)
        return self.end(dead)


def serve(
    pipe: Connection, number: int, path: Path, tier: str, share: bool, group: Path | None, ranks: int, store: Path
) -> None:
    """A rank."""
    processes.depend_on_parent(lambda: os._exit(1))
    torch.set_num_threads(1)
    if group is not None:
        (group / "cgroup.procs").write_text(str(os.getpid()))
    if not share:
        shared_segment._problem = lambda: "as asked"  # type: ignore[assignment]  # what it says where nothing is shared
    if ranks > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=number, world_size=ranks, timeout=timedelta(minutes=5)
        )
    loader = Loader(path, batch_size=BATCH, shuffle=True, seed=number, tier=tier, threads=1, rank=0, world_size=1)
    pipe.send("ready")
    while True:
        task = pipe.recv()
        pipe.send(task(loader))
