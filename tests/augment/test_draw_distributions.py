"""Images of every random step are distributed as those of torchvision's transform, and wrong draws are seen.

A picture says by its first two channels which place of it a pixel shows, and has noise in the third; it is changed many
times by each, and levels at some places are compared. Seeds are fixed: a test compares the same images in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from distributions import ends, ks
from every_step import CLASSES, STEPS
from hsv_reference import changed
from threads import one_thread
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d
from torchvision import tv_tensors
from torchvision.transforms import v2

from mmload import augment
from mmload.augment import (
    ColorJitter,
    CutMix,
    MixUp,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    Resize,
    sample_seeds,
)
from mmload.augment.collate import Collate
from mmload.augment.mix import MixChoice, MixStep
from mmload.augment.step import Draws, whole_numbers
from mmload.batch import Batch
from mmload.interop.torchvision import torchvision_equivalent
from mmload.render.plan import Plan

HEIGHT, WIDTH = 40, 48
BOXES = torch.tensor([[5.0, 4, 19, 24], [24, 12, 43, 38], [9, 28, 14, 32]])
SLACK = 1.01  # levels
MOST_KS, MOST_ENDS = 2.9, 5.3  # exceeded once in ten million times by chance

Make = Callable[[int], Tensor]
"""Makes images [N, 3, H, W], float."""


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    with one_thread():
        yield


def picture() -> Tensor:
    noise = torch.randint(0, 256, (HEIGHT, WIDTH), generator=torch.Generator().manual_seed(6))
    rows, columns = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    return torch.stack((20 + 4 * columns, 20 + 5 * rows, noise)).to(torch.uint8)


def needs_boxes(collate: Collate) -> bool:
    return any(isinstance(step, augment.RandomIoUCrop) for step in collate.steps)


def ours(collate: Collate, seed: int = 1, rows: int = 18) -> Make:
    """Makes images as a loader does in epoch after epoch."""

    def make(count: int) -> Tensor:
        epochs = [sample_seeds(seed, epoch, torch.arange(rows)) for epoch in range(-(-count // rows))]
        images = picture().expand(count, -1, -1, -1).contiguous()
        batch = Batch(images=images, seeds=torch.cat(epochs)[:count], batch_size=[count])
        if needs_boxes(collate):
            batch = batch.replace(boxes=BOXES.repeat(count, 1, 1))
        return collate(batch).images.float()

    return make


def theirs(collate: Collate) -> Make:
    """Makes images by the transforms of torchvision that are equivalent."""
    transform, given = torchvision_equivalent(collate), {"image": tv_tensors.Image(picture())}
    step = collate.steps[0]
    if isinstance(step, augment.ScaleJitter):
        transform = Canvas(v2.ScaleJitter, (step.target_size, step.scale_range), step.target_size, step)
    elif isinstance(step, augment.RandomShortestSize):
        sizes = list(step.min_size), step.max_size
        transform = Canvas(v2.RandomShortestSize, sizes, step.canvas(HEIGHT, WIDTH), step)
    if needs_boxes(collate):
        given["boxes"] = tv_tensors.BoundingBoxes(BOXES, format="XYXY", canvas_size=(HEIGHT, WIDTH))

    def make(count: int) -> Tensor:
        return torch.stack([transform(given)["image"].as_subclass(Tensor) for _ in range(count)]).float()

    return make


def features(images: Tensor) -> Tensor:
    """Levels at nine places, means around them, and which window of the picture is shown, [F, N]."""
    rows, columns = (torch.linspace(0, side - 1, 3).long() for side in images.shape[2:])
    levels = images[:, :, rows][:, :, :, columns]
    x, y = levels[:, 0], levels[:, 1]
    across, down = x[:, 0, 2] - x[:, 0, 0], y[:, 2, 0] - y[:, 0, 0]
    shape = torch.atan2(down, across).rad2deg(), (across * down).abs().sqrt()
    window = across, down, y[:, 0, 2] - y[:, 0, 0], x[:, 2, 0] - x[:, 0, 0], *shape
    return torch.cat((levels.flatten(1), adaptive_avg_pool2d(images, 3).flatten(1), torch.stack(window, 1) / 2), 1).T


def differs(first: Make, second: Make, draws: int) -> bool:
    """Whether two ways of making images have other distributions."""
    torch.manual_seed(0)
    one, other = features(first(draws)), features(second(draws))
    return bool((ks(one, other, SLACK) > MOST_KS).any() or (ends(one, other, SLACK) > MOST_ENDS).any())


class Canvas(nn.Module):
    """A resize of torchvision's and its result on a canvas, as its detection recipes crop and pad afterwards."""

    def __init__(self, kind: Any, sizes: tuple[Any, Any], canvas: tuple[int, ...], step: Any) -> None:
        super().__init__()
        self.resize = kind(*sizes, v2.InterpolationMode(step.interpolation), step.antialias)
        self.canvas, self.fill = canvas, list(step.fill)

    def forward(self, given: dict[str, Any]) -> dict[str, Any]:
        image, share = self.resize(given["image"]), float(torch.rand(1))
        sides = [(have, want) for have, want in zip(image.shape[1:], self.canvas, strict=True)]
        top, left = (int(max(have - want, 0) * share) for have, want in sides)
        image = v2.functional.crop(image, top, left, *(min(pair) for pair in sides))
        rows, cols = (max(want - have, 0) for have, want in sides)
        return {"image": v2.functional.pad(image, [0, 0, cols, rows], fill=self.fill)}


def pairs(transform: Any) -> Make:
    """Makes pictures mixed with their negatives, with the share of their own targets as a fourth channel."""
    pair, targets = torch.stack((picture(), 255 - picture())) / 255, torch.eye(CLASSES)[:2]

    def make(count: int) -> Tensor:
        made = []
        for _ in range(count):
            images, soft = transform(pair, targets)
            made.append(torch.cat((images[0], soft[0, 0].expand(1, HEIGHT, WIDTH))))
        return torch.stack(made) * 255

    return make


def torchvision_mix(step: Any) -> v2.Transform:
    """Returns torchvision's transform of a batch; without a probability it mixes every batch."""
    if isinstance(step, MixChoice):
        return v2.RandomChoice([torchvision_mix(one) for one in step.transforms], p=list(step.p))
    kind = v2.MixUp if isinstance(step, MixUp) else v2.CutMix
    return v2.RandomApply([kind(alpha=step.alpha, num_classes=step.num_classes)], step.p)


def hsv(step: augment.RandomHSV) -> Make:
    """Makes images as YOLO does: a draw from -1 to 1 for each of the three; torchvision has no such step."""

    def make(count: int) -> Tensor:
        made, numbers = [], picture().numpy()
        for hue, saturation, value in (2 * torch.rand(count, 3) - 1).tolist():
            turn = int(np.floor(hue * step.hue * 180)) % 180
            made.append(changed(numbers, turn, 1 + saturation * step.saturation, 1 + value * step.value))
        return torch.from_numpy(np.stack(made)).float()

    return make


SIZED = {"RandomIoUCrop": [Resize((30, 34))], "RandomZoomOut": [Resize((30, 34))]}
LEFT_OUT = {"AlternatingHorizontalFlip", "Normalize", "noise"}
"""Steps whose draws follow the row's number, and those that make other values than levels."""
MIXES = {name: step for name, make in STEPS.items() if isinstance(step := make(), MixStep)}


@pytest.mark.parametrize("name", sorted(STEPS.keys() - LEFT_OUT - MIXES.keys()))
def test_images_of_a_step_are_distributed_as_torchvisions(name: str) -> None:
    step = STEPS[name]()
    collate = Collate(step, *SIZED.get(name, []), dtype=torch.uint8)
    assert not differs(ours(collate), hsv(step) if name == "RandomHSV" else theirs(collate), 1000)


@pytest.mark.parametrize("step", [*MIXES.values(), CutMix(0.4, CLASSES, p=0.5)], ids=[*MIXES, "CutMix of half"])
def test_mixed_images_are_distributed_as_torchvisions(step: MixStep) -> None:
    assert not differs(pairs(step), pairs(torchvision_mix(step)), 1000)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("draws", [2000, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("crop", [RandomCrop(28), RandomCrop(40, padding=4), RandomResizedCrop(28)], ids=repr)
def test_images_of_the_usual_lists_are_distributed_as_torchvisions(crop: nn.Module, draws: int, seed: int) -> None:
    collate = Collate(crop, RandomHorizontalFlip(), dtype=torch.uint8)
    assert not differs(ours(collate, seed), theirs(collate), draws)


class LastNever(RandomCrop):
    """The tutorial's: its randint leaves out the last offset."""

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        spare = plan.height - self.size[0], plan.width - self.size[1]
        places = draws.uniform(2)
        return plan.cropped(whole_numbers(places[:, 0], spare[0]), whole_numbers(places[:, 1], spare[1]), *self.size)


@pytest.mark.parametrize(
    ("drawn", "right"),
    [
        (RandomHorizontalFlip(0.7), RandomHorizontalFlip()),
        (LastNever(24), RandomCrop(24)),
        (LastNever((21, 29)), RandomCrop((21, 29))),
        (RandomRotation(24), RandomRotation(30)),
        (RandomResizedCrop(16, ratio=(0.5, 1.5)), RandomResizedCrop(16, ratio=(0.5, 2.0))),
        (RandomResizedCrop(16, (0.35, 1.0)), RandomResizedCrop(16)),
        (RandomErasing(0.5, (0.02, 0.1)), RandomErasing(0.5)),
        (ColorJitter((0.84, 1.26)), ColorJitter(0.2)),
        (augment.RandAugment(magnitude=14), augment.RandAugment()),
    ],
    ids=lambda step: repr(step),
)
def test_wrong_draws_are_caught(drawn: nn.Module, right: nn.Module) -> None:
    assert differs(ours(Collate(drawn, dtype=torch.uint8)), theirs(Collate(right, dtype=torch.uint8)), 1000)


@pytest.mark.parametrize("kind", [MixUp, CutMix])
def test_wrong_shares_of_a_mix_are_caught(kind: type[MixUp] | type[CutMix]) -> None:
    assert differs(pairs(kind(1.0, CLASSES)), pairs(torchvision_mix(kind(0.3, CLASSES))), 1000)


def test_samples_of_one_distribution_exceed_a_limit_as_often_as_its_test_says() -> None:
    generator = torch.Generator().manual_seed(2)
    found = ks(*torch.rand((2, 600, 500), generator=generator))
    assert [round(float((found > limit).float().mean()), 1) for limit in (0.57, 0.83, 1.22)] == [0.9, 0.5, 0.1]
    assert (ks(*torch.randint(0, 9, (2, 600, 500), generator=generator).float(), slack=1.0) < 0.9).all()
    assert (ends(*torch.randint(0, 9, (2, 600, 500), generator=generator).float()) > 3.3).float().mean() < 0.01
