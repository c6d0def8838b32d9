"""Image rows in memory, filled by whoever needs one first: shared by the processes of a machine where it can be.

A shared copy is a segment of the rows and, after them, one byte a row: 1 when the row is there. The byte is set after
the row. A process that is killed in between leaves 0, and the next one writes the row again. Two that miss the same row
at once both write it, which does no harm, as they write equal bytes: only rows that were checked after reading are
written, and the key of the segment contains the revision of the files that they were read from. So there is no lock
that a killed process could leave, and no process waits for another.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Hashable, Sequence
from importlib.metadata import version
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmload.errors import counted
from mmload.records import FieldSpec
from mmload.runtime import shared_segment
from mmload.runtime.lazy_property import lazy_property
from mmload.runtime.shared_segment import NotSharedError, Segment
from mmload.store.field_rows import Places
from mmload.store.row_reader import memory_of
from mmload.store.split_views import Rows

_MOST_SHOWN = 8  # numbers of processes in a text

Numbers = NDArray[np.int64]


class KeptRows:
    """A split's images in memory; empty until they are written. Thread-safe.

    Args:
        split: whose images.
        decoded: whether the pixels of JPEGs are kept in place of their bytes.

    Attributes:
        memory: uint8 [n], all rows as they are stored or decoded, one after another.
        ends: int64 [N + 1], where rows of a size each begin and end in it; None: they have one size.
        why_private: why no other process can read them; "" if all of this user's can.
    """

    def __init__(self, split: Rows, decoded: bool = False) -> None:
        self._spec, self._rows = split.fields["images"], len(split)
        self.ends = _offsets_of(split, decoded)
        self._segment: Segment | None = None
        self.why_private = ""
        size = kept_bytes(split, decoded)
        try:
            self._segment = shared_segment.opened(_key_of(split, decoded), _segment_size(split, decoded))
        except NotSharedError as error:
            self.why_private = str(error)
            self.memory = torch.empty(size, dtype=torch.uint8)  # untouched memory costs nothing
            self._states = np.zeros(len(split), np.uint8)
        else:
            whole = np.frombuffer(self._segment.memory, np.uint8)
            self.memory = torch.from_numpy(whole[:size])
            self._states = whole[size : size + len(split)]

    @lazy_property
    def rows(self) -> Tensor:
        """All rows, [N, C, H, W], of a split whose rows have one size."""
        return self.memory.view(self._spec.torch_dtype).view(self._rows, *self._spec.shape)

    def absent(self, rows: Tensor) -> Tensor:
        """Those of the rows, int64 [B], that are not in memory; the others may be read from :attr:`rows`."""
        from mmload.loader.row_states import absent_rows  # numba takes 0.3 s to import, and bench's process needs none

        return torch.from_numpy(absent_rows(np.ascontiguousarray(rows.numpy()), self._states))

    def write(self, rows: Tensor, images: Tensor) -> None:
        """Write rows, int64 [B], that were read and checked: images [B, C, H, W].

        Raises:
            MemoryError: if there is no memory left.
        """
        size, memory = self._spec.row_bytes, memory_of(images)
        runs = _runs(rows.numpy())
        parts = [memory[first * size : stop * size] for first, stop in runs]
        self.write_parts(rows, parts, [int(rows[first]) * size for first, _ in runs])

    def write_parts(self, rows: Tensor, parts: Sequence[memoryview], starts: Sequence[int]) -> None:
        """Write rows, int64 [B], that were read and checked, of any sizes: bytes from each of ``starts`` on.

        Raises:
            MemoryError: if there is no memory left.
        """
        from mmload.loader.row_states import mark_rows

        try:
            for part, start in zip(parts, starts, strict=True):
                if self._segment is None:
                    memory_of(self.memory)[start : start + len(part)] = part
                else:
                    self._segment.write(part, start)
        except OSError as error:
            raise MemoryError(f"there is no memory left for images ({error.strerror}); use tier='disk'") from error
        mark_rows(rows.numpy(), self._states)

    @property
    def unfilled_bytes(self) -> int:
        """Bytes of a private copy that are not written yet and will still take free memory."""
        if self._segment is not None:
            return 0
        if self.ends is not None:
            return int(np.diff(self.ends)[self._states == 0].sum())
        return (len(self._states) - int(np.count_nonzero(self._states))) * self._spec.row_bytes

    @property
    def sharing(self) -> str:
        """Who shares these rows now, as a sentence."""
        if self._segment is None:
            return f"not shared with other processes: {self.why_private}"
        others = self._segment.others()
        return f"shared with {processes_text(others)}" if others else "no other process reads this copy now"

    def announce(self) -> None:
        """Let others find the copy through this process; to be called in each process that uses it."""
        if self._segment is not None:
            self._segment.announce()


_KEPT: WeakValueDictionary[Hashable, KeptRows] = WeakValueDictionary()
"""The copies of this process by ``split.key`` and whether they are decoded; each is freed with the last tier that uses
it."""


def kept_rows(split: Rows, decoded: bool = False) -> KeptRows:
    """The copy of a split's images, as stored or decoded, that this process has, or a new one."""
    key = split.key, decoded
    kept = _KEPT.get(key)
    if kept is None:
        kept = _KEPT.setdefault(key, KeptRows(split, decoded))
    kept.announce()
    return kept


def is_kept(split: Rows, decoded: bool = False) -> bool:
    """Whether this process has a copy of a split's images."""
    return len(_KEPT) > 0 and (split.key, decoded) in _KEPT


def kept_by(split: Rows, decoded: bool = False) -> list[int]:
    """The numbers of the processes of this machine that have a copy which this process can share.

    Raises:
        NotSharedError: if memory cannot be shared.
    """
    return shared_segment.holders(_key_of(split, decoded), _segment_size(split, decoded))


def unfilled_bytes() -> int:
    """Bytes that copies, of this process and shared ones of the machine, will still take out of the free memory."""
    return sum(kept.unfilled_bytes for kept in list(_KEPT.values())) + shared_segment.unfilled_bytes()


def processes_text(numbers: Sequence[int]) -> str:
    """Processes by their numbers, such as ``processes 12 and 14``."""
    shown = ", ".join(map(str, numbers[:_MOST_SHOWN])) + (", ..." if len(numbers) > _MOST_SHOWN else "")
    return f"{counted(len(numbers), 'other process', 'other processes')} ({shown})"


def _key_of(split: Rows, decoded: bool) -> str:
    spec: FieldSpec = split.fields["images"]
    # Two environments of a machine may have decoders that differ in a level.
    kind = f"images decoded by simplejpeg {version('simplejpeg')}" if decoded else "images"
    return hashlib.sha256(repr((split.key, kind, spec.dtype, spec.shape)).encode()).hexdigest()


def kept_bytes(split: Rows, decoded: bool = False) -> int:
    """Bytes of all images of a split as they are stored, or decoded."""
    if not split.fields["images"].own_sizes:
        return len(split) * split.fields["images"].row_bytes
    if not decoded:
        return int(_located(split)["bytes"].sum())
    return int(_decoded_lengths(split).sum())


def _located(split: Rows) -> Places:
    return split.reader.field("images").located(np.arange(len(split)))


def _decoded_lengths(split: Rows) -> Numbers:
    """Bytes of the pixels of each row, int64 [N]."""
    located = _located(split)
    lengths: Numbers = located["height"].astype(np.int64) * located["width"] * split.fields["images"].channels
    return lengths


def _offsets_of(split: Rows, decoded: bool) -> Numbers | None:
    """Where rows of a size each begin and end, int64 [N + 1]; None: they have one size."""
    if not split.fields["images"].own_sizes:
        return None
    lengths = _decoded_lengths(split) if decoded else _located(split)["bytes"]
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _segment_size(split: Rows, decoded: bool) -> int:
    """The rows' bytes and states, in whole pages; at least one, as nothing cannot be mapped."""
    size = kept_bytes(split, decoded) + len(split)
    return max(1, -(-size // mmap.PAGESIZE)) * mmap.PAGESIZE


def _runs(rows: Numbers) -> list[tuple[int, int]]:
    """The first and the stop index of each run of consecutive rows."""
    edges = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
    return list(zip(edges[:-1], edges[1:], strict=True)) if len(rows) else []
