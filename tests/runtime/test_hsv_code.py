"""Code that changes a block's hue, saturation and value, for vectors of each size, against plain numpy."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import pytest
from hsv_reference import changed
from numba import njit, types

from mmload.runtime import numba_intrinsics
from mmload.runtime.intrinsics import HSV_BLOCK
from mmload.runtime.machine_code import LEVELS
from mmload.runtime.numba_intrinsics import change_hsv_block, features, vector_bytes


def compiled() -> Any:
    def change_all(red: Any, green: Any, blue: Any, turn: Any, stronger: Any, brighter: Any) -> None:
        for at in range(np.uintp(0), np.uintp(red.size), np.uintp(HSV_BLOCK)):
            change_hsv_block(red, green, blue, at, turn, stronger, brighter)

    return njit(types.void(*[types.uint8[::1]] * 3, *[types.float32] * 3))(change_all)


@pytest.mark.parametrize("size", [64, 32, 16])
def test_hsv_code_for_vectors_of_each_size_gives_the_reference(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    if size > 16 and (platform.machine() != "x86_64" or size > vector_bytes(features())):
        pytest.skip(f"this processor has no vectors of {size} bytes that are packed by x86's instructions")
    monkeypatch.setattr(numba_intrinsics, "vector_bytes", lambda features: size)
    side = np.arange(0, 256, 5, dtype=np.uint8)
    colors = np.stack(np.meshgrid(side, side, side)).reshape(3, -1)
    image = np.pad(colors, ((0, 0), (0, -colors.shape[1] % HSV_BLOCK)), mode="edge")
    expected = changed(image, 37, 1.33, 1.1)
    made = image.copy()
    compiled()(*made, np.float32(37.5), np.float32(1.33), np.float32(1.1))
    assert np.array_equal(made, expected)


def test_vector_sizes_are_those_of_the_levels() -> None:
    sizes = {level: vector_bytes([f"+{name}" for name in LEVELS[level].split()]) for level in LEVELS}
    assert sizes == {"x86-64-v4": 64, "x86-64-v3": 32, "aarch64": 16}
