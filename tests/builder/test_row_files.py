"""Files of rows and values: every format is read, and what is odd in one is refused in one line, and never rounded."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from row_files import write_columns

from mmload.builder.row_files import rows_in, values_in
from mmload.errors import UsageError

ROWS = 18
ALL, FEW = np.arange(ROWS), [9, 2, 14]
MIXED = np.random.default_rng(0).permutation(ROWS)


@pytest.fixture
def ids(rows):
    """The ids of the split ``rows``."""
    return np.array([source.id for source in rows.source(slice(None))])


def test_files_name_rows(rows, ids, tmp_path):
    for name, text in {
        "rows.txt": "9\n2\n14\n",
        "ids.txt": "# marked\n" + "".join(f"{each}\tbroken\n" for each in ids[FEW]) + "other.jpg\tx\tval\n",
        "rows.csv": "x,row\n1,9\n1,2\n1,14\n",
        "ids.csv": "\n".join(["id", *ids[FEW]]),
    }.items():
        (tmp_path / name).write_text(text)
        assert rows_in(tmp_path / name, rows).tolist() == FEW, name
    np.save(tmp_path / "rows.npy", np.array(FEW))
    assert rows_in(tmp_path / "rows.npy", rows).tolist() == FEW
    np.savez(tmp_path / "mask.npz", np.isin(ALL, FEW))
    assert rows_in(tmp_path / "mask.npz", rows).tolist() == sorted(FEW)
    assert rows_in(write_columns(tmp_path / "rows.parquet", {"row": FEW}), rows).tolist() == FEW


@pytest.mark.parametrize("name", ["x.npz", "x.csv", "x.parquet"])
@pytest.mark.parametrize("key", ["row", "id"])
def test_files_have_values_of_rows_by_number_or_id(rows, ids, tmp_path, key, name):
    file = write_columns(tmp_path / name, {key: MIXED if key == "row" else ids[MIXED], "value": 3 * MIXED})
    assert values_in(file, rows).tolist() == (3 * ALL).tolist()


@pytest.mark.parametrize("save", [np.save, np.savez])
def test_a_file_of_one_array_has_the_values_of_all_rows(rows, tmp_path, save):
    save(tmp_path / "x.npz", 3 * ALL)
    assert values_in(next(tmp_path.glob("x.*")), rows).tolist() == (3 * ALL).tolist()


def test_several_columns_and_lists_are_vectors(rows, tmp_path):
    expected = np.stack([ALL + 0.5, np.ones(ROWS)], 1).astype(np.float32)
    columns = {"row": MIXED, "a": MIXED + 0.5, "b": np.ones(ROWS)}
    lists = {"row": MIXED, "value": list(expected[MIXED])}
    for name, given in (("x.csv", columns), ("x.parquet", lists)):
        assert np.array_equal(values_in(write_columns(tmp_path / name, given), rows), expected)
        assert values_in(tmp_path / name, rows).dtype == np.float32


@pytest.mark.parametrize("name", ["x.npz", "x.parquet"])
@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (ALL + 0.9, "are float64; give integers"),
        (ALL * 1.0, "are float64; give integers"),
        (np.full(ROWS, np.inf), "are float64; give integers"),
        (np.ones(ROWS, np.bool_), "row numbers are booleans; give integers"),
        (np.array([f"{row}.5" for row in ALL]), "are float32; give integers"),
    ],
)
def test_numbers_of_rows_that_are_no_integers_are_refused(rows, tmp_path, name, numbers, message):
    file = write_columns(tmp_path / name, {"row": numbers, "value": ALL})
    for read in (values_in, rows_in)[: 1 + name.endswith("parquet")]:
        with pytest.raises(UsageError, match=message):
            read(file, rows)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64, "U2"])
def test_numbers_of_rows_of_any_kind_of_integers_are_taken(rows, tmp_path, dtype):
    file = write_columns(tmp_path / "x.npz", {"row": MIXED.astype(dtype), "value": MIXED})
    assert values_in(file, rows).tolist() == list(range(ROWS))
    file = write_columns(tmp_path / "x.parquet", {"row": MIXED.astype(dtype).tolist(), "value": MIXED})
    assert values_in(file, rows).tolist() == list(range(ROWS))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"row": ALL, "a": np.zeros(ROWS), "b": np.zeros((ROWS, 2))}, "columns of several shapes, a, b, row"),
        ({"row": ALL, "a": np.zeros(())}, "columns of values have 1, or"),
        ({"row": ALL, "a": ALL[1:]}, f"names {ROWS} rows, and its columns of values have {ROWS - 1}, or"),
        ({"row": ALL}, "no column of values beside row"),
        ({"row": np.zeros(()), "a": np.zeros(ROWS)}, "one dimension"),
        ({"row": np.zeros((ROWS, 2), np.int64), "a": np.zeros(ROWS)}, "one dimension"),
        ({"row": ALL - 1, "a": ALL}, "row -1 does not exist; number the rows of split 'train' from 0"),
    ],
)
def test_arrays_that_are_no_columns_are_refused(rows, tmp_path, arrays, message):
    with pytest.raises(UsageError, match=message):
        values_in(write_columns(tmp_path / "x.npz", arrays), rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("row,x\n0,1\n0,2\n", "row 0 of split 'train' twice"),
        ("row,x\n0,1\n", "no value for 17 rows of split 'train', such as row 1"),
        ("id,x\nnobody,1\n", "'nobody' is no sample"),
        ("row\n0\n", "no column of values"),
        ("x\n0\n", "needs row or id"),
        *(
            ("row,x\n" + "".join(f"{row},{row}\n" for row in ALL[1:]) + f"0,{value}\n", f"column 'x' .*{message}")
            for value, message in (
                ("1e39", "beyond float32"),
                ("1e400", "beyond float32"),
                (str(2**63), "beyond int64"),
                ("half", "is not of numbers"),
            )
        ),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_wrong_file_of_values_is_refused(rows, tmp_path, text, message):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(UsageError, match=message):
        values_in(tmp_path / "x.csv", rows)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "nobody.jpg\n", "line 1: 'nobody.jpg' is no sample"),
        ("a.csv", "x\n1\n", "it needs row or id"),
        ("a.csv", "row\n1.5\n", "give integers"),
        ("a.csv", "row\n3\n-1\n", "row -1 does not exist"),
        ("a.csv", "row,x\n1\n", "record 2 has 1 values"),
        ("a.npy", "x", "as arrays of numpy"),
        ("a.txt", "99\n", "row 99 does not exist"),
        ("a.txt", "", r"a.txt names no row of split 'train'"),
        ("a.csv", "row\n", r"a.csv names no row of split 'train'"),
    ],
)
def test_a_wrong_file_of_rows_is_refused(rows, tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        rows_in(tmp_path / name, rows)


def test_a_negative_row_number_in_an_array_is_not_counted_from_the_end(rows, tmp_path):
    np.save(tmp_path / "x.npy", ALL - 1)
    with pytest.raises(UsageError, match="row -1 does not exist"):
        rows_in(tmp_path / "x.npy", rows)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed, np.save])
def test_a_damaged_file_of_arrays_is_refused_in_one_line(rows, tmp_path, save):
    whole, draw, refused = io.BytesIO(), random.Random(0), 0
    save(whole, **({"arr": ALL} if save is np.save else {"row": ALL, "value": ALL}))
    file = tmp_path / ("x.npy" if save is np.save else "x.npz")
    for _ in range(200):
        content = bytearray(whole.getvalue())
        if draw.random() < 0.3:
            content = content[: draw.randrange(len(content))]
        for _ in range(draw.randint(0, 2) if content else 0):
            content[draw.randrange(len(content))] = draw.randrange(256)
        file.write_bytes(content)
        for read in (rows_in, values_in):
            try:
                read(file, rows)
            except UsageError:  # any other error would be one of mmload
                refused += 1
    assert refused > 100
