"""Random lists of steps on random batches against torchvision's functions with the same draws."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from loading_expected import differences
from loading_reference import collated
from torch import nn

from mmload import augment
from mmload.augment.collate import Collate
from mmload.batch import Batch

FIELDS = ("images", "masks", "boxes", "labels", "counts")
KINDS = st.sampled_from(((torch.uint8, torch.uint8), (torch.uint8, torch.float32), (torch.float32, torch.float32)))
MODES = ("nearest", "nearest-exact", "bilinear", "bicubic")
PADDINGS = ("constant", "edge", "reflect", "symmetric")
SIDES = st.integers(1, 3) | st.integers(1, 24)
EXPECTED = ("does not fit into images", " leaves ", "ColorJitter comes after Normalize", "Normalize makes floats")
"""What a random list may be refused for."""


def step_lists(channels: int) -> st.SearchStrategy[list[nn.Module]]:
    """Up to five steps; not all lists fit their images."""
    size = st.tuples(SIDES, SIDES) | SIDES
    mode, chance = st.sampled_from(MODES), st.sampled_from((0.0, 0.5, 1.0))
    padding = st.none() | st.integers(0, 30) | st.tuples(*[st.integers(0, 9)] * 4)
    kinds = [
        st.builds(
            augment.RandomCrop,
            size,
            padding,
            st.booleans(),
            st.sampled_from((0, 1)),
            st.sampled_from(PADDINGS),
        ),
        st.builds(augment.CenterCrop, size),
        st.builds(
            augment.RandomResizedCrop,
            size,
            st.sampled_from(((0.08, 1.0), (1.0, 1.0), (0.001, 0.01))),
            st.sampled_from(((0.75, 1.333), (0.1, 0.2), (5.0, 9.0))),
            mode,
            st.booleans(),
        ),
        st.builds(augment.Resize, size, mode, antialias=st.booleans()),
        st.builds(lambda short, more, mode: augment.Resize(short, mode, max_size=short + more), SIDES, SIDES, mode),
        st.builds(augment.RandomHorizontalFlip, chance),
        st.builds(augment.RandomVerticalFlip, chance),
        st.builds(augment.RandomErasing, chance, value=st.sampled_from((0.0, 1.0))),
        st.builds(augment.Normalize, st.just((0.4,) * channels), st.just((0.2,) * channels)),
    ]
    if channels in (1, 3):
        kinds.append(st.builds(augment.RandomGrayscale, chance))
        factor = st.none() | st.sampled_from((0.3, 0.9))
        kinds.append(st.builds(augment.ColorJitter, factor, factor, factor, st.none() | st.just(0.2)))
    return st.lists(st.one_of(kinds), max_size=5)


@st.composite
def batches(draw: Any, channels: int, source: torch.dtype) -> Batch:
    """One to four images with two boxes and a mask each."""
    count, height, width = draw(st.integers(1, 4)), draw(SIDES), draw(SIDES)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    images = torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator)
    corners = torch.rand((count, 2, 2, 2), generator=generator) * torch.tensor([width, height])
    return Batch(
        images=images if source == torch.uint8 else images.to(source) / 255,
        boxes=torch.cat((corners.amin(2), corners.amax(2)), dim=2),
        labels=torch.tensor([[0, 1]]).repeat(count, 1),
        counts=torch.full((count,), 2),
        masks=torch.randint(0, 20, (count, height, width), dtype=torch.uint8, generator=generator),
        seeds=torch.randint(-(1 << 62), 1 << 62, (count,), generator=generator),
        batch_size=[count],
    )


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
    rows = {name: getattr(batch, name) for name in FIELDS}
    made = {name: getattr(got, name) for name in FIELDS}
    assert not differences(made, collated(collate, rows, batch.seeds, 0))
