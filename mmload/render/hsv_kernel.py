"""Hue, saturation and value of uint8 images changed as OpenCV's tables do it: compiled, and by torch's operations.

An image becomes uint8 HSV (``cv2.COLOR_RGB2HSV``: hue from 0 to 179, saturation and value from 0 to 255), each of the
three goes through a table of 256 entries, and the result becomes RGB again. All of that is one pass over the pixels
here. The conversion to HSV has the results of OpenCV's integers; the way back is float32, rounded down to levels, as
OpenCV does; its own code paths differ by a level in one of 2,000 values, which are whole but for float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.render.kernel_arguments import Bytes, Floats
from mmload.runtime.host_memory import constant
from mmload.runtime.intrinsics import Arena, array_at, carve, fma, never_inline, select, stack_memory
from mmload.runtime.kernels import called, inlined

HUES = 180
"""Number of hues of uint8 HSV."""

_BITS, _BLOCK, _BLOCK_BYTES = 12, 64, 256
"""Bits behind the point of OpenCV's tables, pixels of a block, and the most bytes of their numbers."""

_U, _F, _B, _S, _I = np.uintp, np.float32, np.uint8, np.int16, np.int32
_HALF_UNIT = 1 << (_BITS - 1)
_PER_LEVEL = float(_F(1.0 / 255.0))
_HALF, _ONE, _WHITE, _TURN = _F(0.5), _F(1), _F(255), _F(2 * HUES)
_ROUND = _F(1.5 * 2 ** (23 - _BITS))
"""A float32 that is added and subtracted rounds to ``_BITS``."""

_SIXTH, _PER_THIRD, _PER_WHITE = _F(HUES / 6), _F(3 / HUES), _F(_PER_LEVEL)
_ENDS = tuple(_B(end) for end in range(HUES // 6, HUES, HUES // 6))
"""Hues at which a sixth of the color circle ends."""


def _quotients(dividend: int, factor: int) -> npt.NDArray[np.int32]:
    """Returns ``dividend / (factor * level)`` as fixed-point numbers, int32 [256]; 0 for level 0."""
    levels = np.arange(256) * factor
    return np.rint(np.divide(dividend << _BITS, levels, where=levels > 0, out=np.zeros(256))).astype(np.int32)


_PER_VALUE, _PER_REACH = _quotients(255, 1), _quotients(HUES, 6)


@inlined
def _block(dtype: Any) -> Any:
    """Returns numbers of a block on the stack."""
    return array_at(stack_memory(_BLOCK_BYTES), _BLOCK, dtype)


@called
def _change_block(
    red: Bytes, green: Bytes, blue: Bytes, at: Any, turn: np.float32, stronger: np.float32, brighter: np.float32
) -> None:
    """Changes the pixels of a block in place; ``turn`` leaves hues from 0 to 359.

    A step is a loop over some vectors, from one array to others on the stack. One loop for all of it took 1.5 times as
    long: a processor looks only some 64 vector operations ahead, so it waits in the long chain of one vector for each
    result. A quotient by 0 is infinite, and makes a gray pixel's hue and a black pixel's saturation no number.
    Comparisons take a number in place of that: a gray pixel's hue does not count, and a black pixel's colors are 0
    times it.
    """
    never_inline()
    most, reach, sector = _block(_B), _block(_B), _block(_S)
    for i in range(_U(_BLOCK)):
        r, g, b = red[at + i], green[at + i], blue[at + i]
        best = max(r, max(g, b))
        span = _S(_S(best) - _S(min(r, min(g, b))))  # hues are less times that, in sixths of a turn
        of_red, of_green = _S(_S(g) - _S(b)), _S(_S(_S(b) - _S(r)) + _S(2) * span)
        most[i], reach[i] = best, _B(span)
        sector[i] = of_red if best == r else (of_green if best == g else _S(_S(_S(r) - _S(g)) + _S(4) * span))
    hue, high, thirds = _block(_B), _block(_B), _block(_F)
    value, strength = _block(_F), _block(_F)
    for i in range(_U(_BLOCK)):
        peak, spread = _F(most[i]), _F(reach[i])
        per_value, per_reach = fma(_ONE / peak, _WHITE, _ROUND) - _ROUND, fma(_ONE / spread, _SIXTH, _ROUND) - _ROUND
        strong = np.floor(fma(spread, per_value, _HALF)) * stronger
        strength[i] = np.floor(strong if strong < _WHITE else _WHITE) * _PER_WHITE
        turned = fma(_F(sector[i]), per_reach, turn)
        whole, level = _I(turned if turned < _TURN else _TURN), _I(peak * brighter)
        whole = _I(whole - _I(HUES)) if whole >= _I(HUES) else whole
        level = level if level < _I(255) else _I(255)
        hue[i], high[i] = _B(whole), _B(level)
        thirds[i], value[i] = _F(whole) * _PER_THIRD, _F(level) * _PER_WHITE
    low, between = _block(_B), _block(_B)
    for i in range(_U(_BLOCK)):
        share = np.abs(fma(thirds[i] - np.floor(thirds[i]), _F(-2), _ONE))
        low[i] = _B(_I(value[i] * (_ONE - strength[i]) * _WHITE))
        between[i] = _B(_I(value[i] * (_ONE - strength[i] * share) * _WHITE))
    for i in range(_U(_BLOCK)):
        h, p, q, m = hue[i], high[i], low[i], between[i]
        first, second, third = h < _ENDS[0], h < _ENDS[1], h < _ENDS[2]
        fourth, fifth = h < _ENDS[3], h < _ENDS[4]
        red[at + i] = select(fourth, select(first, p, select(second, m, q)), select(fifth, m, p))
        green[at + i] = select(first, m, select(third, p, select(fourth, m, q)))
        blue[at + i] = select(second, q, select(third, m, select(fifth, p, m)))


@called
def change_hsv(red: Bytes, green: Bytes, blue: Bytes, numbers: Floats, arena: Arena) -> None:
    """Rotates hues and multiplies saturation and value of an image in place.

    Args:
        red: uint8 [n].
        green: uint8 [n].
        blue: uint8 [n].
        numbers: the rotation in 180ths of a turn, a whole number from 0 to 179, and the factors of saturation and
            value.
        arena: working memory.
    """
    # Hues are from -30 to 150: after this turn they are from 0 to 359, and half of one rounds them to the nearest.
    turn = numbers[0] + (_F(HUES) if numbers[0] < _F(HUES / 6) else _F(0)) + _F(0.5)
    stronger, brighter = numbers[1], numbers[2]
    size = _U(red.size)
    whole = size // _U(_BLOCK) * _U(_BLOCK)
    for block in range(whole // _U(_BLOCK)):
        _change_block(red, green, blue, _U(block) * _U(_BLOCK), turn, stronger, brighter)
    rest = carve(arena, (3, _BLOCK), np.uint8)
    rest[:] = 0
    for i in range(size - whole):
        rest[0, i], rest[1, i], rest[2, i] = red[whole + i], green[whole + i], blue[whole + i]
    _change_block(rest[0], rest[1], rest[2], _U(0), turn, stronger, brighter)
    for i in range(size - whole):
        red[whole + i], green[whole + i], blue[whole + i] = rest[0, i], rest[1, i], rest[2, i]


def changed_hsv(images: Tensor, numbers: Tensor, white: float) -> Tensor:
    """Returns images [B, 3, H, W] with changed hue, saturation and value, ``numbers`` [B, 8] as the kernel has them.

    Levels (``white`` is 255) go through uint8 HSV; floats from 0 to 1 are not rounded. Of one channel only the
    value changes.
    """
    if images.shape[1] == 1 or not images.numel():
        brighter = (images * numbers[:, 2].view(-1, 1, 1, 1)).clamp(max=white)
        return brighter if white == 1 else brighter.floor_()
    turn, stronger, brighter = (numbers[:, place].view(-1, 1, 1) for place in range(3))
    red, green, blue = images.unbind(1)
    least, most = torch.aminmax(images, dim=1)
    reach = most - least
    sector = torch.where(
        most == red, green - blue, torch.where(most == green, blue - red + 2 * reach, red - green + 4 * reach)
    )
    if white == 1:
        hue, strength = sector / reach.clamp(min=1e-12) * (HUES / 6), reach / most.clamp(min=1e-12)
        hue = torch.where(reach > 0, hue, 0.0)
    else:
        per_value, per_reach = (
            constant(tuple(table.tolist()), torch.int64, images.device) for table in (_PER_VALUE, _PER_REACH)
        )
        whole = reach.to(torch.int64)
        strength = (whole * per_value[most.to(torch.int64)] + _HALF_UNIT) >> _BITS
        hue = (sector.to(torch.int64) * per_reach[whole] + _HALF_UNIT) >> _BITS
    sixths = (hue + turn).remainder(HUES).to(torch.float32) * (6.0 / HUES)
    strength, value = (strength * stronger).clamp(max=white), (most * brighter).clamp(max=white)
    if white != 1:
        strength, value = (one.floor() * _PER_LEVEL for one in (strength, value))
    number = sixths.floor()
    part = sixths - number
    shares = 1 - strength, 1 - strength * part, 1 - strength * (1 - part)
    choices = torch.stack((value, *(value * share for share in shares)), 1)
    table = constant(SECTORS, torch.int64, images.device).view(6, 3).t()
    changed = choices.gather(1, table[:, number.to(torch.int64).remainder_(6)].transpose(0, 1))
    return changed if white == 1 else (changed * 255.0).floor_()


SECTORS = (0, 3, 1, 2, 0, 1, 1, 0, 3, 1, 2, 0, 3, 1, 0, 0, 1, 2)
"""Numbers of value, least, falling and rising that are red, green and blue, per sixth of the color circle."""
