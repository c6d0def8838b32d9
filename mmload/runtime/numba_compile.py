"""Functions that numba compiles: declared here without numba, and called as plain C functions.

Their machine code comes with the package or from a cache (:mod:`mmload.runtime.machine_code`). numba is imported only
where neither has it: a kernel is then compiled by its first call.

The C function of a kernel takes the address of a record: its arguments as words of eight bytes. A word is a number, or
0 or 1. An array is its address and its shape, and its strides if it need not be contiguous; a named tuple is its
fields. In Python a record is a bytes object; what it points to must live as long.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mmload.errors import UsageError
from mmload.lazy import lazy_property
from mmload.runtime.declarations import ARENA, Part, RecordArray, Signature, Type, array_of, fields_of
from mmload.runtime.intrinsics import BLOCKS, LINE, MEMORY, MOST, SIZE, USED
from mmload.runtime.machine_code import load, symbol_of

R = TypeVar("R")

if not getattr(sys, "_is_gil_enabled", lambda: True)():  # kernels and counts rely on the lock
    raise UsageError("mmload needs Python's interpreter lock, without which this Python runs: set PYTHON_GIL=1")


class Kernel(Part, Generic[R]):
    """Function that is called as machine code, for one signature.

    Args:
        function: the plain function.
        signature: types of its arguments.
        nogil: whether it releases the interpreter lock.
    """

    def __init__(self, function: Callable[..., R], signature: Signature, nogil: bool) -> None:
        super().__init__(function)
        self.signature, self.nogil = signature, nogil
        self._address = 0

    def __call__(self, *arguments: Any) -> R:
        return self._run(self._pack(*arguments))  # type: ignore[no-any-return]  # as its signature says

    @lazy_property
    def _run(self) -> Any:
        kind = ctypes.CFUNCTYPE if self.nogil else ctypes.PYFUNCTYPE
        return kind(ctypes.c_int64, ctypes.c_char_p)(self.address)

    @lazy_property
    def _pack(self) -> Callable[..., bytes]:
        return packer(self.function.__name__, self.signature)

    @property
    def address(self) -> int:
        """Address at which other kernels call it, by :class:`~mmload.runtime.declarations.CallBy`."""
        if not self._address:  # else no lock, which another thread may hold while it compiles
            with _loading:
                self._address = self._address or load(self.symbol, self.compile)
        return self._address

    @property
    def symbol(self) -> str:
        """Name of its C function, which has a digest of its source."""
        return symbol_of(self.function, str(self.signature))

    def compile(self) -> bytes:
        """Compiles it; returns an object file."""
        began = time.perf_counter()
        from mmload.runtime.kernel_compiler import compile_object  # imports numba

        code = compile_object(self, self.signature, self.symbol)
        _spent.append(time.perf_counter() - began)
        return code


KERNELS: list[Kernel[Any]] = []
"""All kernels of the modules that are imported."""

_loading = threading.RLock()
_spent: list[float] = []

if hasattr(os, "register_at_fork"):  # a forked process would wait for a thread of its parent, here and in LLVM
    os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)


def numba_compiled(signature: Signature | str, nogil: bool = True) -> Callable[[Callable[..., R]], Kernel[R]]:
    """Declares a kernel: a function that is compiled for a signature.

    A kernel takes numbers, arrays and named tuples of them, and returns an integer, a boolean or nothing. It allocates
    nothing and raises nothing: arrays of its own are carved out of an arena (:mod:`mmload.runtime.intrinsics`).

    Args:
        signature: such as ``"void(uint8[::1], float32)"``.
        nogil: whether it releases the interpreter lock; functions that take microseconds should keep it, as another
            thread may acquire it before this one gets it back.
    """
    parsed = Signature.parsed(signature) if isinstance(signature, str) else signature

    def declare(function: Callable[..., R]) -> Kernel[R]:
        kernel = Kernel(function, parsed, nogil)
        KERNELS.append(kernel)
        return kernel

    return declare


def filled(kernel: Callable[..., Any], shape: int | tuple[int, ...], dtype: DTypeLike, *arguments: Any) -> NDArray[Any]:
    """Returns a new array that a kernel fills, which takes it after the arguments."""
    out = np.empty(shape, dtype)
    kernel(*arguments, out)
    return out


def compile_seconds() -> float:
    """Returns the seconds that this process has spent on compiling kernels; 0 where all had machine code."""
    return sum(_spent)


_FORMATS = {"boolean": "?7x", "float32": "d", "float64": "d", "uint64": "Q", "uintp": "Q"}
_WORD = 2**64 - 1


def packer(name: str, signature: Signature) -> Callable[..., bytes]:
    """Returns the function that makes the record of a kernel's arguments; ``name`` is that of the kernel.

    It is compiled from a text with a line per argument: a call has up to 50 arrays.

    Raises:
        TypeError: by the function, if an argument is of another type, or cannot be written.
    """
    text = _Text()
    arguments = [(text.add(kind), kind) for kind in signature.arguments]
    given = ", ".join(argument for argument, kind in arguments if kind != ARENA)
    words, forms = zip(*text.words, strict=True)
    text.known["pack"] = struct.Struct("=" + "".join(forms)).pack
    lines = [*text.lines, f"return pack({', '.join(words)})"]
    exec(f"def record({given}):\n " + "\n ".join(lines), text.known)
    made: Callable[..., bytes] = text.known["record"]
    made.__qualname__ = name  # for errors
    return made


class _Text:
    """Text of a function that packs arguments of some types.

    Attributes:
        lines: its lines.
        words: texts of words that it packs, and their formats.
        known: its global variables.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.words: list[tuple[str, str]] = []
        self.known: dict[str, Any] = {
            "arena_words": arena_words,
            "addressof": ctypes.addressof,
            "View": (ctypes.c_char * 0).from_buffer,  # refuses memory that is not contiguous, or cannot be written
            "check": _check,
        }

    def add(self, kind: Type) -> str:
        """Adds a value of a type; returns the name of its variable."""
        name = f"_{len(self.known)}"
        self.known[name] = kind
        if kind == ARENA:
            self.words.append(("*arena_words()", "Qq"))
        elif isinstance(kind, type):
            place = len(self.lines)
            self.lines.insert(place, f"{''.join([self.add(field) + ', ' for field in fields_of(kind)])}= {name}")
        else:
            self._add_plain(name, kind)
        return name

    def _add_plain(self, name: str, kind: str | RecordArray) -> None:
        """Adds a number or an array."""
        dtype, ndim, is_contiguous = array_of(kind)
        if not ndim:
            form = _FORMATS.get(str(dtype), "q")
            self.words.append((f"int({name}) & {_WORD}" if form == "Q" else name, form))
            return
        self.known[f"{name}_dtype"] = np.dtype("bool" if dtype == "boolean" else dtype)
        self.lines.append(
            f"if {name}.dtype is not {name}_dtype or {name}.ndim != {ndim}: check({name}, {name}_dtype, {ndim})"
        )
        if is_contiguous:
            self.words.append((f"addressof(View({name})), *{name}.shape", "Q" + ndim * "q"))
        else:
            self.words.append((f"{name}.ctypes.data, *{name}.shape, *{name}.strides", "Q" + 2 * ndim * "q"))


def _check(array: np.ndarray, dtype: np.dtype[Any], ndim: int) -> None:
    """Raises TypeError if an array has another dtype or number of dimensions."""
    if array.dtype != dtype or array.ndim != ndim:
        raise TypeError(f"a kernel takes {dtype} in {ndim} dimensions, and got {array.dtype} in {array.ndim}")


_FIRST_BYTES = 2**18


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
            ctypes.PyDLL(None).free(ctypes.c_void_p(block))  # keeps the interpreter lock

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
