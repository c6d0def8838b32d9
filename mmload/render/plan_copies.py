"""Copies of a description with its arrays on a device, for torch's operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_ALIGNED = 16


class Copy(NamedTuple):
    """Copy of a description on a device.

    Attributes:
        description: the same with tensors in place of NumPy's arrays.
        tensors: the tensors.
    """

    description: Any
    tensors: list[Tensor]


def copied(value: Any, device: torch.device) -> Copy:
    """Copies a description to ``device``: arrays become tensors.

    On another device than the CPU they are parts of one memory, which one copy fills: it is queued on the caller's
    stream, and nobody waits for it. Arrays of records, which only kernels read, stay as they are.
    """
    arrays: list[np.ndarray[Any, Any]] = []
    _replaced(value, arrays.append)
    if device.type == "cpu":
        tensors = [torch.from_numpy(np.require(array, requirements=("C", "W"))) for array in arrays]
    else:
        tensors = _copied(arrays, device)
    following = iter(tensors)
    return Copy(_replaced(value, lambda array: next(following)), tensors)


def _replaced(value: Any, with_array: Callable[[np.ndarray[Any, Any]], Any]) -> Any:
    """Returns a copy of dataclasses and tuples with something in place of each array, called in order."""
    if isinstance(value, np.ndarray):
        return value if value.dtype.names else with_array(value)
    if isinstance(value, tuple):
        parts = [_replaced(one, with_array) for one in value]
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)
    if is_dataclass(value) and not isinstance(value, type):
        found = {one.name: _replaced(getattr(value, one.name), with_array) for one in fields(value)}
        return replace(value, **found)
    return value


def _copied(arrays: list[np.ndarray[Any, Any]], device: torch.device) -> list[Tensor]:
    """Copies arrays to a device as one memory, through page-locked memory that torch keeps for that."""
    starts = np.cumsum([0] + [-(-array.nbytes // _ALIGNED) * _ALIGNED for array in arrays])
    packed = torch.empty(int(starts[-1]), dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")
    memory = packed.numpy()
    for array, start in zip(arrays, starts, strict=False):
        memory[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    moved, found = packed.to(device, non_blocking=True), []
    for array, start in zip(arrays, starts, strict=False):
        part = moved[int(start) : int(start) + array.nbytes].view(torch.from_numpy(np.empty(0, array.dtype)).dtype)
        found.append(part.view(array.shape))
    return found
