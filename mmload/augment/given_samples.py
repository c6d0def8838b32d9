"""Converts what people have into batches: rows, arrays, images, pairs of image and label, dicts.

It is what lets a :class:`~mmload.augment.collate.Collate` be the ``collate_fn`` of any map-style dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import lazy_stack
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmload.batch import Batch, lazy_rows, make_batch
from mmload.errors import shown
from mmload.render.torch_sampling import OwnMasks
from mmload.runtime.random_words import Numbers

_FIELDS = {
    "image": "images",
    "images": "images",
    "target": "targets",
    "targets": "targets",
    "label": "targets",
    "labels": "targets",
    "boxes": "boxes",
    "masks": "masks",
}
"""Names in the dict of a sample -> fields of a batch; beside boxes, "labels" are theirs."""

_MOST_CHANNELS = 4
"""Upper bound on the channels of arrays [H, W, C]: a last axis this short is taken for channels."""

EXPECTED = (
    "a Batch, a list of its rows, images [B, C, H, W], or a list of images, of (image, label) pairs or of dicts with "
    "'image' and 'label', or 'boxes' and 'labels'"
)


class Given(NamedTuple):
    """Samples as a batch, with the images apart, and the masks where images differ in size.

    Attributes:
        batch: all fields; those of variable-size images but images and masks.
        images: tensor [B, C, H, W], or a sequence of uint8 [C, h, w].
        one: one of the images, or all of fixed-size ones: what has their device, dtype and channels.
        sizes: heights and widths of variable-size images, int64 [B, 2]; None: images are fixed-size.
        own: the ``masks`` of variable-size images, which have their sizes, if there are any.
    """

    batch: Batch
    images: Any
    one: Tensor
    sizes: Numbers | None = None
    own: Mapping[str, OwnMasks] = MappingProxyType({})

    @classmethod
    def of_one_size(cls, batch: Batch, images: Tensor) -> Given:
        """Returns samples with images [B, C, H, W]."""
        return cls(batch, images, images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images, of those of variable size that of the first."""
        channels, height, width = self.one.shape[-3:]
        return channels, height, width

    def moved(self, device: torch.device) -> Given:
        """Returns the samples with fixed-size images on a device, and all other fields in host memory."""
        if self.sizes is not None:
            return self
        batch, images = self.batch, self.images.to(device, non_blocking=device.type != "cpu")
        if self.images.device.type != "cpu":
            batch = on_device(batch.replace(images=None), torch.device("cpu"))
        return Given.of_one_size(batch, images)

    def chosen(self, numbers: Numbers) -> Given:
        """Returns some samples, by their numbers, int64 [N]."""
        chosen = torch.from_numpy(numbers)
        batch = self.batch.replace(images=None)[chosen]
        if self.sizes is None:
            return Given.of_one_size(batch, self.images[chosen])
        images = [self.images[k] for k in numbers.tolist()]
        own = {name: masks._replace(starts=masks.starts[numbers]) for name, masks in self.own.items()}
        return Given(batch, images, images[0], self.sizes[numbers], own)


def on_device(batch: Batch, device: torch.device) -> Batch:
    """Copies a batch to a device; from host to GPU by pinned memory, and nobody waits for it.

    ``batch.to(device)`` waits for all work on all streams of the GPU.
    """
    is_cuda = device.type == "cuda"

    def copied(field: Tensor) -> Tensor:
        host = field.pin_memory() if is_cuda and field.device.type == "cpu" else field
        return host.to(device, non_blocking=is_cuda)

    made: Batch = batch.apply(copied, device=device)
    return made


def given_samples(given: Any) -> Given:
    """Returns what a collate is called with as a batch.

    Raises:
        TypeError, ValueError: if it is none of :data:`EXPECTED`.
    """
    if isinstance(given, np.ndarray):
        given = _images_of(given, 4)
    if isinstance(given, Tensor):
        if given.dim() != 4:
            raise ValueError(f"images have the shape {tuple(given.shape)}, expected [B, C, H, W]")
        return Given.of_one_size(make_batch({}, len(given)), given)
    if isinstance(given, Batch):
        rows = lazy_rows(given)
    elif isinstance(given, Sequence) and not isinstance(given, str) and len(given):
        rows = list(given)
        if not all(isinstance(row, Batch) for row in rows):
            return _of_samples(rows)
    else:
        raise TypeError(f"got {shown(given) if given or given is None else 'an empty list'}, expected {EXPECTED}")
    if _differ_in_size(rows):
        batch = stacked_rows([row.replace(images=None, masks=None) for row in rows])
        # Of None, stack makes a list.
        masks = [row.masks for row in rows if row.masks is not None]
        return _of_sizes(batch.replace(images=None, masks=None), [row.images for row in rows], masks)
    batch = stacked_rows(given)
    images = batch.images
    if images is None:
        raise ValueError("images are missing, expected [B, C, H, W]")
    if images.dim() != 4:
        raise ValueError(f"images are of the shape {tuple(images.shape)}, expected [B, C, H, W]")
    if batch.batch_size != images.shape[:1]:
        raise ValueError(f"batch_size is {list(batch.batch_size)}, expected [B]: stack rows, or give a list of them")
    return Given.of_one_size(batch, images)


def stacked_rows(batch: Batch | Sequence[Batch]) -> Batch:
    """Returns rows as one batch, which is a lazy stack where their images differ in size."""
    if isinstance(batch, Batch):
        return batch
    rows: list[Any] = list(batch)
    if not all(isinstance(row, Batch) for row in rows):
        raise TypeError(f"got a {type(rows[0]).__name__}, expected rows of an mmload dataset; give a Collate others")
    try:
        stacked: Any = lazy_stack(rows) if _differ_in_size(rows) else torch.stack(rows)
    except RuntimeError as error:  # of tensordict
        advice = "as several datasets pad boxes to different numbers; give the datasets to mmload.Loader"
        raise ValueError(f"rows cannot be stacked, perhaps {advice} ({error})") from error
    whole: Batch = stacked
    return whole


def _differ_in_size(rows: Sequence[Batch]) -> bool:
    shapes = {getattr(row.images, "shape", None) for row in rows}
    return len(shapes) > 1 and None not in shapes


def _of_sizes(batch: Batch, images: Sequence[Tensor], masks: Sequence[Tensor]) -> Given:
    """Adds images of variable sizes, and perhaps their masks, to a batch without them.

    Raises:
        ValueError: if an image is not uint8 [C, h, w], or has another number of channels than the first; or if some
            have no mask, or one that is not uint8, or of another size.
    """
    for image in images:
        if image.dtype != torch.uint8 or image.dim() != 3 or len(image) != len(images[0]):
            raise ValueError(
                f"a variable-size image is {image.dtype} {tuple(image.shape)}, and the first {tuple(images[0].shape)}; "
                "expected torch.uint8 [C, h, w] with the same C"
            )
    given = Given(batch, images, images[0], np.array([image.shape[1:] for image in images], np.int64))
    if not masks:
        return given
    if len(masks) < len(images):
        raise ValueError(f"{len(masks)} of {len(images)} rows have masks: give all of them, or none")
    for mask, image in zip(masks, images, strict=True):
        if mask.dtype != torch.uint8 or mask.shape != image.shape[1:]:
            raise ValueError(
                f"a mask is {mask.dtype} {tuple(mask.shape)}, expected torch.uint8 of the size of its image, "
                f"{tuple(image.shape)}"
            )
    lengths = np.array(list(map(Tensor.numel, masks)))
    pixels = torch.cat(list(map(torch.flatten, masks))).numpy()
    return given._replace(own={"masks": OwnMasks(pixels, np.cumsum(lengths) - lengths)})


def _images_of(value: Any, dimensions: int) -> Tensor:
    """Returns an image [C, H, W], or images with 4 dimensions, of a tensor, a NumPy array or a PIL image.

    uint8 with the channels last, or without channels, is recognized.

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
    image = image.unsqueeze(-3) if image.dim() == dimensions - 1 else image
    if image.dim() != dimensions:
        raise ValueError(f"images have the shape {tuple(image.shape)}, expected [C, H, W] or [H, W, C] of each")
    if image.dtype == torch.uint8 and image.shape[-1] <= _MOST_CHANNELS < image.shape[-3]:
        image = image.movedim(-1, -3)
    return image.contiguous()


def _of_samples(given: Sequence[Any]) -> Given:
    """Returns what a dataset gives, a list of samples, as a batch.

    Raises:
        TypeError, ValueError: if a sample is none of :data:`EXPECTED`, or samples differ in what they have.
    """
    samples = [_fields_of(sample) for sample in given]
    for sample in samples:
        if sample.keys() != samples[0].keys():
            raise ValueError(
                f"a sample has {', '.join(sample)}, and the first has {', '.join(samples[0])}: give all the same"
            )
    columns = {name: [_TENSORS[name](sample[name]) for sample in samples] for name in samples[0]}
    images, masks = columns.pop("images"), columns.pop("masks", [])
    fields: dict[str, Tensor] = {}
    if "targets" in columns:
        fields["targets"] = torch.stack(columns["targets"])
    if "boxes" in columns:
        boxes, labels = columns["boxes"], columns["labels"]
        for around, kinds in zip(boxes, labels, strict=True):
            if len(around) != len(kinds):
                raise ValueError(f"a sample has {len(around)} boxes and {len(kinds)} labels: give one for each")
        fields["boxes"] = pad_sequence(boxes, batch_first=True)
        fields["labels"] = pad_sequence(labels, batch_first=True, padding_value=-1)
        fields["counts"] = torch.tensor(list(map(len, boxes)), device="cpu")
    if len({image.shape for image in images}) > 1:
        return _of_sizes(make_batch(fields, len(samples)), images, masks)
    if masks:
        fields["masks"] = torch.stack(masks)
    return Given.of_one_size(make_batch(fields, len(samples)), torch.stack(images))


_TENSORS: Mapping[str, Callable[[Any], Tensor]] = {
    "images": partial(_images_of, dimensions=3),
    "targets": torch.as_tensor,
    "boxes": lambda boxes: torch.as_tensor(boxes, dtype=torch.float32).reshape(-1, 4),
    "labels": lambda labels: torch.as_tensor(labels, dtype=torch.int64).reshape(-1),
    "masks": torch.as_tensor,
}
"""Fields -> what makes a tensor of the one that a sample has."""


def _fields_of(sample: Any) -> dict[str, Any]:
    """Returns what a sample has, by the names of a batch's fields."""
    if isinstance(sample, Mapping):
        return _named(sample)
    if isinstance(sample, tuple | list):
        if len(sample) != 2:
            raise ValueError(f"a sample has {len(sample)} parts, expected (image, label)")
        image, target = sample
        return (
            _named({**target, "image": image}) if isinstance(target, Mapping) else {"images": image, "targets": target}
        )
    return {"images": sample}


def _named(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of a dict by the names of a batch's fields."""
    found: dict[str, Any] = {}
    fields = {**_FIELDS, "labels": "labels"} if "boxes" in sample else _FIELDS
    for name, value in sample.items():
        field = fields.get(name)
        if field is None:
            raise ValueError(f"a sample has {name!r}, which is no field of a batch; leave it out, or build a dataset")
        if field in found:
            raise ValueError(f"a sample has two entries for {field}: {', '.join(map(repr, sample))}")
        found[field] = value
    needed = {"images", "labels"} if "boxes" in found else {"images"}
    if missing := needed - found.keys():
        raise ValueError(
            f"a sample has no {min(missing)}, but {', '.join(map(repr, sample))}: give 'image', and 'labels' to 'boxes'"
        )
    return found
