"""Rows of a batch as they are stored, and where they are read from: mapped files, positioned reads, or a device.

A tier says where rows are in memory; their lines go to the renderer, decoded if they are JPEGs. All tiers give the same
batches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.errors import DamagedError, bytes_text
from mmload.render.kernel_arguments import LINES, NEEDED, PIXELS, PLACE, PLANES, ImageLines
from mmload.runtime.memory_pool import scratch
from mmload.runtime.numba_compile import numba_compiled
from mmload.store.field_rows import FieldRows
from mmload.store.row_map import PreparedRows, RowMap, row_map
from mmload.store.row_reader import Numbers, Places, Rows, memory_of, read
from mmload.store.split_views import AnySplit
from mmload.store.variable_rows import JPEG

if TYPE_CHECKING:
    from mmload.remote.block_map import BlockMap

TIERS = ("auto", "disk", "memory", "device")

MEMORY_SHARE = 0.5
"""Largest share of the free memory of a device that tier="auto" takes."""

Bytes = npt.NDArray[np.uint8]

PART_BYTES = 2 * 2**20
"""Bytes of pixels that a thread reads or decodes at a time before it renders them."""

_CHUNK_BYTES = 64 * 2**20


class StoredRows(NamedTuple):
    """Rows as they are stored, in memory.

    Attributes:
        memory: uint8 [n].
        rows: int64 [B], their numbers.
        jpeg: bool [B], which of them are JPEGs.
        needed: :data:`~mmload.render.kernel_arguments.NEEDED` [B], of each image, with how many times smaller a JPEG is
            decoded.
        places: :data:`~mmload.render.kernel_arguments.PLACE` [B], where the lines of pixels are; a JPEG begins where
            its lines would.
        lengths: int64 [B], bytes of each row in ``memory``.
    """

    memory: Bytes
    rows: Numbers
    jpeg: npt.NDArray[np.bool_]
    needed: Places
    places: Places
    lengths: Numbers

    def part(self, group: slice) -> StoredRows:
        """Returns some of the rows."""
        _, rows, jpeg, needed, places, lengths = self
        return StoredRows(self.memory, rows[group], jpeg[group], needed[group], places[group], lengths[group])

    def data(self, k: int) -> Bytes:
        """Returns the bytes of the row at place ``k``, a JPEG."""
        start = self.places["start"][k]
        return self.memory[start : start + self.lengths[k]]


def locate_rows(field: Rows, numbers: Numbers, needed: Places | None = None) -> tuple[Places, StoredRows]:
    """Locates rows of images, int64 [B], and describes the lines that they hold; of variable size, those needed.

    Returns:
        Where the rows are in their files, of rows of pixels the lines that are needed; and the rows as they will be
        there, with no memory yet, each beginning at 0.
    """
    located, count, nowhere = field.located(numbers), len(numbers), np.empty(0, np.uint8)
    if not field.spec.variable_size:  # Records are repeated: to write each field took a tenth of a batch of 32 x 32.
        _, _, _, height, width, _ = located[0].item() if count else (0, 0, 0, 0, 0, 0)
        places = np.array([(0, 0, height, height, width, PLANES, 1)], PLACE).repeat(count)
        needed = np.array([(0, height, 1)], NEEDED).repeat(count)
        return located, StoredRows(nowhere, numbers, np.zeros(count, bool), needed, places, located["bytes"].copy())
    places, jpeg = np.array([(0, 0, 0, 0, 0, LINES, 1)], PLACE).repeat(count), located["encoding"] == JPEG
    places["height"], places["width"] = located["height"], located["width"]
    if needed is None:
        needed = np.array([(0, 0, 1)], NEEDED).repeat(count)
        needed["stop"] = located["height"]
    else:
        needed = needed.copy()
        np.minimum(needed["stop"], places["height"], out=needed["stop"])
    places["first"], places["count"] = needed["first"], needed["stop"] - needed["first"]
    line = np.where(jpeg, 0, places["width"] * field.spec.channels)
    located["offset"] += needed["first"] * line
    located["bytes"] = np.where(jpeg, located["bytes"], places["count"] * line)
    return located, StoredRows(nowhere, numbers, jpeg, needed, places, located["bytes"].copy())


def pixel_bytes(places: Places, channels: int) -> Numbers:
    """Returns the bytes of the pixels of complete images, int64 [B], for located or stored rows."""
    sizes: Numbers = places["height"].astype(np.int64) * places["width"] * channels
    return sizes


def split_by_size(room: Numbers, most: int) -> list[slice]:
    """Splits rows in order into groups that need at most ``most`` bytes together, or are one row."""
    ends, groups, first = np.cumsum(room), [], 0
    while first < len(room):
        used = ends[first - 1] if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, used + most, "right")))
        groups.append(slice(first, stop))
        first = stop
    return groups


def lines_of(stored: StoredRows, field: Rows) -> ImageLines:
    """Returns the lines of rows, with JPEGs decoded; valid until the next call in this thread.

    If some rows are JPEGs, the lines of the others are copied next to theirs.

    Raises:
        DamagedError: if a JPEG is broken, or has another size.
    """
    jpeg, places = stored.jpeg, stored.places
    if not (field.spec.variable_size and jpeg.any()):
        return ImageLines(stored.memory, places)
    from mmload.loader.jpeg_strips import decode_lines  # its kernel is not needed for pixels

    channels, lengths, decoded = field.spec.channels, stored.lengths, places.copy()
    room = np.where(jpeg, pixel_bytes(places, channels), lengths)
    decoded["start"] = np.cumsum(room) - room
    decoded["layout"][jpeg], decoded["shrink"][jpeg] = PIXELS, stored.needed["shrink"][jpeg]
    pixels = scratch("decoded rows", (int(room.sum()),), torch.uint8).numpy()
    spare = scratch("strip", (int(lengths[jpeg].max()) + 2,), torch.uint8).numpy()
    raw = np.flatnonzero(~jpeg)
    copy_ranges(stored.memory, places["start"][raw], lengths[raw], pixels, decoded["start"][raw])
    for k in np.flatnonzero(jpeg).tolist():  # a call of the decoder for each image, of which none does several
        start, size = decoded["start"][k], (int(places["height"][k]), int(places["width"][k]))
        first, stop, shrink = stored.needed[k].tolist()
        try:
            decoded["first"][k], decoded["count"][k] = decode_lines(
                stored.data(k), size, channels, (first, stop), shrink, spare, pixels[start:]
            )
        except DamagedError as error:
            raise field.damaged(int(stored.rows[k]), str(error)) from error
    return ImageLines(pixels, decoded)


@numba_compiled("void(uint8[::1], int64[::1], int64[::1], uint8[::1], int64[::1])")
def copy_ranges(
    memory: Bytes, starts: Numbers, lengths: Numbers, out: Bytes, places: Numbers
) -> None:  # pragma: no cover
    """Copies ranges of memory, each of a length from one of ``starts`` to one of ``places`` in ``out``."""
    for i in range(len(starts)):
        start, place = np.uintp(starts[i]), np.uintp(places[i])
        for k in range(np.uintp(lengths[i])):
            out[place + k] = memory[start + k]


class Tier(Protocol):
    """Source of rows of one field in host memory. Thread-safe.

    Attributes:
        hits: rows that were in memory already.
        misses: rows that had to be read from files.
        rows: source of the rows.
    """

    hits: int
    misses: int

    @property
    def note(self) -> str:
        """Sentence on how the rows are in memory now, or ""."""

    @property
    def rows(self) -> Rows:
        """Rows of the field."""

    def parts(self, rows: Tensor, needed: Places | None = None) -> Iterator[StoredRows]:
        """Yields the rows in turn, some at a time; valid until the next.

        Args:
            rows: int64 [B].
            needed: :data:`~mmload.render.kernel_arguments.NEEDED` [B], lines that must be there at least; None: all.

        Raises:
            DamagedError: if a row is damaged; it names the row and the sample that it was made from.
            StoreError: if a file cannot be read.
        """

    def gather_into(self, rows: Tensor, out: Tensor) -> None:
        """Copies all rows, which have a fixed size, into ``out`` [B, *row shape] at once."""


class HitCounter:
    """Counter of rows that were in memory and rows that had to be read. Thread-safe."""

    def __init__(self) -> None:
        self.hits = self.misses = 0
        self._counting = threading.Lock()

    def count(self, hits: int = 0, misses: int = 0) -> None:
        """Adds the rows of a batch."""
        with self._counting:  # a plain += may forget what another thread adds meanwhile
            self.hits += hits
            self.misses += misses


class ReadTier(HitCounter):
    """Tier of rows that are read, as they cannot be mapped: in object storage, or on systems without safe maps."""

    def __init__(self, rows: Rows, note: str = "") -> None:
        super().__init__()
        self.rows, self.note = rows, note

    def parts(self, rows: Tensor, needed: Places | None = None) -> Iterator[StoredRows]:
        """Yields the rows as they are read, some at a time."""
        self.count(misses=len(rows))
        located, stored = locate_rows(self.rows, rows.numpy(), needed)
        lengths = stored.lengths
        groups = split_by_size(
            np.where(stored.jpeg, pixel_bytes(stored.places, self.rows.spec.channels), lengths), PART_BYTES
        )
        ends = np.cumsum(lengths)
        firsts = np.array([ends[group.start] - lengths[group.start] for group in groups], np.int64)
        starts: Numbers = ends - lengths - np.repeat(firsts, [group.stop - group.start for group in groups])
        stored.places["start"] = starts
        room = scratch("stored rows", (int((starts + lengths).max(initial=0)),), torch.uint8)
        stored = stored._replace(memory=room.numpy())
        stops = [group.stop for group in groups]
        arriving = self.rows.arriving(stored.rows, located, memory_of(room), starts, stops)
        for group, _ in zip(groups, arriving, strict=True):
            yield stored.part(group)

    def gather_into(self, rows: Tensor, out: Tensor) -> None:
        """Reads all rows into ``out``."""
        self.count(misses=len(rows))
        read(self.rows, rows.numpy(), memory_of(out))


class MappedTier(HitCounter):
    """Tier of rows in mapped files, in the system's page cache.

    The map is of the rows, or of their blocks from object storage. To populate it reads all of them into memory now;
    not blocks.

    Raises:
        DamagedError, StoreError: if a file that is populated was truncated, or cannot be read.
    """

    def __init__(self, rows: Rows, memory: RowMap | BlockMap, populate: bool = False, note: str = "") -> None:
        super().__init__()
        self.rows, self._map, self.note = rows, memory, note
        if populate and isinstance(memory, RowMap):
            self.note = memory.populate()
            self.count(misses=len(rows))

    def parts(self, rows: Tensor, needed: Places | None = None) -> Iterator[StoredRows]:
        """Yields the rows where they are mapped."""
        most, numbers = self._map.most_rows, rows.numpy()
        for first in range(0, len(numbers), most):
            some = slice(first, first + most)
            located, stored = locate_rows(self.rows, numbers[some], None if needed is None else needed[some])
            prepared = self._prepare(located, stored.rows)
            stored.places["start"] = prepared.starts
            stored = stored._replace(memory=self._map.memory)  # now: that of blocks may have moved
            for group in self._groups(stored, prepared):
                self._map.wait(prepared, group)
                yield stored.part(group)
            self._map.release(prepared)

    def gather_into(self, rows: Tensor, out: Tensor) -> None:
        """Copies all rows from the map into ``out``."""
        spec, most = self.rows.spec, self._map.most_rows
        for first in range(0, len(rows), most):
            some = rows[first : first + most].numpy()
            prepared = self._prepare(self.rows.located(some), some)
            self._map.wait(prepared, slice(None))
            memory = self._map.memory[: len(self._map.memory) // spec.row_bytes * spec.row_bytes]
            stored = torch.from_numpy(memory).view(spec.torch_dtype).view(-1, *spec.shape)
            torch.index_select(
                stored, 0, torch.from_numpy(prepared.starts // spec.row_bytes), out=out[first : first + most]
            )
            self._map.release(prepared)

    def _groups(self, stored: StoredRows, prepared: PreparedRows) -> list[slice]:
        """Returns which rows to render at a time: few if some are to be decoded, or are still on their way.

        Else all: to split them to keep rows in cache between views made DINO's ten crops 4 to 8 % slower, as every
        call has a cost of its own. To render rows while a disk reads the next ones has 1.1 times the rate.
        """
        if not (prepared.are_arriving or stored.jpeg.any()):
            return [slice(0, len(stored.rows))]
        decoded = pixel_bytes(stored.places, self.rows.spec.channels)
        return split_by_size(np.where(stored.jpeg, decoded, stored.lengths if prepared.are_arriving else 0), PART_BYTES)

    def _prepare(self, places: Places, rows: Numbers) -> PreparedRows:
        """Brings rows into memory and counts them."""

        def refuse(place: int, error: Exception) -> Exception:
            return self.rows.damaged(int(rows[place]), str(error)) if isinstance(error, DamagedError) else error

        prepared = self._map.prepare(places, refuse)
        absent = int(np.count_nonzero(prepared.absent))
        self.count(len(places) - absent, absent)
        return prepared


class DeviceTier(HitCounter):
    """Tier of all images of a split, of a fixed size, on a device, copied there in chunks on creation."""

    note = ""

    def __init__(self, split: AnySplit, device: torch.device) -> None:
        super().__init__()
        self.rows = split.reader.field("images")
        spec = self.rows.spec
        self.images = torch.empty((len(split), *spec.shape), dtype=spec.torch_dtype, device=device)
        step = max(1, _CHUNK_BYTES // spec.row_bytes)
        for start in range(0, len(split), step):
            chunk = np.arange(start, min(start + step, len(split)))
            self.images[start : start + len(chunk)].copy_(split.reader.gather("images", chunk))
        self.count(misses=len(split))

    def parts(self, rows: Tensor, needed: Places | None = None) -> Iterator[StoredRows]:
        """Yields the rows at once, for a device that is the CPU."""
        self.count(len(rows))
        _, stored = locate_rows(self.rows, rows.numpy())
        stored.places["start"] = stored.rows * self.rows.spec.row_bytes
        yield stored._replace(memory=np.frombuffer(memory_of(self.images), np.uint8))

    def images_at(self, rows: Tensor) -> Tensor:
        """Copies rows, int64 [B] in host memory, to other memory of the device."""
        self.count(len(rows))
        return self.images[rows.to(self.images.device, non_blocking=True)]

    def gather_into(self, rows: Tensor, out: Tensor) -> None:
        """Copies all rows from the device's memory into ``out``."""
        self.count(len(rows))
        torch.index_select(self.images, 0, rows, out=out)


def check_cuda(device: torch.device) -> None:
    """Checks that torch finds a CUDA device; raises ValueError otherwise."""
    if not torch.cuda.is_available():
        raise ValueError(f"device is {str(device)!r}, but torch finds no CUDA GPU or driver; use device='cpu'")
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise ValueError(f"device is {str(device)!r}, but the CUDA devices here are cuda:0 to cuda:{count - 1}")


def choose_tier(name: str, split: AnySplit, device: torch.device) -> tuple[str, str]:
    """Returns the tier for a split: "auto" takes the device if the images fit there, otherwise the disk.

    Returns:
        "disk", "memory" or "device"; and the reason as a sentence.

    Raises:
        ValueError: if torch finds no such device.
    """
    if name != "auto":
        return name, f"{name}: as asked"
    images = split.fields.get("images")
    size = _stored_bytes(split) if images else 0
    if device.type == "cuda" and not (images and images.variable_size):
        check_cuda(device)
        free = torch.cuda.mem_get_info(device)[0]
        if size <= MEMORY_SHARE * free:
            return "device", f"device: {bytes_text(size)} of images, {bytes_text(free)} free on {device}"
    return "disk", f"disk: {bytes_text(size)} of images, mapped"


def _stored_bytes(split: AnySplit) -> int:
    """Returns the bytes of all images of a split as they are stored."""
    spec = split.fields["images"]
    if not spec.variable_size:
        return len(split) * spec.row_bytes
    return int(split.reader.field("images").located(np.arange(len(split)))["bytes"].sum())


def tier_of_files(rows: Rows, ranks: int = 1, populate: bool = False) -> ReadTier | MappedTier:
    """Returns the tier that maps the files of a field, or reads them where they cannot be mapped.

    So many ``ranks`` of this machine read a part of each epoch.
    """
    memory = row_map(rows, ranks)
    if memory is not None:
        return MappedTier(rows, memory, populate)
    blocks, note = _block_map(rows), ""
    if populate:
        note = "not in memory: files that cannot be mapped, and blocks of object storage, are read as they are used"
    return ReadTier(rows, note) if blocks is None else MappedTier(rows, blocks, note=note)


def _block_map(rows: Rows) -> BlockMap | None:
    """Returns the map of rows in object storage; None where they are local, as lists are, or read faster."""
    if not isinstance(rows, FieldRows) or rows.split_files.is_local or rows.spec.is_list:
        return None
    from mmload.remote.block_map import block_map

    return block_map(rows)


def sizes_of(rows: Rows, numbers: Tensor) -> Tensor:
    """Returns height and width of rows, int64 [B, 2]."""
    located = rows.located(numbers.numpy())
    return torch.from_numpy(np.stack([located["height"], located["width"]], 1).astype(np.int64))
