"""Where in an image a position outside of it comes from, for compiled loops."""

from __future__ import annotations

from mmload.render.framing import PADDING_MODES
from mmload.runtime.numba_compile import inlined

CONSTANT, _REFLECT, _SYMMETRIC = (PADDING_MODES.index(mode) for mode in ("constant", "reflect", "symmetric"))
"""Places in :data:`~mmload.render.framing.PADDING_MODES`."""


@inlined
def reflected(position: int, length: int, mode: int) -> int:
    """A position in or outside of an axis as one inside, as :func:`~mmload.render.torch_sampling.reflected` has it."""
    if mode == _REFLECT:
        if not -length < position < 2 * length - 1:  # a division takes longer than all the rest
            position = position % max(2 * length - 2, 1)
        position = abs(position)
        return min(position, 2 * length - 2 - position)
    if mode == _SYMMETRIC:
        if not -length <= position < 2 * length:
            position = position % (2 * length)
        position = max(position, -1 - position)
        return min(position, 2 * length - 1 - position)
    return min(max(position, 0), length - 1)
