"""Functions compiled by numba when they are first imported, and kept as machine code for every later process.

The code is kept beside the source, or in the user's cache where that cannot be written to (``NUMBA_CACHE_DIR`` names
another place); where neither can be, or what is kept there is damaged, a process compiles for itself, for some seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(*signatures: str, nogil: bool = True) -> Callable[[F], F]:
    """Compiles a function for arguments of these types.

    Args:
        signatures: in numba's notation, such as ``"void(uint8[::1], float32)"``.
        nogil: whether it runs without the interpreter lock; what takes microseconds had better keep it, as another
            thread may take its turn before this one has it back.
    """

    def compile_(function: F) -> F:
        try:
            made: Any = njit(list(signatures), nogil=nogil, cache=True)(function)
        except (RuntimeError, OSError, EOFError, UnpicklingError):  # no place, no space, or not what was written
            made = njit(list(signatures), nogil=nogil)(function)
        kept: F = made
        return kept

    return compile_


def inlined(function: F) -> F:
    """A function that compiled ones call: it becomes part of them."""
    made: Any = njit(nogil=True, inline="always")(function)
    part: F = made
    return part


def called(function: F) -> F:
    """A function that compiled ones call: compiled once for all of them, which takes less time where it is long."""
    made: Any = njit(nogil=True)(function)
    part: F = made
    return part


def fused(function: F) -> F:
    """A ``called`` one in which a product and a sum may be rounded as one: for floats that are whole numbers anyway."""
    made: Any = njit(nogil=True, fastmath={"contract"})(function)
    part: F = made
    return part
