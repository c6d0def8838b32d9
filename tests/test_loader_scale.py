"""What must not grow: memory over epochs and over rows, and the time to open."""

from __future__ import annotations

import gc
import zlib
from pathlib import Path

import pytest
import torch

import mmload
from mmload.loader import Loader
from mmload.manifest import FileRecord, Manifest, ShardRecord, SplitRecord
from mmload.records import FieldSpec


def sparse_dataset(path: Path, rows: int, targets: torch.Tensor | None = None) -> Path:
    """A dataset of 8 x 8 images whose image file is a hole: as large as it says, but with no bytes on the disk."""
    folder = path / "train" / "000000"
    folder.mkdir(parents=True)
    fields = {
        "images": FieldSpec(dtype="uint8", shape=(3, 8, 8)),
        "targets": FieldSpec(dtype="int64", shape=()),
    }
    for name, spec in fields.items():
        with open(folder / f"{name}.memmap", "wb") as file:
            file.truncate(rows * spec.row_bytes)
    if targets is not None:
        targets.numpy().tofile(folder / "targets.memmap")
    (path / "train" / "samples.jsonl").touch()
    files = {name: FileRecord(bytes=rows * spec.row_bytes, crc32="00000000") for name, spec in fields.items()}
    split = SplitRecord(
        rows=rows,
        fields=fields,
        samples=FileRecord(bytes=0, crc32=f"{zlib.crc32(b''):08x}"),
        shards=(ShardRecord(rows=rows, files=files),),
    )
    manifest = Manifest(recipe={}, fingerprint="", splits={"train": split})
    (path / "dataset.json").write_text(manifest.dumps())
    return path


def resident() -> int:
    """Bytes of this process in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_memory_does_not_grow_over_epochs(tmp_path: Path) -> None:
    path = sparse_dataset(tmp_path / "small", 512)
    collate = mmload.Collate(mmload.augment.RandomCrop(6))
    with Loader(path, batch_size=64, shuffle=True, collate=collate, threads=2) as loader:
        for _ in range(20):
            list(loader)
        gc.collect()
        before = resident()
        for _ in range(200):
            for _batch in loader:
                pass
        gc.collect()
        assert resident() - before < 8 * 2**20


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_ten_million_rows_take_no_memory(tmp_path: Path) -> None:
    path = sparse_dataset(tmp_path / "large", 10_000_000)
    before = resident()
    with Loader(path, batch_size=256, shuffle=True, tier="disk", threads=2) as loader:
        for number, batch in enumerate(loader):
            assert len(batch) == 256
            if number == 50:
                break
        assert resident() - before < 64 * 2**20
