"""Versions in object storage: what a push of an updated dataset copies, and what readers of the old one get."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from building import make_pictures, recipe
from conftest import complaint, contents, mmload
from s3_server import Bucket

from mmload.builder.dataset_change import remove_unused
from mmload.builder.pipeline import build, update
from mmload.builder.recipe import BuildRecipe
from mmload.builder.verify import verify
from mmload.errors import StoreError, UsageError
from mmload.loader.loader import Loader
from mmload.remote.copies import pull, push
from mmload.remote.opening import open as open_dataset

pytestmark = pytest.mark.usefixtures("fresh_caches")


@pytest.fixture
def made(tmp_path: Path) -> BuildRecipe:
    made = recipe(make_pictures(tmp_path / "photos"), tmp_path / "out")
    build(made)
    return made


def change(made: BuildRecipe) -> None:
    assert isinstance(made.root, Path)
    file = sorted(made.root.rglob("*.*"))[0]
    shutil.copy(file, file.with_name("new.jpg"))
    sorted(made.root.rglob("*.*"))[4].unlink()
    update(made)


def test_a_push_of_an_updated_dataset_copies_only_what_is_new(
    made: BuildRecipe, bucket: Bucket, tmp_path: Path
) -> None:
    whole = push(made.out, f"{bucket.url}/photos")
    change(made)
    again = push(made.out, f"{bucket.url}/photos")
    # The new shard's two fields and its meta.json; the lists of samples, origins and rows.
    assert (again.files, whole.files > 6) == (6, True)
    assert push(made.out, f"{bucket.url}/photos").files == 0
    pull(f"{bucket.url}/photos", tmp_path / "back")
    assert verify(tmp_path / "back") == []
    ours, back = (open_dataset(place)["train"] for place in (made.out, tmp_path / "back"))
    assert torch.equal(ours[:].images, back[:].images)


def test_a_pull_into_a_copy_of_an_earlier_version_copies_only_what_is_new(
    made: BuildRecipe, bucket: Bucket, tmp_path: Path
) -> None:
    url, back = f"{bucket.url}/photos", tmp_path / "back"
    push(made.out, url)
    pull(url, back)
    before = open_dataset(back)["train"]
    expected = before[:].images.clone()
    for number, files in ((2, 6), (3, 3)):  # the last one only leaves out a row
        change(made)
        push(made.out, url)
        assert pull(url, back).files == files
        assert pull(url, back).files == 0
        assert verify(back) == []
        assert [version.number for version in open_dataset(back).manifest.versions] == list(range(1, number + 1))
        assert torch.equal(open_dataset(made.out)["train"][:].images, open_dataset(back)["train"][:].images)
        for first in (before, open_dataset(back, version=1)["train"]):
            assert torch.equal(first[:].images, expected)
    with pytest.raises(UsageError, match="exists and is not this dataset, nor an earlier version of it"):
        pull(url, back, version=1)
    remove_unused(back)
    assert verify(back) == []


def test_a_reader_of_the_version_before_goes_on(made: BuildRecipe, bucket: Bucket, tmp_path: Path) -> None:
    url, cache = f"{bucket.url}/photos", tmp_path / "cache"
    expected = open_dataset(made.out)["train"][:].images.clone()
    push(made.out, url)
    split = open_dataset(url, cache=cache)["train"]
    first = split[:3].images
    change(made)
    push(made.out, url)
    assert torch.equal(torch.cat([first, split[3:].images]), expected)
    copy = pickle.loads(pickle.dumps(split))
    assert torch.equal(copy[:].images, expected)
    old = open_dataset(url, version=1, cache=tmp_path / "other")["train"]
    assert torch.equal(old[:].images, expected)
    new = open_dataset(url, cache=cache)["train"]
    rows = open_dataset(made.out)["train"][:].images
    assert torch.equal(new[:].images, rows)
    for batch in Loader(new, batch_size=4, shuffle=True):
        assert torch.equal(batch.images, rows[batch.ids])


def test_blocks_of_shards_that_stay_are_not_fetched_again(made: BuildRecipe, bucket: Bucket, tmp_path: Path) -> None:
    url, cache = f"{bucket.url}/photos", tmp_path / "cache"
    push(made.out, url)
    old = open_dataset(url, cache=cache)["train"]
    pixels = old[:].images
    change(made)
    push(made.out, url)
    (bucket.folder / "photos" / "train" / "000000" / "images.memmap").unlink()
    new = open_dataset(url, cache=cache)["train"]
    assert torch.equal(new[:].images, open_dataset(made.out)["train"][:].images)
    assert torch.equal(old[:].images, pixels)


def test_a_push_after_gc_and_from_a_pulled_copy(made: BuildRecipe, bucket: Bucket, tmp_path: Path) -> None:
    url = f"{bucket.url}/photos"
    push(made.out, url)
    change(made)
    push(made.out, url)
    remove_unused(made.out)
    assert push(made.out, url).files == 0
    pull(url, tmp_path / "back")
    assert [version.number for version in open_dataset(tmp_path / "back").manifest.versions] == [2]
    copied = replace(made, out=tmp_path / "back")
    change(copied)
    push(copied.out, url)
    assert verify(copied.out) == []
    rows = open_dataset(copied.out)["train"][:].images
    assert torch.equal(open_dataset(url, cache=tmp_path / "cache")["train"][:].images, rows)


def test_a_version_can_be_pulled_and_pushed(made: BuildRecipe, bucket: Bucket, tmp_path: Path) -> None:
    change(made)
    push(made.out, f"{bucket.url}/first", version=1)
    push(made.out, f"{bucket.url}/first")
    pull(f"{bucket.url}/first", tmp_path / "one", version=1)
    assert verify(tmp_path / "one") == []
    expected = open_dataset(made.out, version=1)["train"][:].images
    assert torch.equal(open_dataset(tmp_path / "one")["train"][:].images, expected)
    with pytest.raises(StoreError, match="has no version 7; it has 1, 2"):
        pull(f"{bucket.url}/first", tmp_path / "seven", version=7)


def test_an_older_dataset_does_not_replace_a_newer_one(made: BuildRecipe, bucket: Bucket) -> None:
    change(made)
    push(made.out, f"{bucket.url}/photos")
    with pytest.raises(UsageError, match="which is not a file of this dataset"):
        push(made.out, f"{bucket.url}/photos", version=1)


def test_the_commands_take_a_version(made: BuildRecipe, bucket: Bucket, tmp_path: Path) -> None:
    change(made)
    assert "is whole" in mmload("verify", made.out, "--version", 1).stdout
    assert "has no version 9; it has 1, 2" in complaint(mmload("verify", made.out, "--version", 9), 1)
    mmload("push", made.out, f"{bucket.url}/photos")
    log = mmload("info", f"{bucket.url}/photos", "--versions").stdout.splitlines()
    assert [line.split()[0] for line in log] == ["version", "2", "1"]
    assert "copied" in mmload("pull", f"{bucket.url}/photos", tmp_path / "back", "--version", 2).stdout


@pytest.mark.parametrize(
    "link", ["evil/train", "evil/versions", ".evil.pulling/dataset", ".evil.pulling/dataset/train"]
)
def test_a_pull_writes_nothing_behind_links(made: BuildRecipe, bucket: Bucket, tmp_path: Path, link: str) -> None:
    change(made)
    good = tmp_path / "good"
    shutil.copytree(made.out, good)
    shutil.copytree(made.out, tmp_path / "evil")
    change(made)
    push(made.out, bucket.url)
    place = tmp_path / link
    if link.startswith(".evil"):
        work = tmp_path / ".evil.pulling"
        (work / "dataset").mkdir(parents=True)
        (work / "contents").write_text(open_dataset(made.out).manifest.contents)
    shutil.rmtree(place, ignore_errors=True)
    place.symlink_to(good / place.name if place.name != "dataset" else good)
    before = contents(good)
    with pytest.raises(StoreError, match=f"{link} is a link to .*, and nothing is written or removed behind links"):
        pull(bucket.url, tmp_path / "evil")
    assert contents(good) == before
