"""Rows of a batch as they are stored, and where they are read from: mapped files, positioned reads, or a device.

A tier says where rows are in memory; their lines go to the renderer, decoded if they are JPEGs. All tiers give the same
batches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from ctypes import CDLL
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.errors import DamagedError, bytes_text
from mmload.render.arrival import arrive
from mmload.render.jpeg_strips import WORTH, cut_strip
from mmload.render.kernel_arguments import (
    LINES,
    NEEDED,
    NOWHERE,
    PIXELS,
    PLACE,
    PLANES,
    UNREADABLE,
    Arrival,
)
from mmload.render.rendering import ImageLines
from mmload.runtime.host_memory import copied, scratch, zeros
from mmload.runtime.kernels import RecordArray, numba_compiled
from mmload.runtime.resident_pages import NO_FILES
from mmload.runtime.turbojpeg import TurboDecoder, turbojpeg_library
from mmload.store.dataset import AnySplit
from mmload.store.dataset_folder import ROW, MappedRows, Places, PreparedRows, RowMap
from mmload.store.row_numbers import Numbers
from mmload.store.row_reader import Rows, copy_ranges
from mmload.store.variable_rows import JPEG, check_jpeg

TIERS = ("auto", "disk", "memory", "device")

MEMORY_SHARE = 0.5
"""Largest share of the free memory of a device that tier="auto" takes."""

Bytes = npt.NDArray[np.uint8]

PART_BYTES = 2 * 2**20
"""Bytes of pixels that a thread reads, or decodes by simplejpeg, at a time before it renders them."""

DECODED_BYTES = 64 * 2**20
"""Bytes of pixels that a thread decodes at a time for several views."""

_CHUNK_BYTES = 64 * 2**20


class StoredRows(NamedTuple):
    """Rows as they are stored, in memory or on their way to it.

    Attributes:
        field: the rows' field.
        memory: uint8 [n].
        rows: int64 [B], their numbers.
        jpeg: bool [B], which of them are JPEGs.
        needed: :data:`~mmload.render.kernel_arguments.NEEDED` [B], of each image, with how many times smaller a JPEG is
            decoded.
        places: :data:`~mmload.render.kernel_arguments.PLACE` [B], where the lines of pixels are; of JPEGs, the lines
            that are needed.
        starts: int64 [B], the first byte of each row in ``memory``.
        lengths: int64 [B], bytes of each row.
        decoded: int64 [B], bytes of the pixels of each JPEG; 0 of other rows.
        prepared: what was prepared where ``memory`` is mapped; None: all rows are there.
        first: the first of the rows among those that were prepared.
    """

    field: Rows
    memory: Bytes
    rows: Numbers
    jpeg: npt.NDArray[np.bool_]
    needed: Places
    places: Places
    starts: Numbers
    lengths: Numbers
    decoded: Numbers
    prepared: PreparedRows | None = None
    first: int = 0

    def part(self, group: slice) -> StoredRows:
        """Returns some of the rows; the slice has a start."""
        return self._replace(
            rows=self.rows[group],
            jpeg=self.jpeg[group],
            needed=self.needed[group],
            places=self.places[group],
            starts=self.starts[group],
            lengths=self.lengths[group],
            decoded=self.decoded[group],
            first=self.first + group.start,
        )

    def wait(self) -> None:
        """Waits until all rows are in memory, as they are stored.

        Raises:
            DamagedError, StoreError: if one cannot be read.
        """
        if self.prepared is not None:
            self.prepared.map.wait(self.prepared, self._group)

    @property
    def _group(self) -> slice:
        """The rows among those that were prepared."""
        return slice(self.first, self.first + len(self.rows))

    def lines(self, at_once: bool) -> ImageLines:
        """Returns the lines of the rows; those of JPEGs are valid until the next call in this thread.

        They arrive while they are rendered, each row when it is needed, and :meth:`missing` follows. If ``at_once``,
        they are there.

        Raises:
            DamagedError, StoreError: if a row cannot be read or decoded.
        """
        library = None
        if any(self.jpeg.tolist()):
            library = turbojpeg_library()
            if library is None:
                return self._decoded()
        elif self.prepared is None or not any(self.prepared.absent[self._group].tolist()):
            return ImageLines(self.memory, self.places)
        lines = self._arriving(library, at_once)
        if not at_once:
            return lines
        arrive(lines.stored, lines.arrival, np.array([0, len(self.rows)]))
        return lines._replace(arrival=None) if self._refused(lines) < 0 else self._decoded()

    def missing(self, lines: ImageLines) -> ImageLines | None:
        """Returns the lines from the row on that TurboJPEG refused, as simplejpeg decodes it: of CMYK, for example.

        Raises:
            DamagedError, StoreError: if a row that was rendered could not be read or decoded.
        """
        row = self._refused(lines)
        if row < 0:
            return None
        decoded = self._decoded()
        return decoded._replace(places=decoded.places[row:])

    def _refused(self, lines: ImageLines) -> int:
        """Returns the first row that TurboJPEG refused, or -1."""
        row, why = (-1, 0) if lines.arrival is None else lines.arrival.failed.tolist()
        if row >= 0 and why == UNREADABLE and self.prepared is not None:
            raise self.prepared.map.error_of(self.prepared, self.first + row)
        return int(row)

    def _arriving(self, library: CDLL | None, at_once: bool) -> ImageLines:
        """Returns lines that arrive; of JPEGs one after another over each other, unless all are wanted at once."""
        jpeg, pixels, nothing = self.jpeg, self.decoded.tolist(), zeros(len(self.rows), np.int64)
        decoded = spare = NOWHERE
        rooms, decoder = nothing, np.empty(0, np.uintp)
        if library is not None:
            decoder = _decoder_of_thread(library).state
            rooms = np.cumsum(self.decoded) - self.decoded if at_once else nothing
            decoded = scratch("decoded rows", (sum(pixels) if at_once else max(pixels),))
            spare = scratch("strip", (max(self.lengths.tolist()) + 2,))
        ranges, files, absent = NO_FILES, nothing, nothing
        if self.prepared is not None:
            group = self._group
            ranges, files, absent = self.prepared.map.ranges, self.prepared.files[group], self.prepared.absent[group]
        arrival = Arrival(
            ranges=ranges,
            files=files,
            absent=absent,
            jpeg=jpeg,
            starts=self.starts,
            lengths=self.lengths,
            needed=self.needed,
            rooms=rooms,
            channels=self.field.spec.channels,
            spare=spare,
            decoder=decoder,
            failed=np.array([-1, 0]),
        )
        return ImageLines(self.memory, copied(self.places), decoded, arrival)

    def _decoded(self) -> ImageLines:
        """Returns the lines of all rows, JPEGs decoded by simplejpeg, a call for each."""
        self.wait()
        jpeg, places, channels = self.jpeg, self.places.copy(), self.field.spec.channels
        starts = np.cumsum(self.decoded) - self.decoded
        places["start"][jpeg], places["layout"][jpeg] = starts[jpeg], PIXELS
        places["shrink"][jpeg] = self.needed["shrink"][jpeg]
        pixels = scratch("decoded rows", (int(self.decoded.sum()),))
        spare = scratch("strip", (int(self.lengths.max()) + 2,))
        for k in np.flatnonzero(jpeg).tolist():
            first, stop, shrink = self.needed[k].tolist()
            data = self.memory[self.starts[k] : self.starts[k] + self.lengths[k]]
            size = int(places["height"][k]), int(places["width"][k])
            try:
                places["first"][k], places["count"][k] = decode_lines(
                    data, size, channels, (first, stop), shrink, spare, pixels[starts[k] :]
                )
            except DamagedError as error:
                raise self.field.damaged(int(self.rows[k]), str(error)) from error
        return ImageLines(self.memory, places, pixels)


_threads = threading.local()


def _decoder_of_thread(library: CDLL) -> TurboDecoder:
    """Returns the decoder of the calling thread."""
    found: TurboDecoder | None = getattr(_threads, "decoder", None)
    if found is None:
        found = _threads.decoder = TurboDecoder(library)
    return found


ALL_LINES = np.array([(0, 2**31 - 1, 1)], NEEDED)


def locate_rows(field: Rows, numbers: Numbers, needed: Places) -> tuple[Places, StoredRows]:
    """Locates rows of images, int64 [B], and describes the lines that they hold; of variable size, those needed [B].

    Returns:
        Where the rows are in their files, of rows of pixels the lines that are needed; and the rows as they will be
        there, with no memory yet, each beginning at 0.
    """
    count, spec, located, needed = len(numbers), field.spec, field.located(numbers), copied(needed)
    places, jpeg, numbers_of_rows = np.empty(count, PLACE), np.empty(count, np.bool_), np.empty((3, count), np.int64)
    layout = LINES if spec.variable_size else PLANES
    _describe(located, needed, spec.channels, layout, places, jpeg, numbers_of_rows)
    return located, StoredRows(field, NOWHERE, numbers, jpeg, needed, places, *numbers_of_rows)


@numba_compiled(
    RecordArray(ROW),
    RecordArray(NEEDED),
    "int64, int64",
    RecordArray(PLACE),
    "boolean[::1], int64[:, ::1]",
    nogil=False,
)
def _describe(
    located: Places,
    needed: Places,
    channels: int,
    layout: int,
    places: Places,
    jpeg: npt.NDArray[np.bool_],
    numbers: Numbers,
) -> None:
    """Writes what :class:`StoredRows` has of rows: starts, lengths and bytes of decoded pixels are ``numbers``."""
    for k in range(len(located)):
        row, need, place, line = located[k], needed[k], places[k], located[k].width * channels
        jpeg[k], need.stop = row.encoding == JPEG, min(need.stop, row.height)
        place.start, place.first, place.count = 0, need.first, need.stop - need.first
        place.height, place.width, place.layout, place.shrink = row.height, row.width, layout, 1
        if layout == LINES and not jpeg[k]:
            row.offset, row.bytes = row.offset + need.first * line, place.count * line
        numbers[0, k], numbers[1, k], numbers[2, k] = 0, row.bytes, row.height * line if jpeg[k] else 0


def split_by_size(room: Numbers, most: int) -> list[slice]:
    """Splits rows in order into groups that need at most ``most`` bytes together, or are one row."""
    ends, groups, first = np.cumsum(room), [], 0
    while first < len(room):
        used = ends[first - 1] if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, used + most, "right")))
        groups.append(slice(first, stop))
        first = stop
    return groups


class Tier:
    """Rows of one field in memory, and a count of those that were there and of those that had to be read. Thread-safe.

    Attributes:
        rows: source of the rows.
        note: sentence on how the rows are in memory now, or "".
        hits: rows that were in memory already.
        misses: rows that had to be read.
    """

    def __init__(self, rows: Rows, note: str = "") -> None:
        self.rows, self.note = rows, note
        self.hits = self.misses = 0
        self._counting = threading.Lock()

    def count(self, hits: int = 0, misses: int = 0) -> None:
        """Adds the rows of a batch."""
        with self._counting:  # a plain += may forget what another thread adds meanwhile
            self.hits += hits
            self.misses += misses


class HostTier(Tier):
    """Tier of rows in host memory: mapped, in the system's page cache, or read.

    The map is of the rows' files, or of their chunks from object storage. Rows that cannot be mapped are read.
    """

    def __init__(self, rows: Rows, memory: MappedRows | None = None, note: str = "") -> None:
        super().__init__(rows, note)
        self._map = memory

    def parts(self, rows: Numbers, needed: Places | None = None, *, at_once: bool = True) -> Iterator[StoredRows]:
        """Yields the rows, some at a time; valid until the next.

        Args:
            rows: int64 [B].
            needed: :data:`~mmload.render.kernel_arguments.NEEDED` [B], lines that must be there at least; None: all.
            at_once: whether the lines of a part are to be there at once.

        Raises:
            DamagedError: if a row is damaged; it names the row and the sample that it was made from.
            StoreError: if a file cannot be read.
        """
        if needed is None:
            needed = ALL_LINES.repeat(len(rows))
        if self._map is None:
            yield from self._read(*locate_rows(self.rows, rows, needed))
            return
        for first in range(0, len(rows), self._map.most_rows):
            some = slice(first, first + self._map.most_rows)
            places, stored = locate_rows(self.rows, rows[some], needed[some])
            prepared, stored = self._prepared(self._map, places, stored)
            for group in self._groups(stored, at_once):
                yield stored.part(group)
            self._map.release(prepared)

    def gather_into(self, rows: Numbers, out: Bytes, places: Numbers) -> None:
        """Copies the bytes of rows as they are stored to ``places``, int64 [B], in ``out``, uint8 [n]."""
        done = 0
        for part in self.parts(rows):
            part.wait()
            copy_ranges(part.memory, part.starts, part.lengths, out, places[done : done + len(part.rows)])
            done += len(part.rows)

    def _read(self, places: Places, stored: StoredRows) -> Iterator[StoredRows]:
        """Yields rows that cannot be mapped as they are read, a part at a time."""
        self.count(misses=len(places))
        room = np.where(stored.jpeg, stored.decoded, stored.lengths)
        for group in split_by_size(room, PART_BYTES):
            part = stored.part(group)
            starts: Numbers = np.cumsum(part.lengths) - part.lengths
            part.places["start"] = starts
            memory = scratch("stored rows", (int(part.lengths.sum()),))
            self.rows.fill(places[group], memory.data, starts)
            yield part._replace(memory=memory, starts=starts)

    def _groups(self, stored: StoredRows, at_once: bool) -> list[slice]:
        """Returns which rows to render at a time: all, unless so many are decoded at once that they leave the caches.

        To split them to keep rows in cache between views made DINO's ten crops 4 to 8 % slower, as every call has a
        cost of its own.
        """
        if not any(stored.jpeg.tolist()):
            return [slice(0, len(stored.rows))]
        has_library = turbojpeg_library() is not None
        if has_library and not at_once:
            return [slice(0, len(stored.rows))]
        return split_by_size(stored.decoded, DECODED_BYTES if has_library else PART_BYTES)

    def _prepared(self, memory: MappedRows, places: Places, stored: StoredRows) -> tuple[PreparedRows, StoredRows]:
        """Begins to bring rows into memory and counts them."""
        prepared = memory.prepare(places)
        there = prepared.absent.tolist().count(0)
        self.count(there, len(places) - there)
        _write_starts(prepared.starts, stored.places)
        return prepared, stored._replace(memory=memory.memory, starts=prepared.starts, prepared=prepared)


@numba_compiled("int64[::1]", RecordArray(PLACE), nogil=False)
def _write_starts(starts: Numbers, places: Places) -> None:
    for k in range(len(starts)):
        places[k].start = starts[k]


class DeviceTier(Tier):
    """All images of a split, of a fixed size, on a GPU, copied there in chunks on creation."""

    def __init__(self, split: AnySplit, device: torch.device) -> None:
        super().__init__(split.reader.field("images"))
        spec = self.rows.spec
        self.images = torch.empty((len(split), *spec.shape), dtype=spec.torch_dtype, device=device)
        step = max(1, _CHUNK_BYTES // spec.row_bytes)
        for start in range(0, len(split), step):
            chunk = np.arange(start, min(start + step, len(split)))
            self.images[start : start + len(chunk)].copy_(split.reader.gather("images", chunk))
        self.count(misses=len(split))

    def images_at(self, rows: Numbers) -> Tensor:
        """Copies rows, int64 [B] in host memory, to other memory of the device."""
        self.count(len(rows))
        return self.images[torch.from_numpy(rows).to(self.images.device, non_blocking=True)]


def check_cuda(device: torch.device) -> None:
    """Checks that torch finds a CUDA device; raises ValueError otherwise."""
    if not torch.cuda.is_available():
        raise ValueError(f"device is {str(device)!r}, but torch finds no CUDA GPU or driver; use device='cpu'")
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise ValueError(f"device is {str(device)!r}, but the CUDA devices here are cuda:0 to cuda:{count - 1}")


def choose_tier(name: str, split: AnySplit, device: torch.device) -> str:
    """Returns the tier for a split: "auto" takes the device if the images fit there, otherwise the disk.

    Raises:
        ValueError: if torch finds no such device.
    """
    if name != "auto":
        return name
    images = split.fields.get("images")
    if device.type == "cuda" and not (images and images.variable_size):
        check_cuda(device)
        if _stored_bytes(split) <= MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]:
            return "device"
    return "disk"


def reason_of_tier(tier: str, split: AnySplit, device: torch.device) -> str:
    """Returns why ``tier="auto"`` chose a tier, as a sentence."""
    size = bytes_text(_stored_bytes(split))
    if tier == "device":
        return f"device: {size} of images, at most {MEMORY_SHARE:.0%} of the memory that was free on {device}"
    return f"disk: {size} of images, mapped"


def _stored_bytes(split: AnySplit) -> int:
    """Returns the bytes of all images of a split as they are stored."""
    spec = split.fields.get("images")
    if spec is None:
        return 0
    if not spec.variable_size:
        return len(split) * spec.row_bytes
    return int(split.reader.field("images").located(np.arange(len(split)))["bytes"].sum())


def tier_of_files(rows: Rows, ranks: int = 1, populate: bool = False) -> HostTier:
    """Returns the tier that maps the files of a field, or reads them where they cannot be mapped.

    So many ``ranks`` of this machine read a part of each epoch. To populate reads all files into memory now.

    Raises:
        DamagedError, StoreError: if a file that is populated was truncated, or cannot be read.
    """
    memory = rows.mapped(ranks)
    tier = HostTier(rows, memory)
    if not populate:
        return tier
    tier.note = "not in memory: files that cannot be mapped, and chunks of object storage, are read as they are used"
    if isinstance(memory, RowMap):
        tier.note = memory.populate()
        tier.count(misses=len(rows))
    return tier


def decode_lines(
    data: Bytes, size: tuple[int, int], channels: int, needed: tuple[int, int], shrink: int, spare: Bytes, out: Bytes
) -> tuple[int, int]:
    """Decodes the lines of a JPEG that are needed, and perhaps others.

    Smaller, libjpeg computes fewer pixels of each block of frequencies, which are nearly the averages of those that
    they stand for.

    Args:
        data: uint8 [n], the JPEG.
        size: the height and width that it must have.
        channels: 3 or 1 of the pixels.
        needed: the first line, and the one after the last.
        shrink: factor by which the decoded image is smaller: 1, 2 or 4.
        spare: uint8, at least n + 2 bytes of working memory.
        out: uint8, at least as many bytes as the whole image has: pixels are written from its beginning on.

    Returns:
        The first line that is there, and how many there are, in the smaller image.

    Raises:
        DamagedError: if it is no sound JPEG of this size; the message does not name the row.
    """
    from simplejpeg import decode_jpeg  # type: ignore[import-untyped]  # where TurboJPEG's own library is not found

    check_jpeg(data, size)
    jpeg, first, lines, part = data, 0, size[0], np.empty(2, np.int64)
    if needed[1] - needed[0] < WORTH * size[0] and (used := cut_strip(data, *needed, spare, part)):
        jpeg, (first, lines) = spare[:used], part.tolist()
    try:
        sides = -(-lines // shrink), -(-size[1] // shrink)
        least = {} if shrink == 1 else {"min_height": sides[0], "min_width": sides[1], "min_factor": shrink}
        pixels = decode_jpeg(jpeg, "RGB" if channels == 3 else "GRAY", buffer=out, **least)
    except ValueError as error:
        raise DamagedError(f"its JPEG cannot be decoded ({error})") from error
    if pixels.shape != (*sides, channels):
        raise DamagedError(f"its JPEG decodes to {pixels.shape}, expected {(*sides, channels)}")
    return first // shrink, sides[0]
