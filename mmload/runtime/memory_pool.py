"""Reusable memory: a pool for batches, an arena that two processes share, working memory of a thread, constants.

On a CPU a fresh output batch costs more than all the arithmetic in it, since the kernel zeroes every page. So buffers
are reused, and a buffer is free once the last tensor that views it is collected: what is watched is the owner of the
storage, not a counter that the user must respect. A batch that is still referenced is never overwritten.

The arena is a memfd: a file without a name, which the kernel frees with its last holder. Its size is that of the
machine's memory, but only what is touched takes any. No message and no lock is needed to free a buffer: the reader
clears a byte, and the writer looks at the bytes when it needs a buffer.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SIZES = 8
"""Number of batch sizes whose buffers are cached: an epoch has two, one for its last batch; more would fill memory."""

PAST_CACHES, PAST_CACHES_SAMPLE = 8 * 2**20, 2**16
"""Lower bounds on the bytes of a batch, and of a sample in it, for streaming stores, which bypass the caches."""

_ALIGN = 64

Bytes = npt.NDArray[np.uint8]


class MemoryPool:
    """Pool of buffers by size; thread-safe (deques are). Copies and pickles of it are empty.

    Args:
        spare: upper bound on the unused buffers of one size; buffers are cached for the last :data:`SIZES` sizes.
        source: returns a buffer of a number of bytes, in place of the pool's own; not copied.
    """

    def __init__(self, spare: int = 0, source: Callable[[int], Bytes] | None = None) -> None:
        self._spare, self._source = spare, source
        self._free: dict[int, deque[np.ndarray]] = {}

    def __reduce__(self) -> tuple[type[MemoryPool], tuple[int]]:
        return MemoryPool, (self._spare,)

    def empty(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> Tensor:
        """Returns an uninitialized CPU tensor like ``torch.empty``.

        Args:
            shape: any, 4-dimensional for channels_last.
            dtype: any.
            memory_format: ``torch.contiguous_format`` or ``torch.channels_last``.
        """
        size = math.prod(shape) * dtype.itemsize
        if size == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        flat = torch.frombuffer((self._source or self.array)(size), dtype=dtype)
        if memory_format == torch.channels_last:
            batch, channels, height, width = shape
            return flat.view(batch, height, width, channels).permute(0, 3, 1, 2)
        return flat.view(shape)

    def array(self, shape: tuple[int, ...] | int, dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
        """Returns an uninitialized array, whose memory is free again when this object is collected.

        Views do not keep it alive, as NumPy lets them refer to the owner of the memory; a tensor that
        ``torch.from_numpy`` makes of it does.
        """
        size = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
        if size == 0:
            return np.empty(shape, dtype)
        free = self._free.get(size)
        if free is None:
            free = self._free.setdefault(size, deque(maxlen=self._spare))
            for oldest in list(self._free)[:-SIZES]:
                self._free.pop(oldest, None)
        try:
            base = free.pop()
        except IndexError:
            base = _aligned(size)
        made: npt.NDArray[Any] = base.view(dtype).reshape(shape)
        weakref.finalize(made, free.append, base).atexit = False
        return made


def past_caches(count: int, sample: int) -> bool:
    """Returns whether a batch of ``count`` samples of ``sample`` bytes each is too large to stay in the caches."""
    return sample >= PAST_CACHES_SAMPLE and count * sample >= PAST_CACHES


def _aligned(size: int) -> np.ndarray:
    """Returns bytes aligned to a cache line, so that every buffer is equally fast (and numpy requests huge pages)."""
    raw = np.empty(size + _ALIGN, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGN
    return raw[start : start + size]


_MOST_BUFFERS = 4096

_ROUND = 1.25
"""Capacity of a buffer over the size that it was first made for, so that batches of growing sizes reuse it."""


_SIMILAR = 8
"""A request takes no buffer of more than so many times its size: targets do not occupy the memory of images."""


class Place(NamedTuple):
    """Bytes in an arena: number of the buffer, first byte in the arena, and number of bytes."""

    buffer: int
    start: int
    size: int


def can_share() -> bool:
    """Returns whether this system has memory files (``memfd_create``)."""
    return hasattr(os, "memfd_create")


class _Uses:
    """Clears the flag of a buffer when the array that uses it is collected; ``weakref.finalize`` takes 3 us more.

    Args:
        flags: uint8 [buffers].
    """

    def __init__(self, flags: Bytes) -> None:
        self._flags, self._owner = flags, os.getpid()
        self._references: dict[int, weakref.ref[Bytes]] = {}

    def watch(self, array: Bytes, number: int) -> None:
        """Clears the flag of buffer ``number`` when the array is collected."""
        self._references[number] = weakref.ref(array, partial(self._clear, number))

    def _clear(self, number: int, reference: weakref.ref[Bytes], getpid: Callable[[], int] = os.getpid) -> None:
        # A forked process has references of its own. getpid is bound early: at exit the module may be gone.
        if getpid() == self._owner:
            self._flags[number] = 0


class SharedArena:
    """Memory shared with one other process, which a pickle of it reaches while that process is started.

    Attributes:
        bytes: uint8 [n], all of it.
        is_read: uint8 [buffers], 1 while the reading process uses a buffer.
    """

    def __init__(self) -> None:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        handle = os.memfd_create("mmload-batches", os.MFD_CLOEXEC)
        os.ftruncate(handle, size)
        self._map(handle)

    def __getstate__(self) -> Any:
        return DupFd(self._handle)

    def __setstate__(self, duplicate: Any) -> None:
        self._map(duplicate.detach())

    def _map(self, handle: int) -> None:
        self._handle = handle
        weakref.finalize(self, os.close, handle)
        self._memory = mmap.mmap(handle, 0)
        self.bytes: Bytes = np.frombuffer(self._memory, np.uint8)
        self._data = self.bytes.data  # its slices are copied without releasing the interpreter lock
        self.is_read = self.bytes[:_MOST_BUFFERS]
        self._uses = _Uses(self.is_read)

    def copy(self, place: Place) -> bytearray:
        """Returns a copy of the bytes of a place, whose buffer is free at once; keeps the interpreter lock."""
        copied = bytearray(self._data[place.start : place.start + place.size])
        self.is_read[place.buffer] = 0
        return copied

    def view(self, place: Place) -> Bytes:
        """Returns the bytes of a place for reading; its buffer is free once nothing refers to them."""
        view = np.frombuffer(self._memory, np.uint8, place.size, place.start)  # a slice of bytes would not be kept
        self._uses.watch(view, place.buffer)
        return view

    def discard(self, start: int, size: int) -> None:
        """Gives the memory of a range back to the system."""
        page = mmap.PAGESIZE
        with suppress(OSError, AttributeError):  # without it the memory is only freed later
            self._memory.madvise(mmap.MADV_REMOVE, start, -(-size // page) * page)


class SharedBuffers:
    """Buffers of an arena, for the process that fills them. Thread-safe.

    A buffer is free when no tensor of this process views it, and the other process has freed it.

    Args:
        arena: memory of the buffers.
        begin: the first byte that may be used.
    """

    def __init__(self, arena: SharedArena, begin: int) -> None:
        self._arena = arena
        self._lock = threading.Lock()
        self._is_written = np.zeros(_MOST_BUFFERS, np.uint8)
        self._uses = _Uses(self._is_written)
        self._places: list[Place] = []  # every buffer with its capacity
        self._spare: list[int] = []  # numbers of buffers that were given up as too small
        self._end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE

    def buffer(self, size: int) -> Bytes:
        """Returns a buffer, uint8 [size]: a source of a :class:`MemoryPool`."""
        return self.allocate(size)[1]

    def allocate(self, size: int) -> tuple[Place, Bytes]:
        """Returns the place of a buffer and its bytes, uint8 [size].

        Raises:
            MemoryError: if no buffer is free and there is no room for another one.
        """
        with self._lock:
            place = self._free_place(size) or self._new_place(size)
            self._is_written[place.buffer] = 1
        taken = Place(place.buffer, place.start, size)
        view = self._arena.bytes[taken.start : taken.start + size]
        self._uses.watch(view, taken.buffer)
        return taken, view

    def place_of(self, address: int) -> Place | None:
        """Returns the place of the whole buffer that memory at an address is in; None if it cannot be handed over.

        It is in no buffer, or in one that the other process has already, such as for a batch that is given twice.
        """
        start = address - self._arena.bytes.ctypes.data
        with self._lock:
            found = next((place for place in self._places if place.start <= start < place.start + place.size), None)
        return None if found is None or self._arena.is_read[found.buffer] else found

    def offset(self, address: int, place: Place) -> int:
        """Returns the byte of a place that lies at an address."""
        return address - self._arena.bytes.ctypes.data - place.start

    def hand_over(self, place: Place) -> None:
        """Hands a buffer to the other process, which frees it."""
        self._arena.is_read[place.buffer] = 1

    def _free_place(self, size: int) -> Place | None:
        """Returns the smallest free buffer of a similar size; without one, gives up those that are a bit too small."""
        used = self._is_written | self._arena.is_read
        free = [place for place in self._places if not used[place.buffer]]
        fitting = [place for place in free if size <= place.size <= _SIMILAR * size + mmap.PAGESIZE]
        if fitting:
            return min(fitting, key=lambda place: place.size)
        for place in free:
            if size / _SIMILAR <= place.size < size:
                self._arena.discard(place.start, place.size)
                self._places.remove(place)
                self._spare.append(place.buffer)
        return None

    def _new_place(self, size: int) -> Place:
        capacity = -(-int(size * _ROUND) // mmap.PAGESIZE) * mmap.PAGESIZE
        number = self._spare.pop() if self._spare else len(self._places)
        if number >= _MOST_BUFFERS or self._end + capacity > len(self._arena.bytes):
            raise MemoryError(f"no shared memory is left for a batch of {size:,} bytes: too many batches are in use")
        place = Place(number, self._end, capacity)
        self._end += capacity
        self._places.append(place)
        return place


_memory = threading.local()


@lru_cache(maxsize=256)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns the values as a tensor [N], which nobody may write to: equal constants share it.

    ``torch.tensor(..., device="cuda")`` waits until all work queued before it is done: created in every batch, it would
    keep the training thread from running ahead of its device.

    Args:
        values: any numbers; rounded to float32 first if they are not integers, as ``torch.tensor`` does.
        dtype: dtype of the tensor.
        device: device of the tensor, which stays there as long as the process runs.
    """
    with torch.inference_mode(False):  # else it could not be saved for a backward pass outside of that mode
        return plain_tensor(values).to(dtype).to(device)


def plain_tensor(values: Any) -> Tensor:
    """Returns numbers as ``torch.tensor`` does, but on the CPU, and floats as float32, whatever torch's defaults are.

    Raises:
        ValueError, TypeError, RuntimeError, OverflowError: those of ``torch.tensor``.
    """
    inferred = torch.tensor(values, device="cpu").dtype
    return torch.tensor(
        values, dtype=torch.float32 if inferred == torch.get_default_dtype() else inferred, device="cpu"
    )


def scratch(use: str, shape: Sequence[int], dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
    """Returns uninitialized contiguous memory, valid until the same thread asks for the same ``use`` again.

    It is no tensor, as those give the interpreter lock away when they are made into arrays, and when they die.

    Args:
        use: name of the purpose; each has memory of its own in each thread.
        shape: shape of the array.
        dtype: dtype of the array.
    """
    size, flat = math.prod(shape), getattr(_memory, use, None)
    if flat is None or len(flat) < size or flat.dtype != dtype:
        flat = np.empty(size, dtype)
        setattr(_memory, use, flat)
    found: npt.NDArray[Any] = flat[:size].reshape(shape)
    return found
