"""Tensors that are made once and used again: constants on a device, and working memory of a thread on a CPU."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

_memory = threading.local()


@lru_cache(maxsize=256)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns the values as a tensor [N], which nobody may write to: equal constants share it.

    ``torch.tensor(..., device="cuda")`` waits until all work queued before it is done: created in every batch, it would
    keep the training thread from running ahead of its device.

    Args:
        values: any numbers; rounded to float32 first if they are not integers, as ``torch.tensor`` does.
        dtype: of the tensor.
        device: of the tensor, which stays there as long as the process runs.
    """
    with torch.inference_mode(False):  # else it could not be saved for a backward pass outside of that mode
        return torch.tensor(values).to(dtype).to(device)


def scratch(use: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Returns uninitialized contiguous memory on the CPU, valid until the same thread asks for the same ``use`` again.

    Args:
        use: name of the purpose; each has memory of its own in each thread.
        shape: of the tensor.
        dtype: of the tensor.
    """
    last: tuple[Tensor, Tensor] | None = getattr(_memory, use, None)
    if last is not None and last[1].shape == shape and last[1].dtype == dtype:
        return last[1]  # most calls ask for what the last one got, and a view of a tensor takes 10 us
    size = math.prod(shape)
    flat = last[0] if last is not None and last[0].dtype == dtype else None
    if flat is None or flat.numel() < size:
        flat = torch.empty(size, dtype=dtype)
    view = flat[:size].view(tuple(shape))
    setattr(_memory, use, (flat, view))
    return view
