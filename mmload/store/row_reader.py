"""Rows of a field, of a split or of a concatenation of splits: where they are in files, and reading them.

A fixed-size row begins at its number times its bytes, a variable-size row or a list where its shard's offsets say. Both
have one description, :data:`~mmload.store.dataset_folder.ROW`; reading, mapping and rendering need no other. Rows are
read here (``preadv``) if they cannot be mapped, or if only a few are needed. torch is imported only where tensors are
requested: :meth:`RowReader.array` needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from mmload.errors import DamagedError, MmloadError
from mmload.lazy import lazy_property
from mmload.pictures.instance_masks import parts_fault
from mmload.records import PADDING, SEGMENTS, VARIABLE, FieldSpec
from mmload.runtime.host_memory import MEMCPY, selected
from mmload.runtime.kernels import RecordArray, filled, numba_compiled
from mmload.store.dataset_folder import ROW, Folder, MappedRows, OpenedFile, Places, row_map
from mmload.store.manifest import (
    BYTES,
    ENCODINGS,
    OFFSETS,
    ORDER_DTYPE,
    ORDER_NAME,
    SIZES,
    SplitRecord,
    file_name,
    parts_of,
)
from mmload.store.row_numbers import Numbers, row_blocks
from mmload.store.row_sources import Samples
from mmload.store.variable_rows import RAW, Index, Pixels, Sizes, VariableRows, encoding_of, fault_of

if TYPE_CHECKING:
    from torch import Tensor


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
        values, is_half = self.values(name, rows), self.spec(name).dtype == "bfloat16"
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

        values = torch.from_numpy(self.values(name, rows))
        # Of bfloat16; an operation on every batch would hand the interpreter lock over.
        return values.view(torch.bfloat16) if self.spec(name).dtype == "bfloat16" else values

    def values(self, name: str, rows: Numbers) -> npt.NDArray[Any]:
        """Reads rows as arrays, with those of bfloat16 as uint16; the first time all of them, if they are a column."""
        if (column := self._columns.get(name)) is not None:
            return selected(column, rows)
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
            return selected(column, rows)
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


def read(field: Rows, rows: Numbers, out: memoryview) -> None:
    """Reads rows, int64 [B], one after another."""
    places = field.located(rows)
    field.fill(places, out, np.cumsum(places["bytes"]) - places["bytes"])


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
    return filled(_write_sizes, (len(places), 2), np.int64, places)


@numba_compiled(RecordArray(ROW), "int64[:, ::1]", nogil=False)
def _write_sizes(places: Places, sizes: Numbers) -> None:
    for k in range(len(places)):
        sizes[k, 0], sizes[k, 1] = places[k].height, places[k].width


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

    def ranges(self, rows: Numbers) -> Numbers:
        """Returns the first byte of the lists of rows among all, and their bytes: int64 [2, B]."""
        return filled(_write_ranges, (2, len(rows)), np.int64, self._offsets, rows)

    def counts(self, rows: Numbers) -> Numbers:
        """Returns the number of elements of the lists of rows, int64 [B]."""
        counts: Numbers = self.ranges(rows)[1] // self._element
        return counts

    def array(self, rows: Numbers) -> npt.NDArray[Any]:
        """Reads rows, int64 [B], as [B, *spec.shape].

        Raises:
            DamagedError, StoreError: as :func:`mmload.store.row_reader.read_rows`.
        """
        begins, lengths = self.ranges(rows)
        if self.is_column:
            return self.padded(self._column, begins, lengths)
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
            self._field.fill(self._field.located(rows), memory.data, self._offsets[rows])
        return memory


Bytes = npt.NDArray[np.uint8]


@numba_compiled("int64[::1], int64[::1], int64[:, ::1]", nogil=False)
def _write_ranges(offsets: Numbers, rows: Numbers, ranges: Numbers) -> None:
    for k in range(len(rows)):
        ranges[0, k], ranges[1, k] = offsets[rows[k]], offsets[rows[k] + 1] - offsets[rows[k]]


@numba_compiled("uint8[::1], int64[::1], int64[::1], uint8[::1], int64[::1]")
def copy_ranges(
    memory: Bytes, starts: Numbers, lengths: Numbers, out: Bytes, places: Numbers
) -> None:  # pragma: no cover
    """Copies ranges of memory, each of a length from one of ``starts`` to one of ``places`` in ``out``."""
    for i in range(len(starts)):
        MEMCPY(out.ctypes.data + places[i], memory.ctypes.data + starts[i], lengths[i])


_MOST_BYTES = 8 * 2**20  # of rows that one call reads


class FieldRows:
    """Rows of one field of a split. Thread-safe.

    Attributes:
        files: files of the split.
        name: name of the field.
        file: name of the files with the rows.
        shards: number of shards, each of which has one file of rows.
    """

    def __init__(self, files: LocalFiles, name: str) -> None:
        self.files, self.name, self.spec = files, name, files.record.fields[name]
        self.file = file_name(name, self.spec)
        shards = files.record.shards
        self.shards = len(shards)
        self._first_rows = np.cumsum([0, *(shard.rows for shard in shards)])
        self._first_bytes = np.cumsum([0, *(shard.files[self.file].bytes for shard in shards)])

    def __len__(self) -> int:
        return self.files.record.rows

    def opened(self) -> list[OpenedFile]:
        """Returns the open files of the rows."""
        return [self.files.opened(self.file, shard) for shard in range(self.shards)]

    def mapped(self, ranks: int = 1) -> MappedRows | None:
        return row_map(self.opened, self.spec, ranks)

    def located(self, rows: Numbers) -> Places:
        return filled(
            _locate,
            len(rows),
            ROW,
            self.files.shard_rows(rows),
            self._first_rows[:-1],
            self._first_bytes,
            *self.index,
        )

    def fill(self, places: Places, out: memoryview, starts: Numbers) -> None:
        ranges = self._ranges(places, out, starts) if len(places) else []
        for file, offset, part in ranges[1:]:
            file.prefetch(offset, len(part))
        for file, offset, part in ranges:
            file.fill(part, offset)
        for file in {file for file, _, _ in ranges}:
            file.check()

    def _ranges(self, places: Places, out: memoryview, starts: Numbers) -> list[tuple[OpenedFile, int, memoryview]]:
        """Returns the ranges of files to read, and where to: rows that follow each other in a file and in memory."""
        file, offset, size = places["file"], places["offset"], places["bytes"]
        breaks = (np.diff(file) != 0) | (offset[1:] != offset[:-1] + size[:-1])
        breaks |= (starts[1:] != starts[:-1] + size[:-1]) | (np.diff(starts // _MOST_BYTES) != 0)
        heads = np.concatenate([[0], np.flatnonzero(breaks) + 1])
        lasts = np.append(heads[1:], len(places)) - 1
        lists = file[heads], offset[heads], starts[heads], starts[lasts] + size[lasts]
        return [
            (self.files.opened(self.file, number), at, out[start:end])  # of lists, not arrays: 5 us less a row
            for number, at, start, end in zip(*(values.tolist() for values in lists), strict=True)
        ]

    def damaged(self, row: int, reason: str) -> DamagedError:
        files = self.files
        try:
            sample = repr(Samples(files.folder, files.split, files.record).source(row).id)
        except MmloadError:
            sample = "an unknown sample (its list is damaged)"
        where = f"row {row} of split {files.split!r} of {files.folder.title}, made from {sample}"
        return DamagedError(f"{self.name} of {where}, is damaged: {reason}; {files.folder.remedy}")

    @lazy_property
    def index(self) -> Index:
        """Places of all rows of the shards: if they are of variable size, read and checked at the first use.

        Raises:
            DamagedError: if offsets, sizes or encodings contradict each other, the rows' bytes or the manifest's
                checksums; it names the file.
            StoreError: if a file cannot be opened or read, or was written to.
        """
        spec, rows, encoding = self.spec, int(self._first_rows[-1]), encoding_of(self.spec)
        if spec.encoding is None:
            sides = spec.shape[-2:] if len(spec.shape) > 1 else (0, 0)
            return Index(spec.row_bytes, np.empty(0, np.int64), np.array([sides], np.int32), np.array([RAW], np.uint8))
        offsets, sizes = np.zeros(rows + 1, np.int64), np.zeros((1 if spec.is_list else rows, 2), np.int32)
        encodings = np.full(rows if encoding is None else 1, encoding or RAW, np.uint8)
        for shard, (first, stop) in enumerate(zip(self._first_rows[:-1], self._first_rows[1:], strict=True)):
            parts = {part: self._read_part(part, shard) for part in parts_of(spec) if part != BYTES}
            before, after = self._first_bytes[shard : shard + 2].tolist()
            own = parts[OFFSETS], parts.get(SIZES, sizes), parts.get(ENCODINGS, encodings)
            fault = fault_of(*own, spec, after - before)
            if fault is not None:
                raise self.files.opened(f"{self.name}.{OFFSETS}", shard).damaged(f"row {fault[0]}: {fault[1]}")
            offsets[first : stop + 1] = parts[OFFSETS] + before
            _, sizes[first:stop], encodings[first:stop] = own
        return Index(0, offsets, sizes, encodings)

    def _read_part(self, part: str, shard: int) -> npt.NDArray[Any]:
        """Reads a shard's offsets, sizes or encodings."""
        file, rows = parts_of(self.spec)[part], self.files.record.shards[shard].rows
        out = np.empty((rows + file.more, *file.spec.shape), file.spec.dtype)
        self.files.opened(f"{self.name}.{part}", shard).fill_checked(bytes_of(out))
        return out


@numba_compiled(
    "int64[::1], int64[::1], int64[::1], int64, int64[::1], int32[:, ::1], uint8[::1]", RecordArray(ROW), nogil=False
)
def _locate(
    rows: Numbers,
    first_rows: Numbers,
    first_bytes: Numbers,
    size: int,
    offsets: Numbers,
    sizes: Sizes,
    encodings: Bytes,
    places: Places,
) -> None:
    """Writes where rows are, by the first row and byte of each shard; rows of a fixed size have no offsets."""
    for k in range(len(rows)):
        row, place = rows[k], places[k]
        shard = np.searchsorted(first_rows, row, "right") - 1
        begin, end = (offsets[row], offsets[row + 1]) if len(offsets) else (row * size, (row + 1) * size)
        sides = sizes[min(row, len(sizes) - 1)]
        place.file, place.offset, place.bytes = shard, begin - first_bytes[shard], end - begin
        place.height, place.width, place.encoding = sides[0], sides[1], encodings[min(row, len(encodings) - 1)]


class LocalFiles:
    """Files of a split in a folder. Thread-safe, picklable, and safe to use after a fork."""

    def __init__(self, folder: Folder, split: str, record: SplitRecord) -> None:
        self.folder, self.split, self.record = folder, split, record
        self._opened_files: dict[tuple[int, str], OpenedFile] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder, self.split, self.record)  # files are opened again, lazily

    def field(self, name: str) -> FieldRows:
        """Returns the rows of a field."""
        return FieldRows(self, name)

    @lazy_property
    def order(self) -> Numbers | None:
        """For each row its number over all shards, int64 [rows]; None: the same number. Read at the first use.

        Raises:
            DamagedError: if it is not the list that the manifest names.
            StoreError: if it cannot be read.
        """
        if self.record.order is None:
            return None
        name = f"{self.split}/{self.record.list_name(ORDER_NAME)}"
        file = OpenedFile(self.folder, name, self.record.order.rows)
        order = np.empty(self.record.rows, ORDER_DTYPE)
        file.fill_checked(bytes_of(order))
        if len(order) and not 0 <= order.min() <= order.max() < self.record.rows_of_shards.sum():
            raise file.damaged("it has rows that no shard has")
        return order.astype(np.int64, copy=False)

    def shard_rows(self, rows: Numbers) -> Numbers:
        """Returns the number over all shards of each row, int64 [B]."""
        order = self.order
        return rows if order is None else selected(order, rows)

    def opened(self, name: str, shard: int) -> OpenedFile:
        """Returns an open file of a shard, by its name without ``.memmap``.

        Lock-free, as a fork could leave a lock held.
        """
        key = (shard, name)
        opened = self._opened_files.get(key)
        if opened is None:
            path, record = f"{self.record.shard_folder(self.split, shard)}/{name}.memmap", self.record.shards[shard]
            opened = self._opened_files.setdefault(key, OpenedFile(self.folder, path, record.files[name]))
        return opened

    def check(self) -> None:
        """Checks that all that was read of open files so far belongs to the dataset; raises what a file does."""
        for file in list(self._opened_files.values()):
            file.check()
