"""Code that blends neighboring numbers, by AVX-512's instructions and without them, against plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit, types

from mmload.runtime import numba_intrinsics
from mmload.runtime.hsv_code import vector_bytes
from mmload.runtime.intrinsics import MEAN_BITS, MEAN_HALF, NEAR_WORDS, NEIGHBORS
from mmload.runtime.numba_intrinsics import blend_neighbors


def compiled() -> Any:
    def blend(line: Any, picks: Any, weights: Any, out: Any, pitch: int, near: int) -> None:
        blend_neighbors(line, (5, pitch), picks, weights, np.uintp(0), out, (0, NEIGHBORS), 3, near)

    shorts, picks = types.int16[::1], types.uint16[::1]
    return njit(types.void(shorts, picks, shorts, types.uint8[::1], types.intp, types.intp))(blend)


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("near", [32, NEAR_WORDS])
@pytest.mark.parametrize("has_avx512", [True, False])
def test_neighbor_code_of_both_kinds_gives_the_reference(
    monkeypatch: pytest.MonkeyPatch, has_avx512: bool, near: int, stride: int
) -> None:
    from numba.core.registry import cpu_target

    features = cpu_target.target_context.codegen()._tm_features.split(",")
    if has_avx512 and vector_bytes(features) < 64:
        pytest.skip("this processor has no AVX-512")
    monkeypatch.setattr(numba_intrinsics, "vector_bytes", lambda features: 64 if has_avx512 else 16)
    random = np.random.default_rng(stride)
    pitch = 1 if stride == 3 else 80  # channels alternate, or each has a line of its own
    line = (random.integers(0, 256, 400) << 7).astype(np.int16)
    first = np.sort(random.integers(0, near - stride, NEIGHBORS))
    picks = np.stack((first, first + stride), 1)
    right = random.integers(0, (1 << 15) + 1, NEIGHBORS)
    weights = np.stack((right - (1 << 15), -right), 1)
    expected = [
        (MEAN_HALF - (line[5 + c * pitch + picks].astype(np.int64) * weights).sum(1)) >> MEAN_BITS for c in range(3)
    ]
    out = np.zeros(3 * NEIGHBORS, np.uint8)
    compiled()(line, picks.ravel().astype(np.uint16), weights.ravel().astype(np.int16), out, pitch, near)
    assert np.array_equal(out.reshape(3, -1), expected)
