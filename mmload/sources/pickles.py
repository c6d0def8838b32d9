"""Reads the pickles of CIFAR's python batches: nothing that they name is imported or called.

It takes the bytes of a file and returns the dict in it, of ints, floats, bytes, strings, lists and numpy arrays
(protocols 0 to 5, Python 2 or 3). The standard library's ``Unpickler`` makes them, with a ``find_class`` that imports
nothing and knows only stand-ins for the functions that make up an array. Before that, ``pickletools.genops`` lists the
instructions, so that those of other data are refused by name, and those that would exhaust memory, time or the C stack.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

from mmload.sources.annotation_values import naming

MAX_OPS = 20_000_000
"""More instructions than this are refused; a batch of 50,000 rows has about 250,000."""

MAX_TUPLES = 1000
"""More tuples than this are refused, not counting the arguments of calls: nested ones as a key overflow the C stack."""


def read_plain_pickle(data: bytes) -> dict[Any, Any]:
    """Returns the dict in a pickle of plain data. Keys and texts may be ``bytes`` or ``str``, as they were written.

    Raises:
        ValueError: if it is broken, holds anything but plain data and integer arrays, or is no dict; the message says
            what, and for a call what it would have called.
    """
    with naming("it cannot be read: ", Exception):  # ``load`` may raise any for what is broken
        _check_instructions(data)
        body = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        if not isinstance(body, dict):
            raise ValueError(f"it holds a {type(body).__name__}, not a dict")
        for key, value in body.items():
            if not isinstance(key, str | bytes | int) or isinstance(value, _StandIn | _Dtype):
                raise ValueError(f"it has a key of type {type(key).__name__}, or a name where data should be")
        return {key: value.array() if isinstance(value, _Array) else value for key, value in body.items()}


def _check_instructions(data: bytes) -> None:
    """Raises ValueError for instructions that plain data does not need, or that ask for more than the file holds."""
    tuples, last = 0, ""
    memo: dict[Any, bool] = {}  # place -> whether what is there is surely no tuple
    for count, (op, argument, _) in enumerate(pickletools.genops(data)):  # it checks the lengths of texts and bytes
        kind = _KINDS.get(op.name)
        if kind is None:
            raise ValueError(f"it has the instruction {op.name}, which plain data does not need; it was not run")
        tuples += (kind == "tuple") - (op.name == "REDUCE")
        if count > MAX_OPS or tuples > MAX_TUPLES:
            raise ValueError(f"it has over {MAX_OPS:,} instructions or {MAX_TUPLES:,} tuples")
        if kind == "put":
            place: Any = len(memo) if op.name == "MEMOIZE" else argument
            if place > count:  # the memo is an array: nine bytes would make it 16 GB
                raise ValueError(f"it puts into place {place:,} of the memo, with {count:,} instructions so far")
            memo[place] = last == "value"
        elif kind == "get" and not memo.get(argument):  # tuples of one tuple, many times over, take forever as a key
            raise ValueError(f"it gets a tuple or nothing from place {argument:,} of the memo")
        if op.name != "FRAME":  # may stand between a value and its PUT
            last = kind


_KINDS = {
    **dict.fromkeys(
        (
            *("NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT"),
            *("BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
            *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "EMPTY_LIST", "LIST"),
            *("EMPTY_DICT", "DICT", "GLOBAL", "STACK_GLOBAL", "REDUCE"),
        ),
        "value",
    ),
    **dict.fromkeys(("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"), "tuple"),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), "put"),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), "get"),
    **dict.fromkeys(("MARK", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD", "PROTO", "FRAME", "STOP"), "change"),
}
"""Instruction -> what it leaves on top of the stack: a value that is no tuple, or else what it does."""


class _Unpickler(pickle.Unpickler):
    """The standard one, which finds stand-ins only."""

    def find_class(self, module: str, name: str) -> Any:
        known = f"{module}.{name}"
        if known not in _STAND_INS:
            raise ValueError(f"it asks to call {known[:80]}, which a CIFAR batch never does; it was not run")
        return _STAND_INS[known]


class _StandIn:
    """A function in place of one that a pickle names. No pickle can change it."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise ValueError("it sets the state of a function; it was not run")


class _Dtype:
    """A numpy dtype of integers, by its code. Its state is that of all of them."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code
        if self.code not in ("u1", "i1", "i2", "i4", "i8"):
            raise ValueError(f"it has an array of dtype {str(self.code)[:20]!r}, not of integers")

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """Parts of an array; :meth:`array` is called when all is read, as nothing can change it then."""

    def __init__(self, data: object = None, dtype: object = None, shape: object = None, order: object = None) -> None:
        self._parts = data, dtype, shape, order

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self._parts = data, dtype, shape, "F" if fortran is True else "C"

    def array(self) -> np.ndarray:
        """Returns an array over the bytes, without a copy."""
        data, dtype, shape, order = self._parts
        if not isinstance(data, bytes | bytearray) or not isinstance(dtype, _Dtype) or not isinstance(shape, tuple):
            raise ValueError("it has an array without bytes, dtype or shape")
        if any(type(size) is not int or size < 0 for size in shape) or order not in ("C", "F", b"C", b"F"):
            raise ValueError("it has an array of a shape that cannot be")
        flat: np.ndarray = np.frombuffer(data, dtype=f"<{dtype.code}")
        return flat.reshape(shape[::-1]).transpose() if order in ("F", b"F") else flat.reshape(shape)


def _encode(text: object, encoding: object = "") -> bytes:
    """Returns the bytes that Python 3 writes into protocols below 3 as text, a character each."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise ValueError("it encodes something that is not latin1 text")
    return text.encode("latin1")


_STAND_INS = {
    "_codecs.encode": _StandIn(_encode),
    "__builtin__.bytes": _StandIn(lambda: b""),
    "numpy.dtype": _StandIn(_Dtype),
    "numpy.ndarray": _StandIn(_Array),  # an argument of _reconstruct
    **{f"numpy.{core}.multiarray._reconstruct": _StandIn(lambda *_: _Array()) for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": _StandIn(_Array) for core in ("core", "_core")},
}
