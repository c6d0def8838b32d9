"""Updates of datasets of several splits: what stays of a split whose rows stay, and what goes with a split."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from building import make_pictures, recipe
from meanwhile import dying_at
from updating import assert_is_fresh, make_old, picture

import mmload
from mmload.builder import staging, unused_files
from mmload.builder.pipeline import build, update
from mmload.builder.unused_files import compact, remove_unused
from mmload.builder.verify import verify


@pytest.fixture
def photos(tmp_path):
    for name in ("train", "val"):
        make_pictures(tmp_path / "photos" / name)
    make_old(tmp_path / "photos")
    return tmp_path / "photos"


@pytest.fixture
def squares(photos, tmp_path):
    """A dataset of both splits; classes may be empty."""
    made = recipe(photos, tmp_path / "out", options={"allow_empty": True})
    build(made)
    return made


def test_a_class_without_rows_reaches_a_split_whose_rows_stay(squares, photos, tmp_path):
    for name in ("train", "val"):
        (photos / name / "class9").mkdir()
    shutil.copy(picture(photos / "val"), photos / "val" / "class9" / "0.jpg")
    update(squares)
    assert mmload.open(squares.out)["train"].classes[-1] == "class9"
    assert_is_fresh(squares, tmp_path)


def test_a_sample_that_was_left_out_and_is_gone_is_forgotten(squares, photos, tmp_path):
    broken = photos / "train" / "class0" / "zz.jpg"
    broken.write_bytes(b"broken")
    assert update(squares, on_error="skip").manifest.splits["train"].skipped_count == 1
    broken.unlink()
    assert update(squares).manifest.splits["train"].skipped_count == 0
    assert_is_fresh(squares, tmp_path)
    assert build(squares).built == 0


def test_missing_values_of_a_split_are_told_after_updates_of_another(squares, photos):
    mmload.add_field(squares.out, "score", np.arange(15.0), split="train")
    for name, split in (("a", "train"), ("b", "val"), ("c", "train")):
        shutil.copy(picture(photos / split), photos / split / "class0" / f"{name}.jpg")
        warnings = update(squares).manifest.card["warnings"]["train"]
        assert warnings[0] == "1 new row of version 3 without a value of score (nan); add this field again"
    assert warnings[1] == "1 new row of version 5 without a value of score (nan); add this field again"


def test_a_subset_that_has_lost_all_its_rows_is_told(squares, photos):
    first = mmload.open(squares.out)["train"].source(0).id
    mmload.save_subset(squares.out, "first", [0], split="train")
    (photos / first).unlink()
    manifest = update(squares).manifest
    assert "first" not in manifest.splits
    assert manifest.card["warnings"]["train"] == ["subset first is gone, as none of its rows is left"]


def test_a_new_build_after_an_update_was_killed_and_the_dataset_removed(squares, photos, tmp_path):
    shutil.copy(picture(photos), photos / "train" / "class0" / "z.jpg")
    with dying_at(staging, "add_to_dataset"):
        update(squares)
    shutil.rmtree(squares.out)
    build(squares)
    assert_is_fresh(squares, tmp_path)


def test_compacting_keeps_the_names_of_samples_that_were_left_out(squares, photos):
    odd = photos / "train" / "class0" / "bro\u2028ken.png"
    odd.write_bytes(b"broken")
    update(squares, on_error="skip")
    for _ in range(3):
        picture(photos / "train").unlink()
    update(squares, on_error="skip")
    assert compact(squares.out).versions[-1].change == "compact"
    (skipped,) = mmload.open(squares.out).manifest.splits["train"].skipped
    assert skipped[0].endswith("bro\u2028ken.png")


def test_a_clean_up_that_is_killed_leaves_all_kept_versions_whole(squares, photos):
    shutil.rmtree(photos / "val")
    update(squares)
    with dying_at(unused_files, "write_atomically"):
        remove_unused(squares.out)
    assert len(mmload.open(squares.out, version=1)["val"]) == 15
    assert verify(squares.out) == []
    with dying_at(Path, "unlink"):
        remove_unused(squares.out)
    assert (squares.out / "val").exists()
    assert remove_unused(squares.out).files > 0
    assert not (squares.out / "val").exists()
    assert not (squares.out / "versions").exists()
    assert verify(squares.out) == []
