"""Copies of pictures are found, and different pictures are not taken for copies."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image, ImageEnhance

from mmload.store.dataset import Dataset
from mmload.view import duplicates
from mmload.view.duplicates import (
    CLOSE_BITS,
    FEWEST_INSIDE,
    SATURATED,
    SIDE,
    Copies,
    copies,
    correlate,
    groups,
    hashes,
    reduce,
)
from mmload.view.report import thumbnails


def copies_of(grays: Any, **options: Any) -> Copies:
    """Finds the copies among rows of different checksums."""
    return copies(grays, np.arange(len(grays), dtype=np.uint32), **options)


def _encoded(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=60)
    return Image.open(file).convert("RGB")


COPIES: list[Callable[[Image.Image], Image.Image]] = [
    lambda image: image,
    lambda image: image.resize((image.width // 2, image.height // 2)),
    lambda image: image.resize((image.width * 2 // 3, image.height * 2 // 3)),
    _encoded,
    lambda image: ImageEnhance.Brightness(image).enhance(0.7),
]


def test_copies_of_drawn_pictures_are_found_and_nothing_else(photos: Path) -> None:
    rows = []
    for file in sorted(photos.rglob("*.*"))[:16]:
        image = Image.open(file).convert("RGB")
        rows += [np.asarray(copy(image).resize((64, 64))).transpose(2, 0, 1) for copy in COPIES]
    owners = np.arange(len(rows)) // len(COPIES)
    pairs = copies_of(reduce(np.stack(rows))[0]).pairs
    assert (owners[pairs[:, 0]] == owners[pairs[:, 1]]).all()
    assert len(pairs) == 16 * len(list(combinations(COPIES, 2)))


def test_pictures_that_are_alike_but_for_their_details_are_no_copies() -> None:
    """As of two shirts on one floor: their light is the same, and so is their hash."""
    rng, count = np.random.default_rng(4), 20
    waves = np.cos(np.pi * (2 * np.arange(16) + 1) * np.arange(16)[:, None] / 32)
    coarse, fine = np.zeros((count, 16, 16)), np.zeros((count, 2, 16, 16))
    coarse[:, :8, :8], fine[:, :, 8:, 8:] = rng.normal(0, 6, (count, 8, 8)), rng.normal(0, 4, (count, 2, 8, 8))
    pictures = 110 + np.einsum("nduv,ui,vj->ndij", coarse[:, None] + fine, waves, waves)
    grays = pictures.clip(0, 230).astype(np.float32).reshape(-1, 16, 16)
    codes = hashes(grays, np.arange(len(grays)))
    assert all(int(one ^ other).bit_count() <= CLOSE_BITS for one, other in codes.reshape(-1, 2).tolist())
    assert len(copies_of(grays).pairs) == 0
    same_details = np.repeat(grays[::2], 2, axis=0) * np.tile([1, 0.9], count).astype(np.float32)[:, None, None]
    assert copies_of(same_details).pairs.tolist() == [[2 * k, 2 * k + 1] for k in range(count)]


@given(st.integers(0, 2**32 - 1))
def test_correlations_are_those_of_blocks_that_neither_has_cut_off(seed: int) -> None:
    rng = np.random.default_rng(seed)
    grays = rng.uniform(0, 255, (2, SIDE, SIDE)).astype(np.float32)
    grays[1] += rng.uniform(0, 1) * (grays[0] - grays[1])
    ((coarse, fine),) = correlate(grays, np.array([[0, 1]]))
    dark = (grays < SATURATED).all(0)
    assert np.isclose(coarse, np.corrcoef(grays[0][dark], grays[1][dark])[0, 1], atol=1e-4)
    around = sliding_window_view(dark, (3, 3)).all((2, 3))
    means = sliding_window_view(grays, (3, 3), axis=(1, 2)).mean((3, 4))
    details = (grays[:, 1:-1, 1:-1] - means)[:, around]
    expected = np.corrcoef(*details)[0, 1] if around.sum() >= FEWEST_INSIDE else 0
    assert np.isclose(fine, expected, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 20, 33), (3, 32, 32), (4, 5, 7), (3, 100, 48), (2, 16, 16)], ids=str)
def test_thumbnails_are_means_of_blocks(shape: tuple[int, int, int], tmp_path: Path) -> None:
    channels, height, width = shape
    images = np.random.default_rng(0).integers(0, 256, (3, *shape), dtype=np.uint8)
    weights = np.array([77, 150, 29]) if channels >= 3 else np.array([256])
    grays = (images[:, : len(weights)] * weights[:, None, None]).sum(1) // 256
    small, mean, std = reduce(images)
    for i in range(SIDE):
        for j in range(SIDE):
            top, left = i * height // SIDE, j * width // SIDE
            block = grays[
                :, top : max((i + 1) * height // SIDE, top + 1), left : max((j + 1) * width // SIDE, left + 1)
            ]
            assert np.allclose(small[:, i, j], block.mean((1, 2)), rtol=1e-6)
    assert np.allclose(mean, grays.mean((1, 2)), rtol=1e-6)
    assert np.allclose(std, grays.std((1, 2)), rtol=1e-5)


def test_thumbnails_of_a_split_are_of_all_its_rows(dataset: Dataset) -> None:
    split, calls = dataset["train"], []
    made = thumbnails(split, np.empty((18, SIDE, SIDE), np.float32), lambda done, total: calls.append((done, total)))
    images = np.stack([split[row].images.numpy() for row in range(len(split))])
    grays = (images * np.array([77, 150, 29])[:, None, None]).sum(1) // 256
    assert np.allclose(made.mean, grays.mean((1, 2)))
    assert np.allclose(made.std, grays.std((1, 2)))
    assert made.checksums.tolist() == [zlib.crc32(image, zlib.crc32(repr(image.shape).encode())) for image in images]
    assert calls[-1] == (18, 18)


@given(st.integers(0, 2**32 - 1), st.integers(2, 300), st.integers(0, 20), st.lists(st.integers(0, 300), max_size=3))
def test_every_close_pair_of_hashes_is_compared_once(seed: int, count: int, near: int, starts: list[int]) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2**63, count, dtype=np.uint64)
    for _ in range(near):
        first, second = rng.integers(0, count, 2)
        codes[second] = codes[first] ^ np.bitwise_or.reduce(np.uint64(1) << rng.integers(0, 63, 14, dtype=np.uint64))
    bounds = [0, *sorted(min(start, count) for start in starts), count]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(duplicates, "_TILE", 64)
        found, complete = duplicates._close(codes, bounds)
    apart = np.bitwise_count(codes[:, None] ^ codes)
    expected = np.argwhere(np.triu(apart <= CLOSE_BITS, 1))
    assert complete

    split = np.searchsorted(bounds, found, "right")
    across = split[:, 0] != split[:, 1]
    assert not (across[1:] & ~across[:-1]).any()  # those across splits come first
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, expected.tolist()))


def one_picture(rows: int) -> np.ndarray:
    return np.tile(np.random.default_rng(0).uniform(0, 230, (1, SIDE, SIDE)).astype(np.float32), (rows, 1, 1))


def test_duplicates_of_thousands_of_rows_lists_some_across_splits_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duplicates, "_MOST_PAIRS", 1000)
    monkeypatch.setattr(duplicates, "_TILE", 64)
    found = copies_of(one_picture(500), starts=(0, 499))
    assert not found.complete
    assert len(found.pairs) == 1000
    assert (found.correlation > 0.999).all()
    assert (found.pairs[:, 1] == 499).sum() == 499


def test_duplicates_equal_rows_are_listed_once_each() -> None:
    grays = np.concatenate([one_picture(500), np.full((3, SIDE, SIDE), 7, np.float32), one_picture(1) / 2])
    checksums = np.array([*[5] * 500, 6, 6, 5, 8], np.uint32)  # one of a flat row is that of another picture
    found = copies(grays, checksums)
    assert found.complete
    assert found.pairs[found.equal].tolist() == [*([0, row] for row in range(1, 500)), [500, 501]]
    assert found.pairs[~found.equal].tolist() == [[0, 503]]
    assert groups(found.pairs, 504).tolist() == [*[0] * 500, 500, 500, 502, 0]


def test_flat_rows_are_no_copies_of_each_other() -> None:
    grays = np.full((20, SIDE, SIDE), 128, np.float32) + np.random.default_rng(0).normal(0, 1, (20, SIDE, SIDE))
    assert len(copies_of(grays.astype(np.float32)).pairs) == 0
    assert len(copies_of(np.repeat(grays[:1], 20, axis=0).astype(np.float32)).pairs) == 0

    assert len(copies_of(np.zeros((0, SIDE, SIDE), np.float32)).pairs) == 0


def test_hashes_do_not_depend_on_brightness_and_contrast() -> None:
    grays = np.random.default_rng(0).uniform(0, 200, (50, SIDE, SIDE)).astype(np.float32)
    assert (hashes(grays, np.arange(len(grays))) == hashes(grays * 0.5 + 20, np.arange(len(grays)))).mean() > 0.9
    assert len(set(hashes(grays, np.arange(len(grays))).tolist())) == 50


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40))
def test_pairs_are_joined_to_groups(pairs: list[tuple[int, int]]) -> None:
    expected = list(range(31))
    for _ in expected:  # as often as the longest chain needs
        for one, other in pairs:
            expected[one] = expected[other] = min(expected[one], expected[other])
    assert groups(np.array(pairs, np.int64).reshape(-1, 2), 31).tolist() == expected
