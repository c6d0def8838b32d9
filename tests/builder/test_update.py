"""An update gives the rows of a fresh build, and changes no file of the version before it."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace

import pytest
import torch
from building import recipe
from conftest import contents
from conftest import mmload as mmload_command
from updating import assert_is_fresh, change, make_old, picture

import mmload
from mmload.builder import previous_version
from mmload.builder.pipeline import build, update
from mmload.builder.previous_version import UpdateOptions
from mmload.builder.recipe import VariableLayout
from mmload.builder.verify import compare, verify
from mmload.errors import BuildError, SampleError, StoreError, UsageError

CHANGES = {
    "one of each": (change, (1, 1, 1, 2)),
    "renamed": (lambda root: picture(root).rename(picture(root).with_name("renamed.jpg")), (1, 0, 1, 1)),
    "older": (
        lambda root: shutil.copyfile(picture(root, 2), picture(root)) and set_time(picture(root), 5e8),
        (0, 1, 0, 1),
    ),
    "class behind": (lambda root: shutil.copytree(root / "class0", root / "class9"), (5, 0, 0, 5)),
    "class between": (lambda root: shutil.copytree(root / "class0", root / "class00"), (5, 15, 0, 20)),
    "class in front": (lambda root: shutil.copytree(root / "class0", root / "added"), (5, 15, 0, 20)),
    "class gone": (lambda root: shutil.rmtree(root / "class1"), (0, 10, 5, 10)),
}
"""What happens to a source, and how many samples are added, changed, removed and read."""


def set_time(file, seconds):
    os.utime(file, (seconds, seconds))


def counts_of(report):
    return report.added, report.changed, report.removed


@pytest.mark.parametrize("changed", CHANGES)
def test_an_update_equals_a_fresh_build(squares, source, tmp_path, changed):
    make, counts = CHANGES[changed]
    make(source)
    report = update(squares)
    assert (*counts_of(report), report.built) == counts
    assert_is_fresh(squares, tmp_path)


@pytest.mark.parametrize("encode", ["raw", "jpeg"])
def test_an_update_of_variable_size_images_equals_a_fresh_build(source, tmp_path, encode):
    made = recipe(source, tmp_path / "out", variable_layout=VariableLayout(encode=encode), transforms=())
    build(made)
    change(source)
    assert counts_of(update(made)) == (1, 1, 1)
    assert_is_fresh(made, tmp_path)


def test_eight_updates_in_a_row_equal_a_fresh_build(squares, source, tmp_path):
    for number in range(8):
        files = sorted(source.rglob("*.*"))
        shutil.copy(files[number % 3], files[-1].with_name(f"n{number}.jpg"))
        files[-1 - number % 4].unlink()
        assert update(squares).manifest.version == number + 2
    assert_is_fresh(squares, tmp_path)


def test_many_new_pictures_of_a_shuffled_dataset_equal_a_fresh_build(source, tmp_path):
    made = recipe(source, tmp_path / "out", shuffle_seed=7)
    build(made)
    for number in range(40):
        shutil.copy(picture(source, number % 4), source / "class1" / f"x{number:02}.jpg")
    picture(source, 20).write_bytes(b"no picture")
    report = update(made, on_error="skip")
    assert (report.added, report.skipped) == (40, 1)
    assert_is_fresh(made, tmp_path, on_error="skip")


def test_touched_files_are_read_once(squares, source):
    for file in source.rglob("*.*"):
        set_time(file, 1.1e9)
    report = update(squares)
    assert (*counts_of(report), report.manifest.version) == (0, 0, 0, 2)
    assert update(squares).manifest.version == 2
    assert build(squares).built == 0


def test_an_update_changes_no_file_of_the_version_before_and_tells_what_changed(squares, source):
    before, split = contents(squares.out), mmload.open(squares.out)["train"]
    pixels, began = split[:].images.clone(), time.gmtime()
    change(source)
    update(squares)
    after = contents(squares.out)
    assert after["versions/1.json"] == before.pop("dataset.json")
    assert before.items() <= after.items()
    for earlier in (split, mmload.open(squares.out, version=1)["train"]):
        assert torch.equal(earlier[:].images, pixels)
    first, second = mmload.open(squares.out).manifest.versions
    assert (first.number, first.change, first.added) == (1, "build", 15)
    assert (second.number, second.change, *counts_of(second)) == (2, "update", 1, 1, 1)
    assert abs(time.mktime(time.strptime(second.time, "%Y-%m-%dT%H:%M:%SZ")) - time.mktime(began)) < 100
    with pytest.raises(StoreError, match=r"has no version 3; it has 1, 2"):
        mmload.open(squares.out, version=3)
    with pytest.raises(UsageError, match="was updated after its build"):
        compare(squares.out, source)
    build(squares, overwrite=True)
    assert mmload.open(squares.out).manifest.versions == ()
    assert sorted(entry.name for entry in squares.out.iterdir()) == [".source", "dataset.json", "train"]
    assert compare(squares.out, source) == []


def test_a_loader_goes_on_with_its_version(squares, source):
    loader = mmload.Loader(mmload.open(squares.out)["train"], batch_size=4)
    batches = iter(loader)
    first = next(batches)
    change(source)
    update(squares)
    ids = torch.cat([first.ids, *(batch.ids for batch in batches)])
    assert ids.tolist() == list(range(15))
    assert sum(len(batch) for batch in loader) == 15


def test_appended_rows_come_last_until_an_update_orders_them(squares, source, tmp_path):
    before = [source.id for source in mmload.open(squares.out)["train"].source(range(15))]
    before.remove(picture(source, 2).relative_to(source).as_posix())
    change(source)
    update(squares, UpdateOptions(append=True))
    split = mmload.open(squares.out)["train"]
    assert [source.id for source in split.source(range(len(split)))] == [*before, "class0/0a.jpg"]
    assert not update(squares).needed
    picture(source).unlink()
    update(squares)
    assert_is_fresh(squares, tmp_path)


def test_without_a_root_the_source_is_where_it_was(squares, source, tmp_path, monkeypatch):
    notes, unknown = [], replace(squares, root=None)
    change(source)
    assert counts_of(update(unknown, on_note=notes.append)) == (1, 1, 1)
    assert notes[0] == f"updates {squares.out} from {source}, where its source was before"
    source.rename(moved := tmp_path / "moved")
    with pytest.raises(UsageError, match=f"no longer at {source}; give its place: mmload update {squares.out} ROOT"):
        update(unknown)
    picture(moved).unlink()
    monkeypatch.chdir(tmp_path)
    assert counts_of(update(replace(squares, root="moved"))) == (0, 0, 1)
    monkeypatch.chdir(moved)
    picture(moved).unlink()
    done = mmload_command("update", squares.out)
    assert (done.returncode, "0 new, 0 changed, 1 gone" in done.stdout) == (0, True)
    (squares.out / ".source").unlink()
    with pytest.raises(UsageError, match="does not say where its source is; give its place"):
        update(unknown)
    assert verify(squares.out) == []
    assert build(replace(squares, root=moved), overwrite=True).built
    assert (squares.out / ".source").read_text() == str(moved)


def test_nothing_changed_makes_no_version_and_reads_no_rows(squares, monkeypatch):
    monkeypatch.delattr(previous_version, "stored_rows")
    assert not update(squares, UpdateOptions(dry_run=True)).needed
    report = update(squares)
    assert (*counts_of(report), report.built, report.manifest.version) == (0, 0, 0, 0, 1)
    assert not (squares.out / "versions").exists()


def test_a_dry_run_writes_nothing(squares, source):
    change(source)
    before = contents(squares.out.parent)
    assert counts_of(update(squares, UpdateOptions(dry_run=True))) == (1, 1, 1)
    assert contents(squares.out.parent) == before


def test_two_files_swapped_with_equal_size_and_time_are_seen_by_checksum_alone(source, tmp_path):
    files = picture(source), picture(source, 2)
    longest = max(file.stat().st_size for file in files)
    for file in files:
        file.write_bytes(file.read_bytes().ljust(longest, b"\0"))
    make_old(source)
    made = recipe(source, tmp_path / "out")
    build(made)
    for file, content in zip(files, [file.read_bytes() for file in reversed(files)], strict=True):
        file.write_bytes(content)
    make_old(source)
    assert not update(made).changed
    assert update(made, UpdateOptions(checksum=True)).changed == 2
    assert_is_fresh(made, tmp_path)


def test_a_file_written_within_the_resolution_of_its_time_is_seen(source, tmp_path):
    file = picture(source)
    os.utime(file)
    made = recipe(source, tmp_path / "out")
    build(made)
    status, data = file.stat(), bytearray(file.read_bytes())
    data[-20] ^= 0xFF
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert update(made).changed == 1


def test_a_picture_that_cannot_be_read_stops_an_update_or_is_left_out_and_is_tried_again(squares, source, tmp_path):
    good = picture(source).read_bytes()
    picture(source).write_bytes(b"no picture")
    with pytest.raises(SampleError, match=picture(source).name):
        update(squares)
    assert mmload.open(squares.out).manifest.version == 1
    report = update(squares, on_error="skip")
    assert (report.changed, report.skipped) == (1, 1)
    assert_is_fresh(squares, tmp_path, on_error="skip")
    assert update(squares, on_error="skip").manifest.version == 2
    picture(source).write_bytes(good)
    assert update(squares).added == 1
    assert_is_fresh(squares, tmp_path)


def test_update_further_exclusions_drop_their_rows_for_good(squares, tmp_path):
    listed = tmp_path / "excluded.txt"
    listed.write_text("class0/1.png\n")
    assert update(squares, exclude=listed).removed == 1
    assert_is_fresh(squares, tmp_path, exclude=listed)
    assert not update(squares).needed


@pytest.mark.parametrize("dry_run", [False, True])
def test_another_recipe_is_refused(squares, dry_run):
    with pytest.raises(BuildError, match=r"another recipe \(\[store\] shuffle_seed is 1, was not given\)"):
        update(replace(squares, shuffle_seed=1), UpdateOptions(dry_run=dry_run))


def test_without_a_dataset_there_is_nothing_to_update(source, tmp_path):
    with pytest.raises(StoreError, match="no such dataset"):
        update(recipe(source, tmp_path / "out"))
