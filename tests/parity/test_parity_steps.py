"""Every step is known to parity and to torchvision_equivalent, or is one of those that torchvision does not have."""

from __future__ import annotations

import pytest
import torch
from every_step import STEPS
from torchvision import tv_tensors

from mmload import augment
from mmload.augment.collate import Collate
from mmload.augment.mix import MixStep
from mmload.interop.torchvision import torchvision_equivalent
from mmload.parity.replay import followable

IMAGE = torch.zeros((3, 40, 48), dtype=torch.uint8)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_known(name: str) -> None:
    step = STEPS[name]()
    varies = isinstance(step, augment.RandomZoomOut | augment.RandomIoUCrop)
    steps = [step, augment.Resize((8, 8))] if varies else [step]
    collate = Collate(*steps)
    followed, left_out = followable(collate, alone=False)
    unlike = name == "noise" or isinstance(step, augment.RandomHSV)
    assert (followed, bool(left_out)) == (([], True) if unlike else (steps, False))
    if isinstance(step, augment.AlternatingHorizontalFlip | augment.RandomHSV):
        return
    compose = torchvision_equivalent(collate)
    if not isinstance(step, MixStep):  # torchvision's take a batch with labels
        boxes = tv_tensors.BoundingBoxes(torch.tensor([[2.0, 2, 18, 16]]), format="XYXY", canvas_size=(40, 48))
        boxed = {"images": tv_tensors.Image(IMAGE), "boxes": boxes}
        made = compose(boxed if isinstance(step, augment.RandomIoUCrop) else {"images": IMAGE})["images"]
        assert made.dtype == torch.float32
        assert len(made) == 3
