"""Updates that are interrupted, killed, divided into parts, or beside a clean-up: a version is whole, or not there."""

from __future__ import annotations

import shutil

import pytest
from updating import add_pictures, assert_rows_equal, change, fresh, interrupt_after, picture

import mmload
from mmload.builder import staging
from mmload.builder.engines import LocalEngine
from mmload.builder.pipeline import build_part, update
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
    with pytest.raises(KeyboardInterrupt):
        update(squares, progress=interrupt_after(12), engine=LocalEngine(threads=1, processes=1))
    remove_unused(squares.out)
    update(squares)
    assert_rows_equal(mmload.open(squares.out), fresh(squares, tmp_path))


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


def test_the_parts_of_an_update_commit_one_version(squares, source, tmp_path):
    add_pictures(source, 30)
    reports = [build_part(squares, f"{part}/2", options=UpdateOptions()) for part in (1, 2)]
    assert [report.manifest is None for report in reports] == [True, False]
    assert mmload.open(squares.out).manifest.version == 2
    assert_rows_equal(mmload.open(squares.out), fresh(squares, tmp_path))


def test_parts_count_the_shards_of_a_subset_once(squares, source):
    mmload.save_subset(squares.out, "few", [0, 1])
    report = build_part(squares, "1/1", options=UpdateOptions())
    assert report.shards == report.sealed == len(mmload.open(squares.out)["train"].record.shards)


def test_an_interrupted_update_resumes_from_its_shards(squares, source, tmp_path):
    add_pictures(source, 30)
    with pytest.raises(KeyboardInterrupt):
        update(squares, progress=interrupt_after(12), engine=LocalEngine(threads=1, processes=1))
    assert mmload.open(squares.out).manifest.version == 1
    assert 0 < update(squares).built < 30
    assert_rows_equal(mmload.open(squares.out), fresh(squares, tmp_path))


def test_finished_shards_of_an_older_state_of_the_source_are_dropped(squares, source, tmp_path):
    add_pictures(source, 30)
    with pytest.raises(KeyboardInterrupt):
        update(squares, progress=interrupt_after(12), engine=LocalEngine(threads=1, processes=1))
    picture(source).unlink()
    assert update(squares).removed == 1
    assert_rows_equal(mmload.open(squares.out), fresh(squares, tmp_path))


@pytest.mark.parametrize("then", [remove_unused, compact, lambda out: None])
def test_an_update_that_is_killed_while_it_moves_files_is_completed(squares, source, tmp_path, monkeypatch, then):
    change(source)
    with monkeypatch.context() as patch:
        patch.setattr(staging, "versions_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            update(squares)
    assert mmload.open(squares.out).manifest.version == 1
    assert verify(squares.out) == []
    then(squares.out)
    assert update(squares).manifest.version == 2
    assert verify(squares.out) == []
    assert_rows_equal(mmload.open(squares.out), fresh(squares, tmp_path))


def test_a_version_of_which_a_file_is_missing_is_not_committed(squares, source, tmp_path, monkeypatch):
    change(source)
    with monkeypatch.context() as patch:
        patch.setattr(staging, "versions_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            update(squares)
    new = max(file for file in (squares.out / "train").iterdir() if file.is_dir())
    (new / "images.memmap").unlink()
    assert update(squares).manifest.version == 2
    assert verify(squares.out) == []
    assert_rows_equal(mmload.open(squares.out), fresh(squares, tmp_path))


def interrupted(*_, **__):
    raise KeyboardInterrupt
