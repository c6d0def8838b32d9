"""Rows that arrive while a batch is rendered, compiled: from disk, and decoded, without the interpreter lock.

To arrive is the first step of a row that is not in memory (:class:`~mmload.render.rendering.RenderingSteps`).
JPEGs are decoded by TurboJPEG's functions, which are called by their addresses (:mod:`mmload.runtime.turbojpeg`), with
the bits of simplejpeg.
"""

from __future__ import annotations

import numpy as np

from mmload.render.jpeg_strips import WORTH, cut_strip
from mmload.render.kernel_arguments import PIXELS, REFUSED, UNREADABLE, Arrival, Lines, Numbers
from mmload.runtime.intrinsics import Arena, carve
from mmload.runtime.kernels import ARENA, USED, CallC, called, numba_compiled
from mmload.runtime.resident_pages import bring_in
from mmload.runtime.turbojpeg import DECODE, DESTROY, GRAY, HANDLE, HEADER, INIT, MOST_COLORS, RGB

_INIT = CallC("uintp()")
_DESTROY = CallC("int32(uintp)")
_HEADER = CallC("int32(uintp, uintp, uintp, uintp, uintp, uintp, uintp)")
_DECODE = CallC("int32(uintp, uintp, uintp, uintp, int32, int32, int32, int32, int32)")

_I = np.int32


@called
def _is_jpeg(arrival: Arrival, address: int, size: int, high: int, wide: int, arena: Arena) -> bool:
    """Returns whether the bytes at an address are a JPEG of this size, in colors that TurboJPEG converts."""
    facts = carve(arena, 4, np.int32)
    into, decoder = np.uintp(facts.ctypes.data), arrival.decoder
    places = into, into + np.uintp(4), into + np.uintp(8), into + np.uintp(12)
    failed = _HEADER(decoder[HEADER], (decoder[HANDLE], np.uintp(address), np.uintp(size), *places))
    fits = facts[1] == high and facts[0] == wide and facts[2] >= 0 and 0 <= facts[3] < MOST_COLORS
    return bool(failed == 0 and fits)


@called
def _is_decoded(lines: Lines, arrival: Arrival, row: int, arena: Arena) -> bool:
    """Decodes the lines of a JPEG that are needed, and perhaps others; returns False if it is no sound JPEG."""
    memory, place = lines.memory, lines.places[row]
    needed, decoder = arrival.needed[row], arrival.decoder
    start, size = arrival.starts[row], arrival.lengths[row]
    address = memory.ctypes.data + start
    if not _is_jpeg(arrival, address, size, place.height, place.width, arena):
        return False
    first, count = 0, place.height
    if needed.stop - needed.first < WORTH * count:
        part = carve(arena, 2, np.int64)
        used = cut_strip(memory[start : start + size], needed.first, needed.stop, arrival.spare, part)
        if used:
            address, size, first, count = arrival.spare.ctypes.data, used, part[0], part[1]
            if not _is_jpeg(arrival, address, size, count, place.width, arena):
                return False
    shrink = needed.shrink
    high, wide = (count + shrink - 1) // shrink, (place.width + shrink - 1) // shrink
    room = arrival.rooms[row]
    into = np.uintp(lines.decoded.ctypes.data + room)
    if room + high * wide * arrival.channels > len(lines.decoded):
        return False
    source = decoder[HANDLE], np.uintp(address), np.uintp(size), into
    color = RGB if arrival.channels == 3 else GRAY
    if _DECODE(decoder[DECODE], (*source, _I(wide), _I(0), _I(high), _I(color), _I(0))) != 0:
        return False
    place.start, place.layout, place.first, place.count, place.shrink = room, PIXELS, first // shrink, high, shrink
    return True


@numba_compiled(Lines, Arrival, "int64[::1]", ARENA)
def arrive(lines: Lines, arrival: Arrival, rows: Numbers, arena: Arena) -> None:
    """Waits until rows are in memory, and decodes those that are JPEGs; ends with one that cannot arrive.

    After a JPEG that is refused the decoder is made anew, as its state is undefined. ``rows`` is the first row and the
    one after the last, int64 [2].
    """
    begun, decoder, failed = arena[USED], arrival.decoder, arrival.failed
    for row in range(rows[0], rows[1]):
        arena[USED] = begun
        if arrival.absent[row]:
            base, start, length = lines.memory.ctypes.data, arrival.starts[row], arrival.lengths[row]
            if not bring_in(base, arrival.ranges, arrival.files[row], start, length, arena):
                failed[0], failed[1] = row, UNREADABLE
                return
        if not arrival.jpeg[row]:
            continue
        if not decoder[HANDLE]:
            decoder[HANDLE] = _INIT(decoder[INIT], ())
        if not _is_decoded(lines, arrival, row, arena):
            failed[0], failed[1] = row, REFUSED
            _DESTROY(decoder[DESTROY], (decoder[HANDLE],))
            decoder[HANDLE] = 0
            return
