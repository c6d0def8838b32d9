"""Flattens a sample of a Python dataset to values by key, and pads values whose length differs between samples.

A nested value has a key with a dot: in ``(image, {"boxes": b})`` the boxes are ``1.boxes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Key = int | str
"""The position or name of a value in a sample; nested values have a dotted path."""

_DEEP = 4


def values_of(sample: Any) -> dict[Key, Any]:
    """Returns the values of a sample; nested ones have dotted keys."""
    members = _members(sample)
    if members is None:
        return {0: sample}
    flat: dict[Key, Any] = {}
    for key, value in members.items():
        _lay_out(key, value, flat, _DEEP)
    return flat


def is_sequence(value: Any) -> bool:
    """Returns whether a value is a list or tuple of numbers, or of such lists (a vector, boxes, points), or empty."""
    if not isinstance(value, list | tuple) or hasattr(value, "_fields"):
        return False
    return all(isinstance(each, int | float | np.number) or is_sequence(each) for each in value)


def _members(value: Any) -> dict[Key, Any] | None:
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    return None


def _lay_out(key: Key, value: Any, flat: dict[Key, Any], depth: int) -> None:
    """Lists are values, not structure: their length may differ between samples."""
    inner = None if isinstance(value, list) or is_sequence(value) or not depth else _members(value)
    if not inner:
        flat[key] = value
        return
    for name, each in inner.items():
        _lay_out(f"{key}.{name}", each, flat, depth - 1)


@dataclass(kw_only=True)
class PaddedField:
    """The shape of one field's values; all values have to be added before the first is padded.

    Attributes:
        count: the field that holds how many are real; None: another field's count applies.
        fill: the value of the padding.
        most: the length of the longest.
        like: dtype and further sizes of the first that is not empty.
        beside: whether every value had the length of the boxes of its sample.
    """

    count: str | None
    fill: int = 0
    most: int = 0
    like: tuple[torch.dtype, tuple[int, ...]] | None = None
    beside: bool = True

    def add(self, value: Tensor, boxes: int | None) -> None:
        """Registers a value of a sample with this many boxes (None: it has none)."""
        self.beside = self.beside and value.ndim > 0 and len(value) == boxes
        if value.ndim and value.numel():
            self.most = max(self.most, len(value))
            self.like = self.like or (value.dtype, tuple(value.shape[1:]))

    def pad(self, name: str, value: Tensor) -> Tensor:
        """Pads a value to the common shape.

        Raises:
            ValueError: if it is longer than any that was added, or of another dtype or shape.
        """
        dtype, tail = self.like or (torch.float32, ())
        if value.ndim and value.numel() and (value.dtype, tuple(value.shape[1:])) != (dtype, tail):
            raise ValueError(f"{name} is {value.dtype} {list(value.shape)}, others are {dtype} [any, {list(tail)}]")
        if not value.ndim or (value.numel() and len(value) > self.most):
            raise ValueError(
                f"{name} is {list(value.shape)}, the longest of the split was {self.most} before the build"
            )
        padded = torch.full((max(1, self.most), *tail), self.fill, dtype=dtype, device="cpu")
        if value.numel():
            padded[: len(value)] = value
        return padded


def as_text(value: str) -> Tensor:
    """Returns the UTF-8 of a text: uint8 [bytes]."""
    return torch.tensor(list(value.encode("utf-8", "surrogatepass")), dtype=torch.uint8, device="cpu")
