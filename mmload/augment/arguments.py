"""Checks the arguments of steps: a ValueError of one line names an invalid one, its value and what is expected.

Numbers are Python's, and numpy's and torch's scalars. Booleans and strings are none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmload.errors import shown

LARGEST = 1e30
"""Upper bound of numbers that multiply pixels: float32 holds 255 times it."""

_NO_END = 2.0**62
"""Upper bounds from here on only catch typing errors, and messages do not name them."""

LONGEST_SIDE = 65_535
"""Upper bound of sizes and padding in pixels, as in a JPEG: beyond it is a typing error."""

MODES = ("nearest", "nearest-exact", "bilinear", "bicubic")
"""The interpolations of resizes."""


def argument_error(name: str, value: object, expected: str) -> ValueError:
    """Returns the error for an invalid argument."""
    return ValueError(f"{name} is {shown(value)}, expected {expected}")


def number(
    name: str, value: object, *, least: float = -LARGEST, greatest: float = LARGEST, unit: str = "a number"
) -> float:
    """Checks a number from ``least`` to ``greatest`` and returns it as a float; messages name it by its unit."""
    return float(_checked(name, value, int | float, least, greatest, unit))


def integer(
    name: str,
    value: object,
    *,
    least: float = -math.inf,
    greatest: float = math.inf,
    unit: str = "an integer",
) -> int:
    """Checks an integer from ``least`` to ``greatest`` and returns it; messages name it by its unit."""
    found: int = _checked(name, value, int, least, greatest, unit)
    return found


def _checked(name: str, value: object, kind: Any, least: float, greatest: float, unit: str) -> Any:
    """Checks that a value is a number of a kind, within a range, and returns Python's number."""
    plain = _scalar(value)
    if isinstance(plain, bool) or not isinstance(plain, kind) or not least <= plain <= greatest:
        raise argument_error(name, value, unit + _range(least, greatest))
    return plain


def _range(least: float, greatest: float) -> str:
    """Returns the words for a range, without the ends that only catch typing errors."""
    start = "" if least <= -LARGEST else " above 0" if 0 < least < 1 / LARGEST * 10 else f" from {least:.12g}"
    if greatest >= _NO_END:
        return start
    return f"{start} to {greatest:.12g}" if start else f" of at most {greatest:.12g}"


def numbers(
    name: str,
    values: object,
    *,
    least: float = -LARGEST,
    greatest: float = LARGEST,
    count: int | None = None,
    expected: str = "finite numbers",
) -> tuple[float, ...]:
    """Checks ``count`` numbers (None: one or more) of a sequence, or of a tensor or array of one dimension."""
    items = elements(values) or ()
    counts = range(1, len(items) + 1) if count is None else (count,)
    return _several(name, values, items, counts, partial(number, least=least, greatest=greatest), expected)


def integers(name: str, values: object, counts: Container[int], *, least: int, greatest: int, expected: str) -> Any:
    """Checks one integer, or as many as one of ``counts``, from ``least`` to ``greatest``, and returns a tuple."""
    return _several(name, values, listed(values), counts, partial(integer, least=least, greatest=greatest), expected)


def per_channel(name: str, values: object) -> tuple[float, ...]:
    """Checks one number, or one per channel, and returns them as a tuple."""
    items = listed(values)
    return _several(name, values, items, range(1, len(items) + 1), number, "a finite number, or one per channel")


def _several(
    name: str, values: object, items: Sequence[Any], counts: Container[int], check: Callable[..., Any], expected: str
) -> tuple[Any, ...]:
    """Checks each of the items that ``values`` has, of which there must be one of ``counts``, and returns them."""
    if len(items) not in counts:
        raise argument_error(name, values, expected)
    try:
        return tuple(check(name, one) for one in items)
    except ValueError as error:
        raise argument_error(name, values, expected) from error


def chance(p: object) -> float:
    """Checks a probability and returns it."""
    return number("p", p, least=0.0, greatest=1.0, unit="a probability")


def span(
    name: str, values: object, *, least: float = 0.0, greatest: float = LARGEST, unit: str = "finite numbers"
) -> tuple[float, float]:
    """Checks a range (least, greatest) and returns it."""
    expected = f"(least, greatest), {unit}{_range(least, greatest)}"
    low, high = numbers(name, values, least=least, greatest=greatest, count=2, expected=expected)
    if low > high:
        raise argument_error(name, values, expected)
    return low, high


def check_ascending(settings: object, *names: str) -> None:
    """Rejects settings, attributes of an object by their names, of which an earlier one is greater than a later one."""
    ends = tuple(getattr(settings, name) for name in names)
    if list(ends) != sorted(ends):
        raise argument_error(f"({', '.join(names)})", ends, "the smaller one first")


def around(name: str, values: object, center: float, *, least: float, reach: float, unit: str) -> tuple[float, float]:
    """Checks a range (least, greatest), or how far it goes from its center to either side, and returns it."""
    if elements(values) is None:
        far = number(name, values, least=0.0, greatest=reach, unit=f"(least, greatest), or {unit}")
        return max(least, center - far), center + far
    return span(name, values, least=least, greatest=center + reach)


def shares(values: object) -> tuple[float, float]:
    """Checks a range of shares of an image's area and returns it; some are above 0 and at most 1."""
    ends = span("scale", values, unit="shares of the area")
    if ends[0] > 1 or ends[1] <= 0:
        raise argument_error(
            "scale", values, "(least, greatest), shares of the area of which some are above 0 and at most 1"
        )
    return ends


def ratios(values: object) -> tuple[float, float]:
    """Checks a range of aspect ratios and returns it."""
    return span("ratio", values, least=1 / LARGEST)


def pair(size: object, name: str = "size") -> tuple[int, int]:
    """Checks a size of one integer or two and returns it as (height, width)."""
    sides = integers(name, size, (1, 2), least=1, greatest=LONGEST_SIDE, expected=_SIZE)
    return sides[0], sides[-1]


def borders(padding: object) -> tuple[int, int, int, int]:
    """Checks padding as torchvision takes it, None for 0, and returns (left, top, right, bottom)."""
    sides = 0 if padding is None else padding
    widths = integers("padding", sides, (1, 2, 4), least=0, greatest=LONGEST_SIDE, expected=_PADDING)
    left, top, right, bottom = widths * (4 // len(widths))
    return left, top, right, bottom


def mask_level(mask_fill: object) -> int:
    """Checks the class that masks are filled with and returns it."""
    return integer("mask_fill", mask_fill, least=0, greatest=255, unit="a class or 255, which is void,")


def mode_of(interpolation: object, modes: Iterable[str] = MODES) -> str:
    """Checks an interpolation, a name or torchvision's enum, and returns its name."""
    return choice("interpolation", getattr(interpolation, "value", interpolation), modes)


def flag(name: str, value: object) -> bool:
    """Checks a boolean and returns it."""
    plain = _scalar(value)
    if not isinstance(plain, bool):
        raise argument_error(name, value, "True or False")
    return plain


def choice(name: str, value: object, names: Iterable[str]) -> str:
    """Checks that a value is one of several names and returns it."""
    if not isinstance(value, str) or value not in names:
        raise argument_error(name, value, f"one of {', '.join(names)}")
    return value


def elements(values: object) -> tuple[Any, ...] | None:
    """Returns the elements of a sequence, or of a tensor or array of one dimension; None for anything else."""
    if isinstance(values, np.ndarray | Tensor):
        values = values.tolist() if values.ndim == 1 else None
    if isinstance(values, Sequence) and not isinstance(values, str | bytes | bytearray):
        return tuple(values)
    return None


def listed(values: object) -> tuple[Any, ...]:
    """Returns the elements of a sequence, or anything else as a tuple of one."""
    items = elements(values)
    return (values,) if items is None else items


_SIZE = f"an integer from 1 to {LONGEST_SIDE}, or (height, width)"
_PADDING = f"one, two or four integers from 0 to {LONGEST_SIDE}"


def _scalar(value: object) -> object:
    """Converts a numpy or torch scalar to a Python number."""
    return value.item() if isinstance(value, np.generic | np.ndarray | Tensor) and value.ndim == 0 else value


def torch_device(device: object) -> torch.device:
    """Checks a device or its name and returns the device."""
    try:
        return torch.device(device if isinstance(device, str | torch.device) else "")
    except RuntimeError as error:
        raise argument_error("device", device, "a device of torch, such as 'cpu', 'cuda' or 'cuda:0'") from error
