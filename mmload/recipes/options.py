"""What every training recipe takes besides its own settings."""

from __future__ import annotations

from typing import TypedDict

import torch

from mmload.augment.boxes import BoxRule


class Options(TypedDict, total=False):
    """Arguments that a training recipe hands to each :class:`~mmload.augment.collate.Collate` that it makes."""

    device: torch.device | str | None
    dtype: torch.dtype
    memory_format: torch.memory_format
    box_rule: BoxRule | None
