"""The options of whole photographs, rows of their own sizes, in a recipe. Imports neither torch nor Pillow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mmload.errors import RecipeError, choices
from mmload.records import OWN, FieldSpec

LAYOUT = "whole"
"""The value of ``layout`` in a recipe's ``[store]``; without the key, all rows have one size."""

ENCODES: Mapping[str, str] = {"raw": "raw", "jpeg": "jpeg", "source": "jpeg", "mixed": "mixed"}
"""How images are stored -> the encoding of their field."""


@dataclass(frozen=True, kw_only=True)
class WholeLayout:
    """How the images of rows of their own sizes are stored; their masks are always pixels.

    Attributes:
        encode: "raw": pixels; "jpeg"; "source": the source's own JPEG where the transforms leave an image as it is,
            else a new one; "mixed": some rows are pixels, the others JPEGs.
        quality: of JPEGs, 1 to 100.
        raw_share: with "mixed", the share of rows that are pixels, between 0 and 1; a hash of a sample's id decides.

    Raises:
        RecipeError: if an option is invalid.
    """

    encode: str = "raw"
    quality: int = 90
    raw_share: float = 0.25

    def __post_init__(self) -> None:
        if not isinstance(self.encode, str) or self.encode not in ENCODES:
            raise RecipeError(f"encode is {self.encode!r}; use one of {choices(ENCODES)}")
        if type(self.quality) is not int or not 1 <= self.quality <= 100:
            raise RecipeError(f"quality is {self.quality!r}; use an integer from 1 to 100")
        if type(self.raw_share) is not float or not 0 < self.raw_share < 1:
            raise RecipeError(f"raw_share is {self.raw_share!r}; use a number between 0 and 1, for example 0.25")

    def resolved(self) -> dict[str, Any]:
        """The keys of a recipe's ``[store]``: those that the bytes depend on."""
        quality = {} if self.encode == "raw" else {"quality": self.quality}
        share = {"raw_share": self.raw_share} if self.encode == "mixed" else {}
        return {"layout": LAYOUT, "encode": self.encode, **quality, **share}

    def fields(self, fields: Mapping[str, FieldSpec]) -> dict[str, FieldSpec]:
        """Fields of a row as they are stored: images and masks have their own sizes.

        Raises:
            RecipeError: if there are no such images.
        """
        images, masks = fields.get("images"), fields.get("masks")
        if images is None or images.dtype != "uint8" or len(images.shape) != 3:
            have = "no images" if images is None else f"images {images}"
            raise RecipeError(f"--layout whole stores uint8 images [C, H, W], the samples have {have}; leave it out")
        if masks is not None and (masks.dtype != "uint8" or len(masks.shape) != 2):
            raise RecipeError(f"--layout whole stores masks as uint8 [H, W], the samples have {masks}; leave it out")
        encoding = ENCODES[self.encode]
        if encoding != "raw" and images.shape[0] not in (1, 3):
            raise RecipeError(
                f"a JPEG has 1 or 3 channels, the images have {images.shape[0]}; store pixels, with --encode raw"
            )
        own = {"images": replace(images, shape=(images.shape[0], OWN, OWN), encoding=encoding)}
        if masks is not None:
            own["masks"] = replace(masks, shape=(OWN, OWN), encoding="raw")
        return {name: own.get(name, spec) for name, spec in fields.items()}


def layout_of(store: Mapping[str, Any]) -> WholeLayout | None:
    """The layout in a recipe's ``[store]``; None: all rows have one size.

    Raises:
        RecipeError: if a value is invalid, or an option of whole photographs is there without them.
    """
    options = {key: store[key] for key in ("encode", "quality", "raw_share") if store.get(key) is not None}
    layout = store.get("layout")
    if layout is None:
        if options:
            given = next(iter(options))
            raise RecipeError(f"{given} is given without layout; it is an option of layout = {LAYOUT!r}")
        return None
    if layout != LAYOUT:
        raise RecipeError(f"layout is {layout!r}; use {LAYOUT!r}, or leave it out for rows of one size")
    encode = options.get("encode", "raw")
    for key, takes in (("quality", ("jpeg", "source", "mixed")), ("raw_share", ("mixed",))):
        if key in options and encode not in takes:
            raise RecipeError(f"{key} is given, and encode is {encode!r}; it is an option of {choices(takes)}")
    return WholeLayout(**options)
