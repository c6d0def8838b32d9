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


OWN = -1
"""In place of the height and width in the shape of a field whose rows have their own sizes, as tensordict shows it."""

ENCODINGS = ("raw", "jpeg", "mixed")
"""What rows of their own sizes are: pixels, JPEGs, or some of them pixels and the others JPEGs."""


@dataclass(frozen=True, kw_only=True)
class FieldSpec:
    """One field of every row: its dtype's name (a key of :data:`DTYPES`) and the shape of one row.

    A field of whole photographs has rows of their own sizes: its shape is (C, OWN, OWN), of masks (OWN, OWN), and its
    ``encoding`` is one of :data:`ENCODINGS`. All other fields have None.

    Raises:
        ValueError: if the dtype is unknown, a size is not a positive integer, or the encoding is of another shape.
    """

    dtype: str
    shape: tuple[int, ...]
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}, expected one of {', '.join(DTYPES)}")
        fixed = self.shape if self.encoding is None else self.shape[:-2]
        if any(type(size) is not int or size < 1 for size in fixed):
            raise ValueError(f"shape is {self.shape!r}, expected positive integers")
        if self.encoding is not None:
            self._check_encoding(fixed)

    def _check_encoding(self, fixed: tuple[int, ...]) -> None:
        if self.encoding not in ENCODINGS:
            raise ValueError(f"encoding is {self.encoding!r}, expected one of {', '.join(ENCODINGS)}")
        if self.shape[-2:] != (OWN, OWN) or len(fixed) > 1 or self.dtype != "uint8":
            raise ValueError(f"{self.dtype} {self.shape!r} is no field of rows of their own sizes")
        if self.encoding != "raw" and fixed not in ((1,), (3,)):
            raise ValueError(f"shape is {self.shape!r}, a JPEG has 1 or 3 channels")

    def __str__(self) -> str:
        """``uint8[3, 256, 256]``, and of rows of their own sizes ``uint8[3, *, *] jpeg``."""
        shape = ", ".join("*" if size == OWN else str(size) for size in self.shape)
        return f"{self.dtype}[{shape}]" + (f" {self.encoding}" if self.encoding else "")

    @property
    def own_sizes(self) -> bool:
        """Whether each row has its own height and width."""
        return self.encoding is not None

    @property
    def channels(self) -> int:
        """Channels of an image, or 1 of a mask without a channel axis."""
        return self.shape[0] if len(self.shape) == 3 else 1

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch knows it."""
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one row.

        Raises:
            ValueError: if rows have their own sizes.
        """
        if self.own_sizes:
            raise ValueError("rows of their own sizes have no common number of bytes")
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
        encoded: the source's own JPEG, of which simplejpeg makes exactly ``images``; None: it is none, or a transform
            changed it.
    """

    id: str
    fields: dict[str, Tensor]
    size: tuple[int, int] | None = None
    losses: Mapping[str, int] = field(default_factory=dict)
    inside: tuple[int, int, int, int] | None = None
    cut: Tensor | None = None
    encoded: bytes | None = None


FIELD_NAMES = ("images", "targets", "boxes", "labels", "difficult", "counts", "masks", "features")
"""The stored fields that :class:`~mmload.batch.Batch` has an attribute for; all others travel in ``Batch.extra``."""
