"""Flattens a sample of a Python dataset: the values inside tuples, dicts and dataclasses, by key.

A nested value has a key with a dot: in ``(image, {"boxes": b})`` the boxes are ``1.boxes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

Key = int | str
"""The position or name of a value in a sample; nested values have a dotted path."""

_DEEP = 4


def values_of(sample: Any) -> dict[Key, Any]:
    """The values of a sample; nested ones have dotted keys."""
    members = _members(sample)
    if members is None:
        return {0: sample}
    flat: dict[Key, Any] = {}
    for key, value in members.items():
        _lay_out(key, value, flat, _DEEP)
    return flat


def is_sequence(value: Any) -> bool:
    """Whether it is a list or tuple of numbers, or of such lists: a vector, boxes, points. An empty one is, too."""
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
