"""What kernels are declared with, without numba: types and signatures, and the functions that they call."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial, update_wrapper
from typing import Any, TypeVar, cast, get_type_hints

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

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


@dataclass(frozen=True)
class Signature:
    """Types of what a kernel takes and returns.

    Attributes:
        result: type of the result: void, an integer or a boolean.
        arguments: types of the arguments.
    """

    result: str
    arguments: tuple[Type, ...]

    @classmethod
    def parsed(cls, text: str) -> Signature:
        """Returns the signature in a text such as ``"void(uint8[:, ::1], int64)"``."""
        result, *arguments = _TYPE.findall(text)
        return cls(result, tuple(arguments))


def array_of(kind: str | RecordArray) -> tuple[Any, int, bool]:
    """Returns the dtype of a number or array, its number of dimensions, and whether it is contiguous."""
    if isinstance(kind, RecordArray):
        return kind.dtype, kind.ndim, True
    dtype, _, sides = kind.partition("[")
    return dtype, sides.count(":") - sides.count("::"), "::1" in sides


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

CallBy = partial(Intrinsic, "call_by")
"""``call = CallBy(signature, ...)`` lets kernels call a kernel of one of the signatures: ``call(address, arguments)``.

Kernels that call each other by address are not compiled anew into each other. A function that calls another is compiled
together with it, each time for several seconds if that one is large. An address is an argument at run time, so it costs
nothing to compile. The types of the arguments must be those of a signature; the caller must make sure that a kernel of
this signature is at the address.
"""
