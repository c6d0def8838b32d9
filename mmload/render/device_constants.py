"""Small constants on a device, copied there once.

Equal constants share one tensor, which nobody may write to. ``torch.tensor(..., device="cuda")`` waits until all work
queued before it is done: created in every batch, it would keep the training thread from running ahead of its device.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=256)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The values as a tensor [N].

    Args:
        values: any numbers; rounded to float32 first where they are not whole, as ``torch.tensor`` does.
        dtype: of the tensor.
        device: where; kept for as long as the process runs.
    """
    with torch.inference_mode(False):  # else it could not be saved for a backward pass outside of that mode
        return torch.tensor(values).to(dtype).to(device)
