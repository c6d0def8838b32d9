"""Memory for batches, reused as soon as no tensor refers to it.

On a CPU a fresh output batch costs more than all the arithmetic in it, since the kernel zeroes every page. So buffers
are pooled, and a buffer returns when the last tensor that views it is freed: the pool watches the storage's owner, not
a counter that the user must respect. A batch that is still referenced is never overwritten.
"""

from __future__ import annotations

import weakref
from collections import deque
from math import prod

import numpy as np
import torch
from torch import Tensor

SIZES = 8
"""Number of batch sizes whose buffers are kept: an epoch has two, one for its last batch; more would fill memory."""

PAST_CACHES, PAST_CACHES_SAMPLE = 8 * 2**20, 2**16
"""Lower bounds on the bytes of a batch, and of a sample in it, for streaming stores, which bypass the caches."""

_ALIGN = 64


class MemoryPool:
    """Buffers by size; thread-safe (deques are). Copies and pickles of it are empty.

    Args:
        spare: upper bound on the unused buffers of one size; buffers are kept for the last :data:`SIZES` sizes.
    """

    def __init__(self, spare: int) -> None:
        self._spare = spare
        self._free: dict[int, deque[np.ndarray]] = {}

    def __reduce__(self) -> tuple[type[MemoryPool], tuple[int]]:
        return MemoryPool, (self._spare,)

    def empty(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> Tensor:
        """An uninitialized CPU tensor like ``torch.empty``'s.

        Args:
            shape: any, 4-dimensional for channels_last.
            dtype: any.
            memory_format: ``torch.contiguous_format`` or ``torch.channels_last``.
        """
        size = prod(shape) * dtype.itemsize
        if size == 0:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(self._buffer(size), dtype=dtype)
        if memory_format == torch.channels_last:
            batch, channels, height, width = shape
            return flat.view(batch, height, width, channels).permute(0, 3, 1, 2)
        return flat.view(shape)

    def _buffer(self, size: int) -> np.ndarray:
        """A view of a buffer of the pool; torch keeps the view alive as long as a tensor uses its memory."""
        free = self._free.get(size)
        if free is None:
            free = self._free.setdefault(size, deque(maxlen=self._spare))
            for oldest in list(self._free)[:-SIZES]:
                self._free.pop(oldest, None)
        try:
            base = free.pop()
        except IndexError:
            base = _aligned(size)
        view = base[:]
        weakref.finalize(view, free.append, base).atexit = False
        return view


def past_caches(count: int, sample: int) -> bool:
    """Whether a batch of ``count`` samples of ``sample`` bytes each is too large to stay in the caches."""
    return sample >= PAST_CACHES_SAMPLE and count * sample >= PAST_CACHES


def _aligned(size: int) -> np.ndarray:
    """Bytes aligned to a cache line, so that every buffer is equally fast (and numpy requests huge pages)."""
    raw = np.empty(size + _ALIGN, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGN
    return raw[start : start + size]
