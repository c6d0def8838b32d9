"""The output of a loader: a :class:`Batch` of many rows.

It is separate from :mod:`mmload.records`, as importing tensordict takes 3 s of processor time and a build needs none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy.typing as npt
import torch
from tensordict import TensorClass, TensorDict, lazy_stack
from torch import Tensor

from mmload.records import FIELD_NAMES

if TYPE_CHECKING:
    from PIL import Image


class Batch(TensorClass):
    """Many rows at once, as the loader hands them out. Fields that a dataset does not have are None.

    ``batch.images`` is [B, C, H, W] whatever the memory format. It is a tensordict tensorclass: it slices, stacks,
    moves (``.to``) and pins as a whole. It does not iterate, so that ``images, targets = batch`` never unpacks rows.
    """

    images: Tensor = None  # type: ignore[assignment]  # None only without images, which is rare
    """[B, C, H, W]; uint8 as stored, or the collate's dtype once rendered."""
    targets: Tensor = None  # type: ignore[assignment]  # None only without targets
    """int64 [B] class indices, or float32 [B, K]: multi-label vectors, or soft targets after mixing."""
    boxes: Tensor | None = None
    """float32 [B, M, 4], xyxy in pixels, 0-based, half-open; rows past ``counts`` are zero."""
    labels: Tensor | None = None
    """int64 [B, M], the class of each box; -1 past ``counts``."""
    difficult: Tensor | None = None
    """bool [B, M], VOC's flag of each box."""
    counts: Tensor | None = None
    """int64 [B], how many boxes are real."""
    masks: Tensor | None = None
    """uint8 [B, H, W] class per pixel, 255 = void."""
    features: Tensor | None = None
    """[B, ...] tensors stored with the dtype they came in."""
    ids: Tensor | None = None
    """int64 [B], the row's number in its split, or in the ConcatDataset that a loader reads."""
    seeds: Tensor | None = None
    """int64 [B], the seed of each sample's random draws; None: they come from torch's generator."""
    extra: TensorDict | None = None
    """Any further fields of the dataset, by name."""
    image_sizes: Tensor | None = None
    """int64 [B, 2], height and width of each image at the top left of a larger canvas; None: images fill theirs, or
    steps after the canvas moved them."""

    def __iter__(self) -> NoReturn:
        """Refuses to unpack or to iterate, for any number of rows; ``unbind(0)`` gives the rows.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "a Batch does not unpack or iterate: read batch.images and batch.targets, or let the loader give tuples: "
            'Loader(..., returns=("images", "targets")); batch.unbind(0) gives its rows'
        )

    def to_torchvision(self) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
        """The batch as torchvision's detection models take it: a list of images and a list of targets.

        Returns:
            Images [C, H, W], each in its own size where images are variable-size or the batch has ``image_sizes``; and
            for each a dict of ``boxes``
            float32 [N, 4], ``labels`` int64 [N], which count from 1 as class 0 is the background there, and, where the
            dataset has them, ``masks`` and ``difficult``.

        Raises:
            ValueError: if the batch has no boxes.
        """
        if self.boxes is None or self.labels is None or self.counts is None:
            raise ValueError("the batch has no boxes, labels and counts; build it for detection")
        if rows := lazy_rows(self):
            alone = [row.unsqueeze(0).to_torchvision() for row in rows]
            return [images[0] for images, _ in alone], [targets[0] for _, targets in alone]
        targets, images = [], list(self.images.unbind(0))
        sizes = [image.shape[1:] for image in images] if self.image_sizes is None else self.image_sizes.tolist()
        images = [image[:, :height, :width] for image, (height, width) in zip(images, sizes, strict=True)]
        for row, count in enumerate(self.counts.tolist()):
            target = {"boxes": self.boxes[row, :count], "labels": self.labels[row, :count] + 1}
            if self.difficult is not None:
                target["difficult"] = self.difficult[row, :count]
            if self.masks is not None:
                height, width = sizes[row]
                target["masks"] = self.masks[row, :height, :width]
            targets.append(target)
        return images, targets

    def preview(
        self,
        classes: Sequence[str] = (),
        *,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        columns: int = 8,
        most: int = 64,
    ) -> Image.Image:
        """A contact sheet of the batch: images with boxes and masks, classes, rows. A notebook shows it.

        Args:
            classes: names by index, as ``split.classes``.
            mean: per channel, as Normalize had it, to undo it; empty: images are not normalized.
            std: the same.
            columns: how many stand side by side.
            most: how many images at most, the first of the batch.

        Raises:
            ValueError: if the batch has no images, or they look normalized and ``mean`` and ``std`` are missing.
        """
        from mmload.pictures.cells import SHOWN, cells_of
        from mmload.pictures.contact_sheet import contact_sheet

        first = self[:most]
        cells = []
        for part in [row.unsqueeze(0) for row in lazy_rows(first)] or [first]:
            shown = {name: getattr(part, name) for name in SHOWN}
            arrays = {name: _array(value) for name, value in shown.items() if value is not None}
            cells += cells_of(arrays, classes, mean=tuple(mean), std=tuple(std))
        return contact_sheet(cells, columns, classes=classes)


Made = Batch | tuple[Batch, ...]
"""What a collate makes of rows: a batch, or one batch per view."""


def _array(value: Tensor) -> npt.NDArray[Any]:
    value = value.detach().cpu()
    array: npt.NDArray[Any] = (value.float() if value.is_floating_point() else value).numpy()  # numpy has no bfloat16
    return array


def lazy_rows(batch: Batch) -> list[Batch]:
    """Returns the rows of a lazy stack, as which variable-size images come; none of any other batch."""
    return list(batch.unbind(0)) if hasattr(batch, "tensordicts") else []  # an attribute that only lazy stacks have


def fields_of(batch: Batch) -> dict[str, Tensor]:
    """Name -> tensor of every field that a batch has, those of ``extra`` beside its attributes.

    Raises:
        ValueError: if a field of ``extra`` has the name of an attribute.
    """
    fields = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
    extra: dict[str, Tensor] = {} if batch.extra is None else dict(batch.extra.items())  # type: ignore[arg-type]  # flat
    twice = fields.keys() & extra.keys()
    if twice:
        raise ValueError(f"the batch has two fields {min(twice)!r}, one of them in extra; choose by a function")
    return fields | extra


def make_batch(
    fields: Mapping[str, Tensor], size: int | None, device: torch.device | None = None, **more: Any
) -> Batch:
    """A :class:`Batch` from stored fields by name.

    Args:
        fields: name -> tensor [B, ...] (or one row's tensor where size is None).
        size: B; None for one row.
        device: where they all are; None: where each is.
        more: ``ids`` or ``seeds``.
    """
    shape = [] if size is None else [size]
    attributes = {name: tensor for name, tensor in fields.items() if name in FIELD_NAMES} | more
    extra = {name: tensor for name, tensor in fields.items() if name not in FIELD_NAMES}
    if extra:
        attributes["extra"] = TensorDict(extra, batch_size=shape)
    # The tensorclass constructor takes five times as long: a tenth of the time of a batch of small images.
    batch: Batch = Batch.from_tensordict(TensorDict(attributes, batch_size=shape, device=device))
    return batch


def make_ragged_batch(fields: Mapping[str, Tensor], own: Mapping[str, Sequence[Tensor]], ids: Tensor) -> Batch:
    """A :class:`Batch` of whole photographs: a lazy stack of its rows, whose images keep their own sizes.

    Args:
        fields: name -> tensor [B, ...] of the fields whose rows are alike.
        own: name -> B tensors, of the fields whose rows have their own sizes; of no row the batch does not have them.
        ids: int64 [B].
    """
    if not len(ids):
        return make_batch(fields, 0, ids=ids)
    both: dict[str, Sequence[Tensor]] = {name: list(tensor) for name, tensor in fields.items()} | dict(own)
    rows = [make_batch({name: of[row] for name, of in both.items()}, None, ids=ids[row]) for row in range(len(ids))]
    batch: Batch = lazy_stack(rows)
    return batch
