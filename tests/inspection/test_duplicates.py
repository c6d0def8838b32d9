"""Copies of pictures are found, and different pictures are not taken for copies."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.inspection import duplicates
from mmload.inspection.duplicates import copies, groups, hashes
from mmload.inspection.row_kernels import CLOSE_BITS, SIDE, reduce
from mmload.inspection.thumbnails import thumbnails
from mmload.store.dataset import Dataset
from mmload.store.dataset import open as open_dataset

COPIES = ("exact", "half", "quality", "brighter", "darker")


def copy_of(image: Image.Image, how: str) -> Image.Image:
    if how == "half":
        return image.resize((image.width // 2, image.height // 2))
    if how == "quality":
        file = io.BytesIO()
        image.save(file, "JPEG", quality=60)
        return Image.open(file)
    if how in ("brighter", "darker"):
        return ImageEnhance.Brightness(image).enhance(1.3 if how == "brighter" else 0.7)
    return image


def with_copies(photos: list[Path], place: Path) -> tuple[Dataset, int]:
    """A dataset of photographs in class ``a`` and their copies in class ``b`` and so on."""
    for number, path in enumerate(photos):
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        for how in ("original", *COPIES):
            (place / "photos" / how).mkdir(parents=True, exist_ok=True)
            copy_of(image, how).save(place / "photos" / how / f"{number:04d}.png")
    out = place / "out"
    build(BuildRecipe(kind="imagefolder", root=place / "photos", out=out, transforms=square(96)), threads=2)
    return open_dataset(out), len(photos)


def judged(dataset: Dataset, count: int) -> tuple[dict[str, float], int]:
    """The share of copies of each kind that were found, and the pairs of different pictures that were."""
    split = dataset["train"]
    found = copies(thumbnails(split).grays)
    assert found.complete
    pairs = set(map(tuple, found.pairs.tolist()))
    start = {name: index * count for index, name in enumerate(split.classes)}
    shares = {}
    for how in COPIES:
        wanted = [tuple(sorted((start["original"] + k, start[how] + k))) for k in range(count)]
        shares[how] = sum(pair in pairs for pair in wanted) / count
    return shares, sum(first % count != second % count for first, second in pairs)


@pytest.mark.slow
def test_copies_of_real_photographs_are_found_and_nothing_else(real_data: Path, tmp_path: Path) -> None:
    photos = sorted(real_data.glob("imagenet120/train/*/*.JPEG"))[:30]
    shares, false = judged(*with_copies(photos, tmp_path))
    assert false == 0
    assert all(share >= 0.96 for share in shares.values()), shares


def test_copies_of_drawn_pictures_are_found_and_nothing_else(photos: Path, tmp_path: Path) -> None:
    shares, false = judged(*with_copies(sorted(photos.rglob("*.*"))[:16], tmp_path))
    assert false == 0
    assert all(share >= 0.9 for share in shares.values()), shares  # brightening cuts off much of these


@pytest.mark.parametrize("shape", [(1, 20, 33), (3, 32, 32), (4, 5, 7), (3, 100, 48), (2, 16, 16)], ids=str)
def test_thumbnails_are_means_of_blocks(shape: tuple[int, int, int], tmp_path: Path) -> None:
    channels, height, width = shape
    images = np.random.default_rng(0).integers(0, 256, (3, *shape), dtype=np.uint8)
    weights = np.array([77, 150, 29]) if channels >= 3 else np.array([256])
    grays = (images[:, : len(weights)] * weights[:, None, None]).sum(1) // 256
    small, sums = np.zeros((3, SIDE, SIDE), np.float32), np.zeros((3, 2), np.int64)
    reduce(images, small, sums)
    for i in range(SIDE):
        for j in range(SIDE):
            top, left = i * height // SIDE, j * width // SIDE
            block = grays[
                :, top : max((i + 1) * height // SIDE, top + 1), left : max((j + 1) * width // SIDE, left + 1)
            ]
            assert np.allclose(small[:, i, j], block.mean((1, 2)), rtol=1e-6)
    assert (sums[:, 0] == grays.sum((1, 2))).all()
    assert (sums[:, 1] == (grays**2).sum((1, 2))).all()


def test_thumbnails_of_a_split_are_of_all_its_rows(dataset: Dataset) -> None:
    split, calls = dataset["train"], []
    made = thumbnails(split, progress=lambda done, total: calls.append((done, total)))
    images = np.stack([split[row].images.numpy() for row in range(len(split))])
    grays = (images * np.array([77, 150, 29])[:, None, None]).sum(1) // 256
    assert np.allclose(made.mean, grays.mean((1, 2)))
    assert np.allclose(made.std, grays.std((1, 2)))
    assert calls[-1] == (18, 18)


@given(st.integers(0, 2**32 - 1), st.integers(2, 300), st.integers(0, 20))
def test_every_close_pair_of_hashes_is_compared(seed: int, count: int, near: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2**63, count, dtype=np.uint64)
    for _ in range(near):
        first, second = rng.integers(0, count, 2)
        codes[second] = codes[first] ^ np.bitwise_or.reduce(np.uint64(1) << rng.integers(0, 63, 14, dtype=np.uint64))
    found, complete = duplicates._close(codes, None)
    apart = np.bitwise_count(codes[:, None] ^ codes)
    expected = np.argwhere(np.triu(apart <= CLOSE_BITS, 1))
    assert complete
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, expected.tolist()))


def test_thousands_of_equal_rows_are_told_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_MOST_PAIRS", 1000)
    grays = np.tile(np.random.default_rng(0).uniform(0, 230, (1, SIDE, SIDE)).astype(np.float32), (500, 1, 1))
    found = copies(grays)
    assert not found.complete
    assert len(found.pairs) == 1000
    assert (found.correlation > 0.999).all()


def test_flat_rows_are_no_copies_of_each_other() -> None:
    grays = np.full((20, SIDE, SIDE), 128, np.float32) + np.random.default_rng(0).normal(0, 1, (20, SIDE, SIDE))
    assert len(copies(grays.astype(np.float32)).pairs) == 0
    assert len(copies(np.zeros((0, SIDE, SIDE), np.float32)).pairs) == 0


def test_hashes_do_not_depend_on_brightness_and_contrast() -> None:
    grays = np.random.default_rng(0).uniform(0, 200, (50, SIDE, SIDE)).astype(np.float32)
    assert (hashes(grays) == hashes(grays * 0.5 + 20)).mean() > 0.9
    assert len(set(hashes(grays).tolist())) == 50


def test_pairs_are_joined_to_groups() -> None:
    assert groups(np.array([[0, 5], [2, 3], [5, 7], [3, 9]])) == [[0, 5, 7], [2, 3, 9]]
    assert groups(np.empty((0, 2), np.int64)) == []
