"""Fills memory with ranges of open files, in turn; the disk is told of all that come later (``posix_fadvise``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from mmload.errors import DamagedError
from mmload.store.field_rows import Numbers, Places
from mmload.store.held_file import HeldFile, check_files

_MOST_BYTES = 8 * 2**20  # of rows that one call reads


class _Range(NamedTuple):
    """Bytes of a file from ``offset``, as many as fit into ``out``: those of the rows from ``first`` on."""

    file: HeldFile
    offset: int
    out: memoryview
    first: int
    rows: int


def arriving(
    file_of: Callable[[int], HeldFile],
    places: Places,
    out: memoryview,
    starts: Numbers,
    groups: Sequence[int],
    damaged: Callable[[int, str], DamagedError],
) -> Iterator[None]:
    """Reads rows, as :meth:`mmload.store.field_rows.Rows.arriving`; one call reads neighbors.

    Args:
        file_of: opens a file by its number.
        places: [B], where the rows are.
        out: where they go.
        starts: int64 [B], the byte of ``out`` at which each begins.
        groups: after which of the rows those so far must be there.
        damaged: makes the error of a row, by its index in ``places``.
    """
    ranges = _ranges(file_of, places, out, starts, groups)
    ends = np.searchsorted([each.first for each in ranges], groups).tolist()
    announced, done = False, 0
    for end in ends:
        for index in range(done, end):
            each = ranges[index]
            got = 0 if announced else _read_cached(each.file.handle, each.out, each.offset)
            if got < len(each.out) and not announced:
                announced = True
                _announce(ranges[index:])
            try:
                each.file.fill(each.out, each.offset, got)
            except DamagedError:
                _raise_first(each, places, damaged)
                raise
        check_files(each.file for each in ranges[done:end])
        done = end
        yield


def _ranges(
    file_of: Callable[[int], HeldFile], places: Places, out: memoryview, starts: Numbers, groups: Sequence[int]
) -> list[_Range]:
    """Returns what is read at once: rows that follow each other in a file and in memory, of one group."""
    if not len(places):
        return []
    file, offset, size = places["file"], places["offset"], places["bytes"]
    breaks = (np.diff(file) != 0) | (offset[1:] != offset[:-1] + size[:-1]) | (starts[1:] != starts[:-1] + size[:-1])
    breaks |= np.diff(starts // _MOST_BYTES) != 0
    breaks[np.array(groups[:-1], np.int64) - 1] = True
    heads = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    stops = np.append(heads[1:], len(places))
    files = {number: file_of(number) for number in np.unique(file).tolist()}
    lists = file[heads], offset[heads], starts[heads], starts[stops - 1] + size[stops - 1], heads, stops - heads
    return [
        _Range(files[number], at, out[start:end], first, rows)  # iterating over lists, not arrays, saves 5 us a row
        for number, at, start, end, first, rows in zip(*(values.tolist() for values in lists), strict=True)
    ]


def _raise_first(each: _Range, places: Places, damaged: Callable[[int, str], DamagedError]) -> None:
    """Raises the error of the first row of a range that cannot be read, if it still cannot."""
    for index in range(each.first, each.first + each.rows):
        offset, size = int(places["offset"][index]), int(places["bytes"][index])
        try:
            each.file.fill(memoryview(bytearray(size)), offset)
        except DamagedError as error:
            raise damaged(index, str(error)) from error


def _announce(ranges: Sequence[_Range]) -> None:
    """Asks the system to read ahead; only a hint."""
    if not hasattr(os, "posix_fadvise"):
        return
    for each in ranges:
        with suppress(OSError):
            os.posix_fadvise(each.file.handle, each.offset, len(each.out), os.POSIX_FADV_WILLNEED)


def _read_cached(handle: int, out: memoryview, offset: int) -> int:
    """Reads what is in the page cache, without waiting for the disk; 0 where the system cannot do that."""
    if not hasattr(os, "RWF_NOWAIT"):
        return 0
    try:
        return os.preadv(handle, [out], offset, os.RWF_NOWAIT)
    except OSError:  # EAGAIN: nothing is cached; the blocking read reports any other error
        return 0
