"""Hue, saturation and value of uint8 images changed as OpenCV's tables do it: compiled, and by torch's operations.

An image becomes uint8 HSV (``cv2.COLOR_RGB2HSV``: hue from 0 to 179, saturation and value from 0 to 255), each of the
three goes through a table of 256 entries, and the result becomes RGB again. All of that is one pass over the pixels
here. The conversion to HSV has the results of OpenCV's integers; the way back is float32, rounded down to levels, as
OpenCV does; its own code paths differ by a level in one of 2,000 values, which are whole but for float32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.render.kernel_arguments import Bytes, Floats
from mmload.runtime.declarations import called, divides, inlined
from mmload.runtime.intrinsics import fma
from mmload.runtime.memory_pool import constant

Shorts = npt.NDArray[np.int16]
Planes = tuple[Bytes, Bytes, Bytes]

_U = np.uintp
_F = np.float32
_W = np.int32
_SHIFT = 12
_HALF_UNIT = 1 << (_SHIFT - 1)
HUES = 180
"""Number of hues of uint8 HSV."""


def _quotients(dividend: int, factor: int) -> npt.NDArray[np.int32]:
    """Returns ``dividend / (factor * level)`` as fixed-point numbers, int32 [256]; 0 for level 0."""
    levels = np.arange(256) * factor
    return np.rint(np.divide(dividend << _SHIFT, levels, where=levels > 0, out=np.zeros(256))).astype(np.int32)


_PER_VALUE, _PER_REACH = _quotients(255, 1), _quotients(HUES, 6)
_ONE, _HALF, _WHITE = _F(1), _F(0.5), _F(255)
_SIXTH, _CIRCLE = _F(HUES / 6), _F(HUES)
_PER_LEVEL, _PER_THIRD = _F(1.0 / 255.0), _F(3.0 / HUES)
_ROUND = _F(1.5 * 2 ** (23 - _SHIFT))
"""A float32 that is added and subtracted rounds to ``_SHIFT`` bits behind the point, as OpenCV's tables are rounded."""
_RUN = 64
"""Pixels of which a run of one color consists at least, such as the fill beside images: it is computed once."""
_BLOCK = 1024
"""Pixels that go through all loops before the next ones: what is between the loops stays in the L1 cache.

One loop for all has more operations than a processor looks ahead: it took 1.3 times as long.
"""


@divides
def _find_sectors(planes: Planes, at: np.uintp, count: np.uintp, most: Bytes, reach: Bytes, sector: Shorts) -> None:
    """Finds the greatest level of pixels from ``at`` on, what is between it and the least, and the hue times that.

    That hue is counted in sixths of a turn.
    """
    red, green, blue = planes
    for i in range(count):
        r, g, b = red[at + i], green[at + i], blue[at + i]
        most[i] = max(max(r, g), b)
        reach[i] = most[i] - min(min(r, g), b)
    for i in range(count):
        r, g, b = np.int16(red[at + i]), np.int16(green[at + i]), np.int16(blue[at + i])
        value, wide = np.int16(most[i]), np.int16(reach[i])
        back = np.int16(b - r + 2 * wide) if value == g else np.int16(r - g + 4 * wide)
        sector[i] = np.int16(g - b) if value == r else back


@divides
def _find_hues(
    count: np.uintp, most: Bytes, reach: Bytes, sector: Shorts, turn: np.float32, hue: Floats, strength: Floats
) -> None:
    """Computes hues, turned, from 0 to 359, and saturations, as OpenCV's tables give them.

    The tables have 255 / level and 30 / level in ``_SHIFT`` bits behind the point. One division makes both quotients,
    whose error is less than half of what it takes to be rounded to another number. All sums are exact.
    """
    for i in range(count):
        value, wide = _F(most[i]), _F(reach[i])
        share = _ONE / max(value * wide, _ONE)
        per_value = fma(share * wide, _WHITE, _ROUND) - _ROUND
        per_reach = fma(share * value, _SIXTH, _ROUND) - _ROUND
        strength[i] = np.floor(fma(wide, per_value, _HALF))
        hue[i] = np.floor(fma(_F(sector[i]), per_reach, turn))


@divides
def _find_levels(
    count: np.uintp,
    most: Bytes,
    hue: Floats,
    strength: Floats,
    factors: tuple[np.float32, np.float32],
    hues: Bytes,
    levels: Planes,
) -> None:
    """Computes hues from 0 to 179, and the greatest, the least and the other level of the changed pixels."""
    (stronger, brighter), (high, low, between) = factors, levels
    for i in range(count):
        turned = hue[i] - (_CIRCLE if hue[i] >= _CIRCLE else _F(0))
        thirds = turned * _PER_THIRD
        share = abs(fma(thirds - np.floor(thirds), _F(-2), _ONE))  # falls from 1 to 0 and rises again, in a third
        value = np.floor(min(_F(most[i]) * brighter, _WHITE))
        v, s = value * _PER_LEVEL, np.floor(min(strength[i] * stronger, _WHITE)) * _PER_LEVEL
        hues[i], high[i] = np.uint8(_W(turned)), np.uint8(_W(value))
        low[i], between[i] = np.uint8(_W(v * (_ONE - s) * _WHITE)), np.uint8(_W(v * (_ONE - s * share) * _WHITE))


@divides
def _place_levels(hues: Bytes, levels: Planes, planes: Planes, at: np.uintp, count: np.uintp) -> None:
    """Writes levels to the colors that have them in the sixth of the circle that a hue is in."""
    red, green, blue = planes
    for i in range(count):
        hue, high, low, between = hues[i], levels[0][i], levels[1][i], levels[2][i]
        first, second, third = hue < np.uint8(30), hue < np.uint8(60), hue < np.uint8(90)
        fourth, fifth = hue < np.uint8(120), hue < np.uint8(150)
        rising = high if first else (between if second else low)
        red[at + i] = rising if fourth else (between if fifth else high)
        falling = high if third else (between if fourth else low)
        green[at + i] = between if first else falling
        last = between if third else (high if fifth else between)
        blue[at + i] = low if second else last


@inlined
def _color_at(planes: Planes, at: np.uintp) -> np.int64:
    return np.int64(planes[0][at]) << 16 | np.int64(planes[1][at]) << 8 | np.int64(planes[2][at])


@called
def _is_constant(planes: Planes, at: np.uintp, count: np.uintp) -> bool:
    """Returns whether pixels have one color."""
    (red, green, blue), other = planes, np.uint8(0)
    r, g, b = red[at], green[at], blue[at]
    for i in range(count):
        other |= (red[at + i] ^ r) | (green[at + i] ^ g) | (blue[at + i] ^ b)
    return bool(other == 0)


@divides
def change_hsv(red: Bytes, green: Bytes, blue: Bytes, numbers: Floats) -> None:
    """Rotates hues and multiplies saturation and value of an image in place.

    Args:
        red: uint8 [n].
        green: uint8 [n].
        blue: uint8 [n].
        numbers: the rotation in 180ths of a turn, a whole number from 0 to 179, and the factors of saturation and
            value.
    """
    # Hues are from -30 to 150: after this turn they are from 0 to 359, and half of one rounds them to the nearest.
    turn, factors = numbers[0] + (_CIRCLE if numbers[0] < _SIXTH else _F(0)) + _HALF, (numbers[1], numbers[2])
    # Whole arrays and a count: slices are counted by atomic instructions, which took a tenth of the time.
    bytes_, hues, sector = np.empty((3, _BLOCK), np.uint8), np.empty(_BLOCK, np.uint8), np.empty(_BLOCK, np.int16)
    most, reach = np.empty(_BLOCK, np.uint8), np.empty(_BLOCK, np.uint8)
    hue, strength = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.float32)
    planes, levels, size = (red, green, blue), (bytes_[0], bytes_[1], bytes_[2]), _U(red.size)
    at, color, changed = _U(0), np.int64(-1), np.int64(-1)  # color of the last run, and what it became
    while at < size:
        stop, run = at, _U(0)
        while stop < size and stop - at < _U(_BLOCK):
            length = min(_U(_RUN), size - stop)
            # The first and the last pixel tell it of most that have several: a call for each took 0.1 of the time.
            if red[stop] == red[stop + length - _U(1)] and _is_constant(planes, stop, length):
                run = length
                break
            stop += length
        is_new = run > 0 and _color_at(planes, stop) != color
        if is_new:
            color = _color_at(planes, stop)
        count = stop - at + _U(is_new)  # the first of a run with the pixels before it
        if count:
            _find_sectors(planes, at, count, most, reach, sector)
            _find_hues(count, most, reach, sector, turn, hue, strength)
            _find_levels(count, most, hue, strength, factors, hues, levels)
            _place_levels(hues, levels, planes, at, count)
        if is_new:
            changed = _color_at(planes, stop)
        for i in range(stop, stop + run):
            red[i], green[i], blue[i] = np.uint8(changed >> 16), np.uint8(changed >> 8), np.uint8(changed)
        at = stop + run


def changed_hsv(images: Tensor, numbers: Tensor, white: float) -> Tensor:
    """Returns images [B, 3, H, W] with changed hue, saturation and value, ``numbers`` [B, 8] as the kernel has them.

    Levels (``white`` is 255) go through uint8 HSV; floats from 0 to 1 are not rounded. Of one channel only the
    value changes.
    """
    top = 1.0 if white == 1 else 255.0
    if images.shape[1] == 1 or not images.numel():
        brighter = (images * numbers[:, 2].view(-1, 1, 1, 1)).clamp(max=top)
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
        strength = (whole * per_value[most.to(torch.int64)] + _HALF_UNIT) >> _SHIFT
        hue = (sector.to(torch.int64) * per_reach[whole] + _HALF_UNIT) >> _SHIFT
    sixths = (hue + turn).remainder(HUES).to(torch.float32) * (6.0 / HUES)
    strength, value = (strength * stronger).clamp(max=top), (most * brighter).clamp(max=top)
    if white != 1:
        strength, value = (one.floor() * float(_PER_LEVEL) for one in (strength, value))
    number = sixths.floor()
    part = sixths - number
    shares = 1 - strength, 1 - strength * part, 1 - strength * (1 - part)
    choices = torch.stack((value, *(value * share for share in shares)), 1)
    table = constant(SECTORS, torch.int64, images.device).view(6, 3).t()
    changed = choices.gather(1, table[:, number.to(torch.int64).remainder_(6)].transpose(0, 1))
    return changed if white == 1 else (changed * 255.0).floor_()


SECTORS = (0, 3, 1, 2, 0, 1, 1, 0, 3, 1, 2, 0, 3, 1, 0, 0, 1, 2)
"""Numbers of value, least, falling and rising that are red, green and blue, per sixth of the color circle."""
