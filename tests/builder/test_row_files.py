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
        (np.array([f"{row}.5" for row in range(ROWS)]), "are float32; give integers"),
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
        ({"row": np.arange(ROWS), "a": np.zeros(())}, "columns of values have 1, or"),
        ({"row": np.arange(ROWS)}, "no column of values beside row"),
        ({"row": np.zeros(()), "a": np.zeros(ROWS)}, "one dimension"),
        ({"row": np.zeros((ROWS, 2), np.int64), "a": np.zeros(ROWS)}, "one dimension"),
    ],
)
def test_arrays_that_are_no_columns_are_refused(dataset, tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(UsageError, match=message):
        values_in(tmp_path / "x.npz", dataset["train"])


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("1e39", "beyond float32"),
        ("1e400", "beyond float32"),
        (str(2**63), "beyond int64"),
        ("half", "is not of numbers"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_values_in_csv_that_would_be_rounded_are_refused(dataset, tmp_path, last, message):
    file = tmp_path / "x.csv"
    file.write_text("row,value\n" + "".join(f"{row},{last if row == ROWS - 1 else row}\n" for row in range(ROWS)))
    with pytest.raises(UsageError, match=f"column 'value' .*{message}"):
        values_in(file, dataset["train"])


def test_a_negative_row_number_in_a_file_is_not_counted_from_the_end(dataset, tmp_path):
    rows, file = np.arange(-1, ROWS - 1), tmp_path / "x.npz"
    np.savez(file, row=rows, value=rows)
    with pytest.raises(UsageError, match="row -1 does not exist; number the rows of split 'train' from 0"):
        values_in(file, dataset["train"])
    (tmp_path / "x.csv").write_text("row\n3\n-1\n")
    np.save(tmp_path / "x.npy", rows)
    for name in ("x.csv", "x.npy"):
        with pytest.raises(UsageError, match="row -1 does not exist"):
            rows_in(tmp_path / name, dataset["train"])


def test_a_file_with_another_number_of_values_than_of_rows_is_refused(dataset, tmp_path):
    np.savez(tmp_path / "x.npz", row=np.arange(ROWS), value=np.arange(ROWS - 1))
    with pytest.raises(UsageError, match=f"names {ROWS} rows, and its columns of values have {ROWS - 1}, or"):
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
