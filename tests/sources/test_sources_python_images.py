"""Masks and PIL images of Python datasets: read by the rules of other sources, or refused."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from python_datasets import splits

from mmload.errors import SampleError, SourceError
from mmload.sources import SourceSplit
from mmload.sources.decode import Decoder

GRAY = np.arange(24, dtype=np.uint8).reshape(4, 6)
IMAGE = Image.fromarray(np.dstack([GRAY] * 3))


def split_of(samples: list[Any], decoder: Decoder | None = None) -> SourceSplit:
    split: SourceSplit = splits(samples, decoder)["train"]
    return split


@pytest.mark.parametrize("kind", [torch.uint8, torch.int64, torch.bool])
def test_masks_with_a_channel_are_taken(kind: torch.dtype) -> None:
    mask = (torch.arange(24).reshape(1, 4, 6) % 2).to(kind)
    split = split_of([{"image": IMAGE, "mask": mask}])
    stored = split.read(0).fields["masks"]
    assert stored.dtype == (torch.uint8 if kind == torch.bool else kind)
    assert torch.equal(stored.to(kind), mask[0])


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.zeros(4, 6), r"masks is torch.float32, expected class numbers; give uint8"),
        (np.zeros((4, 6)), r"masks is torch.float64, expected class numbers"),
        (torch.zeros(3, 4, 6, dtype=torch.uint8), r"masks is \[3, 4, 6\], expected one mask \[H, W\]"),
        (torch.zeros(6, dtype=torch.uint8), r"masks is \[6\], expected one mask"),
    ],
)
def test_masks_that_are_no_class_numbers_are_refused(mask: Any, message: str) -> None:
    with pytest.raises(SourceError, match=f"split train: sample 0: {message}"):
        split_of([{"image": IMAGE, "mask": mask}])


def test_mask_values_past_the_classes_are_named() -> None:
    samples = Classed([{"image": IMAGE, "mask": np.full((4, 6), value, np.uint8)} for value in (1, 255, 2)])
    split = split_of(samples)
    assert split.classes == ("ground", "cell")
    assert int(split.read(1).fields["masks"].max()) == 255
    with pytest.raises(SampleError, match="the mask's value 2 is not a class; classes are 0 to 1"):
        split.read(2)


class Classed(list[Any]):
    """A dataset with class names."""

    classes = ("ground", "cell")


def photo(mode: str, orientation: int = 1) -> Image.Image:
    """A PIL image as a file gives it, 6 x 4, its left half transparent if it can be."""
    image, file = Image.fromarray(np.dstack([GRAY * 10] * 3)).convert(mode), io.BytesIO()
    if mode == "RGBA":
        image.putalpha(Image.fromarray(np.repeat([[0, 255]], 3, axis=1).repeat(4, axis=0).astype(np.uint8)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(file, "PNG", exif=exif)
    return Image.open(file)


def test_pil_images_are_read_by_the_decoders_rules() -> None:
    rotated = photo("RGB", 6)
    plain, followed = (split_of([(rotated, 0)], Decoder(exif_orient=on)).read(0) for on in (False, True))
    assert plain.fields["images"].shape == (3, 4, 6)
    assert torch.equal(followed.fields["images"], plain.fields["images"].rot90(-1, (1, 2)))
    clear = split_of([(photo("RGBA"), 0)], Decoder(background=(9, 8, 7))).read(0).fields["images"]
    assert clear[:, 0, 0].tolist() == [9, 8, 7]
    assert clear[:, 3, 5].tolist() == [230] * 3
    with pytest.raises(SourceError, match="exif_orient rotates images, not their boxes or masks"):
        split_of([{"image": rotated, "mask": GRAY}], Decoder(exif_orient=True))
