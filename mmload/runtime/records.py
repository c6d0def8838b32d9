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
from mmload.runtime.declarations import ARENA, RecordArray, Signature, Type, array_of, fields_of

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
