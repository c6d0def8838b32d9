"""Versions in object storage: what a push of an updated dataset copies, and what readers of the old one get."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import complaint, contents, mmload
from s3_server import Bucket
from updating import picture

from mmload.builder.dataset_change import remove_unused
from mmload.builder.pipeline import update
from mmload.builder.recipe import BuildRecipe
from mmload.builder.verify import verify
from mmload.errors import StoreError, UsageError
from mmload.loader.loader import Loader
from mmload.remote.copies import pull, push
from mmload.remote.opening import open as open_dataset

pytestmark = pytest.mark.usefixtures("fresh_caches")


def change(made: BuildRecipe) -> None:
    """Adds a picture to the source, removes another one, and updates the dataset."""
    assert isinstance(made.root, Path)
    shutil.copy(picture(made.root), picture(made.root).with_name("new.jpg"))
    picture(made.root, 4).unlink()
    update(made)


def images_in(place: Path | str, **options: Any) -> torch.Tensor:
    """All images of a dataset."""
    images: torch.Tensor = open_dataset(place, **options)["train"][:].images.clone()
    return images


@pytest.fixture
def url(squares: BuildRecipe, bucket: Bucket) -> str:
    """The first version of ``squares`` where it is in object storage."""
    assert push(squares.out, f"{bucket.url}/photos").files > 6
    return f"{bucket.url}/photos"


def test_a_push_of_an_updated_dataset_copies_only_what_is_new(squares: BuildRecipe, url: str, tmp_path: Path) -> None:
    change(squares)
    # The new shard's two fields and its meta.json; the lists of samples, origins and rows.
    assert push(squares.out, url).files == 6
    assert push(squares.out, url).files == 0
    pull(url, tmp_path / "back")
    assert verify(tmp_path / "back") == []
    assert torch.equal(images_in(squares.out), images_in(tmp_path / "back"))


def test_a_pull_into_a_copy_of_an_earlier_version_copies_only_what_is_new(
    squares: BuildRecipe, url: str, tmp_path: Path
) -> None:
    back, expected = tmp_path / "back", images_in(squares.out)
    pull(url, back)
    before = open_dataset(back)["train"]
    for number, files in ((2, 6), (3, 3)):  # the last one only leaves out a row
        change(squares)
        push(squares.out, url)
        assert [pull(url, back).files for _ in range(2)] == [files, 0]
        assert verify(back) == []
        assert [version.number for version in open_dataset(back).manifest.versions] == list(range(1, number + 1))
        assert torch.equal(images_in(squares.out), images_in(back))
        assert torch.equal(before[:].images, expected)
        assert torch.equal(images_in(back, version=1), expected)
    with pytest.raises(UsageError, match="exists and is not this dataset, nor an earlier version of it"):
        pull(url, back, version=1)
    remove_unused(back)
    assert verify(back) == []


def test_a_reader_of_the_version_before_goes_on(squares: BuildRecipe, url: str, tmp_path: Path) -> None:
    cache, expected = tmp_path / "cache", images_in(squares.out)
    split = open_dataset(url, cache=cache)["train"]
    first = split[:3].images
    change(squares)
    push(squares.out, url)
    assert torch.equal(torch.cat([first, split[3:].images]), expected)
    assert torch.equal(pickle.loads(pickle.dumps(split))[:].images, expected)
    assert torch.equal(images_in(url, version=1, cache=tmp_path / "other"), expected)
    new, images = open_dataset(url, cache=cache)["train"], images_in(squares.out)
    assert torch.equal(new[:].images, images)
    for batch in Loader(new, batch_size=4, shuffle=True):
        assert torch.equal(batch.images, images[batch.ids])


def test_blocks_of_shards_that_stay_are_not_fetched_again(
    squares: BuildRecipe, url: str, bucket: Bucket, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    old = open_dataset(url, cache=cache)["train"]
    pixels = old[:].images
    change(squares)
    push(squares.out, url)
    (bucket.folder / "photos" / "train" / "000000" / "images.memmap").unlink()
    assert torch.equal(images_in(url, cache=cache), images_in(squares.out))
    assert torch.equal(old[:].images, pixels)


def test_a_push_after_gc_and_from_a_pulled_copy(squares: BuildRecipe, url: str, tmp_path: Path) -> None:
    change(squares)
    push(squares.out, url)
    remove_unused(squares.out)
    assert push(squares.out, url).files == 0
    copied = replace(squares, out=tmp_path / "back")
    pull(url, copied.out)
    assert [version.number for version in open_dataset(copied.out).manifest.versions] == [2]
    change(copied)
    push(copied.out, url)
    assert verify(copied.out) == []
    assert torch.equal(images_in(url, cache=tmp_path / "cache"), images_in(copied.out))


def test_a_version_can_be_pulled_and_pushed_but_replaces_no_newer_one(
    squares: BuildRecipe, bucket: Bucket, tmp_path: Path
) -> None:
    change(squares)
    for version in (1, None):
        push(squares.out, f"{bucket.url}/first", version=version)
    pull(f"{bucket.url}/first", tmp_path / "one", version=1)
    assert verify(tmp_path / "one") == []
    assert torch.equal(images_in(tmp_path / "one"), images_in(squares.out, version=1))
    with pytest.raises(StoreError, match="has no version 7; it has 1, 2"):
        pull(f"{bucket.url}/first", tmp_path / "seven", version=7)
    push(squares.out, f"{bucket.url}/photos")
    with pytest.raises(UsageError, match="holds another dataset"):
        push(squares.out, f"{bucket.url}/photos", version=1)


def test_the_commands_take_a_version(squares: BuildRecipe, url: str, tmp_path: Path) -> None:
    change(squares)
    assert "is whole" in mmload("verify", squares.out, "--version", 1).stdout
    assert "has no version 9; it has 1, 2" in complaint(mmload("verify", squares.out, "--version", 9), 1)
    mmload("push", squares.out, url)
    log = mmload("info", url, "--versions").stdout.splitlines()
    assert [line.split()[0] for line in log] == ["version", "2", "1"]
    assert "copied" in mmload("pull", url, tmp_path / "back", "--version", 2).stdout


@pytest.mark.parametrize("link", ["evil/train", "evil/versions", ".evil.pulling/{}", ".evil.pulling/{}/train"])
def test_a_pull_writes_nothing_behind_links(squares: BuildRecipe, bucket: Bucket, tmp_path: Path, link: str) -> None:
    change(squares)
    good = tmp_path / "good"
    for copy in (good, tmp_path / "evil"):
        shutil.copytree(squares.out, copy)
    change(squares)
    push(squares.out, bucket.url)
    link = link.format(open_dataset(squares.out).manifest.contents[:32])
    place = tmp_path / link
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    place.symlink_to(good / place.name if (good / place.name).exists() else good)
    before = contents(good)
    with pytest.raises(StoreError, match=f"{link} is a link to .*, and nothing is written or removed behind links"):
        pull(bucket.url, tmp_path / "evil")
    assert contents(good) == before
