"""The rows of a field where they lie: its files mapped into one array, and brought into memory before they are used."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Sequence

import numpy as np

from mmload.errors import MmloadError, StoreError
from mmload.runtime.bus_errors import Guard
from mmload.store.field_rows import Numbers, Places, Rows
from mmload.store.held_file import HeldFile, check_files
from mmload.store.memory_map import OpenFile, mapped

MOST_FILES = 16_000
"""With more files than this, rows are read: a process may have 65,530 maps on Linux, and a file and its gap are two."""


def row_map(field: Rows) -> RowMap | None:
    """Maps the rows of a field; returns None where they cannot be mapped, or not be brought in safely."""
    from mmload.runtime.resident_pages import can_populate

    try:
        found = field.files() if can_populate() else None
        if found is None or not sum(found[1]) or len(found[0]) > MOST_FILES:
            return None
        return RowMap(*found, 1 if field.spec.own_sizes else field.spec.row_bytes)
    except (OSError, MmloadError):  # too many addresses; or a file that cannot be read, which may not be needed
        return None


class RowMap:
    """The files of a field as one array. Thread-safe.

    Args:
        files: at least one, each with a row at least.
        sizes: the bytes of each.
        unit: each file begins at a multiple of so many bytes, so that rows of that size can be indexed over all files.

    Attributes:
        memory: uint8 [n]. What is written there stays in this process; what lies between files must not be touched.

    Raises:
        StoreError: if a file cannot be mapped.
        DamagedError: if one is shorter.
    """

    def __init__(self, files: Sequence[HeldFile], sizes: Sequence[int], unit: int) -> None:
        from mmload.runtime import resident_pages as pages  # compiled only by those who map

        self._files, self._pages = files, pages
        step = math.lcm(unit, mmap.PAGESIZE)
        firsts, end = [], 0
        for size in sizes:
            firsts.append(end)
            end = -(-(end + size) // step) * step
        opened = [OpenFile(file.path, file.handle, size) for file, size in zip(files, sizes, strict=True)]
        self.memory = mapped(opened, firsts)
        self._guard = Guard(self.memory)
        is_small = unit < pages.SMALL_RANGE and unit > 1
        segments = np.cumsum([0, *(-(-size // pages.SEGMENT_BYTES) for size in sizes)])
        self._ranges = pages.FileRanges(
            firsts=np.array(firsts, np.int64),
            ends=np.array(firsts, np.int64) + np.array(sizes, np.int64),
            known=np.zeros(int(segments[-1]) if is_small else 0, np.uint8),
            segments=segments[:-1].astype(np.int64),
            looks=_tells_residency(files[0].path),
        )
        if not is_small:  # else a fault reads what lies around it, which then is of use
            for first, size in zip(firsts, sizes, strict=True):
                pages.advise(self.memory.ctypes.data + first, size, pages.RANDOM)

    def prepare(self, places: Places, refuse: Callable[[int, Exception], Exception]) -> tuple[Numbers, int]:
        """Brings rows into memory, so that compiled code can read them.

        Args:
            places: of the rows, or of parts of them.
            refuse: makes the error of a row, by its index in ``places``, from that of its file.

        Returns:
            int64 [B], the first byte of each in :attr:`memory`; and how many of them had to be read.

        Raises:
            DamagedError, StoreError: if a file was truncated, written to, or cannot be read.
        """
        self._guard.arm()
        self.check(places)  # before: a truncated file cannot be read
        files = np.ascontiguousarray(places["file"])
        starts: Numbers = self._ranges.firsts[files] + places["offset"]
        absent = np.empty(len(places), np.uint8)
        lengths = np.ascontiguousarray(places["bytes"])
        failed = self._pages.make_resident(self.memory, self._ranges, files, starts, lengths, absent)
        if failed is not None:
            index, code = failed
            file = self._files[int(files[index])]
            try:
                file.check()
            except Exception as error:
                raise refuse(index, error) from error
            raise refuse(index, StoreError(f"cannot read {file.path} ({os.strerror(code)})"))
        return starts, int(np.count_nonzero(absent))

    def check(self, places: Places) -> None:
        """Checks that what was read of these rows belongs to the dataset that was opened: one ``fstat`` for each file.

        Raises:
            DamagedError, StoreError: if a file was written to.
        """
        check_files(self._files[number] for number in np.unique(places["file"]).tolist())
        if self._guard.faults:
            paths = {os.path.dirname(file.path) for file in self._files}
            raise StoreError(
                f"a file of {os.path.commonpath(paths)} was truncated or could not be read while it was in use; "
                "open the dataset again"
            )


def _tells_residency(path: str) -> bool:
    """Returns whether ``mincore`` tells which pages of a file are in memory: only to its owner and its writers."""
    return os.access(path, os.W_OK) or os.stat(path).st_uid == os.geteuid()
