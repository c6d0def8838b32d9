"""What kernels are declared with, without numba: types and signatures, and the functions that they call."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

ARENA = "arena"
"""Type of the argument of kernels that need working memory: a :mod:`mmload.runtime.arena`, which is added to the
arguments of each call from Python."""

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

    def __str__(self) -> str:
        fields = ((name, *self.dtype.fields[name][:2]) for name in self.dtype.names or ()) if self.dtype.fields else ()
        shown = ", ".join(f"{name}: {kind.str} at {offset}" for name, kind, offset in fields)
        return f"{{{shown}; {self.dtype.itemsize}}}[{self.ndim}]"


@dataclass(frozen=True)
class TupleType:
    """Type of a named tuple.

    Attributes:
        kind: its class.
        fields: types of its fields.
    """

    kind: type
    fields: tuple[Type, ...]

    def __str__(self) -> str:
        return f"{self.kind.__name__}({', '.join(map(str, self.fields))})"


Type = str | RecordArray | TupleType
"""Type of an argument; a string is a number or array in numba's notation, such as ``"uint8[:, ::1]"``, or ARENA."""


@dataclass(frozen=True)
class Signature:
    """Types of what a kernel takes and returns.

    Attributes:
        result: type of the result: void, an integer or a boolean.
        arguments: types of the arguments.
    """

    result: str
    arguments: tuple[Type, ...]

    def __str__(self) -> str:
        return f"{self.result}({', '.join(map(str, self.arguments))})"

    @classmethod
    def parsed(cls, text: str) -> Signature:
        """Returns the signature in a text such as ``"void(uint8[:, ::1], int64)"``."""
        result, *arguments = _TYPE.findall(text)
        return cls(result, tuple(arguments))


def array_of(kind: str) -> tuple[str, int, bool]:
    """Returns the dtype of a number or array, its number of dimensions, and whether it is contiguous."""
    dtype, _, sides = kind.partition("[")
    return dtype, sides.count(":") - sides.count("::"), "::1" in sides


def tuple_type(kind: type, *fields: Type) -> TupleType:
    """Returns the type of a named tuple: its class, and the types of its fields."""
    return TupleType(kind, fields)


def void(*arguments: Type) -> Signature:
    """Returns the signature of a kernel that returns nothing."""
    return Signature("void", arguments)


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
    return _part(function, inline="always")


def called(function: F) -> F:
    """Marks a function that compiled ones call: compiled once for all of them, which saves time for long functions."""
    return _part(function)


def fused(function: F) -> F:
    """Acts as :func:`called`, but lets a product and a sum be rounded once: for floats that are exact integers."""
    return _part(function, fastmath={"contract"})


def _part(function: F, **options: Any) -> F:
    part: Any = Part(function, **options)
    marked: F = part
    return marked


@dataclass(frozen=True)
class External:
    """Function of the C library that kernels call.

    Attributes:
        name: its name.
        signature: in numba's notation.
    """

    name: str
    signature: str

    def __call__(self, *arguments: Any) -> Any:
        raise RuntimeError(f"{self.name} is called by compiled functions only")


@dataclass(frozen=True)
class CallC:
    """In compiled functions, ``call(address, arguments)`` calls the C function at an address.

    So kernels call functions of libraries that are found at run time; the others are an :class:`External`.

    Attributes:
        signature: in numba's notation.
    """

    signature: str

    def __call__(self, address: Any, arguments: Any) -> Any:
        raise RuntimeError("C functions are called by address by compiled functions only")


@dataclass(frozen=True)
class CallBy:
    """In compiled functions, ``call(address, arguments)`` calls a kernel of one of the signatures.

    Kernels that call each other by address are not compiled anew into each other. A function that calls another is
    compiled together with it, each time for several seconds if that one is large. An address is an argument at run
    time, so it costs nothing to compile. The types of the arguments must be those of a signature; the caller must make
    sure that a kernel of this signature is at the address.

    Attributes:
        signatures: of the kernels.
    """

    signatures: tuple[Signature, ...]

    def __call__(self, address: Any, arguments: Any) -> Any:
        raise RuntimeError("kernels are called by address by compiled functions only")


@dataclass(frozen=True)
class Intrinsic:
    """Function of :mod:`mmload.runtime.numba_intrinsics`, whose code is generated, that kernels call.

    Attributes:
        name: its name there.
    """

    name: str

    def __call__(self, *arguments: Any) -> Any:
        raise RuntimeError(f"{self.name} is called by compiled functions only")
