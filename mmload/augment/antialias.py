"""torch's antialiased bilinear resize of uint8 images, compiled: planes in, planes out, without the interpreter lock.

Comes in: uint8 images and a window in each. Goes out: the windows in another size, bit for bit as
``torch.nn.functional.interpolate(mode="bilinear", antialias=True)`` has them: rows first, then columns, each with
whole-number weights and rounded to whole levels. Nothing is checked here; :mod:`mmload.augment.render` does that.

Both passes are sums of neighbouring lines, a kind of loop that vectorises well; for that a plane is turned before its
rows are resized, and after.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mmload.compiled import compiled, inlined

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Sums = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]
Taps = tuple[Numbers, Numbers, Sums, int]
"""For each output line its first input line, how many there are and their weights; and the bits of a weight of one."""

_U = np.uintp
_SWAPS = (
    (_U(1), _U(8), np.uint64(0x00FF00FF00FF00FF)),
    (_U(2), _U(16), np.uint64(0x0000FFFF0000FFFF)),
    (_U(4), _U(32), np.uint64(0x00000000FFFFFFFF)),
)


@inlined
def _taps(length: int, wanted: int) -> Taps:
    """The weights of an axis, as ``_compute_index_ranges_int16_weights`` in ATen's UpSampleKernel.cpp has them."""
    scale = length / wanted
    support = max(scale, 1.0)
    size = int(math.ceil(support)) * 2 + 1
    shares = np.zeros((wanted, size))
    firsts, counts = np.empty(wanted, np.int64), np.empty(wanted, np.int64)
    most = 0.0
    for i in range(wanted):
        centre = scale * (i + 0.5)
        first = max(int(centre - support + 0.5), 0)
        count = min(max(min(int(centre + support + 0.5), length) - first, 0), size)
        total = 0.0
        for j in range(count):
            shares[i, j] = max(1.0 - abs((j + first - centre + 0.5) / support), 0.0)
            total += shares[i, j]
        for j in range(count):
            shares[i, j] /= total
            most = max(most, shares[i, j])
        firsts[i], counts[i] = first, count
    bits = 0
    while bits < 22 and int(0.5 + most * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    weights = np.empty((wanted, size), np.int32)
    for i in range(wanted):
        for j in range(size):
            weights[i, j] = int(0.5 + shares[i, j] * (1 << bits))
    return firsts, counts, weights, bits


@inlined
def _blend(source: Bytes, taps: Taps, wide: int, sums: Sums, out: Bytes) -> None:
    """Lines of ``out`` [n, >= wide] as weighted sums of lines of ``source``, rounded to whole levels.

    Where some line is of three or fewer, weights have 16 bits at most: 255 times their sum is below 2^24, and float32
    holds it exactly.
    """
    firsts, counts, weights, bits = taps
    half, scale = np.float32(1 << bits) / np.float32(2), np.float32(1) / np.float32(1 << bits)
    for i in range(_U(len(firsts))):
        first, count = _U(firsts[i]), counts[i]
        a, b, c = np.float32(weights[i, 0]), np.float32(weights[i, 1]), np.float32(weights[i, 2])
        if count == 1:
            for x in range(_U(wide)):
                out[i, x] = source[first, x]
        elif count == 2:
            for x in range(_U(wide)):
                value = half + a * np.float32(source[first, x]) + b * np.float32(source[first + _U(1), x])
                out[i, x] = np.uint8(value * scale)
        elif count == 3:
            for x in range(_U(wide)):
                value = half + a * np.float32(source[first, x]) + b * np.float32(source[first + _U(1), x])
                out[i, x] = np.uint8((value + c * np.float32(source[first + _U(2), x])) * scale)
        else:
            for x in range(_U(wide)):
                sums[x] = 1 << (bits - 1)
            for j in range(_U(count)):
                weight = weights[i, j]
                for x in range(_U(wide)):
                    sums[x] += weight * np.int32(source[first + j, x])
            for x in range(_U(wide)):
                out[i, x] = np.uint8(min(sums[x] >> bits, 255))


@inlined
def _turn(source: Words, out: Words) -> None:
    """Bytes [8 a, 8 b] as [8 b, 8 a], both given as words of eight: [8 a, b] and [8 b, a].

    Eight words at a time change bytes, then pairs, then fours of them, as in Hacker's Delight, 7-3.
    """
    block = np.empty(8, np.uint64)
    for g in range(_U(out.shape[1])):
        for w in range(_U(source.shape[1])):
            for j in range(_U(8)):
                block[j] = source[_U(8) * g + j, w]
            for step, bits, mask in _SWAPS:
                for j in range(_U(8)):
                    if j & step == 0:
                        change = ((block[j] >> bits) ^ block[j + step]) & mask
                        block[j + step] ^= change
                        block[j] ^= change << bits
            for j in range(_U(8)):
                out[_U(8) * w + j, g] = block[j]


@compiled("void(uint8[:, :, :, ::1], int64[::1], int64[:, ::1], uint8[:, :, :, ::1])")
def resize(images: Bytes, places: Numbers, windows: Numbers, out: Bytes) -> None:
    """Windows of images in another size.

    Args:
        images: uint8 [N, C, H, W].
        places: int64 [B], which of the images each sample is.
        windows: int64 [4, B], tops, lefts, rows and columns, inside of the images.
        out: uint8 [B, C, h, w].
    """
    count, channels, height, width = out.shape
    high, wide = (windows[2].max() + 7) // 8, (windows[3].max() + 7) // 8
    plane = np.zeros((8 * high, wide), np.uint64)
    turned = np.zeros((8 * wide, high), np.uint64)
    narrow = np.zeros(((width + 7) // 8 * 8, high), np.uint64)
    lines = np.zeros((8 * high, (width + 7) // 8), np.uint64)
    sums = np.empty(max(8 * high, width), np.int32)
    pixels, columns = plane.view(np.uint8), turned.view(np.uint8)
    across, rows = narrow.view(np.uint8), lines.view(np.uint8)
    for k in range(_U(count)):
        place, top, left = _U(places[k]), _U(windows[0, k]), _U(windows[1, k])
        over, aside = _taps(windows[2, k], height), _taps(windows[3, k], width)
        for c in range(_U(channels)):
            for y in range(_U(windows[2, k])):
                for x in range(_U(windows[3, k])):
                    pixels[y, x] = images[place, c, top + y, left + x]
            _turn(plane, turned)
            _blend(columns, aside, windows[2, k], sums, across)
            _turn(narrow, lines)
            _blend(rows, over, width, sums, out[k, c])
