"""What kernels call where loops cannot say it, and their working memory, an arena per thread.

:mod:`mmload.runtime.numba_intrinsics` generates the code.

A kernel that needs working memory has an argument of the type :data:`~mmload.runtime.kernels.ARENA`. What is
carved out of it is valid until the call from Python ends, or until the kernel sets the number of used bytes back, as in
a loop over samples. Where more is needed than there is, the arena takes twice as much from the C library.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.runtime.kernels import MEMORY, SIZE, USED, External, Intrinsic, called, inlined

LINE = 64
"""Bytes of a cache line."""

TRANSPOSED_ROWS, TRANSPOSED_COLUMNS = 32, 16
"""Lines of a block that ``transpose`` transposes, and bytes of each."""

NEIGHBORS, NEAR_WORDS = 16, 64
"""Values that ``blend_neighbors`` computes, and numbers of a line that it reads for them."""

MEAN_BITS, MEAN_HALF = 22, (1 << 21) + (1 << 14)
"""Bits by which it shifts a weighted sum, and what it adds before: half of a level, and of a unit of the numbers."""

fma: Any = Intrinsic("fma")
"""In compiled functions, ``fma(a, b, c)`` is a * b + c of float32, rounded once, as torch's kernels round it."""


@inlined
def pair(words: Any, at: np.uintp) -> np.uint64:
    """Reads two neighbors of a uint32 array, by one load of LLVM's; the first is in the lower half."""
    return np.uint64(words[at]) | np.uint64(words[at + np.uintp(1)]) << np.uint64(32)


select: Any = Intrinsic("select")
"""In compiled functions, ``select(condition, first, second)`` chooses without a branch, which may not vectorize."""

stack_memory: Any = Intrinsic("stack_memory")
"""In compiled functions, ``stack_memory(size)`` is the address of so many uninitialized bytes on the stack, a constant.

LLVM knows that nothing else refers to them: between two loops over a few vectors, values stay in registers.
"""

never_inline: Any = Intrinsic("never_inline")
"""In compiled functions, ``never_inline()`` forbids LLVM to inline the function that calls it into its callers.

Inside of a large function LLVM no longer recognizes that loops may be vectorized: a blur took three times as long.
"""

prefetch: Any = Intrinsic("prefetch")
"""In compiled functions, ``prefetch(bytes, at)`` asks for the cache line of a byte of a flat uint8 array."""

array_at: Any = Intrinsic("array_at")
"""In compiled functions, ``array_at(address, shape, dtype)`` is the contiguous array at an address.

The shape is a number or a tuple.
"""


@inlined
def reshaped(array: Any, shape: Any) -> Any:
    """Returns the memory of a contiguous array in another shape."""
    return array_at(array.ctypes.data, shape, array.dtype)


_stream_line: Any = Intrinsic("stream_line")


@inlined
def stream(source: Any, out: Any, at: int | np.uintp, count: int | np.uintp) -> None:
    """Copies ``count`` values to ``out`` from ``at`` on, with stores that bypass the caches.

    A store into a cache first reads the memory that it replaces: half of the traffic, if the output is too large to
    stay in the cache. Both arrays are flat and have the same dtype; the values, and the offset ``at``, are multiples of
    a cache line. Other threads see the values after ``finish_streams()``.
    """
    for i in range(np.uintp(0), np.uintp(count), np.uintp(LINE // source.itemsize)):
        _stream_line(source, i, out, np.uintp(at) + i)


finish_streams: Any = Intrinsic("finish_streams")
"""In compiled functions, ``finish_streams()`` is a fence after which all streamed values are visible."""

transpose: Any = Intrinsic("transpose")
"""In compiled functions, ``transpose(source, corner, pitch, out, place, across)`` transposes a block of bytes.

The block of ``TRANSPOSED_ROWS`` x ``TRANSPOSED_COLUMNS`` begins at ``source[corner]``, and its transpose at
``out[place]``. Both arrays are flat uint8; ``pitch`` and ``across`` are the lengths of their lines, all numbers are
unsigned. A block takes 64 shuffles of vectors. Words of eight bytes that exchange bytes, pairs and fours by shifts and
masks took seven times as long: half of the time of a resize.
"""

rounded: Any = Intrinsic("rounded")
"""In compiled functions, ``out[i] = rounded(value, out)`` stores a float32 into an array of half precision, or another.

numpy has no bfloat16, and numba no float16 on CPUs: int16 stands for the bits of float16, uint16 for those of bfloat16.
A value is rounded once, to nearest even, with the bits that torch gives. A crop takes 0.85 of the CPU time of a float32
one to float16 and as long to bfloat16: half as many bytes are written, which pays for the conversion. A table of the
256 levels of a channel would be as exact, but loads of single values do not vectorize.
"""

colored: Any = Intrinsic("colored")
"""In compiled functions, ``out[i] = colored(level, less, times, out)`` stores (level - less) * times of a uint8 level.

It is float32, rounded as ``rounded`` does. Outputs of uint8 have no color map: the level is stored as it is, without
which a crop of 640 x 640 took 100 us in place of 30.
"""

blend_neighbors: Any = Intrinsic("blend_neighbors")
"""In compiled functions, it writes ``NEIGHBORS`` weighted means of two numbers for each channel, as bytes.

``blend_neighbors(line, (base, pitch), picks, weights, at, out, (place, size), channels)`` takes numbers from a
flat int16 array: 1/128 of a level, rounded down. Those of channel c are counted from ``base`` + c ``pitch`` on. Each of
the sums ``line[picks[i]] * weights[i]`` + ``line[picks[i + 1]] * weights[i + 1]`` for i = 2 ``at``, 2 ``at`` + 2, ...
is negated and rounded to a level, from ``out[place + c * size]`` on. Picks, flat uint16, are below ``NEAR_WORDS``, and
as many numbers are there; weights, flat int16, are negative, so that 2^15 is one of them. AVX-512 picks numbers by one
instruction. Without it (``picks_any_pair``) the second pick of each pair must be the number after the first: both are
one load.
"""

picks_any_pair: Any = Intrinsic("picks_any_pair")
"""In compiled functions, it tells whether there may be other numbers between those of a pair of ``blend_neighbors``."""

Arena = npt.NDArray[np.int64]
"""Head of an arena in kernels: :data:`~mmload.runtime.kernels.MEMORY` and the numbers beside it."""

_LEAST = 2**18
"""Bytes of the first memory of an arena."""
_ALLOCATE = External("aligned_alloc", "uintp(uintp, uintp)")


@called
def _take(arena: Arena, size: int) -> int:
    """Returns the address of so many bytes, which begins a cache line."""
    begin = (arena[USED] + (LINE - 1)) // LINE * LINE
    arena[USED] = begin + size
    if arena[USED] > arena[SIZE]:
        before = arena[MEMORY]
        arena[SIZE] = max(_LEAST, (arena[USED] + (LINE - 1)) // LINE * (2 * LINE))
        arena[MEMORY] = _ALLOCATE(np.uintp(LINE), np.uintp(arena[SIZE]))
        array_at(np.uintp(arena[MEMORY]), 1, np.int64)[0] = before
    return np.uintp(arena[MEMORY] + begin)  # type: ignore[return-value]


@inlined
def carve(arena: Arena, shape: Any, dtype: Any) -> Any:
    """Returns an uninitialized array of an arena; the shape is a number or a tuple."""
    return array_at(_take(arena, array_at(np.uintp(0), shape, dtype).nbytes), shape, dtype)
