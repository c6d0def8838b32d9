"""Writes datasets of noise: their readers do not care what is in them."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from mmload.records import FieldSpec
from mmload.runtime.durable_files import sync
from mmload.store.manifest import FILE_NAME, SAMPLES_NAME, Manifest, SplitRecord
from mmload.store.shard_table import FileRecord, ShardRecord, ShardTable

CHUNK = 1024  # rows written at a time


def make_dataset(path: Path, rows: int, side: int) -> Path:
    """A dataset of one shard of noise."""
    folder = path / "train" / "000000"
    folder.mkdir(parents=True)
    fields = {"images": FieldSpec(dtype="uint8", shape=(3, side, side)), "targets": FieldSpec(dtype="int64", shape=())}
    draw = np.random.default_rng(0)
    noise = {
        "images": lambda count: draw.integers(0, 256, (count, 3, side, side), dtype=np.uint8),
        "targets": lambda count: draw.integers(0, 1000, count),
    }
    files = {}
    for name, made in noise.items():
        size = crc = 0
        with open(folder / f"{name}.memmap", "wb") as file:
            for start in range(0, rows, CHUNK):
                block = made(min(CHUNK, rows - start)).data
                size, crc = size + file.write(block), zlib.crc32(block, crc)
            sync(file)
        files[name] = FileRecord(bytes=size, crc32=f"{crc:08x}")
    (path / "train" / SAMPLES_NAME).touch()
    shards = ShardTable.from_records([ShardRecord(rows=rows, files=files)])
    empty = FileRecord(bytes=0, crc32="00000000")
    split = SplitRecord(
        rows=rows, fields=fields, mean=(0.5,) * 3, std=(0.3,) * 3, samples=empty, shard_samples=rows, shards=shards
    )
    manifest = Manifest(recipe={}, fingerprint="", splits={"train": split})
    (path / FILE_NAME).write_text(manifest.dumps(), encoding="utf-8")
    return path
