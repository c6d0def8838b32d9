"""Values of annotation files in any spelling.

Hundreds of tools write these files: the number 1 is also ``1.0``, ``"1"`` and ``"1.0"``, and what is missing is also
``null``. All readers of annotations take their numbers here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from mmload.errors import shown

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
