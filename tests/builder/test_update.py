"""An update gives the rows of a fresh build, and changes no file of the version before it."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace

import pytest
import torch
from building import recipe
from updating import assert_rows_equal, change, files_of, fresh, make_old, picture

import mmload
from mmload.builder.pipeline import build, update
from mmload.builder.previous_version import UpdateOptions
from mmload.builder.recipe import VariableLayout
from mmload.builder.verify import compare, verify
from mmload.errors import BuildError, SampleError, StoreError, UsageError

LAYOUTS = {"squares": {}, "raw": {"variable_layout": VariableLayout(encode="raw"), "transforms": ()}}
LAYOUTS["jpeg"] = {"variable_layout": VariableLayout(encode="jpeg"), "transforms": ()}


@pytest.fixture(params=LAYOUTS)
def options(request):
    return LAYOUTS[request.param]


def test_an_update_equals_a_fresh_build(source, tmp_path, options):
    made = recipe(source, tmp_path / "out", **options)
    build(made)
    change(source)
    report = update(made)
    assert (report.added, report.changed, report.removed, report.built) == (1, 1, 1, 2)
    assert_rows_equal(mmload.open(made.out), fresh(made, tmp_path))
    assert verify(made.out) == []


def test_eight_updates_in_a_row_equal_a_fresh_build(squares, source, tmp_path):
    for number in range(8):
        files = sorted(source.rglob("*.*"))
        shutil.copy(files[number % 3], files[-1].with_name(f"n{number}.jpg"))
        files[-1 - number % 4].unlink()
        report = update(squares)
        assert report.manifest.version == number + 2
    assert_rows_equal(mmload.open(squares.out), fresh(squares, tmp_path))
    assert verify(squares.out) == []


def test_many_new_pictures_of_a_shuffled_dataset_equal_a_fresh_build(source, tmp_path):
    made = recipe(source, tmp_path / "out", shuffle_seed=7)
    build(made)
    for number in range(40):
        shutil.copy(picture(source, number % 4), source / "class1" / f"x{number:02}.jpg")
    picture(source, 20).write_bytes(b"no picture")
    report = update(made, on_error="skip")
    assert (report.added, report.skipped) == (40, 1)
    assert_rows_equal(mmload.open(made.out), fresh(made, tmp_path, on_error="skip"))


def test_touched_files_are_read_once(squares, source):
    for file in source.rglob("*.*"):
        os.utime(file, (1.1e9, 1.1e9))
    report = update(squares)
    assert (report.added, report.changed, report.removed, report.manifest.version) == (0, 0, 0, 2)
    assert update(squares).manifest.version == 2
    assert build(squares).built == 0


def test_an_update_changes_no_file_of_the_version_before(squares, source):
    before = files_of(squares.out)
    split = mmload.open(squares.out)["train"]
    pixels = split[:].images.clone()
    change(source)
    update(squares)
    after = files_of(squares.out)
    manifest = squares.out / "dataset.json"
    assert {file: content for file, content in before.items() if file != manifest}.items() <= after.items()
    assert after[squares.out / "versions" / "1.json"] == before[manifest]
    assert torch.equal(split[:].images, pixels)
    assert torch.equal(mmload.open(squares.out, version=1)["train"][:].images, pixels)


def test_a_loader_goes_on_with_its_version(squares, source):
    loader = mmload.Loader(mmload.open(squares.out)["train"], batch_size=4)
    batches = iter(loader)
    first = next(batches)
    change(source)
    update(squares)
    ids = torch.cat([first.ids, *(batch.ids for batch in batches)])
    assert ids.tolist() == list(range(15))
    assert sum(len(batch) for batch in loader) == 15


def test_appended_rows_come_last_and_others_keep_their_places(squares, source):
    before = [source.id for source in mmload.open(squares.out)["train"].source(range(15))]
    removed, added = picture(source, 2), picture(source).with_name("0a.jpg")
    change(source)
    update(squares, UpdateOptions(append=True))
    split = mmload.open(squares.out)["train"]
    names = [source.id for source in split.source(range(len(split)))]
    gone = removed.relative_to(source).as_posix()
    assert names == [*(name for name in before if name != gone), added.relative_to(source).as_posix()]


def test_an_update_that_leaves_the_appended_order_says_so_before_it_writes(squares, source, tmp_path):
    change(source)
    update(squares, UpdateOptions(append=True))
    notes = []
    assert not update(squares, on_note=notes.append).needed
    assert notes == []
    picture(source).unlink()
    before = files_of(squares.out)
    update(squares, UpdateOptions(append=True, dry_run=True), on_note=notes.append)
    assert notes == []
    update(squares, UpdateOptions(dry_run=True), on_note=notes.append)
    (line,) = notes
    assert line.startswith("14 of 14 rows of split train change their order")
    assert files_of(squares.out) == before
    update(squares)
    assert_rows_equal(mmload.open(squares.out), fresh(squares, tmp_path))


def test_nothing_changed_makes_no_version(squares):
    assert not update(squares, UpdateOptions(dry_run=True)).needed
    report = update(squares)
    assert (report.added, report.changed, report.removed, report.built) == (0, 0, 0, 0)
    assert report.manifest.version == 1
    assert not (squares.out / "versions").exists()


def test_a_dry_run_writes_nothing(squares, source):
    before = files_of(squares.out.parent)
    change(source)
    report = update(squares, UpdateOptions(dry_run=True))
    assert (report.added, report.changed, report.removed) == (1, 1, 1)
    before |= {file: file.read_bytes() for file in source.rglob("*.*")}
    assert {file for file in files_of(squares.out.parent) if source not in file.parents} == {
        file for file in before if source not in file.parents
    }


def test_two_files_swapped_with_equal_size_and_time_are_seen_by_checksum_alone(source, tmp_path):
    first, second = picture(source), picture(source, 2)
    content = first.read_bytes(), second.read_bytes()
    longest = max(map(len, content))
    for file, data in zip((first, second), content, strict=True):
        file.write_bytes(data + bytes(longest - len(data)))
    make_old(source)
    made = recipe(source, tmp_path / "out")
    build(made)
    swapped = first.read_bytes(), second.read_bytes()
    second.write_bytes(swapped[0])
    first.write_bytes(swapped[1])
    make_old(source)
    assert not update(made).changed
    assert update(made, UpdateOptions(checksum=True)).changed == 2
    assert_rows_equal(mmload.open(made.out), fresh(made, tmp_path))


def test_a_file_written_within_the_resolution_of_its_time_is_seen(source, tmp_path):
    file = picture(source)
    os.utime(file)
    made = recipe(source, tmp_path / "out")
    build(made)
    status = file.stat()
    data = bytearray(file.read_bytes())
    data[-20] ^= 0xFF
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert update(made).changed == 1


def test_a_clock_that_goes_back_hides_no_change(squares, source, tmp_path):
    file = picture(source)
    file.write_bytes(picture(source, 2).read_bytes())
    os.utime(file, (5e8, 5e8))
    assert update(squares).changed == 1
    assert_rows_equal(mmload.open(squares.out), fresh(squares, tmp_path))


def test_a_renamed_file_is_a_new_one_and_one_that_is_gone(squares, source, tmp_path):
    file = picture(source)
    file.rename(file.with_name("renamed.jpg"))
    report = update(squares)
    assert (report.added, report.changed, report.removed) == (1, 0, 1)
    assert_rows_equal(mmload.open(squares.out), fresh(squares, tmp_path))


def test_a_class_after_the_others_builds_only_its_own_pictures(squares, source, tmp_path):
    shutil.copytree(source / "class0", source / "class9")
    report = update(squares)
    assert (report.added, report.changed, report.built) == (5, 0, 5)
    assert_rows_equal(mmload.open(squares.out), fresh(squares, tmp_path))


@pytest.mark.parametrize("name", ["class00", "added"])
def test_a_class_before_others_builds_all_pictures_whose_numbers_change(squares, source, tmp_path, name):
    shutil.copytree(source / "class0", source / name)
    report = update(squares)
    assert report.added == 5
    assert_rows_equal(mmload.open(squares.out), fresh(squares, tmp_path))


def test_a_class_that_is_removed_takes_its_rows_along(squares, source, tmp_path):
    shutil.rmtree(source / "class1")
    assert update(squares).removed == 5
    assert_rows_equal(mmload.open(squares.out), fresh(squares, tmp_path))


def test_a_picture_that_cannot_be_read_stops_an_update_or_is_left_out(squares, source, tmp_path):
    picture(source).write_bytes(b"no picture")
    with pytest.raises(SampleError, match=picture(source).name):
        update(squares)
    assert mmload.open(squares.out).manifest.version == 1
    report = update(squares, on_error="skip")
    assert (report.changed, report.skipped) == (1, 1)
    assert_rows_equal(mmload.open(squares.out), fresh(squares, tmp_path, on_error="skip"))
    assert update(squares, on_error="skip").manifest.version == 2


def test_a_picture_that_was_left_out_is_tried_again(source, tmp_path):
    good = picture(source).read_bytes()
    picture(source).write_bytes(b"no picture")
    made = recipe(source, tmp_path / "out")
    build(made, on_error="skip")
    picture(source).write_bytes(good)
    assert update(made).added == 1
    assert_rows_equal(mmload.open(made.out), fresh(made, tmp_path))


def test_update_further_exclusions_drop_their_rows(squares, tmp_path):
    listed = tmp_path / "excluded.txt"
    listed.write_text("class0/1.png\n")
    assert update(squares, exclude=listed).removed == 1
    assert_rows_equal(mmload.open(squares.out), fresh(squares, tmp_path, exclude=listed))
    with pytest.raises(BuildError, match="was built by another recipe"):
        update(squares)


@pytest.mark.parametrize("dry_run", [False, True])
def test_another_recipe_is_refused(squares, dry_run):
    with pytest.raises(BuildError, match=r"another recipe \(\[store\] shuffle_seed is 1, was not given\)"):
        update(replace(squares, shuffle_seed=1), UpdateOptions(dry_run=dry_run))


def test_without_a_dataset_there_is_nothing_to_update(source, tmp_path):
    with pytest.raises(StoreError, match="no such dataset"):
        update(recipe(source, tmp_path / "out"))


def test_an_overwriting_build_removes_all_versions(squares, source):
    change(source)
    update(squares)
    change(source.parent / "photos")
    build(squares, overwrite=True)
    assert mmload.open(squares.out).manifest.versions == ()
    assert sorted(entry.name for entry in squares.out.iterdir()) == ["dataset.json", "train"]
    assert compare(squares.out, source) == []


def test_an_updated_dataset_is_not_compared_shard_by_shard(squares, source):
    change(source)
    update(squares)
    with pytest.raises(UsageError, match="was updated after its build"):
        compare(squares.out, source)


def test_the_versions_tell_what_changed(squares, source):
    change(source)
    update(squares)
    first, second = mmload.open(squares.out).manifest.versions
    assert (first.number, first.change, first.added) == (1, "build", 15)
    assert (second.number, second.change) == (2, "update")
    assert (second.added, second.changed, second.removed) == (1, 1, 1)
    assert abs(time.mktime(time.strptime(second.time, "%Y-%m-%dT%H:%M:%SZ")) - time.mktime(time.gmtime())) < 100
    with pytest.raises(StoreError, match=r"has no version 3; it has 1, 2"):
        mmload.open(squares.out, version=3)
