"""Files that a dataset must have, by its manifest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mmload.store.checksum import crc32
from mmload.store.manifest import Manifest
from mmload.store.shard_table import BYTES, META_NAME, OFFSETS, FileRecord, files_of, tensordict_meta


@dataclass(frozen=True, kw_only=True)
class DatasetFile:
    """File that a dataset must have.

    Attributes:
        split: the split's name.
        shard: the shard's number; None for the split's lists of samples.
        name: relative to the dataset's folder.
        record: its size and checksum.
        row_bytes: bytes of a row, in a file of rows; else None.
        offsets: for a file of variable-size rows, the file that says where each begins; else None.
        content: content of a file that follows from the manifest; else None.
    """

    split: str
    shard: int | None
    name: str
    record: FileRecord
    row_bytes: int | None = None
    offsets: str | None = None
    content: bytes | None = None


def dataset_files(manifest: Manifest) -> Iterator[DatasetFile]:
    """Yields all files of a dataset but ``dataset.json``, split by split, shard by shard."""
    for name, split in manifest.splits.items():
        files = files_of(split.fields)
        own = split.shards if split.subset_of is None else ()
        for index, shard in enumerate(own):
            folder = split.shard_folder(name, index)
            meta = tensordict_meta(split.fields, shard).encode()
            record = FileRecord(bytes=len(meta), crc32=f"{crc32(meta):08x}")
            yield DatasetFile(split=name, shard=index, name=f"{folder}/{META_NAME}", record=record, content=meta)
            for field, record in shard.files.items():
                yield DatasetFile(
                    split=name,
                    shard=index,
                    name=f"{folder}/{field}.memmap",
                    record=record,
                    row_bytes=files[field].spec.row_bytes,
                    offsets=None
                    if files[field].counted or files[field].is_list
                    else f"{folder}/{field.removesuffix(BYTES)}{OFFSETS}.memmap",
                )
        for file, record in split.lists.items():
            yield DatasetFile(split=name, shard=None, name=f"{name}/{file}", record=record)
