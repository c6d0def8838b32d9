"""Numbers of bytes as text, and the reverse."""

from __future__ import annotations

import re
from fractions import Fraction

from mmload.errors import RecipeError

_DIGITS = 40
_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def bytes_text(count: float) -> str:
    """Returns a number of bytes as text, such as ``23.1 MiB`` or ``1.2 GiB``."""
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"


def parse_bytes(text: str | int) -> int:
    """Parses a size such as ``"1GiB"`` or ``"500 MB"``, or a number of bytes.

    Raises:
        RecipeError: if it is not a positive size.
    """
    if type(text) is int:
        size = text
    else:
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip()) if isinstance(text, str) else None
        if not found or len(found[1]) > _DIGITS or found[2].upper() not in _UNITS:
            raise RecipeError(f"size is {text!r}; write bytes, or a number with KiB, MiB, GiB, KB, MB or GB")
        size = int(Fraction(found[1]) * _UNITS[found[2].upper()])
    if not 1 <= size < 2**62:
        raise RecipeError("size has to be at least one byte and less than 4 EiB")
    return size
