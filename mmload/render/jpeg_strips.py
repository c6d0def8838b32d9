"""Cuts the lines of a JPEG that a window needs out of it, as a JPEG of their own.

A restart marker after every line of blocks makes the lines independent of each other: those of a strip are a JPEG of
their own, once its header says how high it is and the markers are counted from 0 again. Its pixels are those of the
whole image, bit for bit, but for one line at each edge within the image: there libjpeg interpolates colors of half the
height with the next line of blocks, which the strip does not have. So a strip has one line more than is needed.

A JPEG without such markers, or of another kind (progressive, several scans), is decoded whole.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmload.runtime.kernels import called, inlined, numba_compiled

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

WORTH = 0.9
"""The largest share of an image's lines that is decoded as a strip: to cut one out takes a twentieth of the time."""

_BLOCK = 64
"""Bytes that are searched for a marker at a time."""

_SOI, _EOI, _SOS, _DRI, _RST0, _SOF0, _SOF1 = 0xD8, 0xD9, 0xDA, 0xDD, 0xD0, 0xC0, 0xC1


@inlined
def _word(data: Bytes, at: int) -> int:
    """Returns two bytes as a number, the upper one first."""
    return int((np.int64(data[at]) << 8) | np.int64(data[at + 1]))


@called
def _find_marker(data: Bytes, at: int) -> int:
    """Returns the place of the next marker in entropy-coded bytes; the length of ``data`` if there is none."""
    size = len(data)
    while at < size:
        stop = min(at + _BLOCK, size)
        found = 0
        for k in range(np.uintp(at), np.uintp(stop)):
            found += data[k] == 0xFF
        if found:
            for i in range(at, stop):
                if data[i] == 0xFF and i + 1 < size and data[i + 1] != 0 and data[i + 1] != 0xFF:
                    return i
        at = stop
    return size


@numba_compiled("uint8[::1], int64, int64, uint8[::1], int64[::1]", returns="int64")
def cut_strip(data: Bytes, first: int, stop: int, out: Bytes, lines: Numbers) -> int:
    """Cuts the lines from ``first`` to ``stop`` out of a JPEG, as a JPEG of their own.

    Args:
        data: uint8 [n], the JPEG.
        first: the first line that is needed.
        stop: the line after the last.
        out: uint8, at least n + 2 bytes: where the strip is written.
        lines: int64 [2]: where its first line is written, and how many lines it has.

    Returns:
        How many bytes it has; 0 if the JPEG has to be decoded whole.
    """
    size, at, end = len(data), 2, 2
    high = wide = tall = broad = interval = parts = place = 0
    if size < 4 or data[0] != 0xFF or data[1] != _SOI:
        return 0
    out[0], out[1] = data[0], data[1]
    while True:
        if at + 4 > size or data[at] != 0xFF:
            return 0
        code, length = data[at + 1], _word(data, at + 2)
        if length < 2 or at + 2 + length > size:
            return 0
        if 0xC0 <= code <= 0xCF and code not in (0xC4, 0xC8, 0xCC):
            parts = int(data[at + 9]) if length >= 8 else 0
            if code not in (_SOF0, _SOF1) or high or length < 8 + 3 * parts or parts < 1:
                return 0
            high, wide, place = _word(data, at + 5), _word(data, at + 7), end + 5
            for part in range(parts):
                factors = int(data[at + 11 + 3 * part])
                tall, broad = max(tall, factors & 15), max(broad, factors >> 4)
            if parts == 1:  # its blocks are not interleaved with others
                tall = broad = 1
        elif code == _DRI:
            interval = _word(data, at + 4) if length >= 4 else 0
        elif code == _SOS and (not high or length < 3 or data[at + 4] != parts):
            return 0
        if code < 0xE1 or code == 0xEE:  # colors may depend on those of JFIF and Adobe; all other notes are left out
            for i in range(2 + length):
                out[end + i] = data[at + i]
            end += 2 + length
        at += 2 + length
        if code == _SOS:
            break
    tall, broad = 8 * tall, 8 * broad
    if not (tall and broad and wide) or interval != (wide + broad - 1) // broad:
        return 0
    last = (high + tall - 1) // tall
    begin, after = max(first - 1, 0) // tall, min((stop + 1 + tall - 1) // tall, last)
    if begin >= after:
        return 0
    for line in range(after):
        marker = _find_marker(data, at)
        if line >= begin:
            for i in range(np.uintp(marker - at)):
                out[np.uintp(end) + i] = data[np.uintp(at) + i]
            end += marker - at
        if line == last - 1:
            break
        if marker + 1 >= size or data[marker + 1] != _RST0 + line % 8:
            return 0
        if begin <= line < after - 1:
            out[end], out[end + 1] = 0xFF, _RST0 + (line - begin) % 8
            end += 2
        at = marker + 2
    out[end], out[end + 1] = 0xFF, _EOI
    lines[0], lines[1] = begin * tall, min(after * tall, high) - begin * tall
    out[place], out[place + 1] = lines[1] >> 8, lines[1] & 255
    return end + 2
