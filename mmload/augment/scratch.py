"""Working memory of a thread, kept for its next call.

Comes in: what for, and how much. Goes out: memory with whatever the last use left in it; never shared between threads.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

_memory = threading.local()


def scratch(use: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Contiguous memory, valid until the same thread asks for the same ``use`` again; on a device it is fresh.

    Args:
        use: what for; each use has memory of its own.
        shape: of the tensor.
        dtype: of the tensor; a use keeps to one.
        device: where; None: the CPU.
    """
    if device is not None and device.type != "cpu":
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    size = math.prod(shape)
    held: Tensor | None = getattr(_memory, use, None)
    if held is None or len(held) < size or held.dtype != dtype:
        with torch.inference_mode(False):  # else it could not be written again outside of that mode
            held = torch.empty(size, dtype=dtype)
        setattr(_memory, use, held)
    return held[:size].view(tuple(shape))
