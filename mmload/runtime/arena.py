"""Working memory of kernels: an arena per thread, which they carve arrays out of.

A kernel that needs it has an argument of the type :data:`~mmload.runtime.declarations.ARENA`. What is carved is valid
until the call from Python ends, or until the kernel sets the number of used bytes back, as in a loop over samples. A
call that needs more than there is takes blocks from the C library, and the next one finds a larger arena.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.runtime.declarations import External, called, inlined
from mmload.runtime.intrinsics import LINE, array_at

Arena = npt.NDArray[np.int64]
"""Head of an arena in kernels: the five numbers below."""

MEMORY, SIZE, USED, MOST, BLOCKS = range(5)
"""Numbers of an arena: address and bytes of its memory, bytes in use, the most that have been in use, and the address
of the last block from the C library or 0; a block begins with the address of the one before."""

_FIRST_BYTES = 2**18
_MALLOC = External("malloc", "uintp(uintp)")


@called
def _take(arena: Arena, size: int) -> int:
    """Returns the address of so many bytes, which begins a cache line."""
    begin = (arena[USED] + (LINE - 1)) // LINE * LINE
    arena[USED] = begin + size
    arena[MOST] = max(arena[MOST], arena[USED])
    if arena[USED] <= arena[SIZE]:
        return np.uintp(arena[MEMORY] + begin)  # type: ignore[return-value]
    block = _MALLOC(np.uintp(size + 2 * LINE))
    array_at(block, 1, np.int64)[0] = arena[BLOCKS]
    arena[BLOCKS] = block
    return np.uintp((block // np.uintp(LINE) + np.uintp(2)) * np.uintp(LINE))  # type: ignore[return-value]


@inlined
def carve(arena: Arena, shape: Any, dtype: Any) -> Any:
    """Returns an uninitialized array of an arena; the shape is a number or a tuple."""
    return array_at(_take(arena, array_at(np.uintp(0), shape, dtype).nbytes), shape, dtype)


class _Arena:
    """Arena of a thread."""

    def __init__(self) -> None:
        self._head = (ctypes.c_int64 * 5)()
        self.words = ctypes.addressof(self._head), len(self._head)
        self._grow(_FIRST_BYTES)

    def empty(self) -> None:
        """Sets the number of used bytes back, and makes the arena as large as was needed."""
        self._head[USED] = 0
        if self._head[BLOCKS]:
            self._free_blocks()
            self._grow(self._head[MOST])

    def _grow(self, size: int) -> None:
        self._memory = np.empty(size + LINE, np.uint8)
        address = self._memory.ctypes.data
        self._head[MEMORY], self._head[SIZE] = address + -address % LINE, size

    def _free_blocks(self) -> None:
        while block := self._head[BLOCKS]:
            self._head[BLOCKS] = ctypes.c_int64.from_address(block).value
            ctypes.CDLL(None).free(ctypes.c_void_p(block))

    def __del__(self) -> None:
        self._free_blocks()


class _Threads(threading.local):
    """Arenas of the threads."""

    def __init__(self) -> None:
        self.arena = _Arena()


_threads = _Threads()


def arena_words() -> tuple[int, int]:
    """Returns address and length of the head of this thread's arena, which is emptied."""
    arena = _threads.arena
    arena.empty()
    return arena.words
