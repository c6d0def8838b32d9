"""Every step is known to parity and to torchvision_equivalent, or is one of those that torchvision does not have."""

from __future__ import annotations

import pytest
import torch
from level_expected import level_steps
from torch import nn

from mmload import augment
from mmload.augment.collate import Collate
from mmload.augment.mix import MixChoice
from mmload.interop.torchvision import torchvision_equivalent
from mmload.parity.draws import properties, run_seeds
from mmload.parity.fixed_draws import followable

STEPS: list[nn.Module] = [
    *level_steps(),
    augment.AutoAugment("imagenet"),
    augment.AutoAugment("cifar10"),
    augment.RandomCrop(12, 3),
    augment.CenterCrop(12),
    augment.RandomResizedCrop(12),
    augment.Resize((12, 9)),
    augment.Letterbox((12, 9)),
    augment.ScaleJitter((12, 12), (0.5, 1.5)),
    augment.RandomShortestSize((9, 12)),
    augment.RandomZoomOut(),
    augment.RandomIoUCrop(),
    augment.RandomHorizontalFlip(),
    augment.RandomVerticalFlip(),
    augment.AlternatingHorizontalFlip(),
    augment.Normalize.imagenet(),
    augment.RandomGrayscale(0.5),
    augment.RandomErasing(0.5),
    augment.MixUp(num_classes=3),
    augment.CutMix(num_classes=3),
    augment.RandomChoice([augment.MixUp(num_classes=3), augment.CutMix(num_classes=3)], per="batch"),
]
"""One of every step, and AutoAugment's three policies."""

DRAW_NOTHING = (
    augment.CenterCrop | augment.Resize | augment.Letterbox | augment.Normalize | augment.AlternatingHorizontalFlip
)
NOT_STEPS = {"AfterStep", "BoxRule", "PerSample", "ProgressiveSize", "Step", "TwoViews", "Views"}


def test_the_list_has_every_step() -> None:
    named = {name for name in augment.__all__ if name[0].isupper()}
    assert {type(step).__name__ for step in STEPS} == (named - NOT_STEPS) | {"MixChoice"}


@pytest.mark.parametrize("place", range(len(STEPS)), ids=[type(step).__name__ for step in STEPS])
def test_a_step_is_known(place: int) -> None:
    step = STEPS[place]
    steps = (
        [step, augment.Resize((8, 8))] if isinstance(step, augment.RandomZoomOut | augment.RandomIoUCrop) else [step]
    )
    collate = Collate(*steps)
    assert followable(collate, (3, 20, 24)) == (steps, "")
    drawn = properties(step, (3, 20, 24), run_seeds(20, 40, 0), 0, 0)
    assert bool(drawn) != isinstance(step, DRAW_NOTHING)
    if isinstance(step, augment.AlternatingHorizontalFlip):
        return
    compose = torchvision_equivalent(collate)
    if not isinstance(step, augment.MixUp | augment.CutMix | MixChoice):  # torchvision's take a batch with labels
        image = torch.zeros((3, 20, 24), dtype=torch.uint8)
        sample = {"images": image} if not isinstance(step, augment.RandomIoUCrop) else boxed_sample(image)
        made = compose(sample)["images"]
        assert made.dtype == torch.float32
        assert len(made) == 3


def boxed_sample(image: torch.Tensor) -> dict[str, torch.Tensor]:
    from torchvision import tv_tensors

    boxes = tv_tensors.BoundingBoxes(torch.tensor([[2.0, 2, 18, 16]]), format="XYXY", canvas_size=(20, 24))
    return {"images": tv_tensors.Image(image), "boxes": boxes}
