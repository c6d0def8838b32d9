"""The loops over pixels on a CPU, compiled: one call renders samples without the interpreter lock.

Comes in: uint8 images as stored and a plan's numbers, as numpy arrays. Goes out: finished pixels in the caller's
memory. Every value goes through a subtraction and a multiplication of its own, in float32, as torch does it: no fused
multiply-add, so the bits do not depend on the place in a line. Indices are unsigned where it matters: negative ones,
which count from the end, keep a loop from being vectorised. Nothing is checked here: ``render`` and ``resample`` do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmload.augment.plan import PADDING_MODES
from mmload.compiled import compiled, inlined

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Index = int | np.uintp

ACROSS, OVER = 1, 2
"""The bits of a sample's mirror: left to right, upside down."""

_CONSTANT, _REFLECT, _SYMMETRIC = (PADDING_MODES.index(mode) for mode in ("constant", "reflect", "symmetric"))

_LUMA_RED, _LUMA_GREEN, _LUMA_BLUE = np.float32(0.2989), np.float32(0.587), np.float32(0.114)
"""The luma weights of ``torchvision.transforms.v2.functional.rgb_to_grayscale``."""

_U = np.uintp
_BYTE = np.int32(255)
_GREEN, _BLUE = np.int32(8), np.int32(16)

_CROP = (
    "void(uint8[:, :, :, ::1], int64[::1], int64[::1], int64[::1], uint8[::1], boolean[::1], int64, uint8[::1], int64, "
    "float32[::1], float32[::1], {})"
)


@inlined
def _reflected(position: int, length: int, mode: int) -> int:
    """A place on or outside of an axis as one on it, as :func:`~mmload.augment.sampling.reflected` has it."""
    if mode == _REFLECT:
        period = max(2 * length - 2, 1)
        position = position % period
        return min(position, min(period - position, length - 1))
    if mode == _SYMMETRIC:
        position = position % (2 * length)
        return min(position, 2 * length - 1 - position)
    return min(max(position, 0), length - 1)


@inlined
def _clear(lines: Bytes, fill: Bytes) -> None:
    """A line of every channel, with margins on either side, full of the constant."""
    for c in range(_U(lines.shape[0])):
        for x in range(_U(lines.shape[1])):
            lines[c, x] = fill[c]


@inlined
def _fetch(
    images: Bytes, place: Index, row: int, first: int, last: int, mode: int, fill: Bytes, reach: int, lines: Bytes
) -> None:
    """Columns ``first`` to ``last`` of a row, in or outside of an image, and its margins, into ``lines``.

    Elements are named by all their indices: a slice is counted by atomic operations, which took longer than its line.
    """
    height, width = images.shape[2], images.shape[3]
    for c in range(_U(images.shape[1])):
        if mode == _CONSTANT and (row < 0 or row >= height):
            for x in range(_U(first), _U(last)):
                lines[c, _U(reach) + x] = fill[c]
            continue
        y = _U(_reflected(row, height, mode))
        for x in range(_U(first), _U(last)):
            lines[c, _U(reach) + x] = images[place, c, y, x]
        if mode != _CONSTANT:
            for x in range(1, reach + 1):
                lines[c, _U(reach - x)] = images[place, c, y, _U(_reflected(-x, width, mode))]
                lines[c, _U(reach + width - 1 + x)] = images[place, c, y, _U(_reflected(width - 1 + x, width, mode))]


@inlined
def _grey(lines: Bytes) -> None:
    """Three lines, and their margins, replaced by their luma, in whole levels."""
    for x in range(_U(lines.shape[1])):
        red, green, blue = np.float32(lines[0, x]), np.float32(lines[1, x]), np.float32(lines[2, x])
        level = np.uint8(red * _LUMA_RED + green * _LUMA_GREEN + blue * _LUMA_BLUE)
        lines[0, x] = lines[1, x] = lines[2, x] = level


@inlined
def _interleave(lines: Bytes, start: Index, across: bool, mixed: Bytes) -> None:
    """A window's lines as one of w * C values; only a constant stride makes it quick."""
    channels = lines.shape[0]
    width = _U(mixed.shape[0] // channels)
    if channels == 3 and not across:
        for x in range(width):
            mixed[_U(3) * x], mixed[_U(3) * x + _U(1)] = lines[0, start + x], lines[1, start + x]
            mixed[_U(3) * x + _U(2)] = lines[2, start + x]
        return
    if channels == 3:
        end = start + width - _U(1)
        for x in range(width):
            mixed[_U(3) * x], mixed[_U(3) * x + _U(1)] = lines[0, end - x], lines[1, end - x]
            mixed[_U(3) * x + _U(2)] = lines[2, end - x]
        return
    for c in range(_U(channels)):
        for x in range(width):
            mixed[x * _U(channels) + c] = lines[c, start + (width - _U(1) - x if across else x)]


@compiled(_CROP.format("float32[:, :, :, ::1]"), _CROP.format("uint8[:, :, :, ::1]"))
def crop(
    images: Bytes,
    places: Numbers,
    tops: Numbers,
    lefts: Numbers,
    mirrors: Bytes,
    greys: Flags,
    mode: int,
    fill: Bytes,
    reach: int,
    shift: Floats,
    scale: Floats,
    out: Floats | Bytes,
) -> None:
    """Windows of images, cropped, padded, mirrored, coloured.

    Args:
        images: uint8 [N, C, H, W].
        places: int64 [B], which of the images each sample is.
        tops: int64 [B], first row of its window, in or outside of the image.
        lefts: int64 [B], first column of it.
        mirrors: uint8 [B], the bits :data:`ACROSS` and :data:`OVER`.
        greys: bool [B], whether three channels are replaced by their luma.
        mode: what lies outside, a place in :data:`~mmload.augment.plan.PADDING_MODES`.
        fill: uint8 [C], the constant there.
        reach: how far windows reach outside to the left or right, at most.
        shift: float32 [C]; a value becomes (x - shift) * scale.
        scale: float32 [C].
        out: float32 [B, C, h, w]; or uint8, for a map that keeps levels whole.
    """
    count, channels, height, width = out.shape
    lines = np.empty((channels, images.shape[3] + 2 * reach), np.uint8)
    _clear(lines, fill)
    for k in range(_U(count)):
        across, over, grey = mirrors[k] & ACROSS != 0, mirrors[k] & OVER != 0, greys[k] and channels == 3
        first, last = max(lefts[k], 0), max(min(lefts[k] + width, images.shape[3]), 0)
        start = _U(reach + lefts[k])
        end = start + _U(width - 1)
        for y in range(_U(height)):
            row = tops[k] + (height - 1 - y if over else y)
            _fetch(images, _U(places[k]), row, first, last, mode, fill, reach, lines)
            if grey:
                _grey(lines)
            for c in range(_U(channels)):
                less, times = shift[c], scale[c]
                if across:
                    for x in range(_U(width)):
                        out[k, c, y, x] = (np.float32(lines[c, end - x]) - less) * times
                else:
                    for x in range(_U(width)):
                        out[k, c, y, x] = (np.float32(lines[c, start + x]) - less) * times
            if grey:
                _clear(lines, fill)


@compiled(_CROP.format("float32[:, :, ::1]"))
def crop_interleaved(
    images: Bytes,
    places: Numbers,
    tops: Numbers,
    lefts: Numbers,
    mirrors: Bytes,
    greys: Flags,
    mode: int,
    fill: Bytes,
    reach: int,
    shift: Floats,
    scale: Floats,
    out: Floats,
) -> None:
    """:func:`crop` into the memory of channels_last: ``out`` is float32 [B, h, w * C]."""
    count, height, values = out.shape
    channels = images.shape[1]
    width = values // channels
    lines = np.empty((channels, images.shape[3] + 2 * reach), np.uint8)
    _clear(lines, fill)
    mixed = np.empty(values, np.uint8)
    # The colour map of every value of a line, so that the last pass is one plain loop.
    less, times = np.empty(values, np.float32), np.empty(values, np.float32)
    for i in range(values):
        less[i], times[i] = shift[i % channels], scale[i % channels]
    for k in range(_U(count)):
        across, over, grey = mirrors[k] & ACROSS != 0, mirrors[k] & OVER != 0, greys[k] and channels == 3
        first, last = max(lefts[k], 0), max(min(lefts[k] + width, images.shape[3]), 0)
        start = _U(reach + lefts[k])
        for y in range(_U(height)):
            row = tops[k] + (height - 1 - y if over else y)
            _fetch(images, _U(places[k]), row, first, last, mode, fill, reach, lines)
            if grey:
                _grey(lines)
            _interleave(lines, start, across, mixed)
            for i in range(_U(values)):
                out[k, y, i] = (np.float32(mixed[i]) - less[i]) * times[i]
            if grey:
                _clear(lines, fill)


@compiled("void(uint8[:, :, ::1], int64, int64, int32[:, ::1])")
def pack(image: Bytes, top: int, left: int, packed: Words) -> None:
    """A window of an image [3, H, W], its three channels as the bytes of one integer each pixel: int32 [rows, cols]."""
    rows, cols = packed.shape
    for y in range(rows):
        red, green, blue, target = image[0, top + y], image[1, top + y], image[2, top + y], packed[y]
        for x in range(_U(cols)):
            i = _U(left) + x
            target[x] = np.int32(red[i]) | np.int32(green[i]) << _GREEN | np.int32(blue[i]) << _BLUE


@compiled("void(int32[:, ::1], uint8[:, :, ::1])")
def unpack(packed: Words, image: Bytes) -> None:
    """The reverse: int32 [h, w] to the planes of ``image`` [3, h, w]."""
    for y in range(packed.shape[0]):
        source, red, green, blue = packed[y], image[0, y], image[1, y], image[2, y]
        for x in range(_U(packed.shape[1])):
            red[x] = source[x] & _BYTE
            green[x] = source[x] >> _GREEN & _BYTE
            blue[x] = source[x] >> _BLUE & _BYTE
