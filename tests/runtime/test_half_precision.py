"""Rounding in compiled loops against torch's own: the bits of float16 and bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mmload.render.rendering import BITS
from mmload.runtime.intrinsics import rounded
from mmload.runtime.kernels import numba_compiled

TYPES = {
    torch.float16: "float32[::1], int16[::1]",
    torch.bfloat16: "float32[::1], uint16[::1]",
    torch.float32: "float32[::1], float32[::1]",
}


def values() -> Tensor:
    """Float32 of every sign, exponent and upper half of a mantissa, with lower halves about a tie and others; NaN."""
    lower = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xF000, 0xFFFF], np.uint32)
    noise = np.random.default_rng(0).integers(0, 2**32, 200_000, np.uint32)
    bits = np.concatenate([(np.arange(2**16, dtype=np.uint32)[:, None] << 16 | lower).reshape(-1), noise])
    numbers = torch.from_numpy(bits.view(np.float32))
    infinite = torch.tensor(torch.inf)
    return torch.cat([numbers[~numbers.isnan()], (infinite - infinite)[None]])  # NaN as arithmetic makes it


def _round_all(values: Any, out: Any) -> None:
    for i in range(np.uintp(values.size)):
        out[i] = rounded(values[i], out)


@pytest.mark.parametrize("dtype", TYPES)
def test_values_are_rounded_as_by_torch(dtype: torch.dtype) -> None:
    given = values()
    out = torch.empty(len(given), dtype=dtype)
    numba_compiled(TYPES[dtype])(_round_all)(given.numpy(), out.view(BITS.get(dtype, dtype)).numpy())
    assert torch.equal(out.isnan(), given.isnan())
    expected = given.to(dtype)
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(out.view(bits)[~given.isnan()], expected.view(bits)[~given.isnan()])
