"""The loops over pixels on a CPU, compiled: one call renders samples without the interpreter lock.

They take uint8 images as stored and a plan's numbers as numpy arrays, and write pixels into the caller's memory.
Subtraction and multiplication are separate, in float32, as in torch: no fused multiply-add, so the bits do not depend
on the position in a line. Indices are unsigned in inner loops: negative indices count from the end, and code for them
keeps a loop from being vectorized. Nothing is checked here: :mod:`mmload.render.rendering` does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmload.render.plan import PADDING_MODES
from mmload.runtime.numba_compile import LINE, all_streamed, inlined, numba_compiled, stream

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Index = int | np.uintp

ACROSS, OVER = 1, 2
"""The bits of a sample's mirror: left to right, upside down."""

_CONSTANT, _REFLECT, _SYMMETRIC = (PADDING_MODES.index(mode) for mode in ("constant", "reflect", "symmetric"))

_LUMA_RED, _LUMA_GREEN, _LUMA_BLUE = np.float32(0.2989), np.float32(0.587), np.float32(0.114)
"""The luma weights of ``torchvision.transforms.v2.functional.rgb_to_grayscale``."""

_BAND = 2 * 2**10
"""Bytes of the lines that are streamed at a time: few, so that they leave the cache while others are computed."""

_U = np.uintp

_CROP = (
    "void(uint8[:, :, :, ::1], int64[::1], int64[::1], int64[::1], uint8[::1], uint8[::1], int64, "
    "float32[::1], float32[::1], boolean, {})"
)


@inlined
def _reflected(position: int, length: int, mode: int) -> int:
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


@inlined
def _span(start: int, wanted: int, length: int, mirrored: bool) -> tuple[int, int]:
    """First and end of a window's positions along an axis that lie in the image, in the output's order."""
    begin = min(max(-start, 0), wanted)
    end = max(min(length - start, wanted), begin)
    return (wanted - end, wanted - begin) if mirrored else (begin, end)


@numba_compiled(_CROP.format("float32[:, :, :, ::1]"), _CROP.format("uint8[:, :, :, ::1]"))
def crop(
    images: Bytes,
    places: Numbers,
    tops: Numbers,
    lefts: Numbers,
    mirrors: Bytes,
    fill: Bytes,
    mode: int,
    shift: Floats,
    scale: Floats,
    streamed: bool,
    out: Floats | Bytes,
) -> None:
    """Windows of images, cropped, padded, mirrored, colored.

    Index elements, do not slice: numba counts references to slices atomically, which took longer than copying the line.

    Args:
        images: uint8 [N, C, H, W].
        places: int64 [B], which of the images each sample is.
        tops: int64 [B], first row of its window, in or outside of the image.
        lefts: int64 [B], first column of it.
        mirrors: uint8 [B], the bits :data:`ACROSS` and :data:`OVER`.
        fill: uint8 [C], the constant outside.
        mode: what lies outside, a place in :data:`~mmload.render.plan.PADDING_MODES`.
        shift: float32 [C]; a value becomes (x - shift) * scale.
        scale: float32 [C].
        streamed: whether lines go past the caches, as :func:`~mmload.runtime.numba_compile.stream` asks for them.
        out: float32 [B, C, h, w]; or uint8, for a color map that gives integers.
    """
    count, channels, height, width = out.shape
    rows, cols = images.shape[2], images.shape[3]
    aligned = 1  # the smallest number of lines that ends with a cache line
    while aligned * width * out.itemsize % LINE:
        aligned *= 2
    many = min(height, aligned * max(1, _BAND // (aligned * width * out.itemsize))) if streamed else height
    band, flat = np.empty((1, 1, many if streamed else 0, width), out.dtype), out.reshape(-1)
    sink, made = band if streamed else out, band.reshape(-1)
    for k in range(_U(count)):
        across, over, place = mirrors[k] & ACROSS != 0, mirrors[k] & OVER != 0, _U(places[k])
        upper, lower = _span(tops[k], height, rows, over)
        begin, end = _span(lefts[k], width, cols, across)
        head, foot, first, last = tops[k], tops[k] + height - 1, _U(lefts[k]), _U(lefts[k] + width - 1)
        for c in range(_U(channels)):
            less, times = shift[c], scale[c]
            blank = (np.float32(fill[c]) - less) * times
            for start in range(0, height, many):
                stop = min(start + many, height)
                i, j, away = (_U(0), _U(0), _U(start)) if streamed else (k, c, _U(0))
                inner, outer = max(start, min(upper, stop)), max(start, min(lower, stop))
                for y in range(_U(start), _U(inner)):
                    for x in range(_U(width)):
                        sink[i, j, y - away, x] = blank
                for y in range(_U(outer), _U(stop)):
                    for x in range(_U(width)):
                        sink[i, j, y - away, x] = blank
                for y in range(_U(inner), _U(outer)):
                    row = _U(foot) - y if over else _U(head) + y
                    for x in range(_U(begin)):
                        sink[i, j, y - away, x] = blank
                    for x in range(_U(end), _U(width)):
                        sink[i, j, y - away, x] = blank
                    if across:
                        for x in range(_U(begin), _U(end)):
                            sink[i, j, y - away, x] = (np.float32(images[place, c, row, last - x]) - less) * times
                    else:
                        for x in range(_U(begin), _U(end)):
                            sink[i, j, y - away, x] = (np.float32(images[place, c, row, first + x]) - less) * times
                if mode != _CONSTANT:
                    for y in range(start, stop):
                        row = _U(_reflected(foot - y if over else head + y, rows, mode))
                        left, right = (begin, end) if upper <= y < lower else (width, width)
                        for margin in ((0, left), (right, width)):
                            for x in range(margin[0], margin[1]):
                                column = _U(_reflected(lefts[k] + (width - 1 - x if across else x), cols, mode))
                                value = (np.float32(images[place, c, row, column]) - less) * times
                                sink[i, j, _U(y) - away, _U(x)] = value
                if streamed:
                    at = ((k * _U(channels) + c) * _U(height) + _U(start)) * _U(width)
                    stream(made, flat, at, (stop - start) * width)
    if streamed:
        all_streamed()


@numba_compiled("void(float32[::1], float32)")
def fill(out: Floats, value: float) -> None:
    """All of ``out``, which is whole cache lines, past the caches: as fast as memory can be written."""
    band = np.full(_BAND // out.itemsize, value, out.dtype)
    for at in range(0, out.size, band.size):
        stream(band, out, at, min(band.size, out.size - at))
    all_streamed()


@inlined
def _interleave(
    images: Bytes, place: Index, row: Index, left: int, across: bool, begin: int, end: int, line: Bytes
) -> None:
    """A row's columns inside of the image into a line of w * C values; only a constant stride makes it quick."""
    channels = images.shape[1]
    first, last = _U(left), _U(left + line.shape[0] // channels - 1)
    if channels == 3 and across:
        for x in range(_U(begin), _U(end)):
            line[_U(3) * x] = images[place, 0, row, last - x]
            line[_U(3) * x + _U(1)] = images[place, 1, row, last - x]
            line[_U(3) * x + _U(2)] = images[place, 2, row, last - x]
    elif channels == 3:
        for x in range(_U(begin), _U(end)):
            line[_U(3) * x] = images[place, 0, row, first + x]
            line[_U(3) * x + _U(1)] = images[place, 1, row, first + x]
            line[_U(3) * x + _U(2)] = images[place, 2, row, first + x]
    else:
        for c in range(_U(channels)):
            for x in range(_U(begin), _U(end)):
                line[x * _U(channels) + c] = images[place, c, row, last - x if across else first + x]


@numba_compiled(_CROP.format("float32[:, :, ::1]"))
def crop_interleaved(
    images: Bytes,
    places: Numbers,
    tops: Numbers,
    lefts: Numbers,
    mirrors: Bytes,
    fill: Bytes,
    mode: int,
    shift: Floats,
    scale: Floats,
    streamed: bool,
    out: Floats,
) -> None:
    """:func:`crop` into the memory of channels_last: ``out`` is float32 [B, h, w * C]."""
    count, height, values = out.shape
    channels, rows, cols = images.shape[1:]
    width = values // channels
    line, flat, finished = np.empty(values, np.uint8), out.reshape(-1), np.empty(values, np.float32)
    sink = finished if streamed else flat
    # The color map of every value of a line, so that the last pass is one plain loop.
    less, times = np.empty(values, np.float32), np.empty(values, np.float32)
    for i in range(values):
        less[i], times[i] = shift[i % channels], scale[i % channels]
    for k in range(_U(count)):
        across, over, place = mirrors[k] & ACROSS != 0, mirrors[k] & OVER != 0, _U(places[k])
        begin, end = _span(lefts[k], width, cols, across)
        for y in range(_U(height)):
            row = tops[k] + (height - 1 - y if over else y)
            shown = 0 <= row < rows or mode != _CONSTANT
            if shown:
                row = _reflected(row, rows, mode)
                _interleave(images, place, _U(row), lefts[k], across, begin, end, line)
            left, right = (begin, end) if shown else (width, width)
            for margin in ((0, left), (right, width)):
                for x in range(margin[0], margin[1]):
                    column = _U(_reflected(lefts[k] + (width - 1 - x if across else x), cols, mode))
                    for c in range(channels):
                        at = _U(x * channels + c)
                        line[at] = fill[c] if mode == _CONSTANT else images[place, _U(c), _U(row), column]
            at = (k * _U(height) + y) * _U(values)
            base = _U(0) if streamed else at
            for i in range(_U(values)):
                sink[base + i] = (np.float32(line[i]) - less[i]) * times[i]
            if streamed:
                stream(finished, flat, at, values)
    if streamed:
        all_streamed()


@numba_compiled("void(uint8[:, :, :, ::1], boolean[::1])")
def gray(images: Bytes, grays: Flags) -> None:
    """Images [B, 3, H, W] replaced by their luma in whole levels where ``grays`` [B] says so."""
    for k in range(_U(images.shape[0])):
        if grays[k]:
            for y in range(_U(images.shape[2])):
                for x in range(_U(images.shape[3])):
                    luma = np.float32(images[k, 0, y, x]) * _LUMA_RED + np.float32(images[k, 1, y, x]) * _LUMA_GREEN
                    level = np.uint8(luma + np.float32(images[k, 2, y, x]) * _LUMA_BLUE)
                    images[k, 0, y, x] = images[k, 1, y, x] = images[k, 2, y, x] = level
