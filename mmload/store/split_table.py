"""Table of the rows of a split, for the tools that users filter tables with: pyarrow's or pandas'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmload.errors import UsageError
from mmload.store.field_rows import LocalFiles
from mmload.store.row_reader import RowReader
from mmload.store.row_sources import RowSource


def table_of(files: LocalFiles, reader: RowReader, sources: Sequence[RowSource]) -> Any:
    """Returns a table with one row per row of a split; see :meth:`mmload.store.dataset.Split.table`.

    Args:
        files: files of the split.
        reader: reads its rows.
        sources: sample of each row.

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
    columns: dict[str, Any] = {"row": rows, "id": [_printable(source.id) for source in sources]}
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
    return columns | single


def _printable(name: str) -> str:
    """Returns an id with bytes that are no UTF-8 escaped, as tables have no others."""
    return name.encode("utf-8", "backslashreplace").decode()
