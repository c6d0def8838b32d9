"""Functions that numba compiles: declared here without numba, and called as machine code.

Machine code comes with the package or from a cache (:mod:`mmload.runtime.machine_code`). numba is imported only where
neither has it: a kernel is then compiled by its first call.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from mmload.runtime.declarations import Part, Signature
from mmload.runtime.machine_code import MachineCode, file_name, load

F = TypeVar("F", bound=Callable[..., Any])


class Kernel(Part):
    """Function as machine code, for each of some signatures: a call takes the first that fits its arguments."""

    def __init__(self, function: Callable[..., Any], signatures: tuple[Signature | str, ...], nogil: bool) -> None:
        super().__init__(function)
        self.signatures, self.nogil = signatures, nogil
        self._first: Callable[..., Any] = self._load_first
        self._codes: dict[str, MachineCode] = {}

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self._first(*arguments)
        except SystemError as error:
            raise _raised(error) from None
        except TypeError:  # nothing has been run
            if len(self.signatures) == 1:
                raise
        for signature in self.signatures[1:-1]:
            try:
                return self.code(signature).call(*arguments)
            except TypeError:
                continue
        return self.code(self.signatures[-1]).call(*arguments)

    def code(self, signature: Signature | str) -> MachineCode:
        """Returns the machine code for a signature; compiles it if there is none."""
        text = str(signature)
        found = self._codes.get(text)
        if found is None:
            with _loading:
                found = self._codes.get(text)
                if found is None:
                    found = self._codes[text] = load(self.function, text, self.nogil, lambda: self.compile(signature))
        return found

    def file_name(self, signature: Signature | str) -> str:
        """Returns the name of the file with the machine code for a signature."""
        return file_name(self.function, str(signature), self.nogil)

    def compile(self, signature: Signature | str) -> bytes:
        """Compiles the function for a signature; returns an object file."""
        began = time.perf_counter()
        from mmload.runtime.numba_internals import compile_object  # imports numba

        code = compile_object(self.function, signature, self.nogil)
        _spent.append(time.perf_counter() - began)
        return code

    def _load_first(self, *arguments: Any) -> Any:
        self._first = self.code(self.signatures[0]).call
        return self._first(*arguments)


_kernels: dict[tuple[Callable[..., Any], str], Kernel] = {}
_loading = threading.RLock()
_spent: list[float] = []

if hasattr(os, "register_at_fork"):  # a forked process would wait for a thread of its parent, here and in LLVM
    os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)


def numba_compiled(*signatures: Signature | str, nogil: bool = True) -> Callable[[F], F]:
    """Declares a kernel: a function that is compiled for the given signatures.

    A kernel takes numbers, arrays and named tuples of them, and returns numbers or nothing.

    Args:
        signatures: in numba's notation, such as ``"void(uint8[::1], float32)"``, or :class:`Signature`.
        nogil: whether it releases the interpreter lock; functions that take microseconds should keep it, as another
            thread may acquire it before this one gets it back.
    """

    def declare(function: F) -> F:
        kernel: Any = Kernel(function, signatures, nogil)
        for signature in signatures:
            one = kernel if len(signatures) == 1 else Kernel(function, (signature,), nogil)
            _kernels[function, str(signature)] = one
        declared: F = kernel
        return declared

    return declare


def variant(kernel: F, signature: Signature | str) -> F:
    """Returns a kernel for one of the signatures that it is declared with.

    Raises:
        KeyError: if it has no such signature.
    """
    plain: Any = getattr(kernel, "function", kernel)
    found: Any = _kernels[plain, str(signature)]
    one: F = found
    return one


def kernels() -> Iterator[tuple[Kernel, Signature | str]]:
    """Yields each kernel of the modules that are imported, with each of its signatures."""
    for kernel in _kernels.values():
        for signature in kernel.signatures:
            yield kernel, signature


def compile_seconds() -> float:
    """Returns the seconds that this process has spent on compiling kernels; 0 where all had machine code."""
    return sum(_spent)


def address_of(kernel: Callable[..., Any], signature: Signature | str) -> int:
    """Returns the address of a kernel's machine code for a signature; compiled functions call it by that."""
    one: Any = variant(kernel, signature)
    return int(one.code(signature).address)


def _raised(error: SystemError) -> BaseException:
    """Returns the exception that a kernel has raised: numba pickles it when it compiles."""
    [pickled] = error.args
    if not isinstance(pickled, bytes):
        return error
    kind, arguments, *_ = pickle.loads(pickled)  # constants of machine code that was checked
    raised: BaseException = kind(*arguments)
    return raised
