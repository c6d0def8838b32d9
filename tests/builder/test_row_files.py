"""Files of rows and values: what is odd in them is refused in one line, and never rounded."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest

from mmload.builder.row_files import rows_in, values_in
from mmload.errors import UsageError

ROWS = 18


@pytest.mark.parametrize("name", ["x.npz", "x.parquet"])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.arange(ROWS) + 0.9, "are float64; give integers"),
        (np.arange(ROWS) * 1.0, "are float64; give integers"),
        (np.full(ROWS, np.inf), "are float64; give integers"),
        (np.ones(ROWS, np.bool_), "row numbers are booleans; give integers"),
        (np.array([f"{row}.5" for row in range(ROWS)]), "a row number is no integer"),
    ],
)
def test_numbers_of_rows_that_are_no_integers_are_refused(dataset, tmp_path, name, rows, message):
    file = tmp_path / name
    if name.endswith("npz"):
        np.savez(file, row=rows, value=np.arange(ROWS))
    else:
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(arrow.table({"row": rows, "value": np.arange(ROWS)}), file)
    with pytest.raises(UsageError, match=message):
        values_in(file, dataset["train"])
    if name.endswith("parquet"):
        with pytest.raises(UsageError, match=message):
            rows_in(file, dataset["train"])


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64, "U2", object])
def test_numbers_of_rows_of_any_kind_of_integers_are_taken(dataset, tmp_path, dtype):
    mixed = np.random.default_rng(0).permutation(ROWS)
    rows = mixed.astype(dtype)
    if dtype is object:
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        file = tmp_path / "x.parquet"
        parquet.write_table(arrow.table({"row": [str(row) for row in mixed], "value": mixed}), file)
    else:
        file = tmp_path / "x.npz"
        np.savez(file, row=rows, value=mixed)
    assert values_in(file, dataset["train"]).tolist() == list(range(ROWS))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"row": np.arange(ROWS), "a": np.zeros(ROWS), "b": np.zeros((ROWS, 2))},
            "columns of several shapes, a, b, row",
        ),
        ({"row": np.arange(ROWS), "a": np.zeros(())}, "no column of values"),
        ({"row": np.zeros(()), "a": np.zeros(ROWS)}, "one dimension"),
        ({"row": np.zeros((ROWS, 2), np.int64), "a": np.zeros(ROWS)}, "one dimension"),
    ],
)
def test_arrays_that_are_no_columns_are_refused(dataset, tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(UsageError, match=message):
        values_in(tmp_path / "x.npz", dataset["train"])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed, np.save])
def test_a_damaged_file_of_arrays_is_refused_in_one_line(dataset, tmp_path, save):
    whole, draw = io.BytesIO(), random.Random(0)
    arrays = {"arr": np.arange(ROWS)} if save is np.save else {"row": np.arange(ROWS), "value": np.arange(ROWS)}
    save(whole, **arrays)
    file = tmp_path / ("x.npy" if save is np.save else "x.npz")
    refused = 0
    for _ in range(200):
        content = bytearray(whole.getvalue())
        if draw.random() < 0.3:
            content = content[: draw.randrange(len(content))]
        for _ in range(draw.randint(0, 2) if content else 0):
            content[draw.randrange(len(content))] = draw.randrange(256)
        file.write_bytes(content)
        for read in (rows_in, values_in):
            try:
                read(file, dataset["train"])
            except UsageError:  # any other error would be one of mmload
                refused += 1
    assert refused > 100
