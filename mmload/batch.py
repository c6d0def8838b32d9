"""Batches, the output of a loader, and how they are made of stored fields.

They are separate from :mod:`mmload.records`, as importing tensordict takes 3 s of CPU time and a build needs none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch
from tensordict import LazyStackedTensorDict, TensorClass, TensorDict, lazy_stack
from torch import Tensor
from torch.nn.functional import pad

from mmload.records import FIELD_NAMES

if TYPE_CHECKING:
    from PIL import Image


class Batch(TensorClass):
    """Rows that the loader returns together; fields that the dataset does not have are None.

    ``batch.images`` is [B, C, H, W] whatever the memory format. A batch is a tensordict tensorclass: it slices, stacks,
    moves (``.to``) and pins as a whole. Unlike other tensorclasses it does not iterate over its rows:
    ``images, targets = batch`` takes the two of a classification, and ``batch.unbind(0)`` returns the rows. A field of
    ``extra`` is an attribute, too: ``batch.logits``.
    """

    images: Tensor = None  # type: ignore[assignment]  # None only without images, which is rare
    """[B, C, H, W]; uint8 as stored, or the collate's dtype once rendered."""
    targets: Tensor = None  # type: ignore[assignment]  # None only without targets
    """int64 [B] class indices, or float32 [B, K]: multi-label vectors, or soft targets after mixing."""
    boxes: Tensor | None = None
    """float32 [B, M, 4], xyxy in pixels, 0-based, half-open; rows past ``counts`` are zero."""
    labels: Tensor | None = None
    """int64 [B, M], class of each box; -1 past ``counts``."""
    difficult: Tensor | None = None
    """bool [B, M], VOC's flag per box."""
    counts: Tensor | None = None
    """int64 [B], number of real boxes."""
    masks: Tensor | None = None
    """uint8 [B, H, W] class per pixel, 255 = void."""
    features: Tensor | None = None
    """[B, ...] tensors in the dtype of the source."""
    ids: Tensor | None = None
    """int64 [B], number of the row in its split, or in the ConcatDataset that a loader reads."""
    seeds: Tensor | None = None
    """int64 [B], seed of each sample's random draws; None: seeds come from torch's generator."""
    extra: TensorDict | None = None
    """Further fields of the dataset by name."""
    image_sizes: Tensor | None = None
    """int64 [B, 2], height and width of each image at the top left of a canvas with room for the largest; None: images
    fill the canvas, or later steps moved them."""

    def __iter__(self) -> Iterator[Tensor]:  # type: ignore[override]  # of other tensorclasses: rows
        """Returns an iterator over images and targets, in this order: ``images, targets = batch``.

        Raises:
            ValueError: if the batch has other fields, or lacks one of the two, or its rows have variable sizes.
        """
        if lazy_rows(self):
            raise ValueError(
                "rows of variable size do not unpack: give a collate that makes one size of them, or take them one by "
                "one: batch.unbind(0)"
            )
        added_by_loader = ("ids", "seeds", "image_sizes")
        names = tuple(name for name in fields_of(self) if name not in added_by_loader)
        if set(names) != {"images", "targets"}:
            raise ValueError(
                f"a batch of {', '.join(names)} does not unpack into images and targets: read batch.{min(names)}, or "
                f"let the loader give tuples, as in returns={names!r}; batch.unbind(0) gives its rows"
            )
        return iter((self.images, self.targets))

    def __repr__(self) -> str:
        """Returns the fields that the batch has, with their dtypes and shapes."""
        if lazy_rows(self):
            return f"Batch({len(self)} rows of variable size)"
        lines = [
            f"    {name}: {str(value.dtype).removeprefix('torch.')} {list(value.shape)},"
            for name, value in fields_of(self).items()
        ]
        return "\n".join(["Batch(", *lines, f"    batch_size={list(self.batch_size)}, device={self.device})"])

    def boxes_as(self, box_format: str) -> Tensor:
        """Returns the boxes in another format, in pixels, as ``torchvision.ops.box_convert`` does.

        Args:
            box_format: one of :data:`BOX_FORMATS`: "xyxy", two corners, as in ``boxes``; "xywh", the first corner and
                width and height; "cxcywh", the middle and width and height; or "xyxyxyxy", the four ``corners`` of
                rotated boxes.

        Returns:
            [..., M, 4], or [..., M, 8] of four corners; rows past ``counts`` are zero.

        Raises:
            ValueError: if the format is none of these, or the batch has no boxes, or no corners.
        """
        if box_format not in BOX_FORMATS:
            raise ValueError(f"box_format is {box_format!r}, expected one of {', '.join(BOX_FORMATS)}")
        field = BOX_FORMATS[box_format]
        boxes = fields_of(self).get(field)
        if boxes is None:
            raise ValueError(f"box_format={box_format!r} needs the field {field!r}, which the batch does not have")
        if field != "boxes":
            return boxes.flatten(-2)
        first, second = boxes[..., :2], boxes[..., 2:]
        if box_format == "xyxy":
            return boxes
        return torch.cat((first if box_format == "xywh" else (first + second) / 2, second - first), -1)

    def to_torchvision(self, box_format: str = "xyxy") -> tuple[list[Tensor], list[dict[str, Tensor]]]:
        """Converts the batch to what torchvision's detection models take: a list of images and a list of targets.

        Args:
            box_format: format of the boxes, as :meth:`boxes_as` has it; torchvision's models take "xyxy".

        Returns:
            Images [C, H, W], each in its own size if images are variable-size or the batch has ``image_sizes``; and
            per image a dict of ``boxes`` float32 [N, 4] (a ``tv_tensors.BoundingBoxes``), ``labels`` int64 [N], which
            count from 1 as class 0 is the background in torchvision, and, if the dataset has them, ``masks`` (a
            ``tv_tensors.Mask``: uint8 [N, H, W] of instances, else the classes [H, W]), ``keypoints`` float32 [N, K, 3]
            as Keypoint R-CNN takes them, ``iscrowd``, ``area``, ``difficult`` and ``image_id``.

        Raises:
            ValueError: if the batch has no boxes, or not those of the format.
        """
        if self.boxes is None or self.labels is None or self.counts is None:
            raise ValueError("the batch has no boxes, labels and counts; build it for detection")
        if rows := lazy_rows(self):
            alone = [row.unsqueeze(0).to_torchvision(box_format) for row in rows]
            return [images[0] for images, _ in alone], [targets[0] for _, targets in alone]
        from torchvision import tv_tensors

        targets, sizes = [], _sizes_in(self)
        images = [image[:, :height, :width] for image, (height, width) in zip(self.images, sizes, strict=True)]
        fields, masks, converted = fields_of(self), self.instance_masks(), self.boxes_as(box_format)
        for row, (count, (height, width)) in enumerate(zip(self.counts.tolist(), sizes, strict=True)):
            boxes = tv_tensors.BoundingBoxes(
                converted[row, :count], format=box_format.upper(), canvas_size=(height, width)
            )
            target = {"boxes": boxes, "labels": self.labels[row, :count] + 1}
            target |= {
                name: fields[name][row, :count]
                for name in ("difficult", "iscrowd", "area", "keypoints")
                if name in fields
            }
            if masks:
                target["masks"] = tv_tensors.Mask(masks[row][:, :height, :width])
            elif self.masks is not None:
                target["masks"] = tv_tensors.Mask(self.masks[row, :height, :width])
            if "image_ids" in fields:
                target["image_id"] = fields["image_ids"][row]
            targets.append(target)
        return images, targets

    def instance_masks(self) -> list[Tensor]:
        """Renders the masks of the boxes at the size of the images: pycocotools' pixels of the polygons where they are.

        Steps move polygons with the pixels, so that masks are drawn once, of what is left. Masks that a dataset has as
        run lengths follow as rectangles of pixels.

        Returns:
            uint8 [N, H, W] of 0 and 1 per image, on its device, where images on a canvas have zeros beside them; of
            variable-size images each in its own size. An empty list if there are no such masks.

        Raises:
            ValueError: if the images or some of the fields of these masks are missing.
        """
        from mmload.pictures.instance_masks import masks_of_boxes
        from mmload.records import segment_fields

        if alone := lazy_rows(self):
            return [masks for row in alone for masks in row.unsqueeze(0).instance_masks()]
        fields = fields_of(self)
        segments = segment_fields({name: value.shape[1:] for name, value in fields.items()})
        if not segments:
            return []
        arrays = {name: _array(fields[name]) for name in ("counts", *segments)}
        if self.images is None:
            raise ValueError("masks of instances have the size of the images; leave images in fields")
        canvas, device, sizes = self.images.shape[2:], self.images.device, _sizes_in(self)
        rows = ({name: values[row] for name, values in arrays.items()} for row in range(len(self)))
        masks = [torch.from_numpy(masks_of_boxes(row, *size)) for row, size in zip(rows, sizes, strict=True)]
        borders = [(0, canvas[1] - width, 0, canvas[0] - height) for height, width in sizes]
        return [pad(each, border).to(device) for each, border in zip(masks, borders, strict=True)]

    def preview(
        self,
        classes: Sequence[str] = (),
        *,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        columns: int = 8,
        most: int = 64,
    ) -> Image.Image:
        """Draws a contact sheet of the batch: images with boxes, masks, classes and row numbers. A notebook shows it.

        Args:
            classes: class names by index, as ``split.classes``.
            mean: mean per channel that Normalize subtracted, to undo it; empty: images are not normalized.
            std: standard deviation per channel that Normalize divided by.
            columns: number of images side by side.
            most: upper bound on the number of images, the first of the batch.

        Raises:
            ValueError: if the batch has no images, there is less than one column, or the images look normalized and
                ``mean`` and ``std`` are missing.
        """
        from mmload.pictures.contact_sheet import SHOWN, cells_of, contact_sheet

        first = self[:most]
        cells = []
        for part in [row.unsqueeze(0) for row in lazy_rows(first)] or [first]:
            arrays = {name: _array(value) for name, value in fields_of(part).items() if name in SHOWN}
            cells += cells_of(arrays, classes, mean=tuple(mean), std=tuple(std))
        return contact_sheet(cells, columns, classes=classes)


BOX_FORMATS = {"xyxy": "boxes", "xywh": "boxes", "cxcywh": "boxes", "xyxyxyxy": "corners"}
"""Formats that boxes are given in (see :meth:`Batch.boxes_as`) -> the field that they are made of."""


BatchOrViews = Batch | tuple[Batch, ...]
"""Result of a collate: one batch, or one batch per view."""


_NAMES = {"label": "targets", "target": "targets", "image": "images", "box": "boxes", "mask": "masks", "id": "ids"}
"""Field to read in place of a name that people expect."""

_field: Any = Batch.__getattr__  # type: ignore[attr-defined]  # set by the tensorclass
_dispatch = Batch.__torch_function__


def _getattr(batch: Batch, name: str) -> Any:
    """Returns what tensordict finds, or a field of ``extra``; an error names the most similar field."""
    try:
        return _field(batch, name)
    except AttributeError:
        extra = None if name.startswith("_") else _field(batch, "extra")
        if extra is not None and name in extra.keys():  # noqa: SIM118  # a TensorDict contains no names
            return extra[name]
        if name in _NAMES:
            raise AttributeError(f"a Batch has no field {name!r}; read batch.{_NAMES[name]}") from None
        raise


def _torch_function(
    cls: type[Batch], function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Any:
    """Runs a torch function on a batch; layers of a model take tensors, and the error says which one."""
    made = _dispatch(function, types, args, kwargs)
    if made is NotImplemented:
        name = getattr(function, "__name__", str(function))
        raise TypeError(f"{name} takes a tensor and was called with a Batch; call model(batch.images)")
    return made


# Assigned here, as the tensorclass replaces those of the class's body.
Batch.__getattr__ = _getattr  # type: ignore[attr-defined]
Batch.__torch_function__ = classmethod(_torch_function)  # type: ignore[method-assign, assignment]


def _array(value: Tensor) -> npt.NDArray[Any]:
    """Returns a tensor on the host, as an array; one of bfloat16, which NumPy lacks, is of float32."""
    array: npt.NDArray[Any] = (value.float() if value.dtype == torch.bfloat16 else value).numpy(force=True)
    return array


def _sizes_in(batch: Batch) -> list[tuple[int, int]]:
    """Returns height and width of each image, on its canvas if there are canvases."""
    height, width = batch.images.shape[2:]
    return [(height, width)] * len(batch) if batch.image_sizes is None else batch.image_sizes.tolist()


def _extra_of(batch: Batch) -> dict[str, Tensor]:
    """Returns the fields of ``extra`` by name."""
    return {} if batch.extra is None else dict(batch.extra.items())  # type: ignore[arg-type]  # flat


def lazy_rows(batch: Batch) -> list[Batch]:
    """Returns the rows of a batch of variable-size images, which is a lazy stack; an empty list for any other batch."""
    # To ask for an attribute that only lazy stacks have takes 60 us: tensordict looks for similar names.
    return list(batch.unbind(0)) if isinstance(batch._tensordict, LazyStackedTensorDict) else []  # type: ignore[attr-defined]  # undeclared


def fields_of(batch: Batch) -> dict[str, Tensor]:
    """Returns every field of a batch by name, those of ``extra`` beside its attributes.

    Raises:
        ValueError: if a field of ``extra`` has the name of an attribute.
    """
    fields = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
    extra = _extra_of(batch)
    twice = fields.keys() & extra.keys()
    if twice:
        raise ValueError(f"the batch has two fields {min(twice)!r}, one of them in extra; choose by a function")
    return fields | extra


def with_fields(batch: Batch, fields: Mapping[str, Tensor]) -> Batch:
    """Returns a batch with other values of some of its fields, those of ``extra`` among them, or with more fields."""
    attributes: dict[str, Any] = {name: value for name, value in fields.items() if name in FIELD_NAMES}
    if len(attributes) < len(fields):
        more = {name: value for name, value in fields.items() if name not in attributes}
        attributes["extra"] = TensorDict(_extra_of(batch) | more, batch.batch_size)
    changed: Batch = batch.replace(**attributes)
    return changed


def make_batch(
    fields: Mapping[str, Tensor], size: int | None, device: torch.device | None = None, **more: Any
) -> Batch:
    """Makes a :class:`Batch` of stored fields.

    Args:
        fields: tensors [B, ...] by name, or those of one row if size is None.
        size: B; None for one row.
        device: device of all fields; None: the tensors may be on different devices.
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


def make_variable_size_batch(
    fields: Mapping[str, Tensor], variable: Mapping[str, Sequence[Tensor]], ids: Tensor
) -> Batch:
    """Makes a :class:`Batch` of variable-size rows: a lazy stack.

    Args:
        fields: tensors [B, ...] of the fixed-size fields by name.
        variable: B tensors per variable-size field by name; a batch without rows does not have these fields.
        ids: int64 [B].
    """
    if not len(ids):
        return make_batch(fields, 0, ids=ids)
    tensors: dict[str, Sequence[Tensor]] = {name: list(tensor) for name, tensor in fields.items()} | dict(variable)
    rows = [make_batch({name: t[row] for name, t in tensors.items()}, None, ids=ids[row]) for row in range(len(ids))]
    batch: Batch = lazy_stack(rows)
    return batch
