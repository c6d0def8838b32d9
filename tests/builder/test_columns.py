"""An added field has the given values in its rows, and changes no file of the versions before it."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from building import recipe
from conftest import contents

import mmload
from mmload.builder.dataset_change import compact, remove_unused
from mmload.builder.pipeline import build, update
from mmload.builder.recipe import VariableLayout
from mmload.builder.verify import compare, repair, verify
from mmload.errors import BuildError, UsageError
from mmload.parity import run as parity
from mmload.remote.copies import pull, push
from mmload.store.manifest import staging_folder


def vectors(seed=0):
    return np.random.default_rng(seed).normal(size=(15, 7)).astype(np.float32)


def column(split, name="vector"):
    return split[:].extra[name].numpy()


def by_row(values, interrupted_at=None):
    """Returns a function for add_field that gives the values of a batch's rows."""

    def given(batch):
        if interrupted_at in batch.ids.tolist():
            raise KeyboardInterrupt
        return values[batch.ids.numpy()]

    return given


@pytest.mark.parametrize("layout", ["squares", "raw"])
def test_an_added_field_has_its_values_in_rows_and_in_batches(source, tmp_path, layout):
    more = {} if layout == "squares" else {"variable_layout": VariableLayout(encode=layout), "transforms": ()}
    made, values = recipe(source, tmp_path / "out", **more), vectors()
    build(made)
    before = contents(made.out)
    split = mmload.add_field(made.out, "vector", values)["train"]
    for row in (0, 7, 14):
        assert np.array_equal(split[row].extra["vector"].numpy(), values[row])
    crop = mmload.Collate(mmload.augment.RandomCrop(8))
    for batch in mmload.Loader(split, batch_size=4, seed=1, collate=crop):
        assert np.array_equal(batch.extra["vector"].numpy(), values[batch.ids.numpy()])
    del before["dataset.json"]
    assert before.items() <= contents(made.out).items()
    assert verify(made.out) == []
    assert "vector" not in mmload.open(made.out, version=1)["train"].fields


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "bool", "int8", "float64"])
def test_values_of_any_dtype_come_back_as_they_were(squares, dtype):
    values = (torch.arange(15) % 2).to(getattr(torch, dtype))
    split = mmload.add_field(squares.out, "value", values)["train"]
    assert torch.equal(split[:].extra["value"], values)


def test_an_array_of_bfloat16_of_another_package_keeps_its_values(squares):
    values = pytest.importorskip("ml_dtypes").bfloat16(np.arange(15) / 2)
    split = mmload.add_field(squares.out, "value", values)["train"]
    assert torch.equal(split[:].extra["value"], torch.arange(15).bfloat16() / 2)


def test_a_function_is_given_batches_and_its_results_are_stored(squares):
    given = []

    def brightness(batch):
        given.append(len(batch))
        return batch.images.double().mean((1, 2, 3))

    split = mmload.add_field(squares.out, "brightness", brightness, batch_size=2)["train"]
    expected = [float(split[row].images.double().mean()) for row in range(15)]
    assert split[:].extra["brightness"].tolist() == pytest.approx(expected)
    assert max(given) == 2


def test_replacing_and_removing_a_field_keeps_earlier_versions(squares):
    first, second = vectors(seed=1), vectors(seed=2)
    mmload.add_field(squares.out, "vector", first)
    split = mmload.add_field(squares.out, "vector", second)["train"]
    assert np.array_equal(column(split), second)
    assert np.array_equal(column(mmload.open(squares.out, version=2)["train"]), first)
    assert "vector" not in mmload.remove_field(squares.out, "vector")["train"].fields
    assert verify(squares.out) == []
    remove_unused(squares.out)
    assert not list(squares.out.rglob("vector*"))
    assert verify(squares.out) == []


def test_subsets_have_the_field_of_their_split(squares):
    values = vectors()
    mmload.save_subset(squares.out, "before", [9, 2])
    mmload.add_field(squares.out, "vector", values)
    opened = mmload.save_subset(squares.out, "after", [3, 14])
    assert np.array_equal(column(opened["before"]), values[[9, 2]])
    assert np.array_equal(column(opened["after"]), values[[3, 14]])


def test_a_table_has_added_fields_of_one_value(squares):
    pytest.importorskip("pyarrow")
    scores = np.arange(15) / 15
    mmload.add_field(squares.out, "score", scores)
    table = mmload.add_field(squares.out, "row", scores)["train"].table().to_pydict()
    assert table["score"] == table["field_row"] == scores.tolist()
    assert table["row"] == list(range(15))


def test_an_update_keeps_values_and_says_which_rows_have_none(squares, source):
    values, split, files = vectors(), mmload.open(squares.out)["train"], sorted(source.rglob("*.*"))
    value_of = {split.source(row).id: values[row] for row in range(15)}
    mmload.add_field(squares.out, "vector", values)
    mmload.add_field(squares.out, "label", np.arange(15))
    shutil.copy(files[0], files[0].with_name("0a.jpg"))
    files[2].unlink()
    manifest, split = update(squares).manifest, mmload.open(squares.out)["train"]
    for row in range(15):
        name, now = split.source(row).id, split[row].extra
        expected = value_of.get(name, np.full(7, np.nan, np.float32))
        np.testing.assert_array_equal(now["vector"].numpy(), expected)
        assert (int(now["label"]) == -1) == (name not in value_of)
    assert manifest.card["warnings"]["train"] == [
        f"1 new row of version 4 without a value of {field}; add this field again"
        for field in ("vector (nan)", "label (-1)")
    ]
    assert verify(squares.out) == []
    split = mmload.add_field(squares.out, "vector", values)["train"]
    assert np.array_equal(column(split), values)


def test_values_of_an_updated_dataset_are_in_the_order_of_its_rows(squares, source):
    values, files = vectors(), sorted(source.rglob("*.*"))
    shutil.copy(files[0], files[0].with_name("0a.jpg"))
    files[2].unlink()
    update(squares)
    split = mmload.add_field(squares.out, "vector", by_row(values), batch_size=4)["train"]
    assert np.array_equal(column(split), values)
    for file in sorted(source.rglob("*.jpg"))[1:4]:
        file.unlink()
    left = [row for row in range(15) if (source / split.source(row).id).exists()]
    update(squares)
    compact(squares.out)
    assert np.array_equal(column(mmload.open(squares.out)["train"]), values[left])
    assert verify(squares.out) == []


def test_an_interrupted_function_leaves_the_dataset_as_it_was_and_hinders_no_other_change(squares):
    values = vectors()
    with pytest.raises(KeyboardInterrupt):
        mmload.add_field(squares.out, "vector", by_row(values, interrupted_at=9), batch_size=1)
    assert mmload.open(squares.out).manifest.version == 1
    assert not staging_folder(squares.out).exists()
    split = mmload.add_field(squares.out, "vector", by_row(values), batch_size=1)["train"]
    assert np.array_equal(column(split), values)
    assert verify(squares.out) == []


def test_source_checks_leave_added_fields_aside(squares, source):
    mmload.add_field(squares.out, "vector", vectors())
    assert build(squares).built == 0
    assert compare(squares.out, source) == []
    assert parity(squares.out, source).settings["splits"] == ["train"]
    shard = squares.out / "train" / "000000" / "images.memmap"
    content = shard.read_bytes()
    shard.write_bytes(b"\0" * len(content))
    assert len(repair(squares.out, source)) == 1
    assert shard.read_bytes() == content
    assert verify(squares.out) == []
    next(squares.out.rglob("vector.2.memmap")).write_bytes(b"")
    with pytest.raises(BuildError, match="add the field vector again"):
        repair(squares.out, source)


@pytest.mark.parametrize("width", [3, 600])
def test_an_added_field_is_pushed_read_from_its_url_and_pulled(squares, tmp_path, width):
    url, values = f"file://{tmp_path}/store", np.random.default_rng(0).random((15, width))
    push(squares.out, url)
    mmload.add_field(squares.out, "vector", values)
    assert push(squares.out, url).files < 20
    split = mmload.open(url, cache=tmp_path / "cache")["train"]
    assert np.array_equal(column(split), values)
    for batch in mmload.Loader(split, batch_size=4):
        assert np.array_equal(batch.extra["vector"].numpy(), values[batch.ids.numpy()])
    pull(url, tmp_path / "pulled")
    assert np.array_equal(column(mmload.open(tmp_path / "pulled")["train"]), values)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("images", np.zeros(15), "has the field 'images' from its build"),
        ("boxes", np.zeros(15), "has a meaning of its own"),
        ("shape", np.zeros(15), "has a meaning of its own"),
        ("a.b", np.zeros(15), "plain name"),
        ("mean", np.zeros(15), "a meaning of its own"),
        ("preview", np.zeros(15), "a meaning of its own"),
        ("x", np.zeros(14), r"values are \[14\], and split 'train' has 15 rows"),
        ("x", np.zeros(()), "give one value per row"),
        ("x", np.array(["a"] * 15), "cannot be stored"),
        ("x", np.zeros((15, 0)), "cannot be stored"),
        ("x", np.zeros(15, np.complex64), "cannot be stored"),
        ("x", lambda batch: torch.zeros(3), r"returned \[3\] for a batch of 15 rows"),
    ],
)
def test_a_wrong_field_is_refused_and_leaves_nothing(squares, name, values, message):
    before = contents(squares.out.parent)
    with pytest.raises(UsageError, match=message):
        mmload.add_field(squares.out, name, values)
    assert contents(squares.out.parent) == before


def test_a_function_whose_batches_differ_in_shape_is_refused(squares):
    with pytest.raises(UsageError, match="the same for every batch"):
        mmload.add_field(
            squares.out, "x", lambda batch: torch.zeros(len(batch), int(batch.ids[0]) // 2 + 1), batch_size=2
        )
