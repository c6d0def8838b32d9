"""Updates that are interrupted, killed, divided into parts, or beside a clean-up: a version is whole, or not there."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from meanwhile import dying_at, interrupted
from updating import add_pictures, assert_is_fresh, change, picture

import mmload
from mmload.builder import staging
from mmload.builder.pipeline import build, build_part, update
from mmload.builder.previous_version import UpdateOptions
from mmload.builder.unused_files import compact, remove_unused
from mmload.builder.verify import verify
from mmload.errors import StoreError


def test_an_update_after_gc_goes_on_with_no_shards_of_other_samples(squares, source, tmp_path):
    for number in range(3):
        shutil.copy(picture(source), source / "class1" / "y.jpg")
        picture(source, 12).write_bytes(picture(source, number).read_bytes())
        update(squares)
    add_pictures(source, 30)
    interrupted(update, squares, after=12)
    remove_unused(squares.out)
    update(squares)
    assert_is_fresh(squares, tmp_path)


def test_a_version_whose_manifest_is_lost_is_a_fault_and_keeps_gc_from_guessing(squares, source):
    change(source)
    update(squares)
    (squares.out / "versions" / "1.json").write_text("lost")
    (fault,) = verify(squares.out)
    assert fault.file == "versions/1.json"
    with pytest.raises(StoreError, match=r"1\.json"):
        remove_unused(squares.out, keep=2)
    assert remove_unused(squares.out).versions == (1,)
    assert verify(squares.out) == []


def test_the_parts_of_an_update_commit_one_version_and_count_the_shards_of_a_subset_once(squares, source, tmp_path):
    mmload.save_subset(squares.out, "few", [0, 1])
    add_pictures(source, 30)
    first, last = (build_part(squares, f"{part}/2", options=UpdateOptions()) for part in (1, 2))
    assert (first.manifest is None, last.manifest.version) == (True, 3)
    assert last.shards == last.sealed == len(mmload.open(squares.out)["train"].record.shards)
    mmload.remove_subset(squares.out, "few")
    assert_is_fresh(squares, tmp_path)


@pytest.mark.parametrize("number", [None, 0])
def test_an_interrupted_update_resumes_from_its_shards_unless_the_source_has_changed(squares, source, tmp_path, number):
    add_pictures(source, 30)
    interrupted(update, squares, after=12)
    assert mmload.open(squares.out).manifest.version == 1
    if number is not None:
        picture(source, number).unlink()
    report = update(squares)
    assert (report.removed, 0 < report.built < 30) == ((0, True) if number is None else (1, False))
    assert_is_fresh(squares, tmp_path)


@pytest.mark.parametrize("then", [remove_unused, compact, lambda out: None])
def test_an_update_that_is_killed_while_it_moves_files_is_completed(squares, source, tmp_path, then):
    change(source)
    with dying_at(staging, "versions_of"):
        update(squares)
    assert mmload.open(squares.out).manifest.version == 1
    assert verify(squares.out) == []
    then(squares.out)
    assert update(squares).manifest.version == 2
    assert_is_fresh(squares, tmp_path)


def test_a_dataset_whose_update_was_killed_while_it_moved_files_can_be_built_again(squares, source, tmp_path):
    change(source)
    with dying_at(staging, "versions_of"):
        update(squares)
    again = replace(squares, shuffle_seed=5)
    build(again, overwrite=True)
    assert_is_fresh(again, tmp_path)
    assert not (tmp_path / ".out.building").exists()


def test_a_version_of_which_a_file_is_missing_is_not_committed(squares, source, tmp_path):
    change(source)
    with dying_at(staging, "versions_of"):
        update(squares)
    new = max(file for file in (squares.out / "train").iterdir() if file.is_dir())
    (new / "images.memmap").unlink()
    assert update(squares).manifest.version == 2
    assert_is_fresh(squares, tmp_path)
