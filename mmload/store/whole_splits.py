"""A whole split at once: its shards as a memory-mapped tensorclass, or its rows as a table of pyarrow's or pandas'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from mmap import PAGESIZE
from typing import TYPE_CHECKING, Any

import numpy as np

from mmload.errors import UsageError, utf8_text
from mmload.records import FieldSpec
from mmload.store.field_rows import LocalFiles
from mmload.store.row_map import mapped
from mmload.store.row_reader import RowReader
from mmload.store.row_sources import RowSource
from mmload.store.shard_table import file_name, files_of

if TYPE_CHECKING:
    from torch import Tensor

    from mmload.batch import Batch


_SMALL_SHARE = 0.01
"""Largest share of the split's bytes that a field may have to be read by ``data`` if it cannot be mapped."""


def map_shards(files: LocalFiles, reader: RowReader, shards: Sequence[int]) -> Batch:
    """Maps shards as one tensorclass; a shard without rows (all its samples were skipped) cannot be mapped.

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

    if not rows:
        return torch.empty((0, *spec.shape), dtype=spec.torch_dtype, device="cpu")
    if all(files.record.shards[index].rows * spec.row_bytes % PAGESIZE == 0 for index in shards[:-1]):
        opened = [files.opened(name, index) for index in shards]
        flat = mapped(opened)
        for file in opened:
            file.check()
        return torch.from_numpy(flat).view(spec.torch_dtype).view(rows, *spec.shape)
    if rows * spec.row_bytes <= _SMALL_SHARE * files.record.bytes:
        return reader.gather(name, np.arange(rows))
    raise UsageError(
        f"{name} of split {files.split!r}: {len(shards)} files that do not end with a page cannot be mapped as one; "
        f"take .shards, a tensorclass each, or build it again as one shard, with --shard-size {files.record.bytes}"
    )


def table_of(files: LocalFiles, reader: RowReader, sources: Sequence[RowSource]) -> Any:
    """Returns a table with one row per row of a split; see :meth:`mmload.store.dataset.Split.table`.

    Raises:
        UsageError: if neither pyarrow nor pandas is installed.
    """
    columns = _columns(files, reader, sources)
    try:
        import pyarrow
    except ImportError:
        pass
    else:
        return pyarrow.table(columns)
    try:
        import pandas
    except ImportError as error:
        raise UsageError("a table needs pyarrow or pandas; run: pip install pyarrow") from error
    return pandas.DataFrame(columns)


def _columns(files: LocalFiles, reader: RowReader, sources: Sequence[RowSource]) -> Mapping[str, Any]:
    rows, record = np.arange(len(sources)), files.record
    columns: dict[str, Any] = {"row": rows, "id": [utf8_text(source.id) for source in sources]}
    single = {name: reader.array(name, rows) for name, spec in record.fields.items() if spec.shape == ()}
    targets = single.get("targets")
    if record.classes and targets is not None and targets.dtype.kind == "i":
        names = np.array([*record.classes, None], object)
        columns["class"] = names[np.where((targets >= 0) & (targets < len(record.classes)), targets, -1)]
    sizes = np.array([source.size or (0, 0) for source in sources], np.int64).reshape(-1, 2)
    columns |= {"height": sizes[:, 0], "width": sizes[:, 1]}
    images = record.fields.get("images")
    if images is not None and images.variable_size:
        stored = files.field("images").sizes
        columns |= {"stored_height": stored[:, 0], "stored_width": stored[:, 1]}
    return columns | {f"field_{name}" if name in columns else name: values for name, values in single.items()}
