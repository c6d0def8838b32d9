"""Samples of a Python dataset -> the fields of a row, by a schema that the first of them sets.

Comes in: what ``dataset[i]`` gives: a tuple, a NamedTuple, a dict, or one thing alone. Goes out: tensors by field name.
Never looks at the dataset itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmload.decode import Decoder
from mmload.manifest import is_name
from mmload.records import DTYPES

ALIASES = {
    "image": "images", "img": "images", "pixel_values": "images",
    "target": "targets", "label": "targets", "mask": "masks", "feature": "features",
}  # fmt: skip
"""Names that dicts and NamedTuples use -> the field's own name."""

Key = int | str
"""Where a value is in a sample: its position or its name."""


class Schema:
    """Which values of a sample become which fields, and what they must be like. Picklable, thread-safe.

    Args:
        first: the first sample.
        decoder: the mode that PIL images are converted to.
        keys: field -> position or name; None: guessed from the sample, see docs/sources.md.

    Raises:
        ValueError: if there is nothing to store, or a value that cannot be stored.
    """

    def __init__(self, first: Any, decoder: Decoder, keys: Mapping[str, Key] | None) -> None:
        self.mode = decoder.mode
        self.keys = _guess(first) if keys is None else dict(keys)
        for name in self.keys:
            if not is_name(name):
                raise ValueError(f"{name!r} is no plain field name; say which values to store in fields")
        self.like: dict[str, tuple[torch.dtype, tuple[int | None, ...]]] = {}
        self.like = {name: _like(name, tensor) for name, tensor in self(first).items()}

    def __call__(self, sample: Any) -> dict[str, Tensor]:
        """The fields of a sample: ``images`` uint8 [C, H, W], ``masks`` uint8 [H, W], numbers [], others as they are.

        Raises:
            ValueError: if it is not as the first; says what differs.
        """
        values = _values(sample)
        fields = {}
        for name, key in self.keys.items():
            if key not in values:
                raise ValueError(f"it has no value {key!r}, it has {', '.join(map(repr, values))}")
            fields[name] = _tensor(name, values[key], self.mode)
        for name, like in self.like.items():
            got = _like(name, fields[name])
            if got != like:
                raise ValueError(f"{name} is {_show(got)}, the first sample's is {_show(like)}")
        return fields

    def __str__(self) -> str:
        return ", ".join(f"{name} {_show(like)}" for name, like in self.like.items())


def _values(sample: Any) -> dict[Key, Any]:
    if isinstance(sample, Mapping):
        return {str(key): value for key, value in sample.items()}
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return dict(zip(sample._fields, sample, strict=True))
    if isinstance(sample, tuple | list):
        return dict(enumerate(sample))
    return {0: sample}


def _guess(first: Any) -> dict[str, Key]:
    """Field -> key, by the values' names or, in a tuple, by what they are and where."""
    keys: dict[str, Key] = {}
    values = _values(first)
    for key, value in values.items():
        name = ALIASES.get(key, key) if isinstance(key, str) else _place(key, value, keys)
        if name in keys:
            raise ValueError(f"two values are both {name}; say which to store in fields")
        keys[name] = key
    if not keys:
        raise ValueError("it is empty")
    return keys


def _place(position: int, value: Any, taken: Mapping[str, Key]) -> str:
    """The field of a tuple's value: an image, then its mask or target, then features; else its position."""
    if _is_image(value):
        guess = "images" if "images" not in taken else "masks"
    elif _is_number(value) or (position > 0 and getattr(value, "ndim", 0) == 1):
        guess = "targets"
    else:
        guess = "features"
    return guess if guess not in taken else f"field{position}"


def _is_image(value: Any) -> bool:
    if isinstance(value, Image.Image):
        return True
    return isinstance(value, Tensor | np.ndarray) and str(value.dtype).endswith("uint8") and value.ndim in (2, 3)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) or (isinstance(value, Tensor | np.ndarray) and value.ndim == 0)


def _tensor(name: str, value: Any, mode: str) -> Tensor:
    if isinstance(value, Image.Image):
        return _mask(value) if name == "masks" else _pixels(np.array(value.convert(mode)))
    if isinstance(value, np.ndarray) and name == "images" and value.dtype == np.uint8:
        return _pixels(value)
    tensor = _plain(name, value)
    if name == "images" and tensor.dtype == torch.uint8 and tensor.ndim == 2:
        return tensor.unsqueeze(0)
    if name == "targets" and tensor.ndim == 0:
        return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)
    return tensor


def _plain(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        tensor = value.detach().cpu().as_subclass(Tensor)
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        tensor = torch.from_numpy(np.array(value))
    elif isinstance(value, bool | int | float):
        tensor = torch.tensor(value)
    else:
        raise ValueError(
            f"{name} is of type {type(value).__name__}, which cannot be stored; say what to store in fields"
        )
    if tensor.dtype not in DTYPES.values() or tensor.layout != torch.strided:
        raise ValueError(f"{name} is {tensor.layout} of {tensor.dtype}; a store holds dense {', '.join(DTYPES)}")
    return tensor


def _pixels(array: np.ndarray) -> Tensor:
    """[H, W] or [H, W, C], as arrays of pixels are by habit -> [C, H, W]."""
    pixels = torch.from_numpy(np.array(array))
    return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1)


def _mask(image: Image.Image) -> Tensor:
    if image.mode not in ("P", "L", "1"):
        raise ValueError(f"masks is a PIL image of mode {image.mode}; use palette or 8-bit gray")
    return torch.from_numpy(np.array(image, dtype=np.uint8))


def _like(name: str, tensor: Tensor) -> tuple[torch.dtype, tuple[int | None, ...]]:
    """Its dtype and shape; the height and width of images and masks, which transforms may make equal, are None."""
    shape: tuple[int | None, ...] = tuple(tensor.shape)
    if name in ("images", "masks") and len(shape) >= 2:
        shape = (*shape[:-2], None, None)
    return tensor.dtype, shape


def _show(like: tuple[torch.dtype, tuple[int | None, ...]]) -> str:
    dtype, shape = like
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    return f"{str(dtype).removeprefix('torch.')} [{sizes}]"
