"""What no version needs is removed, and nothing else."""

from __future__ import annotations

import shutil

import pytest
import torch
from building import make_pictures, recipe
from conftest import contents

import mmload
from mmload.builder.dataset_change import compact, remove_unused
from mmload.builder.pipeline import build, update
from mmload.builder.recipe import VariableLayout
from mmload.builder.verify import verify
from mmload.errors import StoreError, UsageError

LAYOUTS = {"squares": {}, "jpeg": {"variable_layout": VariableLayout(encode="jpeg"), "transforms": ()}}


@pytest.fixture(params=LAYOUTS)
def made(request, tmp_path):
    """Recipe of a dataset of four versions, of which the last has few of the first one's rows."""
    photos = make_pictures(tmp_path / "photos")
    made = recipe(photos, tmp_path / "out", **LAYOUTS[request.param])
    build(made)
    for number in range(3):
        files = sorted(photos.rglob("*.*"))
        shutil.copy(files[0], files[-1].with_name(f"n{number}.jpg"))
        for file in files[1:4]:
            file.unlink()
        if number == 0:
            shutil.copy(files[0], files[0].with_name("1.jpg"))
        update(made)
    return made


def rows_of(out, version=None):
    split = mmload.open(out, version=version)["train"]
    return [(split.source(row), split[row].images.tolist(), int(split[row].targets)) for row in range(len(split))]


@pytest.fixture
def expected(made):
    """The rows of its current version, which are the same at the end, in a dataset that is whole."""
    rows = rows_of(made.out)
    yield rows
    assert rows_of(made.out) == rows
    assert verify(made.out) == []


@pytest.mark.usefixtures("expected")
def test_earlier_versions_go_and_the_current_one_stays(made):
    before = contents(made.out)
    found = remove_unused(made.out)
    assert (found.versions, found.files) == ((1, 2, 3), len(before.keys() - contents(made.out).keys()))
    assert [version.number for version in mmload.open(made.out).manifest.versions] == [4]
    assert not (made.out / "versions").exists()
    with pytest.raises(StoreError, match="has no version 1; it has 4"):
        mmload.open(made.out, version=1)


@pytest.mark.usefixtures("expected")
def test_kept_versions_can_be_opened(made):
    third = rows_of(made.out, 3)
    assert remove_unused(made.out, keep=2).versions == (1, 2)
    assert rows_of(made.out, 3) == third


def test_a_dry_run_removes_nothing(made):
    before = contents(made.out)
    found = remove_unused(made.out, dry_run=True)
    assert found.files
    assert contents(made.out) == before
    assert remove_unused(made.out) == found
    assert remove_unused(made.out).files == 0


def test_files_of_others_stay(made):
    others = ["mine.txt", "train/notes.md", "train/rows.txt", "train/000098/images.memmap", "train/000098/mine.txt"]
    others += ["train/000000/mine.memmap", "train/20240101/embeddings.memmap", "train/20240101/meta.json"]
    for name in others:
        (made.out / name).parent.mkdir(exist_ok=True)
        (made.out / name).write_text("mine")
    remove_unused(made.out)
    assert all((made.out / name).read_text() == "mine" for name in others)


@pytest.mark.usefixtures("expected")
def test_compacting_keeps_the_rows_and_frees_their_shards(made):
    def size():
        return sum(file.stat().st_size for file in made.out.rglob("*.memmap"))

    manifest = compact(made.out)
    assert (manifest.version, manifest.versions[-1].change) == (5, "compact")
    assert verify(made.out) == []
    before = size()
    remove_unused(made.out)
    assert size() < before
    assert compact(made.out).version == 5


def test_an_update_after_compacting_adds_rows(made):
    compact(made.out)
    remove_unused(made.out)
    shutil.copy(sorted(made.root.rglob("*.*"))[0], made.root / "class0" / "z.jpg")
    assert update(made).added == 1


def test_a_loader_of_a_dropped_version_goes_on_with_open_files(made):
    split = mmload.open(made.out, version=1)["train"]
    pixels = [split[row].images for row in range(len(split))]
    remove_unused(made.out, keep=4)
    assert all(torch.equal(split[row].images, expected) for row, expected in enumerate(pixels))


def test_no_version_cannot_be_kept(made):
    with pytest.raises(UsageError, match="keep is 0"):
        remove_unused(made.out, keep=0)
