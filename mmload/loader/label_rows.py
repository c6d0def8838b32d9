"""Reads rows that go with images of a batch from their tier: variable-size masks, and lists such as boxes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmload.loader.tiers import Bytes, Tier, copy_ranges, sizes_of
from mmload.render.torch_sampling import OwnMasks
from mmload.store.row_reader import Numbers, PaddedLists


def read_masks(masks: Tier, rows: Tensor, sizes: Tensor) -> OwnMasks:
    """Reads variable-size masks into new memory.

    Raises:
        DamagedError: if one has another size than its image, int64 [B, 2].
        StoreError: if they cannot be read.
    """
    wrong = np.flatnonzero((sizes_of(masks.rows, rows) != sizes).any(1))
    if len(wrong):
        height, width = sizes_of(masks.rows, rows)[wrong[0]].tolist()
        message = f"it is {height} x {width}, but its image has another size"
        raise masks.rows.damaged(int(rows[wrong[0]]), message)
    lengths = sizes.prod(1).numpy()
    return OwnMasks(torch.from_numpy(_joined(masks, rows, lengths)), torch.from_numpy(np.cumsum(lengths) - lengths))


def read_lists(tier: Tier, lists: PaddedLists, rows: Tensor, out: Tensor) -> None:
    """Reads lists into ``out`` [B, *row shape], with padding behind each.

    Raises:
        DamagedError, StoreError: as :meth:`Tier.parts`.
    """
    lengths = lists.lengths(rows.numpy())
    filled = rows[torch.from_numpy(lengths > 0)]  # no map has a page for an empty row at the end of a file
    lists.pad(_joined(tier, filled, lengths[lengths > 0]), lengths, out.numpy())


def _joined(tier: Tier, rows: Tensor, lengths: Numbers) -> Bytes:
    """Copies rows of these lengths, int64 [B], one after another into new memory, uint8 [n]."""
    starts, done = np.cumsum(lengths) - lengths, 0
    memory = np.empty(int(lengths.sum()), np.uint8)
    for part in tier.parts(rows):
        stop = done + len(part.rows)
        copy_ranges(part.memory, part.places["start"].copy(), part.lengths, memory, starts[done:stop])
        done = stop
    return memory
