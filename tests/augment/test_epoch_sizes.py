"""Sizes that follow the epoch: FFCV's ramp, and the steps that take them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from batches import batch_of
from hypothesis import given
from hypothesis import strategies as st

from mmload.augment import ProgressiveSize, RandomResizedCrop, Resize
from mmload.augment.collate import Collate
from mmload.batch import Batch


def ffcv(epoch: int, least: int, greatest: int, start: int, end: int, multiple: int) -> int:
    """``get_resolution`` of ffcv-imagenet's train_imagenet.py, whose multiple is 32."""
    if epoch <= start:
        return least
    if epoch >= end:
        return greatest
    return int(np.round(np.interp([epoch], [start, end], [least, greatest])[0] / multiple)) * multiple


def test_it_is_ffcvs_ramp() -> None:
    size = ProgressiveSize(160, 192, start_epoch=65, end_epoch=76)
    assert [size(epoch) for epoch in range(88)] == [ffcv(epoch, 160, 192, 65, 76, 32) for epoch in range(88)]
    assert [size(70), size(71)] == [160, 192]


@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 30), st.integers(0, 30), st.sampled_from([1, 7, 32]))
def test_between_multiples_it_is_ffcvs_whatever_the_ramp(
    least: int, more: int, start: int, length: int, multiple: int
) -> None:
    ends = least * multiple, (least + more) * multiple
    size = ProgressiveSize(*ends, start, start + length, multiple)
    for epoch in range(start + length + 2):
        assert size(epoch) == ffcv(epoch, *ends, start, start + length, multiple)


def test_it_stays_within_sizes_that_are_no_multiples() -> None:
    size = ProgressiveSize(170, 180, start_epoch=0, end_epoch=4)
    assert [size(epoch) for epoch in range(5)] == [170, 170, 170, 180, 180]
    assert pickle.loads(pickle.dumps(size)) == size


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ((0, 5, 0, 1), "min_size is 0, expected an integer from 1 to 65535"),
        ((5, 70_000, 0, 1), "max_size is 70000, expected an integer from 1 to 65535"),
        ((6, 5, 0, 1), r"\(min_size, max_size\) is \(6, 5\), expected the smaller one first"),
        ((5, 6, -1, 1), "start_epoch is -1, expected an integer from 0"),
        ((5, 6, 2, 1), r"\(start_epoch, end_epoch\) is \(2, 1\), expected"),
        ((5, 6, 1, 2, 0), "multiple is 0, expected an integer from 1"),
        ((5, 6.0, 1, 2), "max_size is 6.0"),
    ],
)
def test_wrong_ramps_are_refused(given_: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProgressiveSize(*given_)


def batch(height: int = 20, width: int = 30) -> Batch:
    made = batch_of(4, (3, height, width))
    made.masks = made.images[:, 0] % 5
    return made


@pytest.mark.parametrize(
    ("size", "fixed"),
    [
        (lambda epoch: 5 + epoch, 8),
        (lambda epoch: (5, 4 * epoch), (5, 12)),
        (ProgressiveSize(8, 16, start_epoch=0, end_epoch=6, multiple=4), 12),
        (lambda epoch: np.array([7, 9]), (7, 9)),
    ],
)
@pytest.mark.parametrize("kind", [RandomResizedCrop, Resize])
def test_in_an_epoch_it_is_the_step_of_that_size(kind: Any, size: Any, fixed: Any) -> None:
    collate = Collate(kind(size, interpolation="nearest-exact"), dtype=torch.uint8)
    collate.set_epoch(3)
    got, expected = collate(batch()), Collate(kind(fixed, interpolation="nearest-exact"), dtype=torch.uint8)(batch())
    assert torch.equal(got.images, expected.images)
    assert torch.equal(got.masks, expected.masks)
    assert kind(fixed).at_epoch(3).extra_repr() == kind(fixed).extra_repr()
    assert collate.steps[0].at_epoch(3).extra_repr() == kind(fixed, interpolation="nearest-exact").extra_repr()


def test_the_shorter_side_may_follow_the_epoch_under_a_bound() -> None:
    collate = Collate(Resize(lambda epoch: 10 + epoch, max_size=22))
    shapes = []
    for epoch in (0, 1, 6):
        collate.set_epoch(epoch)
        shapes.append(tuple(collate(batch()).images.shape[2:]))
    assert shapes == [(10, 15), (11, 16), (14, 22)]
    longest = Collate(Resize(lambda epoch: None, max_size=9))
    longest.set_epoch(0)
    assert longest(batch()).images.shape[2:] == (6, 9)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (RandomResizedCrop(lambda epoch: 0), "in epoch 2, size is 0, expected an integer from 1"),
        (RandomResizedCrop(lambda epoch: None), "in epoch 2, size is None"),
        (Resize(lambda epoch: 4 + epoch, max_size=5), "in epoch 2, max_size is 5, expected more than size, 6"),
        (Resize(lambda epoch: (4, 4), max_size=5), "in epoch 2, max_size is 5, but size"),
        (Resize(lambda epoch: lambda: 4), "in epoch 2, size is .*function"),
    ],
)
def test_an_invalid_size_of_an_epoch_is_refused(step: torch.nn.Module, message: str) -> None:
    collate = Collate(step)
    collate.set_epoch(2)
    with pytest.raises(ValueError, match=message):
        collate(batch())
