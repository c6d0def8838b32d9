"""Datasets written file by file, without a source and a build."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from mmload.records import FieldSpec
from mmload.store.checksum import crc32
from mmload.store.manifest import FileRecord, Manifest, ShardRecord, SplitRecord, shard_name

ROWS, SHARD_ROWS = 96, 4  # the images of a shard are three pages


def of_one_value(path: Path, value: int) -> Path:
    """A dataset whose pixels and labels are all one value."""
    images, targets = torch.full((ROWS, 3, 32, 32), value, dtype=torch.uint8), torch.full((ROWS,), value)
    rows = {"train": {"images": images, "targets": targets}}
    return of_tensors(path, rows, shard_rows=SHARD_ROWS, fingerprint=str(value))


def sparse_dataset(path: Path, rows: int, *, side: int = 8, shard_rows: int | None = None) -> Path:
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
        shards.append(ShardRecord(rows=count, files=files))
    return with_manifest(path, {"train": record_of(path / "train", fields, shards, shard_rows or rows, listed="")})


def of_tensors(
    path: Path,
    splits: Mapping[str, Mapping[str, torch.Tensor]],
    classes: tuple[str, ...] = (),
    *,
    shard_rows: int | None = None,
    fingerprint: str = "",
) -> Path:
    """A dataset of these fields, each split in one shard or several, of rows from files called 0.png, 1.png, ..."""
    records = {}
    for name, tensors in splits.items():
        fields, shards, rows = {}, [], len(next(iter(tensors.values())))
        most = shard_rows or max(1, rows)
        for index, start in enumerate(range(0, max(1, rows), most)):
            folder, files = path / name / shard_name(index), {}
            folder.mkdir(parents=True)
            for field, values in tensors.items():
                data = values[start : start + most].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
                (folder / f"{field}.memmap").write_bytes(data)
                fields[field] = FieldSpec(dtype=str(values.dtype).removeprefix("torch."), shape=tuple(values.shape[1:]))
                files[field] = FileRecord(bytes=len(data), crc32=f"{crc32(data):08x}")
            shards.append(ShardRecord(rows=min(most, rows - start), files=files))
        listed = "".join(json.dumps({"id": f"{row}.png", "size": None}) + "\n" for row in range(rows))
        records[name] = record_of(path / name, fields, shards, most, listed, classes)
    return with_manifest(path, records, fingerprint)


def record_of(
    folder: Path,
    fields: dict[str, FieldSpec],
    shards: list[ShardRecord],
    shard_rows: int,
    listed: str,
    classes: tuple[str, ...] = (),
) -> SplitRecord:
    """The record of a split whose list of samples is written here."""
    data = listed.encode()
    (folder / "samples.jsonl").write_bytes(data)
    return SplitRecord(
        rows=sum(shard.rows for shard in shards),
        fields=fields,
        classes=classes,
        samples=FileRecord(bytes=len(data), crc32=f"{crc32(data):08x}"),
        shard_samples=shard_rows,
        shards=tuple(shards),
    )


def with_manifest(path: Path, splits: dict[str, SplitRecord], fingerprint: str = "") -> Path:
    """A folder of splits as a dataset: writes its manifest."""
    text = Manifest(recipe={}, fingerprint=fingerprint, splits=splits).dumps()
    (path / "dataset.json").write_bytes(text.encode("utf-8", "backslashreplace"))
    return path
