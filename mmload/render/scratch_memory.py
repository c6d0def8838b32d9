"""Working memory of a thread on a CPU, kept for its next call: uninitialized, never shared between threads."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

_memory = threading.local()


def scratch(use: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Contiguous memory, valid until the same thread asks for the same ``use`` again.

    Args:
        use: a name for the purpose; each has memory of its own.
        shape: of the tensor.
        dtype: of the tensor.
    """
    last: tuple[Tensor, Tensor] | None = getattr(_memory, use, None)
    if last is not None and last[1].shape == shape and last[1].dtype == dtype:
        return last[1]  # most calls ask for what the last one got, and a view of a tensor takes 10 us
    size = math.prod(shape)
    held = last[0] if last is not None and last[0].dtype == dtype else None
    if held is None or held.numel() < size:
        held = torch.empty(size, dtype=dtype)
    made = held[:size].view(tuple(shape))
    setattr(_memory, use, (held, made))
    return made
