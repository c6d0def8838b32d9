"""Copies of descriptions, whose tensors are few and small, on a device."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def copied_to(value: T, device: torch.device) -> T:
    """A dataclass, tuple or tensor whose tensors are all on ``device``, and which says so.

    The calling thread may wait for the copies: this is for a loader's threads.
    """
    made: Any = value
    if isinstance(value, Tensor):
        made = value.to(device, non_blocking=True)
    elif isinstance(value, torch.device):
        made = device
    elif isinstance(value, tuple):
        parts = [copied_to(one, device) for one in value]
        made = value._make(parts) if hasattr(value, "_make") else tuple(parts)
    elif is_dataclass(value) and not isinstance(value, type):
        made = replace(value, **{one.name: copied_to(getattr(value, one.name), device) for one in fields(value)})
    return made  # type: ignore[no-any-return]  # of the same type
