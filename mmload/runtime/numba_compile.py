"""Functions that numba compiles: declared here without numba, and called as plain C functions.

Their machine code comes with the package or from a cache (:mod:`mmload.runtime.machine_code`). numba is imported only
where neither has it: a kernel is then compiled by its first call.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mmload.runtime.declarations import Part, Signature
from mmload.runtime.machine_code import BOUNDS_CHECK, load, symbol_of
from mmload.runtime.records import packer

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

_RESULTS = "void", "boolean", "int64"


class Kernel(Part):
    """Function that is called as machine code for one signature.

    Args:
        function: the plain function.
        signature: types of its arguments.
        nogil: whether it releases the interpreter lock.
    """

    def __init__(self, function: Callable[..., Any], signature: Signature, nogil: bool) -> None:
        super().__init__(function)
        if signature.result not in _RESULTS:
            raise TypeError(f"{function.__name__} returns {signature.result}; a kernel returns one of {_RESULTS}")
        self.signature, self.nogil = signature, nogil
        self._address = 0

    def __call__(self, *arguments: Any) -> Any:
        if not self._address:
            self._load()
        return self._run(self._pack(*arguments))

    @property
    def address(self) -> int:
        """Address at which other kernels call it, by :class:`~mmload.runtime.declarations.CallBy`."""
        if not self._address:
            self._load()
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

    def _load(self) -> None:
        with _loading:
            if self._address:
                return
            address = self._checked_address() if BOUNDS_CHECK else load(self.symbol, self.compile)
            kind = ctypes.CFUNCTYPE if self.nogil else ctypes.PYFUNCTYPE
            self._run = kind(ctypes.c_int64, ctypes.c_char_p)(address)
            self._pack = packer(self.function.__name__, self.signature)
            self._address = address

    def _checked_address(self) -> int:
        """Compiles it with bounds checks, which say what they find on stderr, by numba's own linker."""
        from mmload.runtime.kernel_compiler import c_function

        self._checked = c_function(self, self.signature)
        return int(self._checked.address)


_kernels: dict[tuple[Callable[..., Any], Signature], Kernel] = {}
_loading = threading.RLock()
_spent: list[float] = []

if hasattr(os, "register_at_fork"):  # a forked process would wait for a thread of its parent, here and in LLVM
    os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)


def numba_compiled(*signatures: Signature | str, nogil: bool = True) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Declares a kernel: a function that is compiled for the given signatures.

    A kernel takes numbers, arrays and named tuples of them, and returns an integer, a boolean or nothing. It allocates
    nothing and raises nothing: arrays of its own are carved out of an :mod:`~mmload.runtime.arena`.

    Args:
        signatures: such as ``"void(uint8[::1], float32)"``; :func:`variant` takes one of several.
        nogil: whether it releases the interpreter lock; functions that take microseconds should keep it, as another
            thread may acquire it before this one gets it back.
    """
    parsed = [Signature.parsed(one) if isinstance(one, str) else one for one in signatures]

    def declare(function: Callable[..., R]) -> Callable[..., R]:
        kernels = [Kernel(function, signature, nogil) for signature in parsed]
        _kernels.update({(function, kernel.signature): kernel for kernel in kernels})
        return kernels[0] if len(kernels) == 1 else Part(function)

    return declare


def filled(kernel: Callable[..., Any], shape: int | tuple[int, ...], dtype: DTypeLike, *arguments: Any) -> NDArray[Any]:
    """Returns a new array that a kernel fills, which takes it after the arguments."""
    out = np.empty(shape, dtype)
    kernel(*arguments, out)
    return out


def variant(kernel: F, signature: Signature) -> F:
    """Returns a kernel for one of the signatures that it is declared with.

    Raises:
        KeyError: if it has no such signature.
    """
    plain: Any = getattr(kernel, "function", kernel)
    found: Any = _kernels[plain, signature]
    one: F = found
    return one


def kernels() -> Iterator[Kernel]:
    """Yields each kernel of the modules that are imported, for each of its signatures."""
    yield from _kernels.values()


def compile_seconds() -> float:
    """Returns the seconds that this process has spent on compiling kernels; 0 where all had machine code."""
    return sum(_spent)


def address_of(kernel: Callable[..., Any], signature: Signature) -> int:
    """Returns the address of a kernel for a signature; compiled functions call it by that."""
    one: Any = variant(kernel, signature)
    return int(one.address)
