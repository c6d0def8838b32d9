"""Checks of a collate and its batches: dtypes, orders of steps, shapes and fields.

The checks run once per collate or per batch, on shapes and dtypes; only the values of float images are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmload.augment.arguments import argument_error
from mmload.augment.boxes import check_counts
from mmload.augment.color import Normalize
from mmload.augment.copy_paste import CopyPaste
from mmload.augment.foreign_modules import check_foreign, moves
from mmload.augment.mosaic import Mosaic
from mmload.augment.step import AfterStep, DeclaredStep, LevelStep, Step, check_dtype, check_shape, sees_fields
from mmload.batch import Batch
from mmload.errors import shown
from mmload.pictures.instance_masks import segment_fields
from mmload.runtime.random_words import Numbers

DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Permitted dtypes of rendered images."""


def check_steps(steps: Sequence[nn.Module], dtype: torch.dtype) -> None:
    """Rejects steps that give garbage in this dtype or order.

    Raises:
        TypeError: if a step is not a module.
        ValueError: if the dtype is not one of :data:`DTYPES`, or a step cannot stand where it stands.
    """
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        raise argument_error("dtype", dtype, "torch.uint8 or one of float16, bfloat16, float32, float64")
    if sum(isinstance(step, CopyPaste) for step in steps) > 1:
        raise ValueError("CopyPaste is there several times; put it in once, as each sample has one partner")
    normalized = False
    for place, step in enumerate(steps):
        name = type(step).__name__
        if not isinstance(step, nn.Module):
            raise TypeError(f"{shown(step)} is not an nn.Module: wrap a function in a module with a forward")
        if isinstance(step, Mosaic) and place:
            raise ValueError("Mosaic comes after other steps; put it first, as it composes rows as they are stored")
        if not isinstance(step, DeclaredStep):
            check_foreign(step)
        if dtype == torch.uint8 and isinstance(step, Step | AfterStep) and step.makes_floats:
            raise ValueError(f"{name} makes floats, but dtype is torch.uint8; give the collate a floating dtype")
        if normalized and isinstance(step, LevelStep):
            raise ValueError(
                f"{name} comes after Normalize and would clamp its values to [0, 1]; put it before Normalize"
            )
        normalized = normalized or isinstance(step, Normalize)


def check_fields(steps: Iterable[nn.Module], fields: Mapping[str, Tensor]) -> None:
    """Rejects fields that steps need, or would leave behind.

    Raises:
        ValueError: if a step moves pixels or mixes samples, and boxes or masks cannot follow, or it lacks what it
            needs; or if fields of masks of instances are incomplete.
    """
    segment_fields({name: value.shape[1:] for name, value in fields.items()})
    for step in steps:
        if isinstance(step, DeclaredStep):
            step.check_fields(fields)
        elif ("boxes" in fields or "masks" in fields) and moves(step):
            name = type(step).__name__
            raise ValueError(
                f"{name} may move pixels but not boxes and masks; set keeps_geometry = True on it if it moves "
                "none, or use PerSample with a torchvision v2 transform"
            )


def check_batch(batch: Batch, shape: tuple[int, int, int], source: torch.dtype, sizes: Numbers | None) -> None:
    """Rejects a batch whose fields do not fit each other.

    It has everything but the images, of whose shape (C, H, W) and dtype it is told, and of their sizes, int64 [B, 2],
    if they are variable-size.

    Raises:
        TypeError: if a field has another dtype than it must have.
        ValueError: if it has another shape, or counts of boxes are not from 0 to their greatest number.
    """
    check_dtype(source)
    if len(batch.batch_size) != 1:
        raise ValueError(f"batch_size is {list(batch.batch_size)}, expected [B]: stack rows, or give a list of them")
    (count,) = batch.batch_size
    if sizes is None:
        check_shape(shape)
    else:
        _check_tensor("sizes", sizes, (count, 2), (np.dtype(np.int64),))
        if count:
            check_shape((shape[0], int(sizes[:, 0].min()), int(sizes[:, 1].min())))
        if batch.masks is not None:
            raise ValueError("the images are variable-size, but their masks are not; give masks of the same sizes")
    most = 0 if batch.boxes is None or batch.boxes.dim() != 3 else batch.boxes.shape[1]
    checked: dict[str, tuple[tuple[int, ...], Sequence[Any]]] = {
        "masks": ((count, *shape[1:]), (torch.uint8,)),
        "seeds": ((count,), (torch.int64,)),
        "ids": ((count,), (torch.int64,)),
        "boxes": ((count, most, 4), (torch.float32, torch.float64)),
    }
    if batch.boxes is not None:
        checked |= {
            "labels": ((count, most), (torch.int64,)),
            "difficult": ((count, most), (torch.bool,)),
            "counts": ((count,), (torch.int64,)),
        }
    for name, (expected, dtypes) in checked.items():
        field = getattr(batch, name)
        if field is not None:
            _check_tensor(name, field, expected, dtypes)
    if batch.boxes is not None and batch.counts is not None:
        check_counts(batch.counts, most)


def _check_tensor(name: str, tensor: Tensor | Numbers, shape: tuple[int, ...], dtypes: Sequence[Any]) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name} have the shape {tuple(tensor.shape)}, expected {shape} beside these images")
    if tensor.dtype not in dtypes:
        raise TypeError(f"{name} are {tensor.dtype}, expected {' or '.join(str(one) for one in dtypes)}")


def check_values(images: Tensor, steps: Iterable[nn.Module]) -> None:
    """Rejects float images on a CPU whose white is not 1, before steps whose result depends on it.

    On other devices nobody looks: the device would be waited for at every batch.

    Raises:
        ValueError: if a value lies outside of [0, 1].
    """
    if images.device.type != "cpu" or not images.is_floating_point() or not images.numel():
        return
    if any(isinstance(step, Normalize | LevelStep) for step in steps):
        least, greatest = (float(end) for end in images.aminmax())
        if not (least >= -0.01 and greatest <= 1.01):
            raise ValueError(
                f"images are {images.dtype} with values from {least:g} to {greatest:g}: give uint8 levels, or floats "
                "from 0 to 1"
            )


def check_output(
    step: nn.Module, images: object, before: Tensor, dtype: torch.dtype, fields: Collection[str]
) -> Tensor:
    """Checks the images that a step made of the images ``before``, of a batch with ``fields``, and returns them.

    Raises:
        TypeError: if it is no tensor, or one of another dtype.
        ValueError: if it is no batch of as many images.
    """
    name = type(step).__name__
    if not isinstance(images, Tensor):
        raise TypeError(f"{name} gave {type(images).__name__}, expected a tensor [B, C, H, W]")
    if images.dim() != 4 or len(images) != len(before):
        raise ValueError(f"{name} made {tuple(images.shape)} of images {tuple(before.shape)}, expected [B, C, H, W]")
    if images.dtype != torch.uint8 and (dtype == torch.uint8 or not images.is_floating_point()):
        raise TypeError(
            f"{name} gave {images.dtype}, but dtype is {dtype}; give uint8, or floats in a collate of a floating dtype"
        )
    has_geometry = "boxes" in fields or "masks" in fields
    if images.shape[2:] != before.shape[2:] and has_geometry and not sees_fields(step):
        raise ValueError(
            f"{name} resized images {tuple(before.shape)} to {tuple(images.shape)} but not their boxes or masks; use "
            "PerSample with a torchvision v2 transform"
        )
    return images
