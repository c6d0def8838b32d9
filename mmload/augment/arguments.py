"""Checks the arguments of steps: each is refused in one line that names it, its value and what is expected.

Numbers are Python's, and numpy's and torch's scalars. Booleans and strings are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmload.errors import one_line

LARGEST = 1e30
"""Upper bound of numbers that multiply pixels: float32 holds 255 times it."""

LONGEST_SIDE = 65_535
"""Upper bound of sizes and padding in pixels, as in a JPEG: beyond it is a typing error."""

_SHOWN = 80


def refusal(name: str, value: object, expected: str) -> ValueError:
    """The error for an argument that is invalid."""
    return ValueError(f"{name} is {shown(value)}, expected {expected}")


def shown(value: object) -> str:
    """A value in a message: its repr in one line, at most 80 characters of it."""
    text = one_line(" ".join(repr(value).split()))
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def number(
    name: str, value: object, *, least: float = -LARGEST, greatest: float = LARGEST, expected: str = "a finite number"
) -> float:
    """A number from ``least`` to ``greatest``.

    Raises:
        ValueError: if it is none, or out of range.
    """
    plain = _scalar(value)
    if isinstance(plain, bool) or not isinstance(plain, int | float) or not least <= plain <= greatest:
        raise refusal(name, value, expected)
    return float(plain)


def integer(
    name: str,
    value: object,
    *,
    least: int | None = None,
    greatest: int | None = None,
    expected: str = "an integer",
) -> int:
    """An integer from ``least`` to ``greatest``; None: without that bound.

    Raises:
        ValueError: if it is none, or out of range.
    """
    plain = _scalar(value)
    if isinstance(plain, bool) or not isinstance(plain, int):
        raise refusal(name, value, expected)
    if (least is not None and plain < least) or (greatest is not None and plain > greatest):
        raise refusal(name, value, expected)
    return plain


def numbers(
    name: str,
    values: object,
    *,
    least: float = -LARGEST,
    greatest: float = LARGEST,
    expected: str = "finite numbers",
) -> tuple[float, ...]:
    """At least one number, each from ``least`` to ``greatest``: of a sequence, or a tensor or array of one dimension.

    Raises:
        ValueError: if there is none, or one is out of range.
    """
    items = elements(values)
    if not items:
        raise refusal(name, values, expected)
    try:
        return tuple(number(name, one, least=least, greatest=greatest) for one in items)
    except ValueError as error:
        raise refusal(name, values, expected) from error


def per_channel(name: str, values: object) -> tuple[float, ...]:
    """One number, or one per channel.

    Raises:
        ValueError: if it is neither.
    """
    expected = "a finite number, or one per channel"
    if elements(values) is None:
        return (number(name, values, expected=expected),)
    return numbers(name, values, expected=expected)


def chance(p: object) -> float:
    """A probability.

    Raises:
        ValueError: if it is not within [0, 1].
    """
    return number("p", p, least=0.0, greatest=1.0, expected="a probability from 0 to 1")


def span(
    name: str, values: object, *, least: float = 0.0, greatest: float = LARGEST, bounds: str = "from 0"
) -> tuple[float, float]:
    """A range (least, greatest).

    Raises:
        ValueError: if it is not two numbers in order and in range.
    """
    expected = f"(least, greatest), {bounds}"
    ends = numbers(name, values, least=least, greatest=greatest, expected=expected)
    if len(ends) != 2 or ends[0] > ends[1]:
        raise refusal(name, values, expected)
    return ends[0], ends[1]


def shares(values: object) -> tuple[float, float]:
    """The range of shares of an image's area: the least is at most all of it, the greatest more than nothing.

    Raises:
        ValueError: if it is none.
    """
    ends = span("scale", values, bounds="shares of the area from 0, finite numbers")
    if ends[0] > 1 or ends[1] <= 0:
        raise refusal("scale", values, "(least, greatest), shares of the area of which some are above 0 and at most 1")
    return ends


def ratios(values: object) -> tuple[float, float]:
    """The range of aspect ratios.

    Raises:
        ValueError: if it is none.
    """
    return span("ratio", values, least=1 / LARGEST, bounds="above 0, finite numbers")


def pair(size: object) -> tuple[int, int]:
    """A size as (height, width), from one integer or two.

    Raises:
        ValueError: if it is neither, or out of range.
    """
    sides = elements(size)
    sides = (size,) if sides is None else sides
    if len(sides) not in (1, 2):
        raise refusal("size", size, _SIZE)
    height, width = (_pixels("size", size, side, 1, _SIZE) for side in (sides[0], sides[-1]))
    return height, width


def borders(padding: object) -> tuple[int, int, int, int]:
    """Padding as (left, top, right, bottom), from one, two or four integers as torchvision reads them; None: 0.

    Raises:
        ValueError: if it is something else, or out of range.
    """
    sides = elements(padding)
    widths = (0 if padding is None else padding,) if sides is None else sides
    if len(widths) not in (1, 2, 4):
        raise refusal("padding", padding, _PADDING)
    left, top, right, bottom = (
        _pixels("padding", padding, width, 0, _PADDING) for width in widths * (4 // len(widths))
    )
    return left, top, right, bottom


def flag(name: str, value: object) -> bool:
    """True or False.

    Raises:
        ValueError: if it is something else.
    """
    plain = _scalar(value)
    if not isinstance(plain, bool):
        raise refusal(name, value, "True or False")
    return plain


def choice(name: str, value: object, names: Iterable[str]) -> str:
    """One of several names.

    Raises:
        ValueError: if it is none of them.
    """
    if not isinstance(value, str) or value not in names:
        raise refusal(name, value, f"one of {', '.join(names)}")
    return value


def elements(values: object) -> tuple[Any, ...] | None:
    """The elements of a sequence, or of a tensor or array of one dimension; None if it is something else."""
    if isinstance(values, np.ndarray | Tensor):
        return tuple(values.tolist()) if values.ndim == 1 else None
    if isinstance(values, Sequence) and not isinstance(values, str | bytes | bytearray):
        return tuple(values)
    return None


_SIZE = f"an integer from 1 to {LONGEST_SIDE}, or (height, width)"
_PADDING = f"one, two or four integers from 0 to {LONGEST_SIDE}"


def _pixels(name: str, argument: object, side: object, least: int, expected: str) -> int:
    """One side of a size or padding, which is all of ``argument`` or an element of it."""
    try:
        return integer(name, side, least=least, greatest=LONGEST_SIDE)
    except ValueError as error:
        raise refusal(name, argument, expected) from error


def _scalar(value: object) -> object:
    """A Python number of a numpy or torch scalar."""
    if isinstance(value, np.generic | np.ndarray | Tensor) and value.ndim == 0:
        return value.item()
    return value


def torch_device(device: object) -> torch.device:
    """A device, from itself or its name."""
    if isinstance(device, torch.device):
        return device
    try:
        return torch.device(device if isinstance(device, str) else "")
    except RuntimeError as error:
        raise refusal("device", device, "a device of torch, such as 'cpu', 'cuda' or 'cuda:0'") from error
