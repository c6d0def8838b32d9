"""Creates references: samples opened by Pillow and transformed by torchvision, without any code of the build.

For one sample of a source it returns the expected pixels, boxes and masks of the stored row. Only fields that image
libraries do not provide (labels, box coordinates as annotated) come from the source's own reader.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from mmload.errors import SampleError
from mmload.interop.torchvision import torchvision_equivalent
from mmload.pictures.instance_masks import of_boxes
from mmload.records import PER_BOX, SEGMENTS, VOID
from mmload.runtime.files import read_regular
from mmload.sources import SourceSplit
from mmload.sources.decode import FORMATS, without_png_extras
from mmload.sources.files import RemoteFiles, local_root
from mmload.sources.imagefolder import ImageFolderSplit
from mmload.sources.listed_split import ListedSplit
from mmload.store.dataset import Split
from mmload.store.row_reader import read_rows
from mmload.store.variable_rows import JPEG

_POINTS = {"keypoints", "corners", "polygons"}
_UNKNOWN = ("area", "run_boxes", "runs")
"""Fields of objects that no transform of torchvision moves."""
_MODES = {"L": " gray", "CMYK": " cmyk", "P": " palette", "1": " 1-bit"}


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The expected content of a row.

    Attributes:
        kind: the kind of file, such as ``jpeg``, ``jpeg gray`` or ``png alpha``; ``array`` if there is none.
        path: the file; None if there is none.
        images: uint8 [C, H, W], the result of torchvision's transforms on the tensor; None without an image.
        differs: why torchvision's ImageFolder would return different pixels; empty if it would not.
        padded: whether a CenterCrop padded the image, whose boxes torchvision shifts by up to a pixel.
        fields: every other field by name; boxes and their related fields without padding rows.
    """

    kind: str
    path: Path | None
    images: Tensor | None = None
    differs: str = ""
    padded: bool = False
    fields: dict[str, Tensor] = field(default_factory=dict)


class ReferenceMaker:
    """Creates references. Thread-safe if the source is.

    Raises:
        UsageError: if torchvision has no equivalent of the recipe.
    """

    def __init__(self, split: SourceSplit, recipe: Mapping[str, Any]) -> None:
        self.split = split
        decoding, *transforms = torchvision_equivalent(recipe).transforms
        self.decoded = decoding
        self.transforms = v2.Compose([v2.Identity(), *transforms])  # an empty Compose is an error

    def for_sample(self, index: int) -> Reference:
        """Returns the reference of sample ``index``.

        Raises:
            SampleError: if it is unreadable.
        """
        path = file_of(self.split, index)
        read = {} if isinstance(self.split, ImageFolderSplit) else self.split.read(index).fields
        fields = {name: torch.as_tensor(values) for name, values in read.items()}
        if path is not None and path.suffix.lower() != ".pt":
            kind, opened, differs = self._opened(path, self.split.id(index))
            reference = Reference(kind=kind, path=path, differs=differs, fields=fields)
            return self._transformed(F.to_image(opened), reference)
        reference = Reference(kind="array", path=path, fields=fields)
        if "images" not in fields or fields["images"].dtype != torch.uint8:
            return reference
        return self._transformed(tv_tensors.Image(fields["images"], device="cpu"), reference)

    def _opened(self, path: Path, sample: str) -> tuple[str, PIL.Image.Image, str]:
        """Returns the file's kind, its image by the recipe's rules, and the difference from ImageFolder's image."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                file = io.BytesIO(without_png_extras(read_regular(path), self.decoded.exif_orient))
                with PIL.Image.open(file, formats=FORMATS) as image:
                    kind = kind_of(image)
                    opened = self.decoded(image)
                    return kind, opened, self._differs(image)
        except PIL.UnidentifiedImageError as error:
            raise SampleError(sample, "not an image in any format that mmload reads") from error
        except Exception as error:  # Pillow's readers raise nearly any type of exception on a damaged file
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise SampleError(sample, f"Pillow cannot read it ({reason})") from error

    def _differs(self, image: PIL.Image.Image) -> str:
        if image.has_transparency_data:
            return "transparency is laid over the background"
        if image.mode.startswith("I"):
            return "16 bits are scaled"
        rotated = self.decoded.exif_orient and image.getexif().get(0x0112, 1) != 1
        return "rotated as EXIF says" if rotated else ""

    def _transformed(self, image: Any, reference: Reference) -> Reference:
        """Returns the reference of an image with the results of torchvision's transforms."""
        fields = {name: value for name, value in reference.fields.items() if name != "images"}
        size = (int(image.shape[-2]), int(image.shape[-1]))
        items: dict[str, Any] = {
            "images": image,
            "inside": tv_tensors.Mask(torch.ones(size, dtype=torch.uint8, device="cpu"), device="cpu"),
        }
        if "masks" in fields:
            items["masks"] = tv_tensors.Mask(fields["masks"], device="cpu")
        if "boxes" in fields:
            real = fields["boxes"][: int(fields["counts"])]
            items["boxes"] = tv_tensors.BoundingBoxes(real, format="XYXY", canvas_size=size, device="cpu")
        for name in _POINTS & fields.keys():
            items[name] = tv_tensors.KeyPoints(fields[name][..., :2], canvas_size=size, device="cpu")
        moved = {name: item.as_subclass(Tensor) for name, item in self.transforms(items).items()}
        pixels, outside = moved.pop("images"), moved.pop("inside") != 1
        without = _UNKNOWN if len(self.transforms.transforms) > 1 else ()
        made = {name: value for name, value in fields.items() if name not in without} | moved
        if "keypoints" in fields:
            made["keypoints"] = _labeled(moved["keypoints"], fields["keypoints"], outside.shape)
        if "masks" in fields:
            made["masks"] = moved["masks"].masked_fill(outside, VOID)
        if "boxes" in fields:
            made |= _with_area(moved["boxes"], made)
        padded = bool(outside.any()) and any(isinstance(step, v2.CenterCrop) for step in self.transforms.transforms)
        return replace(reference, images=pixels, padded=padded, fields=made)


def is_jpeg(split: Split, row: int) -> bool:
    """Returns whether a row is stored as a JPEG."""
    return bool(split.reader.field("images").located(np.array([row]))["encoding"][0] == JPEG)


def jpeg_expected(split: Split, row: int, pixels: Tensor, path: Path | None, store: Mapping[str, Any]) -> Tensor:
    """Returns the pixels of the JPEG that a row should be, uint8 [C, H, W], of a sample's pixels and its file."""
    stored = read_rows(split.reader.field("images"), np.array([row])).bytes.tobytes()
    if store["encode"] == "source" and path is not None and stored == read_regular(path):
        return pixels
    file = io.BytesIO()
    picture: PIL.Image.Image = F.to_pil_image(pixels)
    picture.save(file, "JPEG", quality=int(store["quality"]), subsampling="4:2:0")
    with PIL.Image.open(file) as image:
        return F.pil_to_tensor(image)  # type: ignore[no-any-return]  # torchvision is untyped here


def file_of(split: SourceSplit, index: int) -> Path | None:
    """Returns the file of sample ``index``, or None if it has no file of its own."""
    if not isinstance(split, ListedSplit) or not isinstance(split.place_of(index), Path | RemoteFiles):
        return None
    name = split.files(index)[0]
    return None if "\0" in name else local_root(split.place_of(index)) / name  # a part of a file


def kind_of(image: PIL.Image.Image) -> str:
    """Returns the kind of an image's file, in one or two words."""
    kind = (image.format or "image").lower()
    if image.has_transparency_data:
        return f"{kind} alpha"
    return kind + (" 16-bit" if image.mode.startswith("I") else _MODES.get(image.mode, ""))


def _with_area(boxes: Tensor, fields: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the boxes with a positive area, with their related fields."""
    keep = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    count = len(boxes)
    rest = {name: fields[name][:count][keep] for name in PER_BOX if name in fields and fields[name].dim()}
    segments = {name: fields[name].numpy() for pair in SEGMENTS for name in pair if name in fields}
    of_remaining = {name: torch.from_numpy(values) for name, values in of_boxes(segments, keep.numpy()).items()}
    return {"boxes": boxes[keep], "counts": keep.sum(), **rest, **of_remaining}


def _labeled(points: Tensor, before: Tensor, size: tuple[int, ...]) -> Tensor:
    """Returns transformed keypoints with their visibility, those outside of an image [H, W] as not labeled."""
    inside = ((points >= 0) & (points <= torch.tensor(size[::-1], device="cpu"))).all(-1, keepdim=True)
    shown = before[..., 2:] * inside
    return torch.cat([points * (shown > 0), shown], -1)
