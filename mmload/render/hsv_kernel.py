"""Hue, saturation and value of uint8 images changed as OpenCV's tables do it: compiled, and by torch's operations.

An image becomes uint8 HSV (``cv2.COLOR_RGB2HSV``: hue from 0 to 179, saturation and value from 0 to 255), each of the
three goes through a table of 256 entries, and the result becomes RGB again. All of that is one pass over the pixels
here. The conversion to HSV has OpenCV's integer arithmetic; the way back is float32, rounded down to levels, as
OpenCV does; its own code paths differ by a level in one of 2,000 values, which are whole but for float32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.render.kernel_arguments import Bytes, Floats
from mmload.runtime.declarations import divides
from mmload.runtime.memory_pool import constant

_U = np.uintp
_F = np.float32
_W = np.int32
_SHIFT = 12
_HALF = 1 << (_SHIFT - 1)
HUES = 180
"""Number of hues of uint8 HSV."""


def _quotients(dividend: int, factor: int) -> npt.NDArray[np.int32]:
    """Returns ``dividend / (factor * level)`` as fixed-point numbers, int32 [256]; 0 for level 0."""
    levels = np.arange(256) * factor
    return np.rint(np.divide(dividend << _SHIFT, levels, where=levels > 0, out=np.zeros(256))).astype(np.int32)


_PER_VALUE, _PER_REACH = _quotients(255, 1), _quotients(HUES, 6)
_VALUES, _SECTORS = _F(255 << _SHIFT), _F(HUES * (1 << _SHIFT) / 6)
_ONE, _WHITE = _F(1), _F(255)
_PER_LEVEL, _PER_HUE = _F(1.0 / 255.0), _F(6.0 / HUES)


@divides
def change_hsv(red: Bytes, green: Bytes, blue: Bytes, numbers: Floats) -> None:
    """Rotates hues and multiplies saturation and value of an image in place.

    Args:
        red: uint8 [n].
        green: uint8 [n].
        blue: uint8 [n].
        numbers: the rotation in 180ths of a turn, a whole number from 0, and the factors of saturation and value.
    """
    turn, stronger, brighter = _W(numbers[0]), numbers[1], numbers[2]
    for i in range(_U(red.size)):
        r, g, b = _W(red[i]), _W(green[i]), _W(blue[i])
        most, least = max(max(r, g), b), min(min(r, g), b)
        reach = _W(most - least)
        per_value = _W(np.rint(_VALUES / _F(max(most, _W(1)))))  # the tables of OpenCV: faster than looked up
        per_reach = _W(np.rint(_SECTORS / _F(max(reach, _W(1)))))
        strength = _W((_W(reach * per_value) + _W(_HALF)) >> _W(_SHIFT))
        sector = _W(g - b) if most == r else (_W(b - r + 2 * reach) if most == g else _W(r - g + 4 * reach))
        hue = _W((_W(sector * per_reach) + _W(_HALF)) >> _W(_SHIFT))
        hue = _W(hue + _W(HUES)) if hue < 0 else hue
        hue = _W(hue + turn)
        hue = _W(hue - _W(HUES)) if hue >= HUES else hue
        strength = _W(min(_F(strength) * stronger, _WHITE))
        value = _W(min(_F(most) * brighter, _WHITE))
        sixths = _F(hue) * _PER_HUE
        whole = _W(sixths)
        part, v, s = sixths - _F(whole), _F(value) * _PER_LEVEL, _F(strength) * _PER_LEVEL
        share = part if whole & 1 else _ONE - part
        high, low = np.uint8(value), np.uint8(_W(v * (_ONE - s) * _WHITE))
        between = np.uint8(_W(v * (_ONE - s * share) * _WHITE))
        sixth = np.uint8(whole)
        red[i] = high if (sixth == 0) | (sixth == 5) else (low if (sixth == 2) | (sixth == 3) else between)
        green[i] = high if (sixth == 1) | (sixth == 2) else (low if (sixth == 4) | (sixth == 5) else between)
        blue[i] = high if (sixth == 3) | (sixth == 4) else (low if sixth <= 1 else between)


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
        strength = (whole * per_value[most.to(torch.int64)] + _HALF) >> _SHIFT
        hue = (sector.to(torch.int64) * per_reach[whole] + _HALF) >> _SHIFT
    sixths = (hue + turn).remainder(HUES).to(torch.float32) * (6.0 / HUES)
    strength, value = (strength * stronger).clamp(max=top), (most * brighter).clamp(max=top)
    if white != 1:
        strength, value = (one.floor() * float(_PER_LEVEL) for one in (strength, value))
    number = sixths.floor()
    part = sixths - number
    shares = 1 - strength, 1 - strength * part, 1 - strength * (1 - part)
    choices = torch.stack((value, *(value * share for share in shares)), 1)
    table = constant(_CHOICES, torch.int64, images.device).view(6, 3).t()
    changed = choices.gather(1, table[:, number.to(torch.int64).remainder_(6)].transpose(0, 1))
    return changed if white == 1 else (changed * 255.0).floor_()


_CHOICES = (0, 3, 1, 2, 0, 1, 1, 0, 3, 1, 2, 0, 3, 1, 0, 0, 1, 2)
"""Numbers of value, least, falling and rising that are red, green and blue, per sixth of the color circle."""
