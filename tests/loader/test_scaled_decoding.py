"""JPEGs that are decoded smaller: only where their window shrinks as much, the same however they are read, and near."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaded import are_equal, images_of
from simplejpeg import decode_jpeg
from torch import nn
from torch.utils.data import ConcatDataset
from variable_datasets import some_images, variable_dataset

from mmload import Loader
from mmload import open as open_dataset
from mmload.augment import (
    CenterCrop,
    Letterbox,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomZoomOut,
    Resize,
    Views,
)
from mmload.augment.collate import Collate
from mmload.augment.step import sample_seeds
from mmload.batch import Batch
from mmload.loader import tiers
from mmload.render.rendering import ImageLines
from mmload.store.row_reader import read_rows
from mmload.store.variable_rows import JPEG

SIZES = [(97, 130), (200, 161), (64, 300), (150, 150), (333, 120), (41, 45), (180, 241), (16, 400)]


@pytest.fixture(scope="module", params=["jpeg", "mixed"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight photographs in three shards."""
    folder = tmp_path_factory.mktemp(f"scaled-{request.param}")
    return variable_dataset(folder / "data", some_images(SIZES), encoding=request.param)


def pixels_of(path: Path | ConcatDataset[Any], collate: nn.Module, **options: Any) -> dict[int, torch.Tensor]:
    """The images of an epoch by row, those of the first view."""
    given = {"tier": "disk", "seed": 3, "batch_size": 3, "shuffle": True, "decode": "scaled", **options}
    made: Any = Loader(path, collate=collate, **given)
    return images_of(batch[0] if isinstance(batch, tuple) else batch for batch in made)


def weights(start: int, length: int, wanted: int, shrink: int, sides: int) -> np.ndarray:
    """Of an antialiased bilinear resize of a window of an axis, by the lines of the axis in a smaller image."""
    scale = length / wanted / shrink
    line = np.arange(-(-sides // shrink)) + 0.5
    center = start / shrink + scale * (np.arange(wanted)[:, None] + 0.5)
    share = np.maximum(1 - np.abs(line - center) / max(scale, 1), 0)
    touched = (line + 0.5 > start / shrink) & (line - 0.5 < (start + length) / shrink)
    share *= touched
    return share / share.sum(1, keepdims=True)


def reference(data: np.ndarray, window: tuple[int, int, int, int], out: int, shrink: int) -> np.ndarray:
    """A window of a JPEG that is decoded whole, smaller, and resized in float64: [C, out, out]."""
    high, wide, _ = decode_jpeg(data).shape
    options = {"min_height": -(-high // shrink), "min_width": -(-wide // shrink), "min_factor": shrink}
    image = decode_jpeg(data, **options).astype(np.float64)
    top, left, rows, cols = window
    over, across = weights(top, rows, out, shrink, high), weights(left, cols, out, shrink, wide)
    return np.clip(np.einsum("yh,hwc,xw->cyx", over, image, across), 0, 255)


@pytest.mark.parametrize("out", [96, 36, 24, 10])
def test_windows_are_resized_from_the_smaller_image(dataset: Path, out: int) -> None:
    split = open_dataset(dataset)["train"]
    whole = read_rows(split.reader.field("images"), np.arange(len(split)))
    collate = Collate(RandomResizedCrop(out), dtype=torch.uint8)
    found, exact = pixels_of(dataset, collate), pixels_of(dataset, collate, decode="cpu")
    used = set()
    for row, (height, width) in enumerate(SIZES):
        batch = Batch(seeds=sample_seeds(3, 0, torch.tensor([row])), ids=torch.tensor([row]), batch_size=[1])
        prepared = collate.prepare(batch, (3, 0, 0), sizes=np.array([[height, width]]))
        plan: Any = prepared.rendering.plan
        window = int(plan.top[0]), int(plan.left[0]), int(plan.rows[0]), int(plan.cols[0])
        shrink = 4 if min(window[2:]) >= 6 * out else 2 if min(window[2:]) >= 3 * out else 1
        assert prepared.rendering.needed["shrink"].tolist() == [shrink]
        if whole.encodings[row] != JPEG or shrink == 1:
            assert torch.equal(found[row], exact[row])
            continue
        used.add(shrink)
        expected = reference(whole.encoded(row), window, out, shrink)
        assert np.abs(found[row].numpy() - expected).max() <= 1.5  # rounded after the columns and after the rows
        assert (found[row].int() - exact[row].int()).abs().float().mean() <= 2
    assert used == {96: set(), 36: {2}, 24: {2}, 10: {2, 4}}[out] or "mixed" in str(dataset)


@pytest.mark.parametrize(
    "steps",
    [
        [RandomResizedCrop(16, interpolation="bicubic"), RandomHorizontalFlip(), Normalize.imagenet()],
        [Resize(20), CenterCrop(18)],
        [Letterbox((30, 20)), RandomHorizontalFlip()],
        [Resize((14, 21))],
    ],
    ids=["bicubic", "evaluation", "letterbox", "stretched"],
)
def test_batches_are_the_same_however_they_are_read(dataset: Path, steps: list[nn.Module]) -> None:
    collate = Collate(*steps)
    expected, exact = pixels_of(dataset, collate), pixels_of(dataset, collate, decode="cpu")
    assert not are_equal(expected, exact)
    apart = torch.cat([(expected[row] - exact[row]).flatten() for row in expected]).abs().mean()
    assert apart <= (2 / 255 / 0.225 if len(steps) == 3 else 2 / 255)
    assert are_equal(pixels_of(dataset, collate, tier="memory", batch_size=8, threads=3), expected)
    assert are_equal(pixels_of(dataset, collate, batch_size=1, threads=1), expected)
    split = open_dataset(dataset)["train"]
    twice = pixels_of(ConcatDataset([split, split]), collate, shuffle=False)
    plain = pixels_of(dataset, collate, shuffle=False)
    if not any(isinstance(step, RandomResizedCrop | RandomHorizontalFlip) for step in steps):
        assert all(torch.equal(twice[row], plain[row % len(SIZES)]) for row in twice)


def test_views_take_what_all_of_them_can(dataset: Path) -> None:
    small, large = Collate(Resize((12, 12))), Collate(CenterCrop((16, 40)))
    assert are_equal(pixels_of(dataset, Views(small, large)), pixels_of(dataset, small, decode="cpu"))
    assert are_equal(pixels_of(dataset, Views(small, small)), pixels_of(dataset, small))


def test_scaled_decoding_without_a_kernel_decodes_all_lines(dataset: Path) -> None:
    for steps in (
        [RandomZoomOut(side_range=(1.2, 2), p=1.0), Resize((8, 8))],
        [RandomCrop(420, pad_if_needed=True), Resize((8, 8))],
        [Resize((8, 8), interpolation="nearest")],
        [Resize((8, 8), antialias=False)],
        [RandomCrop((16, 40))],
    ):
        collate = Collate(*steps)
        assert are_equal(pixels_of(dataset, collate), pixels_of(dataset, collate, decode="cpu"))


def test_fewer_pixels_are_decoded(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    missing = tiers.StoredRows.missing

    def noted(self: tiers.StoredRows, lines: ImageLines) -> ImageLines | None:
        made.append(lines.places.copy())
        return missing(self, lines)

    monkeypatch.setattr(tiers.StoredRows, "missing", noted)
    pixels_of(dataset, Collate(Resize((5, 8))))
    shrinks = np.concatenate(made)["shrink"]
    jpegs = (
        read_rows(open_dataset(dataset)["train"].reader.field("images"), np.arange(len(SIZES))).encodings == JPEG
    ).sum()
    assert (shrinks > 1).sum() == jpegs
    assert {2, 4} <= set(shrinks.tolist())


def test_what_cannot_be_scaled_is_refused(tmp_path: Path) -> None:
    path = variable_dataset(tmp_path / "data", some_images([(40, 40)] * 2), encoding="raw")
    with pytest.raises(ValueError, match="decode='scaled', but split 'train' is read without JPEGs; leave decode out"):
        Loader(path, collate=Collate(Resize((16, 16))), decode="scaled")
