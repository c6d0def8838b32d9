"""Rows of a dataset as the batch that a collate renders: stacked, or with variable-size images beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import lazy_stack
from torch import Tensor

from mmload.batch import Batch, lazy_rows
from mmload.render.torch_sampling import OwnMasks


def stacked_rows(batch: Batch | Sequence[Batch]) -> Batch:
    """Returns rows as one batch, which is a lazy stack where their images differ in size."""
    if isinstance(batch, Batch):
        return batch
    rows: list[Any] = list(batch)
    odd = next((row for row in rows if not isinstance(row, Batch)), None)
    if not rows or odd is not None:
        got = "an empty list" if not rows else f"a list with {type(odd).__name__}"
        raise TypeError(f"got {got}, expected a Batch, a list of its rows, or images [B, C, H, W]")
    stacked: Any = lazy_stack(rows) if variable_size_rows(rows) else torch.stack(rows)
    whole: Batch = stacked
    return whole


def variable_size_rows(batch: Batch | Sequence[Batch]) -> Sequence[Batch]:
    """Returns the rows of a batch or list if their images differ in size; none if they do not."""
    rows = lazy_rows(batch) if isinstance(batch, Batch) else batch
    images = [row.images for row in rows if isinstance(row, Batch) and isinstance(row.images, Tensor)]
    return rows if len(images) == len(rows) and len({image.shape for image in images}) > 1 else ()


def apart(rows: Sequence[Batch]) -> tuple[Batch, list[Tensor], OwnMasks | None]:
    """Rows with images of a size each as one batch without images and masks, the images, and the masks.

    Raises:
        TypeError: if an image or mask is not uint8.
        ValueError: if an image is not [C, h, w], or has another number of channels than the first; or if some rows have
            no mask, or one of another size than its image.
    """
    images = [row.images for row in rows]
    for image in images:
        if image.dtype != torch.uint8:
            raise TypeError(f"images of a size each are {image.dtype}, expected torch.uint8")
        if image.dim() != 3 or image.shape[0] != images[0].shape[0]:
            shapes = tuple(image.shape), tuple(images[0].shape)
            raise ValueError(f"images have the shapes {shapes[0]} and {shapes[1]}, expected [C, h, w] with the same C")
    masks = _masks_of(rows)
    stacked = stacked_rows([row.replace(images=None, masks=None) for row in rows])
    return stacked.replace(images=None, masks=None), images, masks  # of None, stack makes a list


def _masks_of(rows: Sequence[Batch]) -> OwnMasks | None:
    """The masks of rows whose images have a size each, one after another."""
    masks: list[Tensor] = []
    for row in rows:
        if row.masks is None:
            continue
        if row.masks.dtype != torch.uint8:
            raise TypeError(f"masks of a size each are {row.masks.dtype}, expected torch.uint8")
        if row.masks.shape != row.images.shape[1:]:
            raise ValueError(f"masks have the shape {tuple(row.masks.shape)} beside images {tuple(row.images.shape)}")
        masks.append(row.masks.reshape(-1))
    if not masks:
        return None
    if len(masks) < len(rows):
        raise ValueError(f"{len(masks)} of {len(rows)} rows have masks: give all of them, or none")
    ends = torch.tensor([len(mask) for mask in masks]).cumsum(0)
    return OwnMasks(torch.cat(masks), ends - torch.tensor([len(mask) for mask in masks]))
