"""Files of rows and values in every format that ``subset`` and ``add-field`` read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest


def write_columns(file: Path, columns: dict[str, Any]) -> Path:
    """Writes columns of equal length as CSV with a header, as arrays by name, or as a Parquet table."""
    if file.suffix == ".npz":
        np.savez(file, **columns)
    elif file.suffix == ".csv":
        rows = zip(*columns.values(), strict=True)
        lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
        file.write_text("\n".join(lines) + "\n")
    else:
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(arrow.table(columns), file)
    return file
