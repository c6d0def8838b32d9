"""Maps files into memory as one copy-on-write array, and brings the rows of a field into memory before they are used.

A map has whole pages, so files that are contiguous in it must end with one, all but the last. Rows are brought in by a
call that returns an error if they cannot be read. A page that goes after that, as its file is truncated or its disk
fails, ends the process by a SIGBUS when it is touched, as in every program that maps files.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mmload.errors import DamagedError, MmloadError, StoreError, bytes_text
from mmload.runtime.declarations import External
from mmload.runtime.numba_compile import numba_compiled
from mmload.runtime.resources import free_memory
from mmload.store.dataset_folder import OpenedFile
from mmload.store.row_reader import Numbers, Places, Rows

if TYPE_CHECKING:
    from mmload.runtime.resident_pages import FileRanges

Bytes = npt.NDArray[np.uint8]

Refusal = Callable[[int, Exception], Exception]
"""Makes the error of a row, by its index among the requested rows, from the error of its file."""

MOST_FILES = 16_000
"""Upper bound on mapped files: a process may have 65,530 maps on Linux, and a file and its gap are two."""

_FIXED = 0x10  # MAP_FIXED of Linux and macOS, which the mmap module does not have
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0x40  # MAP_NORESERVE: else a map larger than the memory is refused
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_FAILED = ctypes.c_void_p(-1).value


class PreparedRows(NamedTuple):
    """Rows in use, which are in memory or on their way to it.

    Attributes:
        map: where they are mapped.
        places: [B], their places in their files.
        files: int64 [B], the range of the map that each is in.
        starts: int64 [B], the first byte of each in the map.
        absent: int64 [B], the bytes of each that have to be read.
        refuse: makes the error of a row.
        end: ends the use; None: nothing ends with it.
    """

    map: MappedRows
    places: Places
    files: Numbers
    starts: Numbers
    absent: Numbers
    refuse: Refusal
    end: Callable[[], object] | None = None


def mapped(files: Sequence[OpenedFile], starts: Sequence[int] | None = None) -> npt.NDArray[np.uint8]:
    """Maps files into one array; it is paged in on access, and unmapped with the array.

    Args:
        files: at least one; their descriptors may be closed afterwards.
        starts: the byte at which each file begins, a multiple of the page size, in ascending order; memory between two
            files must not be touched. None: contiguously; all but the last must end with a page.

    Returns:
        uint8 [n]; writes stay in this process's memory and never reach the files.

    Raises:
        DamagedError: if a file is shorter.
        StoreError: if a file cannot be mapped.
    """
    for file in files:
        if (have := os.fstat(file.handle).st_size) < file.size:
            raise DamagedError(f"{file.path} has {have:,} bytes, expected {file.size:,}: it was truncated")
    if starts is None:
        starts = list(accumulate((file.size for file in files[:-1]), initial=0))
    # Reserve addresses for all, map the files over them; one munmap releases everything.
    array, kind = reserved(starts[-1] + files[-1].size), mmap.MAP_PRIVATE | _NO_RESERVE
    for file, start in zip(files, starts, strict=True):
        address = array.ctypes.data + start
        if file.size and system_mmap()(address, file.size, _READ_WRITE, kind | _FIXED, file.handle, 0) == _FAILED:
            raise StoreError(f"cannot map {file.path} ({os.strerror(ctypes.get_errno())})")
    return array


def reserved(size: int) -> npt.NDArray[np.uint8]:
    """Reserves addresses over which files can be mapped; released with the array.

    Returns:
        uint8 [size], zeros that take no memory until they are written.

    Raises:
        StoreError: if there are not enough addresses.
    """
    kind = mmap.MAP_PRIVATE | _NO_RESERVE | mmap.MAP_ANONYMOUS
    try:
        return np.frombuffer(mmap.mmap(-1, size, flags=kind, prot=_READ_WRITE), dtype=np.uint8)
    except OSError as error:
        why = f"rows of {bytes_text(size)} cannot be mapped ({error.strerror})"
        raise StoreError(f"{why}; raise the limit of address space (ulimit -v)") from error


@cache
def system_mmap() -> Callable[[int, int, int, int, int, int], int | None]:
    """Returns ``mmap`` of the C library: Python's own does not take an address."""
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    number, size = ctypes.c_int, ctypes.c_size_t
    function.argtypes = (ctypes.c_void_p, size, number, number, number, ctypes.c_longlong)
    typed: Callable[[int, int, int, int, int, int], int | None] = function
    return typed


_MEMCPY = External("memcpy", "uintp(uintp, uintp, uintp)")


@numba_compiled("void(uint8[::1], int64[::1], int64[::1], uint8[::1], int64[::1])")
def copy_ranges(
    memory: Bytes, starts: Numbers, lengths: Numbers, out: Bytes, places: Numbers
) -> None:  # pragma: no cover
    """Copies ranges of memory, each of a length from one of ``starts`` to one of ``places`` in ``out``."""
    for i in range(len(starts)):
        _MEMCPY(out.ctypes.data + places[i], memory.ctypes.data + starts[i], lengths[i])


def row_map(field: Rows, ranks: int = 1) -> RowMap | None:
    """Maps the rows of a field; returns None where they cannot be mapped, or not be brought in safely."""
    from mmload.runtime.resident_pages import can_populate

    try:
        files = field.files() if can_populate() else None
        if files is None or not sum(file.size for file in files) or len(files) > MOST_FILES:
            return None
        return RowMap(files, field.spec.row_bytes if field.spec.encoding is None else 1, ranks)
    except (OSError, MmloadError):  # too many addresses; or a file that cannot be read, which may not be needed
        return None


class MappedRows(Protocol):
    """Files of a field, or chunks of them, as one array. Thread-safe.

    Attributes:
        memory: uint8 [n]. What is written there stays in this process; only prepared rows may be read.
        ranges: the files, or chunks, in ``memory``.
        most_rows: upper bound on the rows that can be prepared at once.
    """

    memory: npt.NDArray[np.uint8]
    ranges: FileRanges
    most_rows: int = 2**31

    def prepare(self, places: Places, refuse: Refusal) -> PreparedRows:
        """Begins to bring rows, or parts of them, into memory; ``refuse`` makes the error of a row.

        Raises:
            MmloadError: if a file has to be fetched before, and cannot be.
        """

    def release(self, prepared: PreparedRows) -> None:
        """Ends the use of rows."""

    def reason(self, file: int, why: str) -> MmloadError:
        """Returns the error of one of the files, which the system does not read for the reason that is given."""

    def begun(self, places: Places, files: Numbers, starts: Numbers, refuse: Refusal) -> PreparedRows:
        """Asks the system to read rows that are mapped."""
        from mmload.runtime.resident_pages import announce, can_populate

        lengths = np.ascontiguousarray(places["bytes"])
        absent = (
            announce(self.memory, self.ranges, files, starts, lengths) if can_populate() else np.zeros_like(lengths)
        )
        return PreparedRows(self, places, files, starts, absent, refuse)

    def wait(self, prepared: PreparedRows, group: slice) -> None:
        """Waits until some of the prepared rows are in memory.

        Raises:
            DamagedError, StoreError: as :meth:`error_of`.
        """
        from mmload.runtime.resident_pages import make_resident

        absent = prepared.absent[group]
        if absent.any():
            lengths = np.ascontiguousarray(prepared.places["bytes"][group])
            at = prepared.files[group], prepared.starts[group], lengths, absent
            failed = make_resident(self.memory.ctypes.data, self.ranges, *at)
            if failed >= 0:
                raise self.error_of(prepared, group.indices(len(prepared.places))[0] + failed)

    def error_of(self, prepared: PreparedRows, row: int) -> Exception:
        """Returns the error of a prepared row that cannot be read: that its file was truncated, or why else."""
        from mmload.runtime.resident_pages import POPULATE_READ, advise

        start, length = int(prepared.starts[row]), int(prepared.places["bytes"][row])
        code = advise(self.memory.ctypes.data + start, length, POPULATE_READ)
        return prepared.refuse(row, self.reason(int(prepared.files[row]), os.strerror(code or errno.EIO)))


class RowMap(MappedRows):
    """Files of a field as one array.

    Files begin at multiples of ``unit`` bytes, so that rows of that size can be
    indexed over all files. So many ``ranks`` of this machine read a part of each epoch.

    Raises:
        StoreError: if a file cannot be mapped.
        DamagedError: if one is shorter.
    """

    def __init__(self, files: Sequence[OpenedFile], unit: int, ranks: int) -> None:
        from mmload.runtime import resident_pages as pages  # compiled only by those who map

        self._files, self._pages = files, pages
        step, sizes = math.lcm(unit, mmap.PAGESIZE), [file.size for file in files]
        firsts, end = [], 0
        for size in sizes:
            firsts.append(end)
            end = -(-(end + size) // step) * step
        self.memory = mapped(files, firsts)
        # Segments of rows that do not all stay in memory would be read for each of their rows.
        is_small = 1 < unit < pages.SMALL_RANGE and sum(sizes) <= free_memory()
        self._needs_reads = [pages.needs_reads(file.handle) for file in files]
        segments = np.cumsum([0, *(-(-size // pages.SEGMENT_BYTES) for size in sizes)])
        self.ranges = pages.FileRanges(
            firsts=np.array(firsts, np.int64),
            ends=np.array(firsts, np.int64) + np.array(sizes, np.int64),
            known=np.zeros(int(segments[-1]) if is_small else 0, np.uint8),
            segments=segments[:-1].astype(np.int64),
            looks=not is_small and _tells_residency(files[0].path),
            reads=any(self._needs_reads),
            handles=np.array([file.handle for file in files], np.int64),
        )
        self._evictions = pages.EvictionPolicy(sum(sizes) // ranks)
        if not is_small:  # else a fault reads what lies around it, which then is of use
            for first, size in zip(firsts, sizes, strict=True):
                pages.advise(self.memory.ctypes.data + first, size, pages.RANDOM)
            for file, reads in zip(files, self._needs_reads, strict=True):
                if reads:  # else it reads up to 1.8 times the requested bytes
                    os.posix_fadvise(file.handle, 0, 0, os.POSIX_FADV_RANDOM)

    def populate(self) -> str:
        """Reads all files into memory, in order; what does not fit into free memory is not read: it would evict itself.

        Returns:
            What was done, as a sentence.

        Raises:
            DamagedError, StoreError: if a file was truncated, or cannot be read.
        """
        base, firsts, ends = self.memory.ctypes.data, self.ranges.firsts.tolist(), self.ranges.ends.tolist()
        size, free = sum(ends) - sum(firsts), free_memory()
        if size > free:
            return f"not populated: {bytes_text(size)} of images, {bytes_text(free)} of memory free"
        for file, first, end, reads in zip(self._files, firsts, ends, self._needs_reads, strict=True):
            code = self._pages.populate(base + first, end - first, file.handle if reads else None)
            if code:
                file.check()
                raise StoreError(f"cannot read {file.path} ({os.strerror(code)})")
        self.ranges.known[:] = self._pages.RESIDENT
        return "populated"

    def prepare(self, places: Places, refuse: Refusal) -> PreparedRows:
        """Begins to bring rows, or parts of them, into memory; ``refuse`` makes the error of a row."""
        files = np.ascontiguousarray(places["file"])
        return self.begun(places, files, self.ranges.firsts[files] + places["offset"], refuse)

    def reason(self, file: int, why: str) -> MmloadError:
        """Returns that a file was truncated, or why else it is not read."""
        opened = self._files[file]
        try:
            opened.check()
        except MmloadError as error:
            return error
        return StoreError(f"cannot read {opened.path} ({why})")

    def release(self, prepared: PreparedRows) -> None:
        """Evicts some of the prepared rows after their use from a page cache that is too small for all."""
        if self.ranges.looks:
            evicted, lengths = self._evictions.choose(prepared.starts, prepared.places["bytes"], prepared.absent)
            if len(evicted):
                at = prepared.files[evicted], prepared.starts[evicted], lengths
                self._pages.evict(self.memory.ctypes.data, self.ranges, *at)


def _tells_residency(path: str) -> bool:
    """Returns whether ``mincore`` tells which pages of a file are in memory: only to its owner and its writers."""
    return os.access(path, os.W_OK) or os.stat(path).st_uid == os.geteuid()
