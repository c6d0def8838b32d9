"""A step that cannot be done is refused before a pixel is rendered, in whichever pass it stands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from written_datasets import sparse_dataset

import mmload
from mmload import augment
from mmload.augment.collate import Collate
from mmload.augment.views import Views
from mmload.batch import Batch
from mmload.loader import Loader

FIRST = augment.RandomResizedCrop(20)
"""Ends a pass where another resize, padding or a crop of what it gives follows."""

IMPOSSIBLE: list[tuple[nn.Module, str]] = [
    (augment.RandomCrop(21), "a crop of 21 x 21 does not fit into images of 20 x 20"),
    (augment.RandomCrop(23, padding=1, padding_mode="reflect"), "a crop of 23 x 23 does not fit"),
    (augment.RandomCrop(21, padding=2, fill=0.5), "fill is 0.5, and the images are uint8"),
    (augment.RandomCrop(21, padding=2, fill=(1, 2)), "fill has 2 numbers"),
    (augment.Normalize([0.5] * 4, [0.5] * 4), "Normalize has 4 channels"),
    (augment.RandomErasing(1.0, value=(1, 2)), "value has 2 numbers and the images 3"),
    (augment.GaussianBlur(99), "a blur of 99 x 99 taps needs"),
    (augment.RandomRotation(9, fill=(1, 2)), "fill has 2 numbers"),
    (augment.RandomAffine(9, fill=0.5), "fill is 0.5"),
    (augment.AlternatingHorizontalFlip(), "follows the epoch, which is not known"),
    (augment.ScaleJitter((20, 20), (0.001, 0.01)), "leaves no pixel"),
]


def rows() -> Batch:
    """A batch without its images, so that a pass would fail otherwise."""
    return Batch(seeds=torch.arange(4), targets=torch.arange(4), batch_size=[4])


@pytest.mark.parametrize("place", range(len(IMPOSSIBLE)), ids=[type(step).__name__ for step, _ in IMPOSSIBLE])
def test_a_later_pass_is_refused_before_the_first_is_rendered(place: int) -> None:
    step, message = IMPOSSIBLE[place]
    with pytest.raises(ValueError, match=message):
        Collate(FIRST, augment.Resize((20, 20)), step).prepare(rows(), (3, 40, 40))
    with pytest.raises(ValueError, match=message):
        Views(Collate(FIRST), Collate(FIRST, augment.Resize((20, 20)), step)).prepare(
            rows(), (3, 40, 40), seeds=np.arange(4)
        )


@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize(
    "kind", ["RandAugment", "ColorJitter", "RandomGrayscale", "RandomPhotometricDistort", "RandomOrder"]
)
def test_channels_of_a_later_pass_are_refused_first(kind: str, channels: int) -> None:
    step = augment.RandomOrder([augment.AugMix()]) if kind == "RandomOrder" else getattr(augment, kind)()
    collate = Collate(FIRST, augment.Resize((20, 20)), step)
    if channels == 1:
        collate.prepare(rows(), (1, 40, 40))
        return
    with pytest.raises(ValueError, match=f"takes images of 1 or 3 channels, these have {channels}"):
        collate.prepare(rows(), (channels, 40, 40))


def test_what_follows_a_module_that_is_not_mmloads_is_not_known() -> None:
    collate = Collate(nn.Identity(), augment.RandomCrop(41))
    prepared = collate.prepare(rows(), (3, 40, 40))
    out = torch.empty(prepared.shape, dtype=prepared.dtype)
    prepared.render_batch(torch.zeros((4, 3, 40, 40), dtype=torch.uint8), out)
    with pytest.raises(ValueError, match="a crop of"):
        prepared.finish(out)


def test_the_size_of_each_epoch_is_looked_at() -> None:
    shrinking = augment.Resize(lambda epoch: (20 - epoch, 20))
    collate = Collate(FIRST, shrinking, augment.RandomCrop(19))
    collate.set_epoch(1)
    collate.prepare(rows(), (3, 40, 40))
    collate.set_epoch(2)
    with pytest.raises(ValueError, match="a crop of"):
        collate.prepare(rows(), (3, 40, 40))


def test_a_loader_refuses_before_a_row_is_read(tmp_path: Path) -> None:
    split = mmload.open(sparse_dataset(tmp_path / "store", 8, side=40))["train"]
    for step, message in IMPOSSIBLE:
        collate = Collate(FIRST, augment.Resize((20, 20)), step)
        if isinstance(step, augment.AlternatingHorizontalFlip):  # a loader knows the epoch
            Loader(split, collate=collate).close()
            continue
        with pytest.raises(ValueError, match=message):
            Loader(split, collate=collate)
    for collate, message in (
        (Collate(augment.RandomIoUCrop(), augment.Resize((20, 20))), "RandomIoUCrop needs boxes"),
        (Views(Collate(), Collate(augment.RandomCrop(41))), "a crop of 41 x 41 does not fit"),
        (Collate(augment.MixUp()), "targets are class indices; set num_classes"),
    ):
        with pytest.raises(ValueError, match=message):
            Loader(split, collate=collate)


def test_a_loader_leaves_sizes_of_epochs_that_it_does_not_begin(tmp_path: Path) -> None:
    split = mmload.open(sparse_dataset(tmp_path / "store", 8, side=40))["train"]
    growing = Collate(augment.Resize(lambda epoch: (10 + epoch, 20)), augment.RandomCrop(12))
    with Loader(split, collate=growing, threads=1) as loader:
        loader.set_epoch(2)
        assert next(iter(loader)).images.shape == (8, 3, 12, 12)
        loader.set_epoch(1)
        with pytest.raises(ValueError, match="a crop of"):
            next(iter(loader))


@pytest.mark.parametrize(
    "step", [augment.RandomHSV(), augment.RandomAdjustSharpness(2.0, p=1.0), augment.RandomAutocontrast(p=1.0)]
)
def test_flips_after_operations_on_levels_give_the_mirrored_images(step: nn.Module) -> None:
    images, seeds = torch.randint(0, 256, (6, 3, 9, 11), dtype=torch.uint8), augment.sample_seeds(5, 0, torch.arange(6))
    batch = Batch(images=images, seeds=seeds, batch_size=[6])
    plain = Collate(step, dtype=torch.uint8)(batch).images
    made = Collate(step, augment.RandomHorizontalFlip(1.0), augment.RandomVerticalFlip(1.0), dtype=torch.uint8)(
        batch
    ).images
    assert torch.equal(made, plain.flip(2, 3))


@pytest.mark.parametrize(
    "following",
    [
        [augment.RandomResizedCrop(7), augment.ColorJitter(0.4)],
        [augment.RandomResizedCrop(7, interpolation="nearest")],
        [augment.RandomHorizontalFlip(), augment.RandomCrop(8), augment.Normalize.imagenet()],
        [augment.RandomZoomOut(), augment.RandomHorizontalFlip(), augment.Resize((9, 5))],
        [augment.RandomRotation(30, expand=False), augment.CenterCrop(6)],
    ],
    ids=lambda steps: "-".join(type(step).__name__ for step in steps),
)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_levels_that_change_before_windows_are_cut_out_are_those_of_a_pass_of_their_own(
    following: list[nn.Module], dtype: torch.dtype
) -> None:
    images = torch.randint(0, 256, (6, 3, 9, 11), dtype=torch.uint8)
    images = images if dtype == torch.uint8 else images / 255
    batch = Batch(images=images, seeds=augment.sample_seeds(5, 0, torch.arange(6)), batch_size=[6])
    jitter, nothing = augment.ColorJitter(0.4, 0.4, 0.4, 0.1), augment.RandomInvert(0.0)
    changed = batch.replace(images=Collate(jitter, dtype=dtype)(batch).images)
    assert torch.equal(Collate(jitter, *following)(batch).images, Collate(nothing, *following)(changed).images)
