"""Sides of images, one number for all or one each: the same arithmetic as Python's."""

from __future__ import annotations

import pytest
import torch

from mmload.augment.resize import exactly, over


@pytest.mark.parametrize("number", [36, 50, 224, 800, 1333])
def test_a_number_over_sides_is_rounded_as_python_rounds_it(number: int) -> None:
    sides = list(range(1, 2000))
    assert over(number, exactly(torch.tensor(sides))).tolist() == [number / side for side in sides]
    assert over(number, 48) == number / 48
