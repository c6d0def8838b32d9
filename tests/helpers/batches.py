"""Batches of noise: images alone, and images with everything that belongs to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmload.augment import sample_seeds
from mmload.augment.collate import Collate
from mmload.batch import Batch
from mmload.render.rendering import ImageLines

Shape = tuple[int, int, int]

NOT_BOXED: dict[str, None] = dict.fromkeys(("boxes", "labels", "difficult", "counts", "masks"))
"""Fields of :func:`detections` that not every step takes along, for ``replace``."""


def noise(count: int, shape: Shape) -> Tensor:
    """Images of noise: uint8 [count, C, H, W]."""
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))


def seeds_for(count: int, epoch: int = 0) -> Tensor:
    """The seeds of rows 0 to count - 1."""
    return sample_seeds(1, epoch, torch.arange(count))


def batch_of(count: int, shape: Shape = (3, 40, 40), **fields: Any) -> Batch:
    """Images of noise with ids and seeds, and perhaps other fields."""
    more = {"images": noise(count, shape), "ids": torch.arange(count), "seeds": seeds_for(count)} | fields
    return Batch(batch_size=[count], **more)


def detections(count: int, shape: Shape = (3, 40, 52), most: int = 5, **fields: Any) -> Batch:
    """Images of noise with classes, masks, and up to ``most`` boxes each, of which every second one is difficult."""
    generator = torch.Generator().manual_seed(9)
    _, height, width = shape
    corners = torch.rand((count, most, 2, 2), generator=generator) * torch.tensor([width, height])
    counts = torch.randint(0, most + 1, (count,), generator=generator)
    real = torch.arange(most) < counts[:, None]
    boxed = {
        "targets": torch.arange(count) % 3,
        "boxes": torch.cat((corners.amin(2), corners.amax(2)), dim=2) * real[:, :, None],
        "labels": torch.where(real, torch.arange(most), -1),
        "difficult": (torch.arange(most) % 2 == 0) & real,
        "counts": counts,
        "masks": torch.randint(0, 256, (count, height, width), dtype=torch.uint8, generator=generator),
    }
    return batch_of(count, shape, **boxed | fields)


def by_parts(collate: Collate, batch: Batch, *firsts: int) -> Batch:
    """A batch that is rendered in parts, the last first unless samples are mixed; each begins at one of these rows."""
    prepared = collate.prepare(batch.replace(images=None), tuple(batch.images.shape[1:]))
    out = torch.empty(prepared.shape, dtype=prepared.dtype, memory_format=prepared.memory_format)
    parts = list(zip(firsts, (*firsts[1:], len(batch)), strict=True))
    for first, stop in parts[:: -1 if prepared.rendering.plan.mixing is None else 1]:
        prepared.rendering.render_lines(first, ImageLines.of_batch(batch.images, np.arange(first, stop)), out)
    made: Batch = prepared.finish(out)
    return made
