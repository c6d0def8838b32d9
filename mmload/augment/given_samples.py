"""Converts what people have into batches: rows, arrays, images, pairs of image and label, dicts.

It is what lets a :class:`~mmload.augment.collate.Collate` be the ``collate_fn`` of any map-style dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import lazy_stack
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmload.batch import Batch, lazy_rows, make_batch
from mmload.errors import counted, shown
from mmload.render.torch_sampling import OwnMasks
from mmload.runtime.random_words import Numbers

_IMAGES = ("image", "images")
_TARGETS = ("target", "targets", "label", "labels")
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
        masks: masks with the sizes of variable-size images.
    """

    batch: Batch
    images: Any
    masks: OwnMasks | None = None

    @property
    def one(self) -> Tensor:
        """Any of the images, or all of fixed-size ones: what has their device, dtype and channels."""
        one: Tensor = self.images if isinstance(self.images, Tensor) else self.images[0]
        return one

    @property
    def sizes(self) -> Numbers | None:
        """Heights and widths of variable-size images, int64 [B, 2]; None: images are fixed-size."""
        if isinstance(self.images, Tensor):
            return None
        return np.array([image.shape[1:] for image in self.images], np.int64)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images; (C, 0, 0) if they are variable-size."""
        channels, height, width = self.one.shape[-3:]
        return (channels, height, width) if isinstance(self.images, Tensor) else (channels, 0, 0)

    def moved(self, device: torch.device) -> Given:
        """Returns the samples with fixed-size images on a device, and all other fields in host memory."""
        if not isinstance(self.images, Tensor):
            return self
        batch, images = self.batch, self.images.to(device, non_blocking=device.type != "cpu")
        if self.images.device.type != "cpu":
            batch = on_device(batch.replace(images=None), torch.device("cpu"))
        return Given(batch, images)

    def chosen(self, numbers: Tensor) -> Given:
        """Returns some samples, by their numbers, int64 [N]."""
        images = self.images[numbers] if isinstance(self.images, Tensor) else [self.images[k] for k in numbers.tolist()]
        masks = None if self.masks is None else self.masks._replace(starts=self.masks.starts[numbers])
        return Given(self.batch.replace(images=None)[numbers], images, masks)


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
        given = _images_of(given)
    if isinstance(given, Tensor):
        if given.dim() != 4:
            raise ValueError(f"images have the shape {tuple(given.shape)}, expected [B, C, H, W]")
        return Given(Batch(batch_size=[len(given)]), given)
    if not isinstance(given, Batch) and (not isinstance(given, Sequence) or isinstance(given, str) or not given):
        raise TypeError(f"got {shown(given) if given or given is None else 'an empty list'}, expected {EXPECTED}")
    if isinstance(given, Batch) or all(isinstance(row, Batch) for row in given):
        if rows := variable_size_rows(given):
            return _split_rows(rows)
        return _with_images(stacked_rows(given))
    batch, images = _samples_of(given)
    if len({image.shape for image in images}) == 1:
        return Given(batch, torch.stack(images))
    if batch.masks is not None:
        raise ValueError("images differ in size, so their masks cannot be stacked: build a dataset, or resize them")
    return Given(batch, images)


def _with_images(batch: Batch) -> Given:
    """Checks that a batch has fixed-size images, one per sample."""
    images = batch.images
    if images is None or images.dim() != 4:
        got = "missing" if images is None else f"of the shape {tuple(images.shape)}"
        raise ValueError(f"images are {got}, expected [B, C, H, W]")
    if len(images) != batch.batch_size[0]:
        raise ValueError(
            f"got {counted(len(images), 'image')} for a batch of {counted(batch.batch_size[0], 'sample')}; "
            "give one per sample"
        )
    return Given(batch, images)


def stacked_rows(batch: Batch | Sequence[Batch]) -> Batch:
    """Returns rows as one batch, which is a lazy stack where their images differ in size."""
    if isinstance(batch, Batch):
        return batch
    rows: list[Any] = list(batch)
    try:
        stacked: Any = lazy_stack(rows) if variable_size_rows(rows) else torch.stack(rows)
    except RuntimeError as error:  # of tensordict
        advice = "as several datasets pad boxes to different numbers; give the datasets to mmload.Loader"
        raise ValueError(f"rows cannot be stacked, perhaps {advice} ({error})") from error
    whole: Batch = stacked
    return whole


def variable_size_rows(batch: Batch | Sequence[Batch]) -> Sequence[Batch]:
    """Returns the rows of a batch or list if their images differ in size; none if they do not."""
    rows = lazy_rows(batch) if isinstance(batch, Batch) else batch
    images = [row.images for row in rows if isinstance(row, Batch) and isinstance(row.images, Tensor)]
    return rows if len(images) == len(rows) and len({image.shape for image in images}) > 1 else ()


def _split_rows(rows: Sequence[Batch]) -> Given:
    """Divides rows with variable-size images into a batch without images and masks, the images, and the masks.

    Raises:
        TypeError: if an image or mask is not uint8.
        ValueError: if an image is not [C, h, w], or has another number of channels than the first; or if some rows have
            no mask, or one of another size than its image.
    """
    images = [row.images for row in rows]
    for image in images:
        if image.dtype != torch.uint8:
            raise TypeError(f"variable-size images are {image.dtype}, expected torch.uint8")
        if image.dim() != 3 or image.shape[0] != images[0].shape[0]:
            shapes = tuple(image.shape), tuple(images[0].shape)
            raise ValueError(f"images have the shapes {shapes[0]} and {shapes[1]}, expected [C, h, w] with the same C")
    masks = _masks_of(rows)
    stacked = stacked_rows([row.replace(images=None, masks=None) for row in rows])
    return Given(stacked.replace(images=None, masks=None), images, masks)  # of None, stack makes a list


def _masks_of(rows: Sequence[Batch]) -> OwnMasks | None:
    """Joins the masks of rows whose images are variable-size."""
    masks: list[Tensor] = []
    for row in rows:
        if row.masks is None:
            continue
        if row.masks.dtype != torch.uint8:
            raise TypeError(f"variable-size masks are {row.masks.dtype}, expected torch.uint8")
        if row.masks.shape != row.images.shape[1:]:
            raise ValueError(
                f"masks have the shape {tuple(row.masks.shape)}, but images {tuple(row.images.shape)}; "
                "give both the same size"
            )
        masks.append(row.masks.reshape(-1))
    if not masks:
        return None
    if len(masks) < len(rows):
        raise ValueError(f"{len(masks)} of {len(rows)} rows have masks: give all of them, or none")
    ends = torch.tensor([len(mask) for mask in masks], device="cpu").cumsum(0)
    return OwnMasks(torch.cat(masks), ends - torch.tensor([len(mask) for mask in masks], device="cpu"))


def _image_of(value: Any) -> Tensor:
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


def _images_of(value: np.ndarray[Any, Any]) -> Tensor:
    """Returns images [B, C, H, W] of an array [B, C, H, W], or uint8 [B, H, W, C] or [B, H, W]."""
    images = torch.from_numpy(np.require(value, requirements="W"))
    images = images[:, None] if images.dim() == 3 else images
    if images.dim() == 4 and len(images) and _has_channels_last(images[0]):
        images = images.permute(0, 3, 1, 2)
    return images.contiguous()


def _has_channels_last(image: Tensor) -> bool:
    """Returns whether the last of three axes is that of the channels: it is short, and the first is not."""
    return image.dtype == torch.uint8 and image.shape[2] <= _MOST_CHANNELS < image.shape[0]


def _samples_of(given: Sequence[Any]) -> tuple[Batch, list[Tensor]]:
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
    images = [_image_of(image).contiguous() for image in columns.pop("images")]
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
