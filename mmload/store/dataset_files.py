"""All files of a dataset that its manifest names, with the size and checksum of each; ``dataset.json`` is not one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mmload.records import FieldSpec
from mmload.store.checksum import crc32
from mmload.store.field_files import BYTES, OFFSETS, files_of
from mmload.store.manifest import SAMPLES_NAME, SKIPPED_NAME, Manifest, SplitRecord, shard_name
from mmload.store.shard_table import FileRecord, ShardRecord

META_NAME = "meta.json"


@dataclass(frozen=True, kw_only=True)
class DatasetFile:
    """A file that a dataset must have.

    Attributes:
        split: the split's name.
        shard: the shard's number; None for the split's lists of samples.
        name: relative to the dataset's folder.
        record: its size and checksum.
        row_bytes: bytes of a row, in a file of rows; else None.
        offsets: of a file of rows of their own sizes, the file that says where each begins; else None.
        content: of a file that follows from the manifest; else None.
    """

    split: str
    shard: int | None
    name: str
    record: FileRecord
    row_bytes: int | None = None
    offsets: str | None = None
    content: bytes | None = None


def dataset_files(manifest: Manifest) -> Iterator[DatasetFile]:
    """The files, split by split, shard by shard."""
    for name, split in manifest.splits.items():
        specs = files_of(split.fields)
        for index, shard in enumerate(split.shards):
            folder = f"{name}/{shard_name(index)}"
            meta = tensordict_meta(split.fields, shard).encode()
            record = FileRecord(bytes=len(meta), crc32=f"{crc32(meta):08x}")
            yield DatasetFile(split=name, shard=index, name=f"{folder}/{META_NAME}", record=record, content=meta)
            for field, record in shard.files.items():
                spec, counted = specs[field].spec, specs[field].counted
                yield DatasetFile(
                    split=name,
                    shard=index,
                    name=f"{folder}/{field}.memmap",
                    record=record,
                    row_bytes=spec.row_bytes,
                    offsets=None if counted else f"{folder}/{field.removesuffix(BYTES)}{OFFSETS}.memmap",
                )
        for file, record in lists_of(split).items():
            yield DatasetFile(split=name, shard=None, name=f"{name}/{file}", record=record)


def lists_of(split: SplitRecord) -> dict[str, FileRecord]:
    """The split's lists of samples, by name."""
    skipped = {} if split.skipped_file is None else {SKIPPED_NAME: split.skipped_file}
    return {SAMPLES_NAME: split.samples, **skipped}


def tensordict_meta(fields: Mapping[str, FieldSpec], shard: ShardRecord) -> str:
    """The ``meta.json`` by which ``TensorDict.load_memmap`` opens a shard; ``_type`` is a constant of tensordict.

    Its batch size is [rows]; with rows of their own sizes [], as not every file has one element for each row then.
    """
    files = files_of(fields)
    meta: dict[str, Any] = {
        name: {
            "device": "cpu",
            "shape": [shard.files[name].bytes // file.spec.row_bytes, *file.spec.shape],
            "dtype": f"torch.{file.spec.dtype}",
            "is_nested": False,
        }
        for name, file in files.items()
    }
    shape = [] if any(spec.own_sizes for spec in fields.values()) else [shard.rows]
    meta |= {"shape": shape, "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>"}
    return json.dumps(meta, indent=1) + "\n"
