"""Records that all rooms share: :class:`FieldSpec` describes a stored field, :class:`Sample` is one input of a build.

Imports no torch: without it, showing what is in a dataset takes a tenth of the time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from mmload.errors import RecipeError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch
    from torch import Tensor

    FieldValue = npt.NDArray[Any] | Tensor
    """Value of a field in one row, as a source gives it; a build goes on with arrays."""

Progress = Callable[[int, int], None]
"""Called with how much is done, and how much there is in all: rows, or bytes."""

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
"""Dtypes of stored fields, by their names in torch and in the manifest -> bytes of a value."""


VARIABLE = -1
"""Size of a dimension of variable-size rows, as tensordict writes it."""

ENCODINGS = ("raw", "jpeg", "mixed")
"""Encodings of variable-size rows: pixels, JPEGs, or some of each."""

LIST = "list"
"""Encoding of a field that has a different number of elements per row, such as the boxes of an image."""

CLIPPED = "boxes_clipped"
"""Loss of a sample: boxes that the source cut at the edge of the image."""

# Losses of a sample that are the texts of their notes.

TURNED = (
    "images have an EXIF orientation, which is not applied: boxes that were drawn on the turned picture are in the "
    "wrong place"
)

OTHER_SIZE = "images have another size than their annotation gives, so that boxes may be in the wrong place"

SWAPPED_SIZE = (
    "images have an annotation with width and height swapped, so that boxes drawn on the picture as its EXIF "
    "orientation shows it are in the wrong place"
)

DARK_DEPTH = (
    "16-bit PNGs have no value above 4,095 and became nearly black, as 65,535 is white; scale 10 or 12 bits as "
    "docs/images.md says"
)
ONLY_VOID = (
    "masks have no pixel of a class but 0, and some of 255 (void), which no loss counts: if these are masks of 0 and "
    "255, write class numbers from 0 into their files"
)

BOXES, BOXES_DROPPED, BOXES_CUT, IMAGES_EMPTIED = "boxes", "boxes_dropped", "boxes_cut", "images_emptied"
"""Counts of a build: boxes of the source, those of which the transforms keep no pixel, and those of which they keep a
part; images that had boxes and have none left."""

VOID = 255
"""Value of the pixels of a mask that count for no class: borders and what the annotators could not decide."""

_MOST_DIMENSIONS = 32
_MOST_ELEMENTS = 2**56


def checked(value: Any, kind: Any, name: str) -> Any:
    """Returns a value as an annotated type has it, such as a tuple for a list.

    Raises:
        RecipeError: if it does not fit; says the name, the value, and what to use: the description of the type.
    """
    try:
        return msgspec.convert(value, kind)
    except (ValueError, RecursionError, OverflowError) as error:
        described = [meta.description for meta in getattr(kind, "__metadata__", ()) if meta.description]
        described += ["true or false"] if kind is bool else []
        raise RecipeError(f"{name} is {value!r:.80}; {f'use {described[-1]}' if described else error}") from error


class FieldSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dtype, shape and encoding of the rows of one field.

    Attributes:
        dtype: its name, a key of :data:`DTYPES`.
        shape: shape of one row; (C, VARIABLE, VARIABLE) for variable-size images, (VARIABLE, VARIABLE) for masks,
            (VARIABLE, ...) for lists.
        encoding: encoding of variable-size rows, one of :data:`ENCODINGS`; :data:`LIST` for lists; None: rows have a
            fixed size.
        version: number of the version of the dataset that added the field; 0: its build.

    Raises:
        ValueError: if the dtype is unknown, a size is not a positive integer, a row is too large, or the encoding does
            not fit the shape.
    """

    dtype: str
    shape: tuple[int, ...]
    encoding: str | None = None
    version: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r:.80}, expected one of {', '.join(DTYPES)}")
        fixed = self.fixed_shape
        if any(type(size) is not int or size < 1 for size in fixed):
            raise ValueError(f"shape is {self.shape!r:.80}, expected positive integers")
        if len(fixed) > _MOST_DIMENSIONS or math.prod(fixed) >= _MOST_ELEMENTS:
            raise ValueError(
                f"shape is {self.shape!r:.80}, expected at most {_MOST_DIMENSIONS} sizes, less than 2**56 elements"
            )
        if self.encoding is not None:
            self._check_encoding(fixed)
            if self.version:
                raise ValueError(f"a field of version {self.version} has rows of variable size, expected a fixed one")

    def _check_encoding(self, fixed: tuple[int, ...]) -> None:
        if self.encoding == LIST:
            if self.shape[:1] != (VARIABLE,) or self.dtype == "bfloat16":
                raise ValueError(f"{self.dtype} {self.shape!r:.80} is no list: its shape begins with {VARIABLE}")
        elif self.encoding not in ENCODINGS:
            raise ValueError(f"encoding is {self.encoding!r:.80}, expected one of {', '.join(ENCODINGS)}")
        elif self.shape[-2:] != (VARIABLE, VARIABLE) or len(fixed) > 1 or self.dtype != "uint8":
            raise ValueError(
                f"{self.dtype} {self.shape!r:.80} with encoding {self.encoding} is not a variable-size image or mask"
            )
        elif self.encoding != "raw" and fixed not in ((1,), (3,)):
            raise ValueError(f"shape is {self.shape!r:.80}, a JPEG has 1 or 3 channels")

    def __str__(self) -> str:
        """Returns ``uint8[3, 256, 256]``, or ``uint8[3, *, *] jpeg`` for variable-size rows."""
        shape = ", ".join("*" if size == VARIABLE else str(size) for size in self.shape)
        return f"{self.dtype}[{shape}]" + (f" {self.encoding}" if self.encoding else "")

    @property
    def variable_size(self) -> bool:
        """Whether each row has its own height and width."""
        return self.encoding in ENCODINGS

    @property
    def is_list(self) -> bool:
        """Whether each row has its own number of elements."""
        return self.encoding == LIST

    @property
    def fixed_shape(self) -> tuple[int, ...]:
        """Sizes that are the same for all rows: the shape of a row, of an element of a list, or (C,) of an image."""
        if self.encoding is None:
            return self.shape
        return self.shape[1:] if self.encoding == LIST else self.shape[:-2]

    def padded(self, most: int) -> FieldSpec:
        """Returns the spec of the rows of a list, padded to so many elements, or to one if there are none."""
        return FieldSpec(dtype=self.dtype, shape=(max(most, 1), *self.fixed_shape))

    @property
    def channels(self) -> int:
        """Channels of an image; 1 for a mask without a channel axis."""
        return self.shape[0] if len(self.shape) == 3 else 1

    @property
    def torch_dtype(self) -> torch.dtype:
        """Dtype of torch."""
        import torch

        return getattr(torch, self.dtype)  # type: ignore[no-any-return]  # the name of one of its dtypes

    @property
    def array_dtype(self) -> str:
        """Dtype of NumPy; uint16 for bfloat16, which NumPy lacks."""
        return {"bfloat16": "uint16"}.get(self.dtype, self.dtype)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row.

        Raises:
            ValueError: if rows have variable sizes, or are lists.
        """
        if self.encoding is not None:
            raise ValueError("rows of different sizes have no common number of bytes")
        return math.prod(self.shape) * DTYPES[self.dtype]


def has_images(fields: Mapping[str, FieldSpec]) -> bool:
    """Returns whether rows have images that can be shown and augmented: uint8 [C, H, W]."""
    return "images" in fields and fields["images"].dtype == "uint8" and len(fields["images"].shape) == 3


def dtype_name(dtype: torch.dtype | np.dtype[Any]) -> str | None:
    """Returns the key of a dtype of torch or NumPy in :data:`DTYPES`; None if datasets cannot store it."""
    name = str(dtype).removeprefix("torch.")
    return name if name in DTYPES else None


@dataclass(frozen=True)
class Sample:
    """Item on its way into a dataset, read and decoded, before or after the transforms.

    Attributes:
        id: its name in the source, usually a path relative to the root.
        fields: name -> array or tensor of one row; ``images`` is uint8 [C, H, W]. Inside a build all are arrays; those
            of bfloat16, which NumPy lacks, are of uint16.
        size: (height, width) of the image in its file, before any transform; None without an image.
        losses: counts of what was left out or looks wrong, by names such as :data:`CLIPPED`; any other name is the
            text of a note, such as :data:`OTHER_SIZE`, which its count follows.
        inside: (top, left, height, width) of the image within ``images``; None: there is no border.
        cut: bool [M], the boxes of which a transform has cut something off; None: none.
        encoded: the source's own JPEG, which simplejpeg decodes to exactly ``images``; None: the source has another
            format, or a transform changed the pixels.
        lists: names of the fields whose first dimension is a number of elements, which differs from sample to sample:
            boxes and what belongs to each, and others.
        checksum: checksum of its files, of the bytes that were read; "": its source has not counted it.
    """

    id: str
    fields: Mapping[str, Any]
    size: tuple[int, int] | None = None
    losses: Mapping[str, int] = field(default_factory=dict)
    inside: tuple[int, int, int, int] | None = None
    cut: npt.NDArray[np.bool_] | None = None
    encoded: bytes | None = None
    lists: frozenset[str] = frozenset()
    checksum: str = ""


class ObjectsRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Description of the objects in the images of a split, beside the names of their classes.

    Attributes:
        category_ids: number of each class in the source, which may have gaps; empty if that is the class index.
        keypoints: names of the keypoints of an object, in their order.
        skeleton: pairs of keypoints that a line joins, counted from 0.
        flip: for each keypoint the one that it becomes where an image is flipped left to right.

    Raises:
        ValueError: if ``flip`` is no permutation, or a number is none of a keypoint.
    """

    category_ids: tuple[int, ...] = ()
    keypoints: tuple[str, ...] = ()
    skeleton: tuple[tuple[int, int], ...] = ()
    flip: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.keypoints)
        if sorted(self.flip) not in ([], list(range(count))):
            raise ValueError(f"flip is {self.flip!r:.80}, expected each of the {count} keypoints once")
        if any(not 0 <= end < count for pair in self.skeleton for end in pair):
            raise ValueError(f"skeleton is {self.skeleton!r:.80}, expected pairs of numbers from 0 to {count - 1}")


_OTHER_SIDES = {
    **{"left": "right", "Left": "Right", "LEFT": "RIGHT", "l": "r", "L": "R"},
    **{"right": "left", "Right": "Left", "RIGHT": "LEFT", "r": "l", "R": "L"},
}
_SIDE = re.compile(rf"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))({'|'.join(_OTHER_SIDES)})(?![a-z])")
"""A side at the start of a word of a name: left_eye, LeftEye, kneeL."""


def mirrored_names(names: Sequence[str]) -> tuple[int, ...]:
    """Returns for each keypoint the one of the other side: "left" and "right" are exchanged in its name."""
    places = {name: place for place, name in enumerate(names)}
    table = tuple(
        places.get(_SIDE.sub(lambda side: _OTHER_SIDES[side[0]], name), place) for place, name in enumerate(names)
    )
    return table if sorted(table) == list(range(len(names))) else tuple(range(len(names)))


FIELD_NAMES = ("images", "targets", "boxes", "labels", "difficult", "counts", "masks", "features")
"""The stored fields that :class:`~mmload.batch.Batch` has an attribute for; all others travel in ``Batch.extra``."""

PER_BOX = ("labels", "difficult", "iscrowd", "area", "keypoints", "corners", "annotations")
"""Fields with one element per box: they move to the front with it, and leave with it."""

PADDING: Mapping[str, int] = {"labels": -1}
"""Value behind the elements of a list in a batch, for the fields where it is not 0."""

SEGMENTS = (("rings", "polygons"), ("run_boxes", "runs"))
"""Pairs of fields: one entry (index of the box, number of values) per polygon or mask, and the values of all."""

SEGMENT_FIELDS: Mapping[str, int] = {"rings": 2, "polygons": 2, "run_boxes": 2, "runs": 1}
"""Fields of these pairs -> dimensions of a row: a field of such a name with others is none of them."""

ALL_SEGMENTS = "rings, polygons, run_boxes and runs"
"""Names of these fields, for messages."""


def segment_fields(shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Returns the names of the fields of :data:`SEGMENTS` that rows have, by the shape of a row of each field.

    Raises:
        ValueError: if one is there without another that it is read by: polygons have rings, runs have run boxes, and
            datasets with run lengths have both pairs.
    """
    names = list(SEGMENT_FIELDS)
    there = [name for name in names if len(shapes.get(name, ())) == SEGMENT_FIELDS[name]]
    if there not in ([], names[:2], names):
        missing = ", ".join(name for name in names if name not in there)
        raise ValueError(
            f"masks of instances are the fields {ALL_SEGMENTS}, and {missing} are missing; have all in fields that the "
            "dataset has, or none"
        )
    return there
