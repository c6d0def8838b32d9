"""Shards of a split as one memory-mapped tensorclass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmload.errors import UsageError
from mmload.records import FieldSpec
from mmload.store.field_rows import LocalFiles
from mmload.store.opened_file import check_files
from mmload.store.row_map import OpenFile, joinable, mapped
from mmload.store.row_reader import RowReader
from mmload.store.shard_table import file_name, files_of

if TYPE_CHECKING:
    from torch import Tensor

    from mmload.batch import Batch

_SMALL_SHARE = 0.01
"""Largest share of the split's bytes that a field may have to be read by ``data`` if it cannot be mapped."""


def map_shards(files: LocalFiles, reader: RowReader, shards: Sequence[int]) -> Batch:
    """Maps shards as one tensorclass; a shard without rows (all its samples were skipped) cannot be mapped.

    Args:
        files: files of a split.
        reader: reads its rows.
        shards: numbers of its shards.

    Raises:
        UsageError: if the shards' files cannot be joined, or the rows of the split are not those of the files.
    """
    from mmload.batch import make_batch

    if files.record.order is not None:
        raise UsageError(
            f"split {files.split!r} is a subset or was updated, so its rows are not those of the files one after "
            f"another, which could be mapped; read rows, as in split[:64]"
        )
    filled = [index for index in shards if files.record.shards[index].rows]
    rows = sum(files.record.shards[index].rows for index in filled)
    parts = files_of(files.record.fields).items()
    specs = {name: file.spec for name, file in parts if file.counted and not file.more}
    fields = {file_name(name, spec): name for name, spec in files.record.fields.items()}
    mapped_files = {name: _mapped_file(files, reader, name, spec, filled, rows) for name, spec in specs.items()}
    return make_batch({fields.get(name, name): tensor for name, tensor in mapped_files.items()}, rows)


def _mapped_file(
    files: LocalFiles, reader: RowReader, name: str, spec: FieldSpec, shards: Sequence[int], rows: int
) -> Tensor:
    import torch

    sizes = [files.record.shards[index].rows * spec.row_bytes for index in shards]
    if not rows:
        return torch.empty((0, *spec.shape), dtype=spec.torch_dtype)
    if joinable(sizes):
        opened = [files.opened(name, index) for index in shards]
        flat = mapped([OpenFile(file.path, file.handle, size) for file, size in zip(opened, sizes, strict=True)])
        check_files(opened)
        return torch.from_numpy(flat).view(spec.torch_dtype).view(rows, *spec.shape)
    if rows * spec.row_bytes <= _SMALL_SHARE * files.record.bytes:
        return reader.gather(name, torch.arange(rows))
    raise UsageError(
        f"{name} of split {files.split!r}: {len(shards)} files that do not end with a page cannot be mapped as one; "
        f"take .shards, a tensorclass each, or build it again as one shard, with --shard-size {files.record.bytes}"
    )
