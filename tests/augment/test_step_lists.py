"""Random lists of steps on random batches against torchvision's functions with the same draws."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from step_lists import Sample, batches, by_torchvision, step_lists
from torch import nn

from mmload.augment.collate import Collate
from mmload.batch import Batch
from mmload.interop.torchvision import conversion

KINDS = st.sampled_from(((torch.uint8, torch.uint8), (torch.uint8, torch.float32), (torch.float32, torch.float32)))
EXPECTED = ("does not fit into images", " leaves ", "ColorJitter comes after Normalize", "Normalize makes floats")
"""What a random list may be refused for."""


@st.composite
def cases(draw: Any) -> tuple[list[nn.Module], Batch, torch.dtype]:
    """Steps, a batch for them, and the dtype of what comes out."""
    source, dtype = draw(KINDS)
    channels = draw(st.sampled_from((1, 3, 3, 4)))
    return draw(step_lists(channels)), draw(batches(channels, source)), dtype


@settings(max_examples=60, derandomize=True)  # two seconds; most of it is torchvision, a sample and a step at a time
@given(cases())
def test_any_list_of_steps_is_torchvisions(case: tuple[list[nn.Module], Batch, torch.dtype]) -> None:
    compare(*case)


def compare(steps: list[nn.Module], batch: Batch, dtype: torch.dtype) -> None:
    try:
        collate = Collate(*steps, dtype=dtype)
        got = collate(batch)
    except ValueError as error:
        if any(text in str(error) for text in EXPECTED):
            reject()
        raise
    at = conversion(collate) if dtype != torch.uint8 else len(steps)
    for k, sample in enumerate(by_torchvision(steps, batch, dtype, at)):
        expect_images(got.images[k], sample)
        assert torch.equal(got.masks[k], sample.mask.as_subclass(torch.Tensor))
        expect_boxes(got, k, sample)


def expect_images(got: torch.Tensor, sample: Sample) -> None:
    assert got.shape == sample.image.shape
    assert got.dtype == sample.image.dtype
    levels = 1.0 if got.dtype == torch.uint8 else 255.0
    apart = (got.double() - sample.image.double()).abs() * levels
    assert float(apart.max()) <= sample.error + (0 if got.dtype == torch.uint8 else 0.01 * sample.level)


def expect_boxes(got: Batch, k: int, sample: Sample) -> None:
    """All boxes of a sample that is whole; else those of a pixel or more."""
    boxes = sample.boxes.as_subclass(torch.Tensor)
    least = (boxes[:, 2:] - boxes[:, :2]).amin(1)
    assume(not sample.cut or not ((least - 1).abs() < 1e-3).any())
    stays = least >= 1 if sample.cut else torch.ones_like(least, dtype=torch.bool)
    count = int(got.counts[k])
    assert got.labels[k, :count].tolist() == stays.nonzero()[:, 0].tolist()
    torch.testing.assert_close(got.boxes[k, :count], boxes[stays], rtol=0, atol=2e-3)
