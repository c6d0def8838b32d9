"""Datasets written file by file, without a source and a build."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from mmload.records import FieldSpec
from mmload.store.checksum import crc32
from mmload.store.manifest import Manifest, SplitRecord, shard_name
from mmload.store.shard_table import FileRecord, ShardRecord, ShardTable

ROWS, SHARD_ROWS = 96, 4  # the images of a shard are three pages


FIELDS = {"images": FieldSpec(dtype="uint8", shape=(3, 32, 32)), "targets": FieldSpec(dtype="int64", shape=())}


def of_one_value(path: Path, value: int) -> Path:
    """A dataset whose pixels and labels are all one value."""
    shards = []
    for index in range(ROWS // SHARD_ROWS):
        folder = path / "train" / shard_name(index)
        folder.mkdir(parents=True)
        np.full((SHARD_ROWS, 3, 32, 32), value, np.uint8).tofile(folder / "images.memmap")
        np.full(SHARD_ROWS, value, np.int64).tofile(folder / "targets.memmap")
        stored = {name: (folder / f"{name}.memmap").read_bytes() for name in FIELDS}
        files = {name: FileRecord(bytes=len(data), crc32=f"{crc32(data):08x}") for name, data in stored.items()}
        shards.append(ShardRecord(rows=SHARD_ROWS, files=files))
    (path / "train" / "samples.jsonl").touch()
    samples = FileRecord(bytes=0, crc32="00000000")
    split = SplitRecord(
        rows=ROWS, fields=FIELDS, samples=samples, shard_samples=SHARD_ROWS, shards=ShardTable.from_records(shards)
    )
    text = Manifest(recipe={}, fingerprint=str(value), splits={"train": split}).dumps()
    (path / "dataset.json").write_text(text, encoding="utf-8")
    return path


def sparse_dataset(
    path: Path, rows: int, targets: torch.Tensor | None = None, *, side: int = 8, shard_rows: int | None = None
) -> Path:
    """A dataset whose image files are holes: as large as they say, but with no bytes on the disk."""
    fields = {
        "images": FieldSpec(dtype="uint8", shape=(3, side, side)),
        "targets": FieldSpec(dtype="int64", shape=()),
    }
    shards = []
    for index, start in enumerate(range(0, rows, shard_rows or rows)):
        folder = path / "train" / shard_name(index)
        folder.mkdir(parents=True)
        count = min(shard_rows or rows, rows - start)
        files = {}
        for name, spec in fields.items():
            with open(folder / f"{name}.memmap", "wb") as file:
                file.truncate(count * spec.row_bytes)
            files[name] = FileRecord(bytes=count * spec.row_bytes, crc32="00000000")
        if targets is not None:
            targets[start : start + count].numpy().tofile(folder / "targets.memmap")
        shards.append(ShardRecord(rows=count, files=files))
    (path / "train" / "samples.jsonl").touch()
    samples = FileRecord(bytes=0, crc32=f"{zlib.crc32(b''):08x}")
    split = SplitRecord(
        rows=rows,
        fields=fields,
        samples=samples,
        shard_samples=shard_rows or rows,
        shards=ShardTable.from_records(shards),
    )
    manifest = Manifest(recipe={}, fingerprint="", splits={"train": split})
    (path / "dataset.json").write_text(manifest.dumps())
    return path


def of_tensors(path: Path, splits: Mapping[str, Mapping[str, torch.Tensor]], classes: tuple[str, ...] = ()) -> Path:
    """A dataset of these fields, each split in one shard, its rows made of files called 0.png, 1.png, ..."""
    records = {}
    for name, tensors in splits.items():
        folder = path / name / shard_name(0)
        folder.mkdir(parents=True)
        fields, files, rows = {}, {}, len(next(iter(tensors.values())))
        for field, values in tensors.items():
            data = values.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            (folder / f"{field}.memmap").write_bytes(data)
            fields[field] = FieldSpec(dtype=str(values.dtype).removeprefix("torch."), shape=tuple(values.shape[1:]))
            files[field] = FileRecord(bytes=len(data), crc32=f"{crc32(data):08x}")
        listed = "".join(json.dumps({"id": f"{row}.png", "size": None}) + "\n" for row in range(rows)).encode()
        (path / name / "samples.jsonl").write_bytes(listed)
        samples = FileRecord(bytes=len(listed), crc32=f"{crc32(listed):08x}")
        shards = (ShardRecord(rows=rows, files=files),)
        records[name] = SplitRecord(
            rows=rows,
            fields=fields,
            classes=classes,
            samples=samples,
            shard_samples=rows,
            shards=ShardTable.from_records(shards),
        )
    manifest = Manifest(recipe={}, fingerprint="", splits=records).dumps()
    (path / "dataset.json").write_bytes(manifest.encode("utf-8", "backslashreplace"))
    return path
