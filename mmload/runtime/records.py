"""Records: the arguments of a kernel as words of eight bytes, whose address its C function takes.

A word is a number, or 0 or 1. An array is its address and its shape, and its strides if it need not be contiguous; a
named tuple is its fields. In Python a record is a bytes object; what it points to must live as long.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from mmload.runtime.arena import arena_words
from mmload.runtime.declarations import ARENA, RecordArray, Signature, TupleType, Type, array_of

_FORMATS = {"boolean": "?7x", "float32": "d", "float64": "d", "uint64": "Q", "uintp": "Q"}
_WORD = 2**64 - 1


def packer(name: str, signature: Signature) -> Callable[..., bytes]:
    """Returns the function that makes the record of a kernel's arguments; ``name`` is that of the kernel.

    It is compiled from a text with a line per argument: a call has up to 50 arrays.

    Raises:
        TypeError: by the function, if an argument is of another type, or cannot be written.
    """
    made, arguments = _Packer(), []
    for kind in signature.arguments:
        if kind == ARENA:
            made.add_words("*arena_words()", "Qq")
        else:
            arguments.append(made.add(kind))
    return made.function(name, arguments)


class _Packer:
    """Text of a function that packs arguments of some types."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._words: list[str] = []
        self._format = "="
        self._known: dict[str, Any] = {
            "arena_words": arena_words,
            "addressof": ctypes.addressof,
            "View": (ctypes.c_char * 0).from_buffer,  # refuses memory that is not contiguous, or cannot be written
            "check": _check,
        }

    def add(self, kind: Type) -> str:
        """Adds a value of a type; returns the name of its variable."""
        name = f"_{len(self._known)}"
        self._known[name] = kind
        if isinstance(kind, TupleType):
            place = len(self._lines)
            self._lines.insert(place, f"{''.join([self.add(field) + ', ' for field in kind.fields])}= {name}")
        elif isinstance(kind, RecordArray):
            self._add_array(name, kind.dtype, kind.ndim, True)
        else:
            dtype, ndim, is_contiguous = array_of(kind)
            if ndim:
                self._add_array(name, np.dtype(dtype.replace("boolean", "bool")), ndim, is_contiguous)
            else:
                form = _FORMATS.get(dtype, "q")
                self.add_words(f"int({name}) & {_WORD}" if form == "Q" else name, form)
        return name

    def add_words(self, text: str, form: str) -> None:
        """Adds the text of some words, and their format."""
        self._words.append(text)
        self._format += form

    def _add_array(self, name: str, dtype: np.dtype[Any], ndim: int, is_contiguous: bool) -> None:
        self._known[f"{name}_dtype"] = dtype
        self._lines.append(
            f"if {name}.dtype is not {name}_dtype or {name}.ndim != {ndim}: check({name}, {name}_dtype, {ndim})"
        )
        if is_contiguous:
            self.add_words(f"addressof(View({name})), *{name}.shape", "Q" + ndim * "q")
        else:
            self.add_words(f"{name}.ctypes.data, *{name}.shape, *{name}.strides", "Q" + 2 * ndim * "q")

    def function(self, name: str, arguments: list[str]) -> Callable[..., bytes]:
        """Returns the compiled function."""
        self._known["pack"] = struct.Struct(self._format).pack
        lines = [*self._lines, f"return pack({', '.join(self._words)})"]
        exec(f"def record({', '.join(arguments)}):\n " + "\n ".join(lines), self._known)
        made: Callable[..., bytes] = self._known["record"]
        made.__qualname__ = name  # for errors
        return made


def _check(array: np.ndarray, dtype: np.dtype[Any], ndim: int) -> None:
    """Raises TypeError if an array has another dtype or number of dimensions."""
    if array.dtype != dtype or array.ndim != ndim:
        raise TypeError(f"a kernel takes {dtype} in {ndim} dimensions, and got {array.dtype} in {array.ndim}")
