"""Turns samples of a Python dataset into the fields of a row, by a schema that the first sample sets.

A sample is a tuple, a NamedTuple, a dict, a dataclass, or a single value. It is flattened to values by key: in
``(image, {"boxes": b})`` the boxes are ``1.boxes``. It never looks at the dataset itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from itertools import chain, filterfalse
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmload.errors import naming
from mmload.records import DTYPES, FIELD_NAMES, PER_BOX, VOID, dtype_name
from mmload.sources.decode import Decoder, class_numbers
from mmload.store.manifest import is_name

if TYPE_CHECKING:
    from mmload.records import FieldValue

Key = int | str
"""The position or name of a value in a sample; nested values have a dotted path."""

ALIASES = {
    "image": "images", "img": "images", "pixel_values": "images",
    "target": "targets", "label": "targets", "mask": "masks", "feature": "features",
}  # fmt: skip
"""Names that dicts and NamedTuples use -> the field's own name."""

OF_CLASSES = {"targets": "target", "labels": "label", "masks": "the mask's value"}
"""Fields whose values may be classes, the first that a dataset has, and how messages call them."""

_CHANNELS = (1, 2, 3, 4)
_DEEP = 4

_OF_ONE_SHAPE = ("images", "masks", "targets")
"""Fields that are no lists: a vector of targets with zeros behind it would be another target."""

Like = tuple[torch.dtype, tuple[int | None, ...]]


class Schema:
    """Mapping of a sample's values to fields, with the dtype and shape that each must have. Picklable, thread-safe.

    The first of some samples sets it; the others say which fields have another length in each, and are lists. Without
    keys (field -> position or name), they are guessed from the first sample, see docs/sources.md.

    Attributes:
        keys: field -> position or name.
        texts: fields that may be texts, which are stored as lists of bytes.
        lists: fields that are lists.
        like: field -> dtype and shape; sizes that may differ are None.

    Raises:
        ValueError: if there is nothing to store, or a value that cannot be stored.
    """

    def __init__(self, samples: Sequence[Any], decoder: Decoder, keys: Mapping[str, Key] | None) -> None:
        self.decoder = decoder
        self.guessed = keys is None
        self.keys = _guess(samples[0]) if keys is None else dict(keys)
        if decoder.exif_orient and not {"boxes", "masks"}.isdisjoint(self.keys):
            raise ValueError("exif_orient rotates images, not their boxes or masks; rotate all of them in the dataset")
        if odd := list(filterfalse(is_name, self.keys)):
            raise ValueError(f"{odd[0]!r} is not a plain field name; say which values to store in fields")
        first = _values_of(samples[0])
        texts = {name for name, key in self.keys.items() if isinstance(first.get(key), str)}
        self.texts = frozenset(texts.difference(FIELD_NAMES))
        raw = [self.raw(samples[0])]
        for sample in samples[1:]:
            with suppress(ValueError):  # raised again when the sample is read
                raw.append(self.raw(sample))
        self.lists = tuple(name for name, key in self.keys.items() if self._is_list(name, first[key], raw))
        self.like: dict[str, Like] = {name: _element(name, raw) for name in self.lists}
        for name in self.lists:
            self._check_list(name, raw)
        self.like = {name: self.like.get(name, _like(name, tensor)) for name, tensor in self._rows(raw[0]).items()}

    def __call__(self, sample: Any, beside: Mapping[str, FieldValue] = {}) -> dict[str, Tensor]:
        """Returns the fields: ``images`` uint8 [C, H, W], ``masks`` uint8 [H, W], numbers [], others as they are.

        Args:
            sample: the sample.
            beside: fields that are no values of it, such as ``images``, in which its boxes have to lie.

        Raises:
            ValueError: if it is not as the first; says what differs.
        """
        raw = self.raw(sample)
        _check_boxes(raw.get("boxes"), {**raw, **beside}.get("images"))
        fields = self._rows(raw)
        for name, like in self.like.items():
            dtype, shape = _like(name, fields[name])
            if (dtype, (None, *shape[1:]) if name in self.lists else shape) != like:
                raise ValueError(f"{name} is {_show((dtype, shape))}, the first sample's is {_show(like)}")
        return fields

    def raw(self, sample: Any) -> dict[str, Tensor]:
        """Returns a sample's values as tensors of their own length; raises ValueError as :meth:`__call__` does."""
        values = _values_of(sample)
        fields = {}
        for name, key in self.keys.items():
            if key not in values:
                raise ValueError(f"it has no value {key!r}, it has {', '.join(map(repr, values))}")
            if isinstance(values[key], str) and name not in self.texts:
                raise ValueError(f"{name} is of type str, which cannot be stored there; give numbers")
            fields[name] = _tensor(name, values[key], self.decoder)
        if self.guessed and (more := [key for key in values if key not in self.keys.values()]):
            raise ValueError(f"it has the value {more[0]!r}, which the first sample does not have")
        return fields

    def _rows(self, raw: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the values of a sample, with the number of elements of each list; boxes and labels share theirs."""
        fields = {}
        for name, tensor in raw.items():
            fields[name] = tensor
            if name not in self.lists:
                continue
            if not tensor.numel():  # [] has neither a dtype nor a shape
                dtype, shape = self.like[name]
                fields[name] = torch.empty((0, *shape[1:]), dtype=dtype, device="cpu")  # type: ignore[arg-type]  # of an element
            count = self._count(name)
            if not tensor.ndim or (count is None and len(fields[name]) != len(raw["boxes"])):
                raise ValueError(f"boxes and {name} are not of one length; each box needs its {name.rstrip('s')}")
            if count is not None:
                fields[count] = torch.tensor(len(fields[name]), device="cpu")
        return fields

    def _is_list(self, name: str, first: Any, raw: Sequence[Mapping[str, Tensor]]) -> bool:
        """Returns whether a field is a list: by the kind of its first value, or as its length differs."""
        of_boxes = name in ("boxes", "labels") and "boxes" in self.keys
        if name in _OF_ONE_SHAPE:
            return False
        lengths = {len(each[name]) for each in raw if each[name].ndim == raw[0][name].ndim > 0}
        return of_boxes or isinstance(first, str) or _is_sequence(first) or len(lengths) > 1

    def _check_list(self, name: str, raw: Sequence[Mapping[str, Tensor]]) -> None:
        """Raises ValueError if a list cannot be stored: no transform drops its elements with their boxes."""
        count, (dtype, _) = self._count(name), self.like[name]
        if count in self.keys or (count is not None and not is_name(count)):
            raise ValueError(
                f"{name} needs the field {count} for its length: give boxes without padding, or {name} another name "
                "in fields"
            )
        if dtype == torch.bfloat16:
            raise ValueError(f"{name} is bfloat16 of any length, which is not stored; give float32")
        is_beside = "boxes" in self.lists and name not in ("boxes", *PER_BOX) and dtype != torch.uint8
        if is_beside and all(each[name].ndim and len(each[name]) == len(each["boxes"]) for each in raw):
            raise ValueError(
                f"{name} has one value per box, which no transform drops with its box; name those to store in fields, "
                f"without {name}, or call it as one of {', '.join(PER_BOX)}"
            )

    def _count(self, name: str) -> str | None:
        """Returns the field that has the length of a list; boxes and what belongs to them share a count."""
        if name == "boxes":
            return "counts"
        return None if "boxes" in self.lists and name in PER_BOX else f"{name}_count"

    def __str__(self) -> str:
        return ", ".join(f"{name} {_show(like)}" for name, like in self.like.items())


def _element(name: str, raw: Sequence[Mapping[str, Tensor]]) -> Like:
    """Returns dtype and shape of a list, by the first sample that has an element."""
    found = next((each[name] for each in raw if each[name].numel() and each[name].ndim), None)
    if found is not None:
        return found.dtype, (None, *found.shape[1:])
    default: dict[str, Like] = {"boxes": (torch.float32, (None, 4)), "labels": (torch.int64, (None,))}
    return default.get(name, (torch.float32, (None,)))


def check_classes(fields: Mapping[str, Tensor], classes: Sequence[str]) -> None:
    """Checks targets that are numbers, the labels of boxes, else masks, where a dataset names its classes.

    Raises:
        ValueError: if one is not a class.
    """
    name = next(filter(fields.__contains__, OF_CLASSES), "")
    if not classes or not name or fields[name].is_floating_point() or (name == "targets" and fields[name].ndim):
        return
    values = fields[name].numpy().reshape(-1)  # a tenth of the time of torch's operations
    if name == "masks":
        values = values[values != VOID]
    if len(values) and not 0 <= values.min() <= values.max() < len(classes):
        odd = values[(values < 0) | (values >= len(classes))][0]
        raise ValueError(f"{OF_CLASSES[name]} {int(odd)} is not a class; classes are 0 to {len(classes) - 1}")


def _values_of(sample: Any) -> dict[Key, Any]:
    """Returns the values of a sample; nested ones have dotted keys."""
    members = _members(sample)
    if members is None:
        return {0: sample}
    return dict(chain.from_iterable(_laid_out(key, value, _DEEP) for key, value in members.items()))


def _laid_out(key: Key, value: Any, depth: int) -> Iterator[tuple[Key, Any]]:
    """Yields a value by its key, or those in it; lists are values, as their length may differ between samples."""
    inner = None if isinstance(value, list) or _is_sequence(value) or not depth else _members(value)
    if not inner:
        yield key, value
        return
    for name, each in inner.items():
        yield from _laid_out(f"{key}.{name}", each, depth - 1)


def _is_sequence(value: Any) -> bool:
    """Returns whether a value is a list or tuple of numbers, or of such lists (a vector, boxes, points), or empty."""
    if not isinstance(value, list | tuple) or hasattr(value, "_fields"):
        return False
    return all(isinstance(each, int | float | np.number) or _is_sequence(each) for each in value)


def _members(value: Any) -> dict[Key, Any] | None:
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, tuple | list):
        return dict(zip(getattr(value, "_fields", range(len(value))), value, strict=True))  # names of a NamedTuple
    return None


def _guess(first: Any) -> dict[str, Key]:
    """Maps fields to keys, by the values' names or, in a tuple, by their kind and position."""
    keys: dict[str, Key] = {}
    values = _values_of(first)
    for key, value in values.items():
        name = _named(key, keys) if isinstance(key, str) else _place(key, value, keys)
        if name in keys:
            raise ValueError(f"two values are both {name}; say which to store in fields")
        keys[name] = key
    if not keys:
        raise ValueError("it is empty")
    return keys


def _named(key: str, taken: Mapping[str, Key]) -> str:
    """Returns the field of a named value: its own name, prefixed by the names around it where that is taken."""
    outer, _, leaf = key.rpartition(".")
    joined = key.replace(".", "_")
    name = ALIASES.get(leaf, leaf)
    if not leaf.isdigit() and not (name in taken and outer):
        return name
    return f"field{joined}" if joined[0].isdigit() else joined


def _place(position: int, value: Any, taken: Mapping[str, Key]) -> str:
    """Returns the field of a tuple's value: an image, then its mask or target, then features; else its position."""
    dimensions = getattr(value, "ndim", 0 if isinstance(value, int | float) else None)
    if isinstance(value, str):
        guess = "text"
    elif _is_image(value):
        guess = "images" if "images" not in taken else "masks"
    elif dimensions == 0 or (position > 0 and (dimensions == 1 or _is_sequence(value))):
        guess = "targets"
    else:
        guess = "features"
    return guess if guess not in taken else f"field{position}"


def _is_image(value: Any) -> bool:
    is_pixels = str(getattr(value, "dtype", "")).endswith("uint8") and value.ndim in (2, 3)
    return is_pixels or isinstance(value, Image.Image)


def _tensor(name: str, value: Any, decoder: Decoder) -> Tensor:
    if isinstance(value, Image.Image):
        return _of_picture(name, value, decoder)
    return _KINDS.get(name, _plain)(name, value)


def _of_picture(name: str, picture: Image.Image, decoder: Decoder) -> Tensor:
    if name == "masks":
        with naming("masks: "):
            return torch.from_numpy(class_numbers(picture))
    if picture.mode.startswith(("I", "F")):  # Pillow would cut them at 255 (fractions at 0): nearly all white, or black
        raise ValueError(
            f"{name} is a PIL image of mode {picture.mode}, over 8 bits; scale it to 8 bits in the dataset"
        )
    return _pixels(np.array(decoder.converted(picture)))


def _boxes(name: str, value: Any) -> Tensor:
    form = getattr(getattr(value, "format", None), "name", "XYXY")  # of torchvision's BoundingBoxes
    if form != "XYXY":
        raise ValueError(f"boxes is BoundingBoxes of format {form}; convert them to XYXY in the dataset")
    return _single(name, _plain(name, value))


def _targets(name: str, value: Any) -> Tensor:
    """Returns a vector as it is, a number as int64 or float32."""
    tensor = _plain(name, value)
    if tensor.ndim:
        return tensor
    return _single(name, tensor) if tensor.is_floating_point() else tensor.to(torch.int64)


def _images(name: str, value: Any) -> Tensor:
    """Returns pixels as uint8 [C, H, W]; values of other dtypes unchanged."""
    is_array = isinstance(value, np.ndarray) and value.dtype == np.uint8
    pixels = _pixels(value) if is_array else _plain(name, value)
    if pixels.dtype != torch.uint8:
        return pixels
    other, habit = (1, "an array [H, W, C]") if is_array else (2, "a tensor [C, H, W]")
    if pixels.ndim == 3 and pixels.shape[0] not in _CHANNELS and pixels.shape[other] in _CHANNELS:
        raise ValueError(f"images is {list(value.shape)}, and {habit} is expected; transpose it in the dataset")
    return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels


def _plain(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        tensor = torch.from_numpy(np.array(value))
    elif isinstance(value, str):
        tensor = torch.tensor(list(value.encode("utf-8", "surrogatepass")), dtype=torch.uint8, device="cpu")
    elif isinstance(value, bool | int | float) or _is_sequence(value):
        with naming(f"{name} is not a number or a regular list of numbers: ", ValueError, TypeError, OverflowError):
            tensor = torch.from_numpy(np.array(value))
        tensor = _single(name, tensor) if tensor.is_floating_point() else tensor
    else:
        raise ValueError(
            f"{name} is of type {type(value).__name__}, which cannot be stored; say what to store in fields"
        )
    if dtype_name(tensor.dtype) is None or tensor.layout != torch.strided:
        layout = "" if tensor.layout is torch.strided else f", {str(tensor.layout).removeprefix('torch.')}"
        got = str(tensor.dtype).removeprefix("torch.") + layout
        raise ValueError(f"{name} is a tensor of {got}; a dataset stores dense {', '.join(DTYPES)}")
    return tensor.as_subclass(Tensor)


def _single(name: str, wide: Tensor) -> Tensor:
    """Converts numbers to float32; raises ValueError if one is too large."""
    tensor = wide.to(torch.float32)
    if len(large := wide[tensor.isinf() & wide.isfinite()]):
        raise ValueError(
            f"{name} has {float(large[0]):g}, more than float32 holds; correct it, or give a float64 array"
        )
    return tensor


def _check_boxes(boxes: Tensor | None, images: FieldValue | None) -> None:
    """Checks that boxes are corners inside the image, and not, say, a corner with a width and a height."""
    if boxes is None or images is None or boxes.shape[1:] != (4,):
        return
    height, width = images.shape[-2:]
    limits = torch.tensor([width, height] * 2, device="cpu")
    odd = ((boxes < 0) | (boxes > limits)).any(1) | (boxes[:, 2:] <= boxes[:, :2]).any(1)
    if len(wrong := boxes[odd | boxes.isnan().any(1)]):
        sides = ", ".join(map("{:g}".format, wrong[0].tolist()))
        raise ValueError(
            f"the box {sides} is empty or leaves the {width} x {height} image; give x0, y0, x1, y1 in pixels, from 0, "
            "the last not included"
        )


def _pixels(array: np.ndarray) -> Tensor:
    """Converts an array [H, W] or [H, W, C] to a tensor [C, H, W]."""
    pixels = torch.from_numpy(np.array(array))
    return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1)


def _masks(name: str, value: Any) -> Tensor:
    """Returns a mask [H, W] or [1, H, W] as [H, W]; raises ValueError for fractions, or a mask for each object."""
    tensor = _plain(name, value)
    if tensor.dtype not in (torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64):
        raise ValueError(f"masks is {tensor.dtype}, expected class numbers; give uint8")
    if tensor.ndim == 3 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.ndim != 2:
        raise ValueError(f"masks is {list(tensor.shape)}, expected one mask [H, W] of class numbers for each image")
    return tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor


_KINDS: Mapping[str, Callable[[str, Any], Tensor]] = {
    "images": _images,
    "masks": _masks,
    "boxes": _boxes,
    "targets": _targets,
}
"""Field -> what makes a tensor of its name and a value; others are stored as they are."""


def _like(name: str, tensor: Tensor) -> Like:
    """Returns dtype and shape; height and width of images and masks, which transforms may make equal, are None."""
    shape: tuple[int | None, ...] = tuple(tensor.shape)
    if name in ("images", "masks") and len(shape) >= 2:
        shape = (*shape[:-2], None, None)
    return tensor.dtype, shape


def _show(like: Like) -> str:
    dtype, shape = like
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    return f"{str(dtype).removeprefix('torch.')} [{sizes}]"
