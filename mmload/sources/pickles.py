"""Reads the pickles of CIFAR's python batches without unpickling: nothing that they name is imported or called.

It takes the bytes of a file and returns the dict in it, of ints, floats, bytes, strings, lists and numpy arrays. The
standard library's ``pickletools.genops`` splits the instructions; the small machine below knows those that plain data
and numpy arrays need (protocols 0 to 5, Python 2 or 3) and refuses the others by name. A global that a pickle would
import becomes an inert :class:`_Name`; only the calls that make up an array are understood, and done here. An
``Unpickler`` with a restricted ``find_class`` is not enough: nine bytes make it ask for a memo of 16 GB.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_OPS = 20_000_000
"""More instructions than this are refused; a batch of 50,000 rows has about 250,000."""


@dataclass(frozen=True)
class _Name:
    """What a pickle asks to import, as text; never imported."""

    text: str


@dataclass
class _Dtype:
    """A numpy dtype by its code."""

    code: str


@dataclass
class _Blank:
    """An array before its BUILD instruction brings shape and bytes; ``array`` is the result."""

    array: np.ndarray | None = None


def read_plain_pickle(data: bytes) -> dict[Any, Any]:
    """The dict in a pickle of plain data. Keys and texts may be ``bytes`` or ``str``, as they were written.

    Args:
        data: the whole file.

    Raises:
        ValueError: if it is broken, holds anything but plain data and integer arrays, or is no dict; the message says
            what, and for a call what it would have called.
    """
    machine = _Machine()
    try:
        for count, (op, argument, _) in enumerate(pickletools.genops(data)):
            if count > MAX_OPS:
                raise ValueError(f"it has over {MAX_OPS:,} instructions")
            machine.step(op.name, argument)
        result = _finished(machine.stack.pop())
    except (IndexError, KeyError, TypeError, struct.error, OverflowError) as error:
        raise ValueError(f"it is broken ({type(error).__name__}: {error})") from error
    if not isinstance(result, dict):
        raise ValueError(f"it holds a {type(result).__name__}, not a dict")
    return {key: _finished(value) for key, value in result.items()}


class _Machine:
    """A stack machine for the instructions of plain data; ``marks`` are the stacks below each MARK."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def step(self, op: str, argument: Any) -> None:
        if op in _PUSH:
            self.stack.append(argument)
        elif op in _CONSTANTS:
            self.stack.append(_CONSTANTS[op]())
        elif op in _PUT:
            self.memo[argument] = self.stack[-1]
        elif op in _GET:
            self.stack.append(self.memo[argument])
        elif op in _DO:
            _DO[op](self)
        elif op in ("STRING", "BINSTRING", "SHORT_BINSTRING"):
            self.stack.append(argument.encode("latin1"))
        elif op == "GLOBAL":
            self.stack.append(_Name(argument.replace(" ", ".")))
        elif op not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"it has the instruction {op}, which plain data does not need; it was not run")

    def pop_mark(self) -> list[Any]:
        """What was pushed since the last MARK."""
        items, self.stack = self.stack, self.marks.pop()
        return items

    def mark(self) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def memoize(self) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def tuple_of(self, count: int) -> None:
        items = [self.stack.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(items)))

    def tuple_of_marked(self) -> None:
        items = self.pop_mark()
        self.stack.append(tuple(items))

    def list_of_marked(self) -> None:
        items = self.pop_mark()
        self.stack.append(items)

    def dict_of_marked(self) -> None:
        items = self.pop_mark()
        self.stack.append({})
        self.set_items(items)

    def append(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError("it appends to what is no list")
        self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise ValueError("it sets items of what is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | bytes | int):
                raise ValueError(f"it has a key of type {type(key).__name__}")
            target[key] = value

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def append_one(self) -> None:
        self.append([self.stack.pop()])

    def stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError("it imports what is no name")
        self.stack.append(_Name(f"{module}.{name}"))

    def reduce(self) -> None:
        arguments, called = self.stack.pop(), self.stack.pop()
        name = called.text if isinstance(called, _Name) else f"a {type(called).__name__}"
        if name not in _CALLS or not isinstance(arguments, tuple):
            raise ValueError(f"it asks to call {name[:80]}, which a CIFAR batch never does; it was not run")
        self.stack.append(_CALLS[name](*arguments))

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, _Blank) and isinstance(state, tuple) and len(state) == 5:
            _, shape, dtype, fortran, data = state
            target.array = _array(data, dtype, shape, "F" if fortran is True else "C")
        elif not isinstance(target, _Dtype):
            raise ValueError(f"it sets the state of a {type(target).__name__}; it was not run")


_PUSH = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
_PUT = {"PUT", "BINPUT", "LONG_BINPUT"}
_GET = {"GET", "BINGET", "LONG_BINGET"}
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
_DO: dict[str, Callable[[_Machine], None]] = {
    "MARK": _Machine.mark,
    "MEMOIZE": _Machine.memoize,
    "TUPLE": _Machine.tuple_of_marked,
    "TUPLE1": lambda machine: machine.tuple_of(1),
    "TUPLE2": lambda machine: machine.tuple_of(2),
    "TUPLE3": lambda machine: machine.tuple_of(3),
    "LIST": _Machine.list_of_marked,
    "DICT": _Machine.dict_of_marked,
    "APPEND": _Machine.append_one,
    "APPENDS": lambda machine: machine.append(machine.pop_mark()),
    "SETITEM": _Machine.set_item,
    "SETITEMS": lambda machine: machine.set_items(machine.pop_mark()),
    "STACK_GLOBAL": _Machine.stack_global,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
}


def _encode(text: object, encoding: object = "") -> bytes:
    """How Python 3 writes bytes into protocols below 3: text whose characters are the bytes."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise ValueError("it encodes what is no latin1 text")
    return text.encode("latin1")


def _dtype(code: object, *_: object) -> _Dtype:
    text = code.decode("latin1") if isinstance(code, bytes) else code
    if text not in ("u1", "i1", "i2", "i4", "i8"):
        raise ValueError(f"it has an array of dtype {str(text)[:20]!r}, not of integers")
    return _Dtype(text)


def _array(data: object, dtype: object, shape: object, order: object) -> np.ndarray:
    """An array over ``data``, read-only, without a copy."""
    if not isinstance(data, bytes | bytearray) or not isinstance(dtype, _Dtype) or not isinstance(shape, tuple):
        raise ValueError("it has an array without bytes, dtype or shape")
    if any(type(size) is not int or size < 0 for size in shape) or order not in ("C", "F", b"C", b"F"):
        raise ValueError("it has an array of a shape that cannot be")
    flat: np.ndarray = np.frombuffer(data, dtype=f"<{dtype.code}")
    return flat.reshape(shape[::-1]).transpose() if order in ("F", b"F") else flat.reshape(shape)


_CALLS: dict[str, Callable[..., Any]] = {
    "_codecs.encode": _encode,
    "__builtin__.bytes": lambda: b"",
    "numpy.dtype": _dtype,
    "numpy.core.multiarray._reconstruct": lambda *_: _Blank(),
    "numpy._core.multiarray._reconstruct": lambda *_: _Blank(),
    "numpy.core.numeric._frombuffer": _array,
    "numpy._core.numeric._frombuffer": _array,
}


def _finished(value: Any) -> Any:
    if isinstance(value, _Blank):
        if value.array is None:
            raise ValueError("it has an array that is never filled")
        return value.array
    if isinstance(value, _Name | _Dtype):
        raise ValueError("it holds a name where data should be")
    return value
