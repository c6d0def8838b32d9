"""Where a split's images are read from: the files, memory of the machine, or the device.

All tiers give the same batches. ``choose`` picks one: "auto" takes memory if the images fit into half of what is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mmload.loader.kept_rows import is_kept, kept_by, kept_bytes, kept_rows, processes_text, unfilled_bytes
from mmload.loader.row_counts import RowCounts
from mmload.runtime import cgroup
from mmload.runtime.byte_sizes import bytes_text
from mmload.runtime.local_ranks import local_ranks
from mmload.runtime.shared_segment import NotSharedError
from mmload.store.field_rows import FieldRows, Numbers, Places, read
from mmload.store.joined_rows import JoinedRows
from mmload.store.row_map import RowMap, row_map
from mmload.store.row_reader import memory_of
from mmload.store.split_views import Rows

TIERS = ("auto", "disk", "memory", "device")

MEMORY_SHARE = 0.5
"""The largest share of the free memory (the host's, or the device's) that ``auto`` uses for a split's images."""

_CHUNK_BYTES = 64 * 2**20


class Tier(Protocol):
    """A source of image rows. Thread-safe.

    Attributes:
        name: "disk", "memory" or "device".
        hits: rows that were in memory already.
        misses: rows that had to be read from files.
    """

    name: str
    hits: int
    misses: int

    @property
    def sharing(self) -> str:
        """Who shares the rows in memory now, as a sentence; "" if none are kept in the host's memory."""

    def parts(self, rows: Tensor, scratch: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The rows in turn, some at a time: images [N, C, H, W], and int64 [b], the indices of the next rows in them.

        The images are valid until the next part; ``scratch`` [n, C, H, W] may be used for them.
        """

    def gather_into(self, rows: Tensor, out: Tensor) -> None:
        """All rows into ``out`` [B, C, H, W] at once."""


class Disk(RowCounts):
    """Rows that are read, as they cannot be mapped: in object storage, or where the system has no safe maps."""

    name = "disk"
    sharing = ""

    def __init__(self, split: Rows) -> None:
        super().__init__()
        self._rows = split.reader.field("images")

    def parts(self, rows: Tensor, scratch: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """See :class:`Tier`."""
        self.count(misses=len(rows))
        indices = torch.arange(len(scratch))
        return ((scratch, indices[:count]) for count in _read_in_parts(self._rows, rows, scratch))

    def gather_into(self, rows: Tensor, out: Tensor) -> None:
        """See :class:`Tier`."""
        self.count(misses=len(rows))
        read(self._rows, rows.numpy(), memory_of(out))


class MappedRows(RowCounts):
    """Rows in the files where they lie, in the system's page cache.

    Args:
        split: whose images.
        rows: the map of them.
    """

    name = "disk"
    sharing = ""

    def __init__(self, split: Rows, rows: RowMap) -> None:
        super().__init__()
        self._rows, self._map = split.reader.field("images"), rows

    def _prepared(self, places: Places, refuse: Callable[[int, Exception], Exception]) -> Numbers:
        """Brings rows into memory and counts them; returns where each begins in the map, int64 [B]."""
        starts, absent = self._map.prepare(places, refuse)
        self.count(len(places) - absent, absent)
        return starts


class Mapped(MappedRows):
    """Rows of one size, rendered from the map."""

    def __init__(self, split: Rows, rows: RowMap) -> None:
        super().__init__(split, rows)
        spec = split.fields["images"]
        self._row_bytes = spec.row_bytes
        whole = len(rows.memory) // spec.row_bytes * spec.row_bytes
        self._images = torch.from_numpy(rows.memory[:whole]).view(spec.torch_dtype).view(-1, *spec.shape)

    def parts(self, rows: Tensor, scratch: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """See :class:`Tier`; what was rendered is checked after it."""
        places = self._rows.located(rows.numpy())
        yield self._images, self._numbers(places)
        self._map.check(places)

    def gather_into(self, rows: Tensor, out: Tensor) -> None:
        """See :class:`Tier`."""
        places = self._rows.located(rows.numpy())
        torch.index_select(self._images, 0, self._numbers(places), out=out)
        self._map.check(places)

    def _numbers(self, places: Places) -> Tensor:
        """Returns the numbers of rows among all images of the map, int64 [B]."""
        return torch.from_numpy(self._prepared(places, lambda _, error: error) // self._row_bytes)


class Memory(RowCounts):
    """Keeps rows in memory at their first use: no wait at the start, no file access from the second epoch on.

    All loaders of this machine that read the same rows share one copy: see :mod:`mmload.loader.kept_rows`.
    """

    name = "memory"

    def __init__(self, split: Rows) -> None:
        super().__init__()
        self._reader, self._spec = split.reader, split.fields["images"]
        self._kept = kept_rows(split)

    @property
    def sharing(self) -> str:
        """See :class:`Tier`."""
        return self._kept.sharing

    def parts(self, rows: Tensor, scratch: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """See :class:`Tier`."""
        self._fetch(rows, scratch)
        yield self._kept.rows, rows

    def gather_into(self, rows: Tensor, out: Tensor) -> None:
        """See :class:`Tier`."""
        self._fetch(rows, out)
        torch.index_select(self._kept.rows, 0, rows, out=out)

    def _fetch(self, rows: Tensor, scratch: Tensor) -> None:
        """Read the rows that are not in memory yet, by way of ``scratch``: only checked rows may be seen by others."""
        absent = self._kept.absent(rows)
        self.count(len(rows) - len(absent), len(absent))
        first = 0
        for count in _read_in_parts(self._reader.field("images"), absent, scratch):
            self._kept.write(absent[first : first + count], scratch[:count])
            first += count


class OnDevice(RowCounts):
    """The whole split on a device, copied there in chunks when the tier is made."""

    name = "device"
    sharing = ""

    def __init__(self, split: Rows, device: torch.device) -> None:
        super().__init__()
        spec = split.fields["images"]
        self.rows = torch.empty((len(split), *spec.shape), dtype=spec.torch_dtype, device=device)
        step = max(1, _CHUNK_BYTES // spec.row_bytes)
        for start in range(0, len(split), step):
            chunk = torch.arange(start, min(start + step, len(split)))
            self.rows[start : start + len(chunk)].copy_(split.reader.gather("images", chunk))
        self.count(misses=len(split))

    def parts(self, rows: Tensor, scratch: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """See :class:`Tier`."""
        self.count(len(rows))
        yield self.rows, rows

    def gather_into(self, rows: Tensor, out: Tensor) -> None:
        """See :class:`Tier`."""
        self.count(len(rows))
        torch.index_select(self.rows, 0, rows, out=out)


def _read_in_parts(field: FieldRows | JoinedRows, rows: Tensor, scratch: Tensor) -> Iterator[int]:
    """Reads rows of one size in turn, as many at a time as fit into ``scratch``; yields how many of it are filled."""
    numbers, count, most = rows.numpy(), len(rows), len(scratch)
    starts = np.arange(count) % most * field.spec.row_bytes
    stops = [*range(most, count, most), count] if count else []
    arriving = field.arriving(numbers, field.located(numbers), memory_of(scratch), starts, stops)
    for stop, _ in zip(stops, arriving, strict=True):
        yield stop - (stop - 1) // most * most


def choose(asked: str, split: Rows, device: torch.device, decoded: bool = False) -> tuple[str, str]:
    """The tier for a split, and why.

    A copy that this process or another one of the user keeps already is taken, if what is missing of it still fits.
    Where processes cannot share one, the free memory is divided evenly among the ranks of this machine
    (``LOCAL_WORLD_SIZE``, which torchrun sets).

    Args:
        asked: one of :data:`TIERS`.
        split: what is read.
        device: where batches go.
        decoded: whether memory keeps the pixels of JPEGs; they count.

    Returns:
        "disk", "memory" or "device", and the reason as a sentence.

    Raises:
        ValueError: if ``asked`` is none of :data:`TIERS`.
    """
    if asked not in TIERS:
        raise ValueError(f"tier is {asked!r}; use one of {', '.join(TIERS)}")
    images = split.fields.get("images")
    size = kept_bytes(split, decoded) if images and (decoded or asked == "auto") else 0
    kind = f"pixels, decoded from {bytes_text(kept_bytes(split))}" if decoded else "images"
    if asked != "auto":
        return asked, f"{asked}: as asked" + (f"; {bytes_text(size)} of {kind}" if decoded else "")
    if device.type == "cuda" and not (images and images.own_sizes):
        free = torch.cuda.mem_get_info(device)[0]
        if size <= MEMORY_SHARE * free:
            return "device", f"device: {bytes_text(size)} of images, {bytes_text(free)} free on {device}"
    held = f"memory: {bytes_text(size)} of {kind}, which"
    if is_kept(split, decoded):
        return "memory", f"{held} another loader of this process keeps already"
    free, left = free_memory(), unfilled_bytes()
    ranks, unshared = 1, ""
    try:
        if images and (processes := kept_by(split, decoded)) and left <= free:
            return "memory", f"{held} {processes_text(processes)} here keep already"
    except NotSharedError as error:
        ranks, unshared = local_ranks(), f"; not shared with other processes: {error}"
    free = max(0, free - left) // ranks
    shown = f"{bytes_text(free)} of {'memory free' if ranks == 1 else f'free memory for each of {ranks} ranks here'}"
    if size <= MEMORY_SHARE * free:
        return (
            "memory",
            f"memory: {bytes_text(size)} of {kind}, {shown}{unshared or '; one copy for all processes here'}",
        )
    return "disk", f"disk: {bytes_text(size)} of {kind} are more than {MEMORY_SHARE:.0%} of {shown}{unshared}"


def chosen(asked: str, split: Rows, device: torch.device, decoded: bool) -> tuple[str, str, bool]:
    """:func:`choose`, and whether pixels are kept: "auto" keeps JPEGs in memory where these fit and pixels do not."""
    tier, reason = choose(asked, split, device, decoded)
    if not decoded or tier == "memory":
        return tier, reason, decoded
    stored, other = choose(asked, split, device)
    return (tier, reason, False) if stored == tier else (stored, f"{other}; not decoded: {reason[6:]}", False)


def make(tier: str, split: Rows, device: torch.device) -> Tier:
    """The tier of this name over a split."""
    if tier == "device":
        return OnDevice(split, device)
    if tier == "memory":
        return Memory(split)
    rows = row_map(split.reader.field("images"))
    return Disk(split) if rows is None else Mapped(split, rows)


def free_memory() -> int:
    """Bytes that this process can still allocate: the system's available memory or what its cgroup allows, if less.

    0 if neither is known.
    """
    left = [size for size in (_system_memory(), cgroup.free_memory()) if size is not None]
    return max(0, min(left)) if left else 0


def _system_memory() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None
