"""The operations of a :class:`~mmload.render.plan.Program` on uint8 images, compiled: in place, in cache.

Each gives the bits of torchvision's functional of its name on a uint8 tensor, which computes in float32 and rounds to
levels. The arithmetic is that of torch's kernels: a blend is one product and one fused product and sum, a hue goes
through float32 HSV. Loops are written without branches and over flat arrays, so that they vectorize: at 224 x 224 a hue
took 2,100 us with a check of its divisors, and 80 without. Nothing is checked here.
"""

from __future__ import annotations

import numpy as np

from mmload.render.hsv_kernel import change_hsv
from mmload.render.kernel_arguments import (
    FLIPPED_X,
    FLIPPED_Y,
    PLACE,
    WINDOW,
    Bytes,
    Floats,
    Numbers,
    Operations,
    Places,
    Records,
)
from mmload.render.level_operations import (
    AFFINE_NEAREST,
    AUTOCONTRAST,
    BLUR,
    BRIGHTNESS,
    CONTRAST,
    EQUALIZE,
    FLIP_X,
    FLIP_Y,
    GRAY,
    HSV,
    HUE,
    INVERT,
    LUMA_WEIGHTS,
    MIX_ADD,
    MIX_BEGIN,
    MIX_END,
    NONE,
    PERMUTE,
    PERSPECTIVE_BILINEAR,
    PERSPECTIVE_NEAREST,
    POSTERIZE,
    SATURATION,
    SHARPNESS,
    SOLARIZE,
)
from mmload.render.neighborhood_kernels import blur, clamped_level, sharpen
from mmload.render.warp_kernels import flip, warp_bilinear, warp_nearest
from mmload.runtime.intrinsics import Arena, carve, fma, reshaped
from mmload.runtime.kernels import ARENA, USED, RecordArray, called, inlined, numba_compiled

_U = np.uintp
_F = np.float32
_NOTHING, _ONE = np.float32(0), np.float32(1)
_RED, _GREEN, _BLUE = (np.float32(weight) for weight in LUMA_WEIGHTS)
_PER_LEVEL, _SIXTH, _SIX, _TWO, _FOUR = _F(1.0 / 255.0), _F(1.0 / 6.0), _F(6), _F(2), _F(4)
_TINY = _F(1e-3)
_LEVELS = _F(255 + 1 - 1e-3)
"""Factor by which torchvision multiplies floats before it cuts them to levels."""


@inlined
def _luma(red: np.float32, green: np.float32, blue: np.float32) -> np.int32:
    return np.int32(fma(blue, _BLUE, fma(green, _GREEN, red * _RED)))


@called
def _brighten(levels: Bytes, factor: np.float32) -> None:
    for i in range(_U(levels.size)):
        levels[i] = clamped_level(_F(levels[i]) * factor)


@called
def _contrast(planes: Bytes, levels: Bytes, factor: np.float32, rest: np.float32) -> None:
    """Blends with the mean luma, whose sum of integers is exact in any order."""
    total, size = np.int64(0), planes.shape[1]
    for start in range(0, size, 1 << 16):  # sums of 32 bits, of which a vector holds twice as many as of 64
        part = np.int32(0)
        if len(planes) == 3:
            for i in range(_U(start), _U(min(size, start + (1 << 16)))):
                part = np.int32(part + _luma(_F(planes[0, i]), _F(planes[1, i]), _F(planes[2, i])))
        else:
            for i in range(_U(start), _U(min(size, start + (1 << 16)))):
                part = np.int32(part + np.int32(planes[0, i]))
        total += part
    mean = _F(total / size)
    for i in range(_U(levels.size)):
        levels[i] = clamped_level(fma(mean, rest, _F(levels[i]) * factor))


@called
def _saturate(red: Bytes, green: Bytes, blue: Bytes, factor: np.float32, rest: np.float32) -> None:
    for i in range(_U(red.size)):
        r, g, b = _F(red[i]), _F(green[i]), _F(blue[i])  # once: a channel that is written could change the next one
        luma = _F(_luma(r, g, b))
        red[i] = clamped_level(fma(luma, rest, r * factor))
        green[i] = clamped_level(fma(luma, rest, g * factor))
        blue[i] = clamped_level(fma(luma, rest, b * factor))


@called
def _rotate_hue(red: Bytes, green: Bytes, blue: Bytes, turn: np.float32) -> None:
    """Rotates hues through HSV with torchvision's bits, but without what these do not depend on.

    Of a pixel's three levels the greatest and the least stay as they are, in other channels, so only the one between
    is computed. Of the two quotients whose difference is the hue, that of the least level is one. Where all levels are
    equal the hue does not count: ``_TINY``, less than any difference of levels, keeps its divisors from being 0.
    Two divisions and no clamps in place of three of each take 0.5 of the time with AVX2, 0.7 with AVX-512.
    """
    for i in range(_U(red.size)):
        r, g, b = red[i], green[i], blue[i]
        upper, lower = max(r, g), min(r, g)
        most, least, middle = max(upper, b), min(lower, b), max(lower, min(upper, b))
        value = _F(most) * _PER_LEVEL
        reach = value - _F(least) * _PER_LEVEL
        quotient, strength = (value - _F(middle) * _PER_LEVEL) / max(reach, _TINY), reach / max(value, _TINY)
        is_red, is_green = most == r, most == g
        ahead = b if is_red else (r if is_green else g)
        third = _NOTHING if is_red else (_TWO if is_green else _FOUR)
        hue = ((_ONE + third) - quotient if ahead == least else (quotient + third) - _ONE) * _SIXTH + _ONE
        hue = hue - _F(np.int32(hue)) + turn
        hue -= _F(np.int32(hue))
        sixths = (hue + _ONE if hue < _NOTHING else hue) * _SIX
        whole = np.int32(sixths)
        part, pale = strength * (sixths - _F(whole)), _ONE - strength
        between = np.uint8(np.int32((_ONE - part if whole & 1 else part + pale) * value * _LEVELS))
        sector = np.uint8(whole)
        red[i] = most if (sector == 0) | (sector >= 5) else (least if (sector == 2) | (sector == 3) else between)
        green[i] = most if (sector == 1) | (sector == 2) else (least if (sector == 4) | (sector == 5) else between)
        blue[i] = most if (sector == 3) | (sector == 4) else (least if (sector <= 1) | (sector == 6) else between)


@called
def _gray(red: Bytes, green: Bytes, blue: Bytes) -> None:
    for i in range(_U(red.size)):
        luma = np.uint8(_luma(_F(red[i]), _F(green[i]), _F(blue[i])))
        red[i], green[i], blue[i] = luma, luma, luma


@called
def _solarize(levels: Bytes, threshold: np.float32) -> None:
    first = np.int32(np.ceil(min(max(threshold, _NOTHING), _F(256))))
    for i in range(_U(levels.size)):
        level = levels[i]
        levels[i] = ~level if np.int32(level) >= first else level


@called
def _posterize(levels: Bytes, bits: int) -> None:
    mask = np.uint8((0xFF00 >> min(bits, 8)) & 0xFF)
    for i in range(_U(levels.size)):
        levels[i] &= mask


@called
def _autocontrast(plane: Bytes) -> None:
    least, most = np.uint8(255), np.uint8(0)
    for i in range(_U(plane.size)):
        least, most = min(least, plane[i]), max(most, plane[i])
    if least < most:
        lowest, scale = _F(least), (_F(most) - _F(least)) * _PER_LEVEL
        for i in range(_U(plane.size)):
            plane[i] = clamped_level((_F(plane[i]) - lowest) / scale)


@called
def _equalize(plane: Bytes, arena: Arena) -> None:
    """Equalizes by Pillow's scheme, as torchvision does.

    There are four histograms, as equal neighbors would wait for each other's counts.
    """
    counts = carve(arena, (4, 256), np.int32)
    counts[:] = 0
    size = plane.size
    fours = size // 4 * 4
    for i in range(_U(0), _U(fours), _U(4)):
        counts[0, plane[i]] += 1
        counts[1, plane[i + _U(1)]] += 1
        counts[2, plane[i + _U(2)]] += 1
        counts[3, plane[i + _U(3)]] += 1
    for i in range(_U(fours), _U(size)):
        counts[0, plane[i]] += 1
    last = 0
    for level in range(256):
        counts[0, level] += counts[1, level] + counts[2, level] + counts[3, level]
        if counts[0, level]:
            last = level
    step = (size - counts[0, last]) // 255
    if step == 0:
        return
    table, below = carve(arena, 256, np.uint8), 0
    for level in range(256):
        table[level] = min((below + step // 2) // step, 255)
        below += counts[0, level]
    for i in range(_U(size)):
        plane[i] = table[plane[i]]


@called
def _permute(planes: Bytes, numbers: Floats, arena: Arena) -> None:
    """Puts three planes into another order, by way of copies."""
    size, copies = _U(planes.shape[1]), carve(arena, planes.size, np.uint8)
    for c in range(_U(3)):
        for i in range(size):
            copies[c * size + i] = planes[c, i]
    for c in range(_U(3)):
        start = _U(numbers[c]) * size
        for i in range(size):
            planes[c, i] = copies[start + i]


@called
def _begin_mixture(levels: Bytes, share: np.float32, original: Bytes, mixture: Floats) -> None:
    for i in range(_U(levels.size)):
        original[i], mixture[i] = levels[i], share * _F(levels[i])


@called
def _add_to_mixture(levels: Bytes, share: np.float32, original: Bytes, mixture: Floats) -> None:
    for i in range(_U(levels.size)):
        mixture[i] += share * _F(levels[i])
        levels[i] = original[i]


@called
def _end_mixture(levels: Bytes, mixture: Floats) -> None:
    for i in range(_U(levels.size)):
        levels[i] = clamped_level(mixture[i])


@inlined
def _changes_nothing(code: int, factor: np.float32) -> bool:
    """Returns whether an operation is none or a blend with the factor 1, as a third of AugMix's are."""
    return code == NONE or (factor == _ONE and (BRIGHTNESS <= code <= SATURATION or code == SHARPNESS))


@called
def _color(code: int, planes: Bytes, levels: Bytes, numbers: Floats, arena: Arena) -> None:
    """Runs an operation that moves no pixel on one image."""
    if code == BRIGHTNESS:
        _brighten(levels, numbers[0])
    elif code == CONTRAST:
        _contrast(planes, levels, numbers[0], numbers[1])
    elif code in (SATURATION, HUE, HSV, GRAY) and len(planes) == 3:
        _color_rgb(code, planes[0], planes[1], planes[2], numbers, arena)
    elif code == HSV:
        _brighten(levels, numbers[2])
    elif code == INVERT:
        _solarize(levels, _NOTHING)
    elif code == SOLARIZE:
        _solarize(levels, numbers[0])
    elif code == POSTERIZE:
        _posterize(levels, int(numbers[0]))
    elif code in (AUTOCONTRAST, EQUALIZE):
        for c in range(len(planes)):
            if code == AUTOCONTRAST:
                _autocontrast(planes[c])
            else:
                _equalize(planes[c], arena)
    elif code == PERMUTE:
        _permute(planes, numbers, arena)


@called
def _color_rgb(code: int, red: Bytes, green: Bytes, blue: Bytes, numbers: Floats, arena: Arena) -> None:
    """Runs an operation that mixes three channels; it leaves an image of one channel as it is."""
    if code == SATURATION:
        _saturate(red, green, blue, numbers[0], numbers[1])
    elif code == HUE:
        _rotate_hue(red, green, blue, numbers[0])
    elif code == HSV:
        change_hsv(red, green, blue, numbers, arena)
    else:
        _gray(red, green, blue)


@called
def _move(code: int, image: Bytes, numbers: Floats, fill: Numbers, arena: Arena) -> None:
    """Runs an operation that reads other pixels on one image."""
    begun = arena[USED]
    if code in (SHARPNESS, BLUR):
        for c in range(len(image)):
            arena[USED] = begun
            if code == SHARPNESS:
                sharpen(image[c], numbers[1], arena)
            else:
                blur(image[c], int(numbers[0]), int(numbers[1]), numbers[2], arena)
    elif code in (FLIP_X, FLIP_Y):
        flip(image, FLIPPED_X if code == FLIP_X else FLIPPED_Y, arena)
    elif code in (AFFINE_NEAREST, PERSPECTIVE_NEAREST):
        warp_nearest(image, numbers, code == PERSPECTIVE_NEAREST, True, fill, arena)
    else:
        warp_bilinear(image, numbers, code == PERSPECTIVE_BILINEAR, fill, arena)


@called
def _warps(codes: Numbers) -> bool:
    """Returns whether a sample is warped, so that flips are due before: of a flip and a warp the order counts."""
    found = False
    for code in codes:
        found |= AFFINE_NEAREST <= code <= PERSPECTIVE_BILINEAR
    return found


@numba_compiled("uint8[::1]", RecordArray(PLACE), "int64", RecordArray(WINDOW), Operations, "int64[::1]", ARENA)
def run_operations(
    memory: Bytes,
    places: Places,
    channels: int,
    windows: Records,
    operations: Operations,
    samples: Numbers,
    arena: Arena,
) -> None:
    """Runs each sample's operations on its image, in place.

    The flips of the windows are due before the operations. Those that give the same after the operations stay there,
    for the caller. ``samples`` is the first sample and the one after the last, int64 [2]; one place is that of each
    sample in turn.
    """
    codes, numbers, fills, begun = operations.codes, operations.numbers, operations.fills, arena[USED]
    for k in range(_U(samples[0]), _U(samples[1])):
        arena[USED] = begun
        place = places[k if len(places) > 1 else _U(0)]
        start, height, width = place.start, place.height, place.width
        size = channels * height * width
        levels = memory[start : start + size]
        image, planes = reshaped(levels, (channels, height, width)), reshaped(levels, (channels, height * width))
        original, mixture = carve(arena, size, np.uint8), carve(arena, size, np.float32)
        own_begun = arena[USED]
        if windows[k].flips and _warps(codes[k]):
            flip(image, windows[k].flips, arena)
            windows[k].flips = 0
        for slot in range(_U(codes.shape[1])):
            code, own = codes[k, slot], numbers[k, slot]
            arena[USED] = own_begun
            if _changes_nothing(code, own[0]):
                continue
            if code == MIX_BEGIN:
                _begin_mixture(levels, own[0], original, mixture)
            elif code == MIX_ADD:
                _add_to_mixture(levels, own[0], original, mixture)
            elif code == MIX_END:
                _end_mixture(levels, mixture)
            elif code <= EQUALIZE or code == PERMUTE:
                _color(code, planes, levels, own, arena)
            else:
                _move(code, image, own, fills[slot], arena)
