"""The transpose of bytes inside of compiled loops against numpy's."""

from __future__ import annotations

import numpy as np

from mmload.runtime.intrinsics import TRANSPOSED_COLUMNS as ACROSS
from mmload.runtime.intrinsics import TRANSPOSED_ROWS as DOWN
from mmload.runtime.intrinsics import transpose
from mmload.runtime.numba_compile import numba_compiled


@numba_compiled("void(uint8[::1], uintp, uintp, uint8[::1], uintp, uintp)")
def _one_block(
    source: np.ndarray, corner: np.uintp, pitch: np.uintp, out: np.ndarray, place: np.uintp, across: np.uintp
) -> None:
    transpose(source, corner, pitch, out, place, across)


def test_a_block_is_numpys_transpose_and_nothing_else_is_written() -> None:
    source = np.random.default_rng(0).integers(0, 256, (DOWN + 9, ACROSS + 5), dtype=np.uint8)
    out = np.full((ACROSS + 4, DOWN + 7), 77, np.uint8)
    expected = out.copy()
    expected[3 : 3 + ACROSS, 6 : 6 + DOWN] = source[8 : 8 + DOWN, 5 : 5 + ACROSS].T
    pitch, across = source.shape[1], out.shape[1]
    _one_block(source.reshape(-1), 8 * pitch + 5, pitch, out.reshape(-1), 3 * across + 6, across)
    assert (out == expected).all()
