"""The ranks that benchmarks/rank_memory measures and kills: processes with a loader each."""

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
import simplejpeg
import torch

import mmload
from mmload.augment import CenterCrop
from mmload.builder.finished_shards import BuildPaths, Chunk
from mmload.builder.shard_writer import ShardWriter
from mmload.loader import Loader
from mmload.records import VARIABLE, FieldSpec
from mmload.runtime import processes
from mmload.store.manifest import FILE_NAME, SAMPLES_NAME, Manifest, SplitRecord
from mmload.store.shard_table import FileRecord, ShardTable
from mmload.store.variable_rows import JPEG, variable_rows

SIDE, BATCH = 224, 16
PERIOD = 251  # rows of equal pixels are so many rows apart: pixels of row r are r % 251

Task = Callable[[Loader], Any]


def make_rows(path: Path, rows: int, *, jpeg: bool = False) -> Path:
    """Writes a dataset whose rows have one gray each, as pixels or as JPEGs, which keep a gray as it is."""
    grays = [np.full((SIDE, SIDE, 3), value, np.uint8) for value in range(PERIOD)]
    if jpeg:
        spec = FieldSpec(dtype="uint8", shape=(3, VARIABLE, VARIABLE), encoding="jpeg")
        encoded = [np.frombuffer(simplejpeg.encode_jpeg(gray), np.uint8) for gray in grays]
    else:
        spec = FieldSpec(dtype="uint8", shape=(3, SIDE, SIDE))
        pixels = torch.from_numpy(np.stack(grays)).permute(0, 3, 1, 2).contiguous()
    paths = BuildPaths(path.with_name(f"{path.name}.paths"))
    paths.folder.mkdir()
    writer = ShardWriter(paths, "train", 0, {"images": spec}, rows)
    for start in range(0, rows, PERIOD):
        count = min(PERIOD, rows - start)
        images = variable_rows(encoded[:count], [(SIDE, SIDE)] * count, [JPEG] * count, 3) if jpeg else pixels[:count]
        writer.write(Chunk(fields={"images": images}, samples=[("", None)] * count))
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
        decoded: whether memory has decoded pixels.
        group: the control group that they are put into before they read.
        quick: fork them from a server that has imported everything, and leave out torch.distributed.
    """

    def __init__(
        self,
        count: int,
        path: Path,
        *,
        tier: str,
        decoded: bool = False,
        group: Path | None = None,
        quick: bool = False,
    ) -> None:
        store = path.with_name(f"{path.name}-{secrets.token_hex(4)}")  # where ranks meet; a used one has old addresses
        self._arguments = (path, tier, decoded, group, 0 if quick else count, store)
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
    pipe: Connection, number: int, path: Path, tier: str, decoded: bool, group: Path | None, ranks: int, store: Path
) -> None:
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
        cache_pixels=decoded,
        threads=1,
        rank=0,
        world_size=1,
    )
    pipe.send("ready")
    while True:
        task = pipe.recv()
        pipe.send(task(loader))
