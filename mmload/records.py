"""What all rooms share: :class:`FieldSpec` describes a stored field, :class:`Sample` is one input of a build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

DTYPES: Mapping[str, int] = {
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "bool": 1,
}
"""The dtypes a store may hold, by their names in torch and in the manifest, and the bytes of a value.

No torch here: to show what is in a dataset takes a tenth of the time without it.
"""


@dataclass(frozen=True, kw_only=True)
class FieldSpec:
    """One field of every row: its dtype's name (a key of :data:`DTYPES`) and the shape of one row.

    Raises:
        ValueError: if the dtype is unknown or a size is not a positive integer.
    """

    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}, expected one of {', '.join(DTYPES)}")
        if any(type(size) is not int or size < 1 for size in self.shape):
            raise ValueError(f"shape is {self.shape!r}, expected positive integers")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch knows it."""
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        count = 1
        for size in self.shape:
            count *= size
        return count * DTYPES[self.dtype]


def dtype_name(dtype: torch.dtype) -> str | None:
    """A dtype's key in :data:`DTYPES`; None if a store does not hold it."""
    name = str(dtype).removeprefix("torch.")
    return name if name in DTYPES else None


@dataclass(frozen=True)
class Sample:
    """One item on its way into a store, read and decoded, before or after the transforms.

    Attributes:
        id: what it is called in its source, usually a path relative to the root.
        fields: name -> tensor of one row; ``images`` is uint8 [C, H, W].
        size: (height, width) of the image as it was in its file, before any transform; None without an image.
        losses: what had to be left out of it, by the names of :mod:`mmload.store.losses`.
        inside: (top, left, height, width) of the image within ``images``; None: all of it, there is no border.
        cut: bool [M], the boxes of which a transform has cut something off; None: none.
    """

    id: str
    fields: dict[str, Tensor]
    size: tuple[int, int] | None = None
    losses: Mapping[str, int] = field(default_factory=dict)
    inside: tuple[int, int, int, int] | None = None
    cut: Tensor | None = None


FIELD_NAMES = ("images", "targets", "boxes", "labels", "difficult", "counts", "masks", "features")
"""The stored fields that :class:`~mmload.batch.Batch` has an attribute for; all others travel in ``Batch.extra``."""
