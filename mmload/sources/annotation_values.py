"""Values of annotation files in any spelling, what their errors are about, and counts of what a reader leaves out.

Hundreds of tools write these files: the number 1 is also ``1.0``, ``"1"`` and ``"1.0"``, and what is missing is also
``null``. All readers of annotations take their numbers and make their notes here.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from mmload.errors import shown

_SHOWN = 3
_DIGITS = re.compile(r"\s*[+-]?[0-9]+\s*")
_INT64 = range(-(2**63), 2**63)
_FLAGS: Mapping[str, bool] = {"0": False, "1": True, "false": False, "true": True, "no": False, "yes": True, "": False}


def read_number(value: object) -> float:
    """Returns the finite number that a value stands for: a number, or a text of one.

    Raises:
        ValueError: if it is none.
    """
    try:
        found = float(value)  # type: ignore[arg-type]  # a TypeError is handled
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value) or not math.isfinite(found):
        raise ValueError(f"{shown(value)} is not a finite number")
    return found


def read_integer(value: object) -> int:
    """Returns the integer of 64 bits that a value stands for: ``1``, ``1.0``, ``"1"`` or ``"1.0"``.

    Raises:
        ValueError: if it is none.
    """
    if isinstance(value, str):
        value = int(value) if _DIGITS.fullmatch(value) else read_number(value)  # a text of 19 digits is no float
    found = int(value) if isinstance(value, float) and value.is_integer() else value
    if type(found) is not int or found not in _INT64:
        raise ValueError(f"{shown(value)} is not an integer of 64 bits")
    return found


def read_flag(value: object) -> bool:
    """Returns the truth value that a value stands for: a truth value, 0, 1, a text of these, or None for false.

    Raises:
        ValueError: if it is none.
    """
    text = "" if value is None else str(value).strip().lower().removesuffix(".0")
    if text not in _FLAGS:
        raise ValueError(f"{shown(value)} is neither 0 nor 1")
    return _FLAGS[text]


@contextmanager
def naming(what: str, *caught: type[Exception], to: Callable[[str], Exception] = ValueError) -> Iterator[None]:
    """Says before the message of an error, by default a ValueError, what it is about; raises it as another kind."""
    kinds = caught or (ValueError,)
    try:
        yield
    except kinds as error:
        raise to(f"{what}{error}") from error


class Findings:
    """Counts of what a reader left out, merged or guessed, by kind, with the first examples of each."""

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._first: dict[str, list[str]] = defaultdict(list)

    def add(self, kind: str, example: str) -> None:
        """Counts one finding of a kind, such as "annotations without a box are left out"."""
        self._counts[kind] += 1
        if self._counts[kind] <= _SHOWN:
            self._first[kind].append(example)

    def notes(self) -> tuple[str, ...]:
        """Returns a sentence for each kind of finding."""
        return tuple(finding_note(kind, count, self._first[kind]) for kind, count in self._counts.items())


def finding_note(kind: str, count: int, first: Sequence[str]) -> str:
    """Returns a sentence on all findings of a kind, with the first examples."""
    return f"{kind}: {count:,} ({', '.join(first)}{', ...' if count > len(first) else ''})"
