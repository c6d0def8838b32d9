"""Random lists of steps on random rows against torchvision's transforms with the same draws."""

from __future__ import annotations

from typing import Any

import torch
from batches import detections
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from parity_stores import expect_torchvisions
from step_lists import plain_steps
from torch import nn

from mmload.augment.collate import Collate
from mmload.batch import Batch

SIDES = st.integers(1, 3) | st.integers(1, 24)
KINDS = st.sampled_from(((torch.uint8, torch.uint8), (torch.uint8, torch.float32), (torch.float32, torch.float32)))
REFUSED = ("does not fit into images", " leaves ", "ColorJitter comes after Normalize", "Normalize makes floats")
"""What a random list may be refused for."""
NOT_BY_TORCH = ("Padding size should be", "out of bounds", "INTERNAL ASSERT")
"""What torch says if it cannot mirror so often, or resize to one pixel; others test these."""


@st.composite
def cases(draw: Any) -> tuple[list[nn.Module], Batch, torch.dtype]:
    """Steps, rows for them, and the dtype of what comes out."""
    source, dtype = draw(KINDS)
    channels = draw(st.sampled_from((1, 3, 3, 4)))
    rows = detections(draw(st.integers(1, 4)), (channels, draw(SIDES), draw(SIDES)), most=2, targets=None)
    if source != torch.uint8:
        rows.images = rows.images.to(source) / 255
    return draw(st.lists(plain_steps(channels), max_size=5)), rows, dtype


@settings(max_examples=40, derandomize=True)
@given(cases())
def test_any_list_of_steps_is_torchvisions(case: tuple[list[nn.Module], Batch, torch.dtype]) -> None:
    steps, rows, dtype = case
    try:
        expect_torchvisions(Collate(*steps, dtype=dtype), rows)
    except (ValueError, RuntimeError, IndexError) as error:
        if any(text in str(error) for text in REFUSED + NOT_BY_TORCH):
            reject()
        raise
