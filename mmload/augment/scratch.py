"""Working memory of a thread, kept for its next call.

Comes in: what for, and how much. Goes out: memory with whatever the last use left in it; never shared between threads.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

_memory = threading.local()


def scratch(use: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Contiguous memory, valid until the same thread asks for the same ``use`` again.

    On a device, and in bfloat16, which numpy does not have, it is fresh.

    Args:
        use: what for; each use has memory of its own.
        shape: of the tensor.
        dtype: of the tensor.
        device: where; None: the CPU.
    """
    if dtype == torch.bfloat16 or (device is not None and device.type != "cpu"):
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    return torch.from_numpy(scratch_array(use, shape, dtype))


def scratch_array(use: str, shape: Sequence[int], dtype: torch.dtype) -> npt.NDArray[Any]:
    """The same as a numpy array, whose views never give up the interpreter lock."""
    size = math.prod(shape)
    held: tuple[torch.dtype, npt.NDArray[Any]] | None = getattr(_memory, use, None)
    if held is None or held[0] != dtype or held[1].size < size:
        held = dtype, torch.empty(size, dtype=dtype).numpy()  # aligned as torch likes it
        setattr(_memory, use, held)
    return held[1][:size].reshape(shape)
