"""The ranks that benchmarks/rank_memory measures: processes with a loader each."""

from __future__ import annotations

import os
import secrets
import shutil
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
from mmload.augment import CenterCrop
from mmload.builder.shards import BuildPaths, Chunk, ShardWriter
from mmload.loader import Loader
from mmload.records import FieldSpec
from mmload.runtime import processes
from mmload.store.manifest import FILE_NAME, SAMPLES_NAME, Manifest, SplitRecord
from mmload.store.shard_table import FileRecord, ShardTable

SIDE, BATCH = 224, 16
PERIOD = 251  # rows of equal pixels are so many rows apart: pixels of row r are r % 251

Task = Callable[[Loader], Any]


def make_rows(path: Path, rows: int) -> Path:
    """Writes a dataset whose rows have one gray each."""
    grays = [np.full((SIDE, SIDE, 3), value, np.uint8) for value in range(PERIOD)]
    spec = FieldSpec(dtype="uint8", shape=(3, SIDE, SIDE))
    pixels = torch.from_numpy(np.stack(grays)).permute(0, 3, 1, 2).contiguous()
    paths = BuildPaths(path.with_name(f"{path.name}.paths"))
    paths.folder.mkdir()
    writer = ShardWriter(paths, "train", 0, {"images": spec}, rows)
    for start in range(0, rows, PERIOD):
        count = min(PERIOD, rows - start)
        writer.write(Chunk(fields={"images": pixels[:count]}, samples=[("", None)] * count))
    shard = writer.seal().record
    paths.dataset.rename(path)
    shutil.rmtree(paths.folder)
    (path / "train" / SAMPLES_NAME).touch()
    empty = FileRecord(bytes=0, crc32="00000000")
    split = SplitRecord(
        rows=rows,
        fields={"images": spec},
        mean=(0.5,) * 3,
        std=(0.3,) * 3,
        samples=empty,
        shard_samples=rows,
        shards=ShardTable.from_records([shard]),
    )
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
        group: the control group that they are put into before they read.
    """

    def __init__(
        self,
        count: int,
        path: Path,
        *,
        tier: str,
        group: Path | None = None,
    ) -> None:
        store = path.with_name(f"{path.name}-{secrets.token_hex(4)}")  # where ranks meet; a used one has old addresses
        self._arguments = (path, tier, group, count, store)
        self._ranks: list[tuple[Any, Connection]] = []
        self._count = count

    def __enter__(self) -> Ranks:
        for number in range(self._count):
            self._ranks.append(processes.start_process(serve, number, *self._arguments, daemon=True))
        for _, pipe in self._ranks:
            pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        for process, _ in self._ranks:
            process.kill()
            process.join()

    @property
    def pids(self) -> list[int]:
        """The processes' numbers."""
        return [process.pid for process, _ in self._ranks]

    def all(self, task: Task, dead: Any = None) -> list[Any]:
        """Has every rank run a task; returns what each answers, or ``dead`` for one that was killed."""
        for _, pipe in self._ranks:
            with suppress(BrokenPipeError):  # killed; its answer says so
                pipe.send(task)
        answers = []
        for _, pipe in self._ranks:
            try:
                answers.append(pipe.recv())
            except (EOFError, ConnectionResetError):
                if dead is None:
                    raise
                answers.append(dead)
        return answers


def serve(pipe: Connection, number: int, path: Path, tier: str, group: Path | None, ranks: int, store: Path) -> None:
    """A rank."""
    processes.depend_on_parent(lambda: os._exit(1))
    torch.set_num_threads(1)
    if group is not None:
        (group / "cgroup.procs").write_text(str(os.getpid()))
    if ranks > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=number, world_size=ranks, timeout=timedelta(minutes=5)
        )
    loader = Loader(
        path,
        collate=mmload.Collate(CenterCrop(SIDE), dtype=torch.uint8),
        batch_size=BATCH,
        shuffle=True,
        seed=number,
        tier=tier,
        threads=1,
        ranks=(0, 1),
    )
    pipe.send("ready")
    while True:
        task = pipe.recv()
        pipe.send(task(loader))
