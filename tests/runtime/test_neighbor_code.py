"""Tiles painted by AVX-512's instructions and without them, which take neighbors in different ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mmload.render.canvas_kernels import paint
from mmload.render.kernel_arguments import LINES, PAINT, PIXELS, PLACE, TILE, ImageLines
from mmload.runtime import kernel_compiler, machine_code, numba_compile, numba_intrinsics
from mmload.runtime.numba_compile import Kernel

SCALES = 0.3, 0.9, 1.0, 1.7, 3.9, -1.2


def painted(kernel: Any, scale: float, layout: int, turn: float) -> np.ndarray:
    image = np.random.default_rng(6).integers(0, 256, (187, 3, 329), np.uint8)  # [H, C, W], as LINES are
    memory = np.ascontiguousarray(image if layout == LINES else image.transpose(0, 2, 1)).reshape(-1)
    place, tile, out = np.zeros(1, PLACE), np.zeros(1, TILE), np.zeros((1, 3, 33, 75), np.uint8)
    place[:] = (0, 0, 187, 187, 329, layout, 1)
    tile["a"], tile["e"], tile["b"], tile["i"] = scale, 1.3 * scale, turn, 1
    tile["c"], tile["f"] = (-3.7, 2.2) if scale > 0 else (-scale * 75.1, 185.5)
    tile["u1"], tile["v1"], tile["begins"], tile["bottom"], tile["right"] = 329, 187, 1, 187, 329
    kernel(ImageLines(memory, place, memory), 0, tile, np.full(3, 9, np.uint8), out, np.nan)
    return out


def compiled_without_avx512(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(numba_intrinsics, "_has_avx512", lambda: False)
    monkeypatch.setattr(numba_compile, "load", lambda symbol, compile_: machine_code._link(compile_(), symbol))
    kernel_compiler._compiled.cache_clear()  # what was compiled with AVX-512
    return Kernel(paint.function, PAINT, nogil=True)  # type: ignore[attr-defined]  # a kernel


@pytest.mark.parametrize("is_own", [True, False])
def test_straight_tiles_have_the_bits_of_turned_ones(monkeypatch: pytest.MonkeyPatch, is_own: bool) -> None:
    kernel = paint if is_own else compiled_without_avx512(monkeypatch)
    for scale in SCALES:
        for layout in (LINES, PIXELS):
            straight, turned = (painted(kernel, scale, layout, turn) for turn in (0.0, 1e-300))
            assert np.array_equal(straight, turned), (scale, layout)
            assert (straight != 9).any()
    kernel_compiler._compiled.cache_clear()
