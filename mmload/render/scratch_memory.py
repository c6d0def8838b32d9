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
    size = math.prod(shape)
    held: Tensor | None = getattr(_memory, use, None)
    if held is None or held.dtype != dtype or len(held) < size:
        held = torch.empty(size, dtype=dtype)
        setattr(_memory, use, held)
    return held[:size].view(tuple(shape))
