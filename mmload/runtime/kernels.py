"""Functions that numba compiles: declared here without numba, and called as plain C functions.

First stands what kernels are declared with: types and the functions that they call. Then the kernel, and
the record that it takes.

Their machine code comes with the package or from a cache (:mod:`mmload.runtime.machine_code`). numba is imported only
where neither has it: a kernel is then compiled by its first call.

The C function of a kernel takes the address of a record: its arguments as words of eight bytes. A word is a number, or
0 or 1. An array is contiguous: its address and its shape; a named tuple is its fields. In Python a record is a bytes
object; what it points to must live as long.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial, update_wrapper
from importlib import import_module
from typing import Any, Generic, NamedTuple, TypeVar, cast, get_type_hints

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mmload.errors import UsageError
from mmload.lazy import lazy_property
from mmload.runtime.machine_code import load, symbol_of

if not getattr(sys, "_is_gil_enabled", lambda: True)():  # kernels and counts rely on the lock
    raise UsageError("mmload needs Python's interpreter lock, without which this Python runs: set PYTHON_GIL=1")

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

ARENA = "arena"
"""Type of the argument of kernels that need working memory: an arena of :mod:`mmload.runtime.intrinsics`, which is
added to the arguments of each call from Python."""

_TYPE = re.compile(r"\w+(?:\[[:, 1]+\])?")


@dataclass(frozen=True)
class RecordArray:
    """Type of a contiguous array of records.

    Attributes:
        dtype: dtype of a record.
        ndim: number of dimensions.
    """

    dtype: np.dtype[Any]
    ndim: int = 1


Type = str | RecordArray | type
"""Type of an argument; a string is a number or array in numba's notation, such as ``"uint8[:, ::1]"``, or ARENA.

A class is that of a named tuple, whose fields are annotated by :data:`typing.Annotated` with their types; ``int``,
``float`` and ``bool`` need no more.
"""

_PLAIN = {int: "int64", float: "float64", bool: "boolean"}


@cache
def fields_of(kind: type) -> tuple[Type, ...]:
    """Returns the types of the fields of a named tuple."""
    hints = get_type_hints(kind, include_extras=True).values()
    return tuple(hint.__metadata__[-1] if hasattr(hint, "__metadata__") else _PLAIN.get(hint, hint) for hint in hints)


def array_of(kind: str | RecordArray) -> tuple[Any, int]:
    """Returns the dtype of a number or contiguous array, and its number of dimensions."""
    if isinstance(kind, RecordArray):
        return kind.dtype, kind.ndim
    dtype, _, sides = kind.partition("[")
    return dtype, sides.count(":") - sides.count("::")


class Part:
    """Function that kernels call, and that is compiled with them; from Python it is the plain function.

    Args:
        function: the plain function.
        options: arguments of numba's ``njit``.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        update_wrapper(self, function)
        self.function, self.options = function, options

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def inlined(function: F) -> F:
    """Marks a function that is inlined into compiled ones."""
    return cast(F, Part(function, inline="always"))


def called(function: F) -> F:
    """Marks a function that compiled ones call: compiled once for all of them, which saves time for long functions."""
    return cast(F, Part(function))


def fused(function: F) -> F:
    """Acts as :func:`called`, but lets a product and a sum be rounded once: for floats that are exact integers."""
    return cast(F, Part(function, fastmath={"contract"}))


class Intrinsic:
    """Function that only kernels can call: one of :mod:`mmload.runtime.numba_intrinsics`, or made by one of it.

    Args:
        name: its name there.
        parts: arguments of the function that makes it; none: it is there as it is.
    """

    def __init__(self, name: str, *parts: Any) -> None:
        self.name, self.parts = name, parts

    def __call__(self, *arguments: Any) -> Any:
        raise RuntimeError(f"{self.name} is for compiled functions only")


External = partial(Intrinsic, "external")
"""``External(name, signature)`` is a function of the C library; the signature is in numba's notation."""

CallC = partial(Intrinsic, "call_c")
"""``call = CallC(signature)`` lets kernels call the C function at an address: ``call(address, arguments)``.

So they call functions of libraries that are found at run time.
"""


class Kernel(Part, Generic[R]):
    """Function that is called as machine code.

    Args:
        function: the plain function.
        kinds: types of its arguments.
        returns: type of its result.
        nogil: whether it releases the interpreter lock.
    """

    def __init__(self, function: Callable[..., R], kinds: Sequence[Type], returns: str, nogil: bool) -> None:
        super().__init__(function)
        self.kinds, self.returns, self.nogil = kinds, returns, nogil
        self._address = 0
        KERNELS.append(self)

    def __call__(self, *arguments: Any) -> R:
        return self._run(self._pack(*arguments))  # type: ignore[no-any-return]  # as its signature says

    @lazy_property
    def _run(self) -> Any:
        kind = ctypes.CFUNCTYPE if self.nogil else ctypes.PYFUNCTYPE
        return kind(ctypes.c_int64, ctypes.c_char_p)(self.address)

    @lazy_property
    def _pack(self) -> Callable[..., bytes]:
        return ArgumentRecord(self.kinds).writer(self.function.__name__)

    def prepare(self, *arguments: Any) -> KernelCall:
        """Prepares a call, in the thread that makes it."""
        return KernelCall(self, self._pack(*arguments), arguments)

    @property
    def address(self) -> int:
        """Address of its C function, at which other kernels call it."""
        if not self._address:  # else no lock, which another thread may hold while it compiles
            with _loading:
                self._address = self._address or load(self.symbol, self.compile)
        return self._address

    @property
    def symbol(self) -> str:
        """Name of its C function, which has a digest of its source."""
        return symbol_of(self.function, repr((self.kinds, self.returns)))

    def compile(self) -> bytes:
        """Compiles it; returns an object file."""
        compiler = import_module("mmload.runtime.kernel_compiler")  # imports numba, and this file
        made: bytes = compiler.compile_object(self)
        return made


class KernelCall(NamedTuple):
    """Call that is prepared: another kernel may make it.

    Attributes:
        kernel: the kernel.
        record: the record of its arguments.
        arguments: what the record refers to.
    """

    kernel: Kernel[Any]
    record: bytes
    arguments: tuple[Any, ...]

    @property
    def words(self) -> tuple[int, int]:
        """Addresses of the C function and of its argument."""
        return self.kernel.address, ctypes.cast(ctypes.c_char_p(self.record), ctypes.c_void_p).value or 0

    def run(self) -> None:
        """Makes the call."""
        self.kernel._run(self.record)


KERNELS: list[Kernel[Any]] = []
"""All kernels of the modules that are imported."""

_loading = threading.RLock()

if hasattr(os, "register_at_fork"):  # a forked process would wait for a thread of its parent, here and in LLVM
    os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)


def numba_compiled(*kinds: Type, returns: str = "void", nogil: bool = True) -> Callable[[Callable[..., R]], Kernel[R]]:
    """Declares a kernel: a function that is compiled for arguments of some types.

    A kernel takes numbers, arrays and named tuples of them, and returns an integer, a boolean or nothing. It allocates
    nothing and raises nothing: arrays of its own are carved out of an arena (:mod:`mmload.runtime.intrinsics`).

    Args:
        kinds: types of the arguments; of several in a row one text, such as ``"uint8[::1], float32"``.
        returns: type of the result: "void", "boolean" or an integer.
        nogil: whether it releases the interpreter lock; functions that take microseconds should keep it, as another
            thread may acquire it before this one gets it back.
    """
    texts = [_TYPE.findall(kind) if isinstance(kind, str) else [kind] for kind in kinds]

    return lambda function: Kernel(function, [kind for each in texts for kind in each], returns, nogil)


def filled(kernel: Callable[..., Any], shape: int | tuple[int, ...], dtype: DTypeLike, *arguments: Any) -> NDArray[Any]:
    """Returns a new array that a kernel fills, which takes it after the arguments."""
    out = np.empty(shape, dtype)
    kernel(*arguments, out)
    return out


_CASTS: dict[str, Any] = {"boolean": bool, "float32": np.float32, "int64": np.int64, "uint64": np.uint64}
_CASTS |= {"float64": np.float64, "uintp": np.uintp}
_FORMATS = {"boolean": "?7x", "float32": "d", "float64": "d", "uint64": "Q", "uintp": "Q"}
_WORD = 2**64 - 1


class ArgumentRecord:
    """Texts of the functions that write a record of arguments, and that read the arguments from it in compiled code.

    They are texts, as a call has up to 50 arrays.

    Attributes:
        known: names in the texts.
        forms: formats of the words, as of :mod:`struct`.
        read: text of each argument, of the arrays ``words`` and ``floats`` in compiled code.
    """

    def __init__(self, kinds: Sequence[Type]) -> None:
        self.known: dict[str, Any] = dict(_CASTS)
        self.forms: list[str] = []
        self._words: list[str] = []
        named = [(f"_{place}", kind) for place, kind in enumerate(kinds)]
        self._names = ", ".join(name for name, kind in named if kind != ARENA)
        self.read = ", ".join(self._add(*each) for each in named)

    def writer(self, name: str) -> Callable[..., bytes]:
        """Returns the function that makes the record of a kernel's arguments; ``name`` is that of the kernel.

        Raises:
            TypeError: by the function, if an argument is of another type, or cannot be written.
        """
        known = self.known | {"arena": arena, "addressof": ctypes.addressof, "checked": _checked}
        known["View"] = (ctypes.c_char * 0).from_buffer  # refuses memory that is not contiguous, or cannot be written
        known["pack"] = struct.Struct("=" + "".join(self.forms)).pack
        made: Callable[..., bytes] = eval(f"lambda {self._names}: pack({', '.join(self._words)})", known)
        made.__qualname__ = name  # for errors
        return made

    def _add(self, value: str, kind: Type) -> str:
        """Adds the words of a value, itself a text; returns the text by which it is read from them."""
        at = len(self.forms)
        if isinstance(kind, type):
            self.known[name := f"{kind.__name__}_{at}"] = kind
            return f"{name}({', '.join(self._add(f'{value}[{k}]', each) for k, each in enumerate(fields_of(kind)))})"
        if kind == ARENA:
            self._words.append("arena()")
            self.forms.append("Q")
            return f"array_at(words[{at}], {USED + 1}, int64)"
        dtype, ndim = array_of(kind)
        form = _FORMATS.get(str(dtype), "q")
        if not ndim:
            self._words.append(f"int({value}) & {_WORD}" if form == "Q" else value)
            self.forms.append(form)
            return f"{dtype}({'floats' if form == 'd' else 'words'}[{at}])"
        self.known[name := f"dtype_{at}"] = np.dtype("bool" if dtype == "boolean" else dtype)
        is_fine = f"(v := {value}).dtype is {name} and v.ndim == {ndim}"
        array = f"v if {is_fine} else checked(v, {name}, {ndim})"
        self._words.append(f"addressof(View({array})), *v.shape")
        self.forms += ["Q", *("q" * ndim)]
        sides = (f"words[{at + side}]" for side in range(1, ndim + 1))
        return f"array_at(words[{at}], ({', '.join(sides)},), {name})"


def _checked(array: np.ndarray, dtype: np.dtype[Any], ndim: int) -> np.ndarray:
    """Returns an array; raises TypeError if it has another dtype or number of dimensions."""
    if array.dtype != dtype or array.ndim != ndim:
        raise TypeError(f"a kernel takes {dtype} in {ndim} dimensions, and got {array.dtype} in {array.ndim}")
    return array


MEMORY, SIZE, USED = range(3)
"""Numbers of an arena: address and bytes of its memory, and bytes in use.

Memory begins with the address of the memory before it, which was too small, or 0: what was carved out of that is valid,
too, and places in both are different. All of it is freed when the thread ends.
"""

HEADER = 8
"""Bytes of that address."""


class _Arena:
    """Arena of a thread: the numbers from :data:`MEMORY` on."""

    def __init__(self) -> None:
        self.head = (ctypes.c_int64 * (USED + 1))()

    def __del__(self) -> None:
        while memory := self.head[MEMORY]:
            self.head[MEMORY] = ctypes.c_int64.from_address(memory).value
            ctypes.PyDLL(None).free(ctypes.c_void_p(memory))  # keeps the interpreter lock


_threads = threading.local()


def arena() -> int:
    """Returns the address of the head of this thread's arena, which is emptied."""
    own: _Arena | None = getattr(_threads, "arena", None)
    if own is None:
        own = _threads.arena = _Arena()
    own.head[USED] = HEADER
    return ctypes.addressof(own.head)
