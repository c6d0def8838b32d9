"""Pixels decoded from JPEGs, filled by whoever needs a row first, and shared by the processes of a machine.

A shared copy is a segment of the rows and, after them, one byte per row: 1 when the row is there. The byte is set after
the row. A process that is killed in between leaves 0, and the next one writes the row again. Two that miss the same row
at once both write it, which does no harm, as they write equal bytes: only rows that were checked after reading are
written, and the key of the segment contains the revision of the files that they were read from. So there is no lock
that a killed process could leave, and no process waits for another.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Hashable, Iterator, Sequence
from importlib.metadata import version
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.errors import bytes_text, counted
from mmload.loader import shared_segment
from mmload.loader.shared_segment import NotSharedError, Segment
from mmload.loader.tiers import MEMORY_SHARE, HitCounter, ReadTier, StoredRows, lines_of, locate_rows, pixel_bytes
from mmload.records import FieldSpec
from mmload.render.kernel_arguments import LINES, PIXELS, ImageLines, Places
from mmload.runtime.intrinsics import finish_streams
from mmload.runtime.numba_compile import numba_compiled
from mmload.runtime.resources import free_memory, local_ranks
from mmload.store.row_reader import Numbers, memory_of
from mmload.store.split_views import AnySplit

Bytes = npt.NDArray[np.uint8]

_MOST_SHOWN = 8  # numbers of processes in a text


class SharedPixels:
    """Pixels of a split's images in memory; empty until they are written. Thread-safe.

    Attributes:
        memory: uint8 [n], the pixels of all rows, one after another.
        ends: int64 [N + 1], where the rows begin and end in it.
        why_private: why no other process can read them; "" if all of this user's can.
    """

    def __init__(self, split: AnySplit) -> None:
        lengths = _pixel_lengths(split)
        self.ends: Numbers = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        self._segment: Segment | None = None
        self.why_private = ""
        size = int(self.ends[-1])
        try:
            self._segment = shared_segment.open_segment(_key_of(split), _segment_size(split))
        except NotSharedError as error:
            self.why_private = str(error)
            self.memory = torch.empty(size, dtype=torch.uint8, device="cpu")  # untouched memory costs nothing
            self._states = np.zeros(len(split), np.uint8)
        else:
            segment = np.frombuffer(self._segment.memory, np.uint8)
            self.memory = torch.from_numpy(segment[:size])
            self._states = segment[size : size + len(split)]

    def absent(self, rows: Tensor) -> Tensor:
        """Returns those of the rows, int64 [B], that are not in memory; the others may be read from :attr:`memory`."""
        found = np.empty(len(rows), np.int64)
        return torch.from_numpy(found[: _find_absent(np.ascontiguousarray(rows.numpy()), self._states, found)])

    def write(self, rows: Numbers, lines: ImageLines) -> None:
        """Writes the pixels of rows, int64 [B], that were read and checked, and of whose images all lines are there.

        Raises:
            MemoryError: if there is no memory left.
        """
        memory, ends = memory_of(torch.from_numpy(lines.memory)), self.ends
        places = zip(lines.places["start"].tolist(), ends[rows].tolist(), ends[rows + 1].tolist(), strict=True)
        try:
            for at, start, end in places:  # a call for each row that was decoded by one
                if self._segment is None:
                    memory_of(self.memory)[start:end] = memory[at : at + end - start]
                else:
                    self._segment.write(memory[at : at + end - start], start)
        except OSError as error:
            raise MemoryError(
                f"no memory left for decoded pixels ({error.strerror}); use cache_pixels=False"
            ) from error
        _mark_rows(rows, self._states)

    @property
    def unfilled_bytes(self) -> int:
        """Bytes of a private copy that are not written yet and will still take free memory."""
        return 0 if self._segment is not None else int(np.diff(self.ends)[self._states == 0].sum())

    @property
    def sharing(self) -> str:
        """Sentence that says which processes share these rows now."""
        if self._segment is None:
            return f"not shared with other processes: {self.why_private}"
        others = self._segment.others()
        return f"shared with {processes_text(others)}" if others else "no other process reads this copy now"

    def publish(self) -> None:
        """Publishes the copy to other processes; called in each process that uses it."""
        if self._segment is not None:
            self._segment.publish()


_COPIES: WeakValueDictionary[Hashable, SharedPixels] = WeakValueDictionary()
"""The copies of this process by ``split.key``; each is freed with the last tier that uses it."""


def shared_pixels(split: AnySplit) -> SharedPixels:
    """Returns the copy of a split's pixels that this process has, or a new one."""
    copy = _COPIES.get(split.key)
    if copy is None:
        copy = _COPIES.setdefault(split.key, SharedPixels(split))
    copy.publish()
    return copy


def is_in_memory(split: AnySplit) -> bool:
    """Returns whether this process has a copy of a split's pixels."""
    return len(_COPIES) > 0 and split.key in _COPIES


def holders(split: AnySplit) -> list[int]:
    """Returns the numbers of the processes of this machine that have a copy which this process can share.

    Raises:
        NotSharedError: if memory cannot be shared.
    """
    return shared_segment.holders(_key_of(split), _segment_size(split))


def unfilled_bytes() -> int:
    """Returns the free memory that copies of this process and shared ones of the machine will still take."""
    return sum(copy.unfilled_bytes for copy in list(_COPIES.values())) + shared_segment.unfilled_bytes()


def processes_text(numbers: Sequence[int]) -> str:
    """Returns processes by their numbers, such as ``processes 12 and 14``."""
    shown = ", ".join(map(str, numbers[:_MOST_SHOWN])) + (", ..." if len(numbers) > _MOST_SHOWN else "")
    return f"{counted(len(numbers), 'other process', 'other processes')} ({shown})"


def split_pixel_bytes(split: AnySplit) -> int:
    """Returns the bytes of the pixels of a split's images, which have variable size."""
    return int(_pixel_lengths(split).sum())


def _pixel_lengths(split: AnySplit) -> Numbers:
    """Returns the bytes of the pixels of each row, int64 [N]."""
    located = split.reader.field("images").located(np.arange(len(split)))
    return pixel_bytes(located, split.fields["images"].channels)


def _key_of(split: AnySplit) -> str:
    spec: FieldSpec = split.fields["images"]
    # Two environments of a machine may have decoders that differ in a level.
    kind = f"images decoded by simplejpeg {version('simplejpeg')}"
    return hashlib.sha256(repr((split.key, kind, spec.dtype, spec.shape)).encode()).hexdigest()


def _segment_size(split: AnySplit) -> int:
    """Returns the bytes of rows and states, in whole pages; at least one, as nothing cannot be mapped."""
    size = split_pixel_bytes(split) + len(split)
    return max(1, -(-size // mmap.PAGESIZE)) * mmap.PAGESIZE


class CachedPixelsTier(HitCounter):
    """Tier of pixels decoded from JPEGs at their first use.

    All loaders of this machine share one copy.
    """

    def __init__(self, split: AnySplit) -> None:
        super().__init__()
        self.rows, self._pixels = split.reader.field("images"), shared_pixels(split)
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


def room_for_pixels(split: AnySplit) -> tuple[bool, str]:
    """Returns whether memory has room for the decoded pixels of a split, and the reason."""
    if is_in_memory(split):
        return True, "which another loader of this process has already"
    free, unfilled = free_memory(), unfilled_bytes()
    ranks, unshared = 1, ""
    try:
        if (processes := holders(split)) and unfilled <= free:
            return True, f"which {processes_text(processes)} here have already"
    except NotSharedError as error:
        ranks, unshared = local_ranks(), f"; not shared with other processes: {error}"
    free = max(0, free - unfilled) // ranks
    shown = f"{bytes_text(free)} of {'memory free' if ranks == 1 else f'free memory for each of {ranks} ranks here'}"
    if split_pixel_bytes(split) <= MEMORY_SHARE * free:
        return True, f"{shown}{unshared or '; one copy for all processes here'}"
    return False, f"are more than {MEMORY_SHARE:.0%} of {shown}{unshared}"


@numba_compiled("int64(int64[::1], uint8[::1], int64[::1])", nogil=False)
def _find_absent(rows: Numbers, states: Bytes, found: Numbers) -> int:  # pragma: no cover
    """Writes the rows whose state is 0, which are not there, and returns how many they are.

    The others may be read afterwards: the fence comes between. On x86 no fence is needed, as loads are seen in order;
    other processors could load a row before its state.
    """
    count = 0
    for i in range(len(rows)):
        if states[rows[i]] == 0:
            found[count] = rows[i]
            count += 1
    finish_streams()
    return count


@numba_compiled("void(int64[::1], uint8[::1])", nogil=False)
def _mark_rows(rows: Numbers, states: Bytes) -> None:  # pragma: no cover
    """Sets the states of rows that were written before to 1: the fence comes between."""
    finish_streams()
    for i in range(len(rows)):
        states[rows[i]] = 1
