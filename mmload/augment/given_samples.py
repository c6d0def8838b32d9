"""Converts what people have into batches: arrays, images, pairs of image and label, dicts.

It is what lets a :class:`~mmload.augment.collate.Collate` be the ``collate_fn`` of any map-style dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmload.batch import Batch, make_batch
from mmload.errors import shown

_IMAGES = ("image", "images")
_TARGETS = ("target", "targets", "label", "labels")
_MOST_CHANNELS = 4
"""Upper bound on the channels of arrays [H, W, C]: a last axis this short is taken for channels."""

EXPECTED = (
    "a Batch, a list of its rows, images [B, C, H, W], or a list of images, of (image, label) pairs or of dicts with "
    "'image' and 'label', or 'boxes' and 'labels'"
)


def image_of(value: Any) -> Tensor:
    """Returns an image [C, H, W] of a tensor, a NumPy array or a PIL image; uint8 [H, W, C] and [H, W] are recognized.

    Raises:
        TypeError: if it is something else.
        ValueError: if it has another number of dimensions, or colors of a palette.
    """
    if isinstance(value, Tensor):
        image = value
    elif hasattr(value, "__array_interface__"):
        if getattr(value, "mode", None) == "P":
            raise ValueError("a picture has the mode P, numbers of colors: convert it, as by .convert('RGB')")
        image = torch.from_numpy(np.require(value, requirements="W"))  # torch takes no memory that is read-only
    else:
        raise TypeError(f"an image is {shown(value)}, expected a tensor, a NumPy array or a PIL image")
    if image.dim() == 2:
        image = image[None]
    if image.dim() != 3:
        raise ValueError(f"an image has the shape {tuple(image.shape)}, expected [C, H, W] or [H, W, C]")
    return image.permute(2, 0, 1) if _has_channels_last(image) else image


def images_of(value: np.ndarray[Any, Any]) -> Tensor:
    """Returns images [B, C, H, W] of an array [B, C, H, W], or uint8 [B, H, W, C] or [B, H, W]."""
    images = torch.from_numpy(np.require(value, requirements="W"))
    images = images[:, None] if images.dim() == 3 else images
    if images.dim() == 4 and len(images) and _has_channels_last(images[0]):
        images = images.permute(0, 3, 1, 2)
    return images.contiguous()


def _has_channels_last(image: Tensor) -> bool:
    """Returns whether the last of three axes is that of the channels: it is short, and the first is not."""
    return image.dtype == torch.uint8 and image.shape[2] <= _MOST_CHANNELS < image.shape[0]


def samples_of(given: Sequence[Any]) -> tuple[Batch, list[Tensor]]:
    """Returns a batch without images, and the images [C, H, W] one by one, of what a dataset gives.

    Raises:
        TypeError, ValueError: if a sample is none of :data:`EXPECTED`, or samples differ in what they have.
    """
    samples = [_fields_of(sample) for sample in given]
    names = list(samples[0])
    for sample in samples:
        if list(sample) != names:
            raise ValueError(
                f"a sample has {', '.join(sample)}, and the first has {', '.join(names)}: give all the same"
            )
    columns = {name: [sample[name] for sample in samples] for name in names}
    images = [image_of(image).contiguous() for image in columns.pop("images")]
    fields = {
        name: torch.stack([torch.as_tensor(one) for one in column])
        for name, column in columns.items()
        if name in ("targets", "masks")
    }
    if "boxes" in columns:
        boxes = [torch.as_tensor(one, dtype=torch.float32).reshape(-1, 4) for one in columns["boxes"]]
        labels = [torch.as_tensor(one, dtype=torch.int64).reshape(-1) for one in columns["labels"]]
        for around, kinds in zip(boxes, labels, strict=True):
            if len(around) != len(kinds):
                raise ValueError(f"a sample has {len(around)} boxes and {len(kinds)} labels: give one for each")
        fields["boxes"] = pad_sequence(boxes, batch_first=True)
        fields["labels"] = pad_sequence(labels, batch_first=True, padding_value=-1)
        fields["counts"] = torch.tensor([len(one) for one in boxes], device="cpu")
    return make_batch(fields, len(samples)), images


def _fields_of(sample: Any) -> dict[str, Any]:
    """Returns what a sample has, by the names of a batch's fields."""
    if isinstance(sample, Mapping):
        return _named(sample)
    if isinstance(sample, tuple | list):
        if len(sample) != 2:
            raise ValueError(f"a sample has {len(sample)} parts, expected (image, label)")
        image, target = sample
        return {"images": image} | (_named(target, boxes=True) if isinstance(target, Mapping) else {"targets": target})
    return {"images": sample}


def _named(sample: Mapping[str, Any], boxes: bool = False) -> dict[str, Any]:
    """Returns the entries of a dict by the names of a batch's fields; ``boxes``: of the target of a detection."""
    found: dict[str, Any] = {}
    has_boxes = "boxes" in sample
    for name, value in sample.items():
        if name in _IMAGES and not boxes:
            field = "images"
        elif name in ("boxes", "masks") or (name == "labels" and has_boxes):
            field = name
        elif name in _TARGETS and not boxes:
            field = "targets"
        else:
            raise ValueError(f"a sample has {name!r}, which is no field of a batch; leave it out, or build a dataset")
        if field in found:
            raise ValueError(f"a sample has two entries for {field}: {', '.join(map(repr, sample))}")
        found[field] = value
    if has_boxes and "labels" not in found:
        raise ValueError("a sample has 'boxes' without 'labels'")
    return found
