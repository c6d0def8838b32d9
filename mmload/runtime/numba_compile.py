"""Functions that numba compiles: declared here without numba, and called as plain C functions.

Their machine code comes with the package or from a cache (:mod:`mmload.runtime.machine_code`). numba is imported only
where neither has it: a kernel is then compiled by its first call.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mmload.errors import UsageError
from mmload.runtime.declarations import Part, Signature
from mmload.runtime.lazy_property import lazy_property
from mmload.runtime.machine_code import load, symbol_of
from mmload.runtime.records import packer

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
    nothing and raises nothing: arrays of its own are carved out of an :mod:`~mmload.runtime.arena`.

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
