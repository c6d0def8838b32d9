"""Memory of the host: a pool for batches, working memory of a thread, constants, and operations on arrays.

On a CPU a fresh output batch costs more than all the arithmetic in it, since the kernel zeroes every page. So buffers
are reused, and a buffer is free once the last tensor that views it is collected: what is watched is the owner of the
storage, not a counter that the user must respect. A batch that is still referenced is never overwritten.

The operations do not release the interpreter lock. A loader's thread that releases it may wait for it beside other
threads, longer than the work takes. NumPy releases it in ``zeros`` of more than 1 KiB, ``arange``, ``argsort``,
``searchsorted``, ``unique``, ``bincount``, indexing of several dimensions, and operations on more than 500 elements.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mmload.runtime.intrinsics import LINE
from mmload.runtime.kernels import External, numba_compiled

if TYPE_CHECKING:  # commands that build nothing do without torch
    import torch
    from torch import Tensor

SIZES = 8
"""Number of batch sizes whose buffers are cached: an epoch has two, one for its last batch; more would fill memory."""

PAST_CACHES, PAST_CACHES_SAMPLE = 8 * 2**20, 2**16
"""Lower bounds on the bytes of a batch, and of a sample in it, for streaming stores, which bypass the caches."""


class MemoryPool:
    """Pool of buffers by size; thread-safe (deques are). Copies and pickles of it are empty.

    Args:
        spare: upper bound on the unused buffers of one size; buffers are cached for the last :data:`SIZES` sizes.
    """

    def __init__(self, spare: int = 0) -> None:
        self._spare = spare
        self._free: dict[int, deque[np.ndarray]] = {}

    def __reduce__(self) -> tuple[type[MemoryPool], tuple[int]]:
        return MemoryPool, (self._spare,)

    def empty(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        memory_format: torch.memory_format | None = None,
    ) -> Tensor:
        """Returns an uninitialized CPU tensor like ``torch.empty``.

        Args:
            shape: any, 4-dimensional for channels_last.
            dtype: any.
            memory_format: ``torch.contiguous_format``, which None is, too, or ``torch.channels_last``.
        """
        import torch

        size = math.prod(shape) * dtype.itemsize
        if size == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        flat = torch.frombuffer(self.array((size,)), dtype=dtype)
        if memory_format == torch.channels_last:
            batch, channels, height, width = shape
            return flat.view(batch, height, width, channels).permute(0, 3, 1, 2)
        return flat.view(shape)

    def array(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
        """Returns an uninitialized array, whose memory is free again when this object is collected.

        Views do not keep it alive, as NumPy lets them refer to the owner of the memory; a tensor that
        ``torch.from_numpy`` makes of it does.
        """
        size = math.prod(shape) * np.dtype(dtype).itemsize
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
    raw = np.empty(size + LINE, dtype=np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size]


_memory = threading.local()


@lru_cache(maxsize=256)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns the values as a tensor [N], which nobody may write to: equal constants share it.

    ``torch.tensor(..., device="cuda")`` waits until all work queued before it is done: created in every batch, it would
    keep the training thread from running ahead of its device.

    Args:
        values: any numbers; rounded to float32 first if they are not integers, whatever torch's default is.
        dtype: dtype of the tensor.
        device: device of the tensor, which stays there as long as the process runs.
    """
    import torch

    numbers = np.array(values)
    with torch.inference_mode(False):  # else it could not be saved for a backward pass outside of that mode
        return torch.from_numpy(numbers.astype(np.float32 if numbers.dtype.kind == "f" else numbers.dtype)).to(
            device, dtype
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


def zeros(shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """Returns an array of zeros, of numbers or records."""
    count = math.prod(shape) if isinstance(shape, tuple) else shape
    return np.ndarray(shape, dtype, bytearray(count * np.dtype(dtype).itemsize))


def copied(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns a copy of a contiguous array."""
    return np.ndarray(array.shape, array.dtype, bytearray(array.data))


MEMCPY = External("memcpy", "uintp(uintp, uintp, uintp)")


def selected(values: npt.NDArray[Any], rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Returns ``values[rows]`` of a contiguous array; ``rows`` is int64 [B], and each in range."""
    made = np.empty((len(rows), *values.shape[1:]), values.dtype)
    _select(values.reshape(-1).view(np.uint8), rows, values[:1].nbytes, made.reshape(-1).view(np.uint8))
    return made


@numba_compiled("uint8[::1], int64[::1], int64, uint8[::1]", nogil=False)
def _select(values: npt.NDArray[np.uint8], rows: npt.NDArray[np.int64], size: int, out: npt.NDArray[np.uint8]) -> None:
    for k in range(len(rows)):
        MEMCPY(out.ctypes.data + k * size, values.ctypes.data + rows[k] * size, size)


def taken(
    values: npt.NDArray[Any], sources: npt.NDArray[np.int64], real: npt.NDArray[np.bool_], blank: float
) -> npt.NDArray[Any]:
    """Returns ``values[k, sources[k, n]]`` at [k, n], or ``blank`` where ``real`` is false.

    Args:
        values: [B, M, ...], contiguous.
        sources: int64 [B, N].
        real: bool [B, N].
        blank: value of all that is not real.
    """
    rest = values.shape[2:]
    made, empty = np.empty((*sources.shape, *rest), values.dtype), np.full((1, 1, *rest), blank, values.dtype)
    _take(_bytes_of(values), _bytes_of(empty), sources, real, _bytes_of(made))
    return made


def _bytes_of(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Returns the bytes of an array [B, M, ...] as a view: [B, M, n]."""
    size = values.dtype.itemsize * math.prod(values.shape[2:])
    return values.reshape(-1).view(np.uint8).reshape(*values.shape[:2], size)


@numba_compiled("uint8[:, :, ::1], uint8[:, :, ::1], int64[:, ::1], boolean[:, ::1], uint8[:, :, ::1]", nogil=False)
def _take(
    values: npt.NDArray[np.uint8],
    empty: npt.NDArray[np.uint8],
    sources: npt.NDArray[np.int64],
    real: npt.NDArray[np.bool_],
    out: npt.NDArray[np.uint8],
) -> None:
    for k in range(len(out)):
        for n in range(out.shape[1]):
            for place in range(out.shape[2]):
                out[k, n, place] = values[k, sources[k, n], place] if real[k, n] else empty[0, 0, place]
