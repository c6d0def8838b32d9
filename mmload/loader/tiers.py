"""Where a split's rows are read from: mapped files, positioned reads, decoded pixels in memory, or a device.

All tiers give the same batches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from mmload.errors import DamagedError, bytes_text
from mmload.loader.stored_rows import StoredRows, lines_of, locate_rows, pixel_bytes, split_by_size
from mmload.render.image_lines import LINES, PIXELS
from mmload.render.torch_sampling import OwnMasks
from mmload.runtime.memory_pool import scratch
from mmload.runtime.resources import free_memory, local_ranks
from mmload.store.field_rows import FieldRows
from mmload.store.row_map import RowMap, row_map
from mmload.store.row_reader import Numbers, Places, Rows, memory_of, read
from mmload.store.split_views import AnySplit

if TYPE_CHECKING:
    from mmload.remote.block_map import BlockMap

TIERS = ("auto", "disk", "memory", "device")

MEMORY_SHARE = 0.5
"""Largest share of the free memory, of the host or the device, that tier="auto" takes."""

PART_BYTES = 2 * 2**20
"""Bytes of pixels that a thread reads or decodes at a time before it renders them."""

_CHUNK_BYTES = 64 * 2**20


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
            needed: :data:`~mmload.render.image_lines.NEEDED` [B], lines that must be there at least; None: all.

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
    """Tier of rows in mapped files, in the system's page cache; each batch is checked after its use.

    Args:
        rows: rows of the field.
        memory: map of the rows, or of their blocks from object storage.
        populate: whether to read all of them into memory now, and to lock them there where that is permitted; not of
            blocks.
        note: see :class:`Tier`.

    Raises:
        DamagedError, StoreError: if a file that is populated was truncated or written to, or cannot be read.
    """

    def __init__(self, rows: Rows, memory: RowMap | BlockMap, populate: bool = False, note: str = "") -> None:
        super().__init__()
        self.rows, self._map, self.note = rows, memory, note
        if populate and isinstance(memory, RowMap):
            self.note = memory.populate(lock_limit=int(MEMORY_SHARE * free_memory()))
            self.count(misses=len(rows))

    def parts(self, rows: Tensor, needed: Places | None = None) -> Iterator[StoredRows]:
        """Yields the rows where they are mapped."""
        most = self._map.most_rows
        for first in range(0, len(rows), most):
            some = slice(first, first + most)
            located, stored = locate_rows(self.rows, rows[some].numpy(), None if needed is None else needed[some])
            stored.places["start"] = self._prepared(located, stored.rows)
            stored = stored._replace(memory=self._map.memory)  # now: that of blocks may have moved
            if stored.jpeg.any():
                room = np.where(stored.jpeg, pixel_bytes(stored.places, self.rows.spec.channels), 0)
                for group in split_by_size(room, PART_BYTES):
                    yield stored.part(group)
            else:
                # All rows at once: to split them to keep rows in cache between views made DINO's ten crops 4 to 8 %
                # slower, as every call has a cost of its own.
                yield stored
            self._map.check(located)

    def gather_into(self, rows: Tensor, out: Tensor) -> None:
        """Copies all rows from the map into ``out``."""
        spec, most = self.rows.spec, self._map.most_rows
        for first in range(0, len(rows), most):
            some = rows[first : first + most].numpy()
            places = self.rows.located(some)
            starts = self._prepared(places, some)
            memory = self._map.memory[: len(self._map.memory) // spec.row_bytes * spec.row_bytes]
            stored = torch.from_numpy(memory).view(spec.torch_dtype).view(-1, *spec.shape)
            torch.index_select(stored, 0, torch.from_numpy(starts // spec.row_bytes), out=out[first : first + most])
            self._map.check(places)

    def _prepared(self, places: Places, rows: Numbers) -> Numbers:
        """Brings rows into memory and counts them; returns where each begins in the map, int64 [B]."""

        def refuse(place: int, error: Exception) -> Exception:
            return self.rows.damaged(int(rows[place]), str(error)) if isinstance(error, DamagedError) else error

        starts, absent = self._map.prepare(places, refuse)
        self.count(len(places) - absent, absent)
        return starts


class CachedPixelsTier(HitCounter):
    """Tier of pixels decoded from JPEGs at their first use.

    All loaders of this machine share one copy: see :mod:`mmload.loader.shared_pixels`.
    """

    def __init__(self, split: AnySplit) -> None:
        from mmload.loader import shared_pixels as copies

        super().__init__()
        self.rows, self._pixels = split.reader.field("images"), copies.shared_pixels(split)
        self._stored = ReadTier(self.rows)  # it checks rows before it gives them, a map after their use

    @property
    def note(self) -> str:
        """Sentence on who shares the copy."""
        return self._pixels.sharing

    def parts(self, rows: Tensor, needed: Places | None = None) -> Iterator[StoredRows]:
        """Yields the decoded rows at once, with all of their lines."""
        self._fill(rows)
        _, stored = locate_rows(self.rows, rows.numpy())
        stored.places["start"] = self._pixels.ends[stored.rows]
        stored.places["layout"] = np.where(stored.jpeg, PIXELS, LINES)
        lengths = pixel_bytes(stored.places, self.rows.spec.channels)
        yield stored._replace(memory=self._pixels.memory.numpy(), jpeg=np.zeros_like(stored.jpeg), lengths=lengths)

    def gather_into(self, rows: Tensor, out: Tensor) -> None:
        """Raises TypeError, as JPEGs differ in size."""
        raise TypeError("decoded rows have variable size")

    def _fill(self, rows: Tensor) -> None:
        """Decodes the rows that are not in memory yet; only checked rows may become visible to others."""
        absent = self._pixels.absent(rows)
        self.count(len(rows) - len(absent), len(absent))
        for stored in self._stored.parts(absent) if len(absent) else ():
            self._pixels.write(stored.rows, lines_of(stored, self.rows))


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
            chunk = torch.arange(start, min(start + step, len(split)))
            self.images[start : start + len(chunk)].copy_(split.reader.gather("images", chunk))
        self.count(misses=len(split))

    def parts(self, rows: Tensor, needed: Places | None = None) -> Iterator[StoredRows]:
        """Yields the rows at once, for a device that is the CPU."""
        self.count(len(rows))
        _, stored = locate_rows(self.rows, rows.numpy())
        stored.places["start"] = stored.rows * self.rows.spec.row_bytes
        yield stored._replace(memory=np.frombuffer(memory_of(self.images), np.uint8))

    def gather_into(self, rows: Tensor, out: Tensor) -> None:
        """Copies all rows from the device's memory into ``out``."""
        self.count(len(rows))
        torch.index_select(self.images, 0, rows, out=out)


def choose_tier(name: str, split: AnySplit, device: torch.device, cache_pixels: bool = False) -> tuple[str, str, bool]:
    """Returns the tier for a split: "auto" takes the device if the images fit there, otherwise the disk.

    With ``cache_pixels``, "auto" takes the memory if the pixels fit there. An existing copy of this user's processes is
    used if its missing part still fits. Where processes cannot share a copy, the free memory is divided evenly among
    the ranks of this machine (``LOCAL_WORLD_SIZE``, set by torchrun).

    Args:
        name: one of :data:`TIERS`.
        split: split that is read.
        device: device of the batches.
        cache_pixels: whether the memory should cache the pixels of JPEGs.

    Returns:
        "disk", "memory" or "device"; the reason as a sentence; and whether the memory caches the pixels of JPEGs.

    Raises:
        ValueError: if ``name`` is none of :data:`TIERS`.
    """
    if name not in TIERS:
        raise ValueError(f"tier is {name!r}; use one of {', '.join(TIERS)}")
    images = split.fields.get("images")
    size = _stored_bytes(split) if images and (cache_pixels or name == "auto") else 0
    if not cache_pixels:
        if name != "auto":
            return name, f"{name}: as asked", False
        if device.type == "cuda" and not (images and images.variable_size):
            free = torch.cuda.mem_get_info(device)[0]
            if size <= MEMORY_SHARE * free:
                return "device", f"device: {bytes_text(size)} of images, {bytes_text(free)} free on {device}", False
        return "disk", f"disk: {bytes_text(size)} of images, mapped", False
    from mmload.loader.shared_pixels import split_pixel_bytes

    pixels = f"{bytes_text(split_pixel_bytes(split))} of pixels, decoded from {bytes_text(size)}"
    if name == "memory":
        return name, f"memory: as asked; {pixels}", True
    fits, reason = _room_for_pixels(split)
    if fits:
        return "memory", f"memory: {pixels}, {reason}", True
    tier, other, _ = choose_tier(name, split, device)
    return tier, f"{other}; not decoded: {pixels}, {reason}", False


def _room_for_pixels(split: AnySplit) -> tuple[bool, str]:
    """Returns whether memory has room for the decoded pixels of a split, and the reason."""
    from mmload.loader import shared_pixels as copies
    from mmload.runtime.shared_segment import NotSharedError

    if copies.is_in_memory(split):
        return True, "which another loader of this process has already"
    free, unfilled = free_memory(), copies.unfilled_bytes()
    ranks, unshared = 1, ""
    try:
        if (processes := copies.holders(split)) and unfilled <= free:
            return True, f"which {copies.processes_text(processes)} here have already"
    except NotSharedError as error:
        ranks, unshared = local_ranks(), f"; not shared with other processes: {error}"
    free = max(0, free - unfilled) // ranks
    shown = f"{bytes_text(free)} of {'memory free' if ranks == 1 else f'free memory for each of {ranks} ranks here'}"
    if copies.split_pixel_bytes(split) <= MEMORY_SHARE * free:
        return True, f"{shown}{unshared or '; one copy for all processes here'}"
    return False, f"are more than {MEMORY_SHARE:.0%} of {shown}{unshared}"


def make_tier(tier: str, split: AnySplit, device: torch.device, cache_pixels: bool = False) -> Tier:
    """Returns the tier of this name over the images of a split."""
    rows = split.reader.field("images")
    if tier == "device" and not rows.spec.variable_size:
        return DeviceTier(split, device)
    return (
        CachedPixelsTier(split) if tier == "memory" and cache_pixels else tier_of_files(rows, populate=tier == "memory")
    )


def tier_of_files(rows: Rows, populate: bool = False) -> ReadTier | MappedTier:
    """Returns the tier that maps the files of a field, or reads them where they cannot be mapped."""
    memory = row_map(rows)
    if memory is not None:
        return MappedTier(rows, memory, populate)
    blocks, note = _block_map(rows), ""
    if populate:
        note = "not in memory: files that cannot be mapped, and blocks of object storage, are read as they are used"
    return ReadTier(rows, note) if blocks is None else MappedTier(rows, blocks, note=note)


def _block_map(rows: Rows) -> BlockMap | None:
    """Returns the map of rows in object storage; None where they are local or read faster."""
    if not isinstance(rows, FieldRows) or rows.split_files.is_local:
        return None
    from mmload.remote.block_map import block_map

    return block_map(rows)


def sizes_of(rows: Rows, numbers: Tensor) -> Tensor:
    """Returns height and width of rows, int64 [B, 2]."""
    located = rows.located(numbers.numpy())
    return torch.from_numpy(np.stack([located["height"], located["width"]], 1).astype(np.int64))


def read_masks(masks: Tier, rows: Tensor, sizes: Tensor) -> OwnMasks:
    """Reads variable-size masks into new memory.

    Raises:
        DamagedError: if one has another size than its image, int64 [B, 2].
        StoreError: if they cannot be read.
    """
    from mmload.loader.row_loops import copy_ranges

    wrong = np.flatnonzero((sizes_of(masks.rows, rows) != sizes).any(1))
    if len(wrong):
        height, width = sizes_of(masks.rows, rows)[wrong[0]].tolist()
        message = f"it is {height} x {width}, but its image has another size"
        raise masks.rows.damaged(int(rows[wrong[0]]), message)
    lengths = sizes.prod(1).numpy()
    starts, done = np.cumsum(lengths) - lengths, 0
    memory = np.empty(int(lengths.sum()), np.uint8)
    for part in masks.parts(rows):
        stop = done + len(part.rows)
        copy_ranges(part.memory, part.places["start"].copy(), part.lengths, memory, starts[done:stop])
        done = stop
    return OwnMasks(torch.from_numpy(memory), torch.from_numpy(starts))


def _stored_bytes(split: AnySplit) -> int:
    """Returns the bytes of all images of a split as they are stored."""
    spec = split.fields["images"]
    if not spec.variable_size:
        return len(split) * spec.row_bytes
    return int(split.reader.field("images").located(np.arange(len(split)))["bytes"].sum())
