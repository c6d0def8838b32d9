"""Rows of a field, of a split or of a concatenation of splits, read into memory that the caller owns, or mapped.

Rows of fixed and of variable size have one description, :data:`ROW`; reading, mapping and rendering need no other. Few
rows are read (``preadv``), many are mapped: files as one copy-on-write array. Its rows are brought in by a call that
returns an error if they cannot be read. A page that goes after that, as its file is truncated or its disk fails, ends
the process by a SIGBUS when it is touched, as in every program that maps files. torch is imported only where tensors
are requested: :meth:`RowReader.array` needs none.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mmload.errors import DamagedError, MmloadError, StoreError, bytes_text
from mmload.lazy import lazy_property
from mmload.pictures.instance_masks import SEGMENTS, parts_fault
from mmload.records import PADDING, VARIABLE, FieldSpec
from mmload.runtime.declarations import External
from mmload.runtime.numba_compile import numba_compiled
from mmload.runtime.resources import free_memory
from mmload.store.dataset_folder import OpenedFile
from mmload.store.row_numbers import Numbers, row_blocks
from mmload.store.variable_rows import Pixels, VariableRows

if TYPE_CHECKING:
    from torch import Tensor

    from mmload.runtime.resident_pages import FileRanges


ROW = np.dtype(
    [
        ("file", np.int64),
        ("offset", np.int64),
        ("bytes", np.int64),
        ("height", np.int32),
        ("width", np.int32),
        ("encoding", np.uint8),
    ],
    align=True,
)
"""Place of a row: the number of its file, its first byte there, and its bytes; height and width of an image or a mask,
else 0; and its encoding, :data:`~mmload.store.variable_rows.RAW` or :data:`~mmload.store.variable_rows.JPEG`."""

Places = npt.NDArray[np.void]
"""Structured [B] of :data:`ROW`."""


class Rows(Protocol):
    """Rows of one field of a split or of a concatenation. Thread-safe."""

    spec: FieldSpec

    def __len__(self) -> int: ...

    def mapped(self, ranks: int = 1) -> MappedRows | None:
        """Maps the rows, of which so many ranks of this machine read a part each; None: they can only be read."""

    def located(self, rows: Numbers) -> Places:
        """Returns where rows, int64 [B], lie in their files.

        Raises:
            DamagedError: if offsets, sizes or encodings contradict each other or the manifest's checksums.
            StoreError: if they cannot be read, or were written to.
        """

    def fill(self, places: Places, out: memoryview, starts: Numbers) -> None:
        """Reads rows into memory, and checks that they belong to the dataset that was opened.

        Args:
            places: [B], places of rows, or of the parts of them to read.
            out: memory for the rows.
            starts: int64 [B], the byte of ``out`` at which each begins.

        Raises:
            DamagedError: if a file was truncated.
            StoreError: if a file cannot be opened or read, or was written to since the dataset was opened.
        """

    def damaged(self, row: int, reason: str) -> DamagedError:
        """Returns the error of a row: its number, the sample it was made from, what is wrong, and what to do."""


COLUMN_BYTES = 64 * 2**20
"""A field of small rows (targets, counts) stays in memory after the first read, if all of it is at most this large."""

SMALL_ROW = 1024
"""The most bytes of a small row."""

_OWNERS = {values: owners for owners, values in SEGMENTS}


class RowReader:
    """Reads rows of a split or a concatenation, of which ``find`` returns those of one of the stored fields.

    Thread-safe, picklable if ``find`` is, and safe to use after a fork.
    """

    def __init__(self, find: Callable[[str], Rows], fields: Mapping[str, FieldSpec]) -> None:
        self._find, self._specs = find, fields
        self._fields: dict[str, Rows] = {}
        self._columns: dict[str, npt.NDArray[Any]] = {}
        self._lists: dict[str, PaddedLists] = {}
        self._checked: dict[str, npt.NDArray[np.bool_]] = {}  # rows whose check cost more than to read them

    def __getstate__(self) -> dict[str, Any]:
        nothing: dict[str, Any] = {"_fields": {}, "_columns": {}, "_lists": {}, "_checked": {}}
        return self.__dict__ | nothing  # a copy reads again, lazily

    def field(self, name: str) -> Rows:
        """Returns the rows of a field."""
        found = self._fields.get(name)
        return self._fields.setdefault(name, self._find(name)) if found is None else found

    def spec(self, name: str) -> FieldSpec:
        """Returns the dtype and shape of rows as they are read; lists are padded to the most elements of a row."""
        spec = self.field(name).spec
        return self.lists(name).spec if spec.is_list else spec

    def lists(self, name: str) -> PaddedLists:
        """Returns the padded rows of a list field."""
        found = self._lists.get(name)
        return found or self._lists.setdefault(name, PaddedLists(name, self.field(name)))

    def rows(self, name: str, rows: Numbers) -> Sequence[npt.NDArray[Any]]:
        """Reads rows of a field as one array each, without torch; images are decoded to pixels.

        Raises:
            DamagedError: as :meth:`gather`, or if a JPEG is broken or has another size than its row.
            StoreError: as :meth:`gather`.
        """
        field = self.field(name)
        return (
            [pixels_of(field, row) for row in rows.tolist()]
            if field.spec.variable_size
            else list(self.array(name, rows))
        )

    def image_sizes(self) -> Numbers:
        """Returns height and width of all stored images, int64 [rows, 2]."""
        images = self.field("images")
        return sizes_of(images.located(np.arange(len(images))))

    def array(self, name: str, rows: Numbers) -> npt.NDArray[Any]:
        """Reads rows, int64 [B], of a field of fixed size or padded lists, without torch.

        Returns:
            [B, *row shape]; of bfloat16, which numpy does not have, float32.

        Raises:
            DamagedError, StoreError: as :meth:`gather`.
        """
        values, is_half = self._values(name, rows), self.spec(name).dtype == "bfloat16"
        return (values.astype(np.uint32) << 16).view(np.float32) if is_half else values

    def gather(self, name: str, rows: Numbers) -> Tensor:
        """Reads rows, int64 [B], of a field of fixed size, or padded lists, into new memory.

        Returns:
            [B, *row shape].

        Raises:
            DamagedError: if a file is shorter than its manifest says.
            StoreError: if a file cannot be opened or read, or was written to since the dataset was opened.
        """
        import torch

        values = torch.from_numpy(self._values(name, rows))
        # Of bfloat16; an operation on every batch would hand the interpreter lock over.
        return values.view(torch.bfloat16) if self.spec(name).dtype == "bfloat16" else values

    def _values(self, name: str, rows: Numbers) -> npt.NDArray[Any]:
        """Reads rows as arrays, with those of bfloat16 as uint16; the first time all of them, if they are a column."""
        if (column := self._columns.get(name)) is not None:
            return column[rows]
        field = self.field(name)
        if field.spec.is_list:
            values = self.lists(name).array(rows)
            self.check_parts(name, rows, values)
            return values
        if self.is_column(name):
            column = _array_of(field.spec, len(field))
            for some in row_blocks(len(field)):
                read(field, some, bytes_of(column[some[0] : some[-1] + 1]))
            self._columns[name] = column  # now, as another thread may look for it
            return column[rows]
        out = _array_of(field.spec, len(rows))
        read(field, rows, bytes_of(out))
        return out

    def check_parts(self, name: str, rows: Numbers, values: npt.NDArray[Any]) -> None:
        """Checks polygons or run lengths that were read of rows, which a damaged or foreign dataset may have wrong.

        Each row is checked once. Lists of other names are not checked.

        Raises:
            DamagedError: if they fit neither the boxes nor the image of their row, which it names.
        """
        owners = _OWNERS.get(name, "")
        specs = [self._specs.get(each) for each in (owners, "boxes", "images")]
        shapes = [() if spec is None else spec.shape for spec in specs]
        if shapes[0] != (VARIABLE, 2) or shapes[1] != (VARIABLE, 4) or len(shapes[2]) != 3:  # not masks of instances
            return
        checked = self._checked.setdefault(name, np.zeros(len(self.field(name)), np.bool_))
        is_new = ~checked[rows]
        rows, values = rows[is_new], values[is_new]
        if not len(rows):
            return
        places = self.field("images").located(rows)
        pixels = places["height"].astype(np.int64) * places["width"]
        lengths, boxes = self.lists(name).counts(rows), self.lists("boxes").counts(rows)
        fault = parts_fault(self.array(owners, rows), values, lengths, boxes, pixels)
        if fault is not None:
            raise self.field(name).damaged(int(rows[fault[0]]), fault[1])
        checked[rows] = True

    def is_column(self, name: str) -> bool:
        """Returns whether all rows of a field stay in memory once they were read: if they are small and few enough."""
        field = self.field(name)
        spec = field.spec
        if spec.is_list:
            return self.lists(name).is_column
        return not spec.variable_size and spec.row_bytes <= min(SMALL_ROW, COLUMN_BYTES / max(1, len(field)))


def _array_of(spec: FieldSpec, count: int) -> npt.NDArray[Any]:
    """Returns uninitialized memory for so many rows; uint16 for bfloat16, which numpy does not have."""
    return np.empty((count, *spec.shape), np.uint16 if spec.dtype == "bfloat16" else spec.dtype)


def bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """Returns the bytes of a contiguous array, writable, not copied."""
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # numpy 2 on 3.11


def memory_of(tensor: Tensor) -> memoryview:
    """Returns the bytes of a contiguous CPU tensor, writable, not copied."""
    import torch

    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # numpy 2 on 3.11


def read(field: Rows, rows: Numbers, out: memoryview, starts: Numbers | None = None) -> None:
    """Reads rows, int64 [B], to each of ``starts`` in ``out``; None: one after another."""
    places = field.located(rows)
    if starts is None:
        starts = np.cumsum(places["bytes"]) - places["bytes"]
    field.fill(places, out, starts)


def read_rows(field: Rows, rows: Numbers) -> VariableRows:
    """Reads rows, int64 [B], as they are stored.

    Raises:
        DamagedError, StoreError: as :meth:`Rows.located` and :meth:`Rows.fill`.
    """
    places = field.located(rows)
    offsets = np.concatenate([[0], np.cumsum(places["bytes"])]).astype(np.int64)
    out = np.empty(offsets[-1], np.uint8)
    field.fill(places, out.data, offsets[:-1])
    return VariableRows(
        bytes=out,
        offsets=offsets,
        sizes=sizes_of(places).astype(np.int32),
        encodings=np.ascontiguousarray(places["encoding"]),
        channels=field.spec.channels,
    )


def sizes_of(places: Places) -> Numbers:
    """Returns height and width of located rows, int64 [B, 2]."""
    sizes = np.empty((len(places), 2), np.int64)
    sizes[:, 0], sizes[:, 1] = places["height"], places["width"]
    return sizes


def pixels_of(field: Rows, row: int) -> Pixels:
    """Reads and decodes a row of variable size: uint8 [*channels, H, W], contiguous.

    Raises:
        DamagedError, StoreError: as :func:`read_rows`, and if its bytes are not a JPEG of its size.
    """
    stored = read_rows(field, np.array([row]))
    try:
        pixels = np.ascontiguousarray(stored.pixels(0))
    except DamagedError as error:
        raise field.damaged(row, str(error)) from error
    return pixels if len(field.spec.shape) == 3 else pixels[0]


class PaddedLists:
    """Rows of a list field, padded to one number of elements, with what its name says. Thread-safe.

    Attributes:
        spec: dtype and shape of a padded row: the most elements of a row, and one at least.
        is_column: whether all elements stay in memory after the first read, as they are few enough.
    """

    def __init__(self, name: str, field: Rows) -> None:
        self._field = field
        self._offsets = np.zeros(len(field) + 1, np.int64)
        for rows in row_blocks(len(field)):
            self._offsets[rows + 1] = field.located(rows)["bytes"]
        np.cumsum(self._offsets, out=self._offsets)
        self._element = field.spec.padded(1).row_bytes
        most = int(np.diff(self._offsets).max(initial=0)) // self._element
        self.spec = field.spec.padded(most)
        self._blank = np.full(self.spec.shape, PADDING.get(name, 0), self.spec.dtype).tobytes()
        self.is_column = int(self._offsets[-1]) <= COLUMN_BYTES

    def lengths(self, rows: Numbers) -> Numbers:
        """Returns the bytes of the lists of rows, int64 [B]."""
        lengths: Numbers = self._offsets[rows + 1] - self._offsets[rows]
        return lengths

    def counts(self, rows: Numbers) -> Numbers:
        """Returns the number of elements of the lists of rows, int64 [B]."""
        return self.lengths(rows) // self._element

    def array(self, rows: Numbers) -> npt.NDArray[Any]:
        """Reads rows, int64 [B], as [B, *spec.shape].

        Raises:
            DamagedError, StoreError: as :func:`mmload.store.row_reader.read_rows`.
        """
        lengths = self.lengths(rows)
        if self.is_column:
            return self.padded(self._column, self._offsets[rows], lengths)
        memory = np.empty(int(lengths.sum()), np.uint8)
        read(self._field, rows, memory.data)
        return self.padded(memory, np.cumsum(lengths) - lengths, lengths)

    def padded(self, memory: npt.NDArray[np.uint8], begins: Numbers, lengths: Numbers) -> npt.NDArray[Any]:
        """Returns lists that begin at these bytes of memory and have these bytes, int64 [B], as [B, *spec.shape]."""
        made = bytearray(self._blank) * len(begins)  # to fill an array by NumPy would give the interpreter lock away
        source, target, at = memory.data, memoryview(made), range(0, len(made), len(self._blank))
        for place, begin, length in zip(at, begins.tolist(), lengths.tolist(), strict=True):
            target[place : place + length] = source[begin : begin + length]
        return np.frombuffer(made, self.spec.dtype).reshape(len(begins), *self.spec.shape)

    @lazy_property
    def _column(self) -> npt.NDArray[np.uint8]:
        """Bytes of all lists."""
        memory = np.empty(int(self._offsets[-1]), np.uint8)
        for rows in row_blocks(len(self._field)):
            read(self._field, rows, memory.data, self._offsets[rows])
        return memory


Bytes = npt.NDArray[np.uint8]

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
        end: ends the use; None: nothing ends with it.
    """

    map: MappedRows
    places: Places
    files: Numbers
    starts: Numbers
    absent: Numbers
    end: Callable[[], object] | None = None


def map_files(files: Sequence[OpenedFile], starts: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Maps files into one array; it is paged in on access, and unmapped with the array.

    Args:
        files: at least one; their descriptors may be closed afterwards.
        starts: the byte at which each file begins, a multiple of the page size, in ascending order; memory between two
            files must not be touched.

    Returns:
        uint8 [n]; writes stay in this process's memory and never reach the files.

    Raises:
        StoreError: if a file cannot be mapped.
    """
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


def row_map(files: Callable[[], Sequence[OpenedFile]], spec: FieldSpec, ranks: int = 1) -> RowMap | None:
    """Maps files of rows; returns None where they cannot be mapped, or not be brought in safely."""
    from mmload.runtime.resident_pages import can_populate

    try:
        opened = files() if can_populate() else []
        if not sum(file.size for file in opened) or len(opened) > MOST_FILES:
            return None
        return RowMap(opened, spec.row_bytes if spec.encoding is None else 1, ranks)
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

    def prepare(self, places: Places) -> PreparedRows:
        """Begins to bring rows, or parts of them, into memory.

        Raises:
            MmloadError: if a file has to be fetched before, and cannot be.
        """

    def release(self, prepared: PreparedRows) -> None:
        """Ends the use of rows."""

    def reason(self, file: int, why: str) -> MmloadError:
        """Returns the error of one of the files, which the system does not read for the reason that is given."""

    def begun(self, places: Places, files: Numbers, starts: Numbers) -> PreparedRows:
        """Asks the system to read rows that are mapped."""
        from mmload.runtime.resident_pages import announce, can_populate

        lengths = np.ascontiguousarray(places["bytes"])
        absent = (
            announce(self.memory, self.ranges, files, starts, lengths) if can_populate() else np.zeros_like(lengths)
        )
        return PreparedRows(self, places, files, starts, absent)

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
        """Returns the error of the file of a prepared row that cannot be read."""
        from mmload.runtime.resident_pages import POPULATE_READ, advise

        start, length = int(prepared.starts[row]), int(prepared.places["bytes"][row])
        code = advise(self.memory.ctypes.data + start, length, POPULATE_READ)
        return self.reason(int(prepared.files[row]), os.strerror(code or errno.EIO))


class RowMap(MappedRows):
    """Files of a field as one array.

    Files begin at multiples of ``unit`` bytes, so that rows of that size can be
    indexed over all files. So many ``ranks`` of this machine read a part of each epoch.

    Raises:
        StoreError: if a file cannot be mapped.
    """

    def __init__(self, files: Sequence[OpenedFile], unit: int, ranks: int) -> None:
        from mmload.runtime import resident_pages as pages  # compiled only by those who map

        self._files, self._pages = files, pages
        step, sizes = math.lcm(unit, mmap.PAGESIZE), [file.size for file in files]
        firsts, end = [], 0
        for size in sizes:
            firsts.append(end)
            end = -(-(end + size) // step) * step
        self.memory = map_files(files, firsts)
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

    def prepare(self, places: Places) -> PreparedRows:
        """Begins to bring rows, or parts of them, into memory."""
        files = np.ascontiguousarray(places["file"])
        return self.begun(places, files, self.ranges.firsts[files] + places["offset"])

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
