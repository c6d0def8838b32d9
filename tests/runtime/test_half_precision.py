"""Rounding in compiled loops against torch's own: the bits of float16 and bfloat16, by instruction and by integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numba import njit, types
from torch import Tensor

from mmload.render.kernel_arguments import BITS
from mmload.runtime import numba_intrinsics
from mmload.runtime.numba_intrinsics import rounded


def values() -> Tensor:
    """Float32 of every sign, exponent and upper half of a mantissa, with lower halves about a tie and others; NaN."""
    lower = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xF000, 0xFFFF], np.uint32)
    noise = np.random.default_rng(0).integers(0, 2**32, 200_000, np.uint32)
    bits = np.concatenate([(np.arange(2**16, dtype=np.uint32)[:, None] << 16 | lower).reshape(-1), noise])
    numbers = torch.from_numpy(bits.view(np.float32))
    infinite = torch.tensor(torch.inf)
    return torch.cat([numbers[~numbers.isnan()], (infinite - infinite)[None]])  # NaN as arithmetic makes it


def compiled(dtype: torch.dtype) -> Any:
    def round_all(values: Any, out: Any) -> None:
        for i in range(np.uintp(values.size)):
            out[i] = rounded(values[i], out)

    element = {torch.float16: types.int16, torch.bfloat16: types.uint16, torch.float32: types.float32}[dtype]
    return njit(types.void(types.float32[::1], element[::1]))(round_all)


@pytest.mark.parametrize("instruction", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_values_are_rounded_as_by_torch(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, instruction: bool) -> None:
    if not instruction:
        monkeypatch.setattr(numba_intrinsics, "_has_float16", lambda: False)
    given = values()
    out = torch.empty(len(given), dtype=dtype)
    function = compiled(dtype)
    function(given.numpy(), out.view(BITS.get(dtype, dtype)).numpy())
    assert torch.equal(out.isnan(), given.isnan())
    expected = given.to(dtype)
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(out.view(bits)[~given.isnan()], expected.view(bits)[~given.isnan()])
    if dtype == torch.float16:
        [code] = function.inspect_llvm().values()
        assert (" to half" in code) is instruction
