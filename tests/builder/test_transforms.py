"""The build's steps against torchvision v2's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from mmload.builder.transforms import (
    CenterCropSample,
    GrayscaleSample,
    LetterboxSample,
    PadSample,
    ResizeSample,
    RGBSample,
    TransformChain,
)
from mmload.errors import RecipeError
from mmload.records import Sample

Array = npt.NDArray[Any]
SIZES = st.integers(1, 80)
WIDE = st.tuples(SIZES, st.integers(2, 80))
INTERPOLATIONS = ("bilinear", "bicubic")
KINDS = st.sampled_from(INTERPOLATIONS)


def arrays(fields: dict[str, Tensor]) -> dict[str, Array]:
    return {name: tensor.numpy() for name, tensor in fields.items()}


def made(height: int, width: int, boxes: int = 5, seed: int = 0) -> Sample:
    """Noise with a mask and some boxes."""
    random = torch.Generator().manual_seed(seed + 100 * height + width)
    corners = torch.rand(boxes, 2, 2, generator=random) * torch.tensor([width, height])
    low, high = corners.aminmax(dim=1)
    fields = {
        "images": torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=random),
        "masks": torch.randint(0, 21, (height, width), dtype=torch.uint8, generator=random),
        "boxes": torch.cat([low, high], 1),
        "labels": torch.arange(boxes),
        "difficult": torch.tensor([number % 2 == 0 for number in range(boxes)]),
        "counts": torch.tensor(boxes),
    }
    return Sample(
        "it",
        arrays(fields),
        (height, width),
        lists=frozenset({"boxes", "labels", "difficult"}),
    )


def theirs(sample: Sample, step: object) -> tuple[Tensor, Tensor, Tensor]:
    """(images, masks, real boxes) after a step of torchvision's."""
    height, width = sample.fields["images"].shape[-2:]
    boxes = tv_tensors.BoundingBoxes(
        torch.from_numpy(sample.fields["boxes"]), format="XYXY", canvas_size=(height, width)
    )
    images, masks = image_of(sample), tv_tensors.Mask(torch.from_numpy(sample.fields["masks"]))
    return tuple(part.as_subclass(Tensor) for part in step(images, masks, boxes))


def image_of(sample: Sample) -> tv_tensors.Image:
    return tv_tensors.Image(torch.from_numpy(sample.fields["images"]))


def is_equal(got: Array, want: Array | Tensor) -> bool:
    return got.dtype == np.asarray(want).dtype and np.array_equal(got, want)


def resize(size: int | list[int] | tuple[int, int], kind: str) -> v2.Resize:
    return v2.Resize(size, interpolation=InterpolationMode(kind), antialias=True)


def check(sample: Sample, got: Sample, step: object, drops: bool = True) -> None:
    """Equal pixels; of torchvision's boxes those that have an area, in their order.

    Resizing ``drops`` none.
    """
    images, masks, boxes = theirs(sample, step)
    assert is_equal(got.fields["images"], images)
    assert is_equal(got.fields["masks"], masks)
    keep = ((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])) | (not drops)
    assert int(got.fields["counts"]) == int(keep.sum())
    assert np.allclose(got.fields["boxes"], boxes[keep], atol=1e-4, rtol=0)
    for name in ("labels", "difficult"):
        assert is_equal(got.fields[name], sample.fields[name][keep.numpy()])
    assert {name: tensor.dtype for name, tensor in got.fields.items()} == {
        name: tensor.dtype for name, tensor in sample.fields.items()
    }
    assert (got.id, got.size) == (sample.id, sample.size)


@settings(max_examples=60)
@given(height=SIZES, width=SIZES, size=st.integers(2, 40) | WIDE, kind=KINDS)
def test_resize_of_the_short_side_or_to_an_exact_size(
    height: int, width: int, size: int | tuple[int, int], kind: str
) -> None:
    sample = made(height, width)
    got = ResizeSample(size=size, interpolation=kind)(sample)
    check(sample, got, resize(size, kind), drops=False)


@given(height=SIZES, width=SIZES, wanted=SIZES, kind=KINDS)
def test_a_resize_to_a_width_of_1_is_right(height: int, width: int, wanted: int, kind: str) -> None:
    """torchvision's kernels get that wrong: of columns that are all alike it is one of those that they make of two."""
    sample = Sample("it", {"images": made(height, 1).fields["images"].repeat(width, 2)})
    got = ResizeSample(size=(wanted, 1), interpolation=kind)(sample).fields["images"]
    assert is_equal(got, resize([wanted, 2], kind)(image_of(sample))[..., :1])


@settings(max_examples=60)
@given(height=SIZES, width=SIZES, size=SIZES | st.tuples(SIZES, SIZES))
def test_center_crop_also_of_smaller_images(height: int, width: int, size: int | tuple[int, int]) -> None:
    # torchvision's own CenterCrop pads a small image by floor(d / 2) and moves its boxes by round(d / 2), so that they
    # may be one pixel off; and it pads masks with class 0. Padding first, as it does with images, has neither fault.
    sample = made(height, width)
    got = CenterCropSample(size=size)(sample)
    assert is_equal(got.fields["images"], F.center_crop(image_of(sample), size))
    high, wide = size if isinstance(size, tuple) else (size, size)
    down, right = max(0, high - height), max(0, wide - width)
    fills = {tv_tensors.Image: 0, tv_tensors.Mask: 255, "others": 0}
    pad = v2.Pad([right // 2, down // 2, right - right // 2, down - down // 2], fill=fills)
    check(sample, got, v2.Compose([pad, v2.CenterCrop(size)]))


@settings(max_examples=40)
@given(
    height=SIZES,
    width=SIZES,
    padding=st.integers(0, 30) | st.tuples(*[st.integers(0, 30)] * 4),
    fill=st.integers(0, 255),
)
def test_pad(height: int, width: int, padding: int | tuple[int, int, int, int], fill: int) -> None:
    sample = made(height, width)
    got = PadSample(padding=padding, fill=fill)(sample)
    sides = list(padding) if isinstance(padding, tuple) else padding
    fills = {tv_tensors.Image: fill, tv_tensors.Mask: 255, "others": 0}
    check(sample, got, v2.Pad(sides, fill=fills))


@settings(max_examples=40)
@given(height=SIZES, width=SIZES, size=WIDE, kind=KINDS)
def test_letterbox_is_a_resize_and_a_pad(height: int, width: int, size: tuple[int, int], kind: str) -> None:
    sample = made(height, width)
    got = LetterboxSample(size=size, interpolation=kind)(sample)
    assert got.fields["images"].shape == (3, *size)
    scale = min(size[0] / height, size[1] / width)
    inner = [max(1, min(size[0], round(height * scale))), max(1, min(size[1], round(width * scale)))]
    assert inner[0] == size[0] or inner[1] == size[1]
    assume(inner[1] > 1)
    rest = (size[0] - inner[0], size[1] - inner[1])
    border = [rest[1] // 2, rest[0] // 2, rest[1] - rest[1] // 2, rest[0] - rest[0] // 2]
    fills = {tv_tensors.Image: 114, tv_tensors.Mask: 255, "others": 0}
    check(sample, got, v2.Compose([resize(inner, kind), v2.Pad(border, fill=fills)]))


@given(height=SIZES, width=SIZES, channels=st.sampled_from([1, 3]), out=st.sampled_from([1, 3]))
@settings(max_examples=50)
def test_grayscale_and_rgb(height: int, width: int, channels: int, out: int) -> None:
    fields = {"images": made(height, width).fields["images"][:channels], "targets": np.array(3)}
    sample = Sample("it", fields, (height, width))
    gray = GrayscaleSample(num_output_channels=out)(sample)
    assert is_equal(gray.fields["images"], F.rgb_to_grayscale(image_of(sample), num_output_channels=out))
    assert gray.fields["images"].shape[0] == out
    assert gray.fields["targets"] == 3
    assert is_equal(RGBSample()(sample).fields["images"], F.grayscale_to_rgb(image_of(sample)))


def test_a_row_without_boxes_or_masks() -> None:
    sample = Sample("it", {"images": made(9, 7).fields["images"]})
    for step in (ResizeSample(size=5), CenterCropSample(size=8), PadSample(padding=2), LetterboxSample(size=6)):
        assert list(step(sample).fields) == ["images"]


def test_boxes_that_a_crop_leaves_out_go_with_what_belongs_to_them() -> None:
    sample, boxes = made(20, 20, boxes=3), np.array([[0, 0, 4, 4], [8, 8, 12, 12], [0, 9, 30, 11]], np.float32)
    sample = replace(sample, fields={**sample.fields, "boxes": boxes})
    got = CenterCropSample(size=10)(sample).fields
    assert got["counts"] == 2
    assert got["boxes"].tolist() == [[3, 3, 7, 7], [0, 4, 10, 6]]
    assert got["labels"].tolist() == [1, 2]
    assert got["difficult"].tolist() == [False, True]
    assert sample.fields["counts"] == 3  # what came in is as it was


def squared(size: int, middle: int, kind: str = "bilinear") -> TransformChain:
    """A resize of the short side and a crop."""
    return TransformChain(
        [{"step": "Resize", "size": size, "interpolation": kind}, {"step": "CenterCrop", "size": middle}]
    )


@settings(max_examples=60)
@given(
    height=SIZES, width=SIZES, size=st.integers(1, 40), middle=st.integers(1, 50), kind=KINDS, interleaved=st.booleans()
)
def test_a_resize_and_a_crop_in_one_are_the_two(
    height: int, width: int, size: int, middle: int, kind: str, interleaved: bool
) -> None:
    sample = made(height, width)
    if interleaved:
        images = np.ascontiguousarray(sample.fields["images"].transpose(1, 2, 0)).transpose(2, 0, 1)
        sample = replace(sample, fields={**sample.fields, "images": images})
    chain = squared(size, middle, kind)
    assert len(chain.steps) == 1
    want = CenterCropSample(size=middle)(ResizeSample(size=size, interpolation=kind)(sample))
    row, other = np.full((3, middle, middle), 7, np.uint8), np.full((3, middle + 1, middle), 7, np.uint8)
    for got in (chain(sample), chain(sample, other), chain(sample, row)):
        assert (got.id, got.size) == (want.id, want.size)
        assert got.fields.keys() == want.fields.keys()
        for name in want.fields:
            assert is_equal(got.fields[name], want.fields[name]), name
    assert (other == 7).all()


def test_the_image_is_made_in_the_memory_that_is_given() -> None:
    row, sample = np.zeros((3, 30, 30), np.uint8), made(40, 50)
    specs = [{"step": "Resize", "size": 32}, {"step": "CenterCrop", "size": 30}]
    assert np.shares_memory(TransformChain(specs)(sample, row).fields["images"], row)
    padded = TransformChain([*specs, {"step": "Pad", "padding": 1}])(sample, row)
    assert padded.fields["images"].shape == (3, 32, 32)


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_images_of_other_dtypes_as_a_dataset_may_have_them_are_resized_too(dtype: npt.DTypeLike) -> None:
    sample = Sample("it", {"images": (300 * made(40, 50).fields["images"].astype(np.float32)).astype(dtype)})
    assert is_equal(squared(32, 30)(sample).fields["images"], v2.CenterCrop(30)(v2.Resize(32)(image_of(sample))))


@pytest.mark.parametrize("kind", INTERPOLATIONS)
@pytest.mark.parametrize(
    "size", [(3000, 4000), (900, 1200), (512, 900), (513, 300), (500, 375), (256, 256), (64, 4321), (17, 30)]
)
def test_images_of_any_size_are_resized_as_torchvision_resizes_them(size: tuple[int, int], kind: str) -> None:
    images = torch.randint(0, 256, (*size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    sample = Sample("it", {"images": images.permute(2, 0, 1).numpy()})
    want = v2.Resize(256, InterpolationMode(kind))(image_of(sample))
    assert is_equal(ResizeSample(size=256, interpolation=kind)(sample).fields["images"], want)
    assert is_equal(squared(256, 224, kind)(sample).fields["images"], v2.CenterCrop(224)(want))


def test_a_chain_is_its_steps_in_order() -> None:
    specs = [{"step": "Resize", "size": [30, 40]}, {"step": "CenterCrop", "size": 24}, {"step": "Pad", "padding": 1}]
    sample = made(50, 33)
    want = PadSample(padding=1)(CenterCropSample(size=24)(ResizeSample(size=(30, 40))(sample)))
    got = TransformChain(specs)(sample)
    assert all(is_equal(got.fields[name], want.fields[name]) for name in want.fields)
    assert TransformChain([])(sample) is sample


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"step": "Resize"}, r"missing required field `size`; Resize takes interpolation, size"),
        ({"step": "Resize", "size": 0}, r"'size': 0}: .*>= 1 - at `\$.size`; Resize takes"),
        ({"step": "Resize", "size": True}, "got `bool`"),
        ({"step": "Resize", "size": 1.5}, "got `float`"),
        ({"step": "Resize", "size": "256"}, "got `str`"),
        ({"step": "Resize", "size": [256]}, "length >= 2"),
        ({"step": "Resize", "size": [1, 2, 3]}, "length <= 2"),
        ({"step": "Resize", "size": [1, [2]]}, r"at `\$.size\[1\]`"),
        ({"step": "Resize", "size": 65_536}, "<= 65535"),
        ({"step": "Resize", "size": 9, "interpolation": "nearest"}, "Invalid enum value 'nearest'"),
        ({"step": "Resize", "size": 9, "interpolation": {}}, r"at `\$.interpolation`"),
        (
            {"step": "Resize", "size": 9, "antialias": False},
            "unknown field `antialias`; Resize takes interpolation, size",
        ),
        ({"step": "CenterCrop", "size": 9, "fill": 256}, r"<= 255 - at `\$.fill`"),
        ({"step": "CenterCrop", "size": 9, "fill": [1, 2, 3]}, r"at `\$.fill`"),
        ({"step": "Pad", "padding": -1}, ">= 0"),
        ({"step": "Pad", "padding": [1, 2]}, "length >= 4"),
        ({"step": "Letterbox", "size": [0, 4]}, r">= 1 - at `\$.size\[0\]`"),
        ({"step": "Grayscale", "num_output_channels": 2}, "Invalid enum value 2"),
        ({"step": "RGB", "size": 3}, "unknown field `size`; RGB takes no argument"),
        ({"step": "Blur"}, "no step of a build, which has CenterCrop, Grayscale, Letterbox, Pad, RGB, Resize"),
        ({"step": 3}, "no step of a build"),
        ({"name": "Resize"}, "{'name': 'Resize'} is no step of a build"),
    ],
)
def test_wrong_arguments_are_named_with_what_is_known(spec: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        TransformChain([spec])


@pytest.mark.parametrize("name", ["RandomCrop", "ColorJitter", "Normalize", "ToTensor"])
def test_a_step_of_torchvision_that_belongs_to_load_time_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(RecipeError, match=f"{name}'}} is no step of a build, .*belong to load time, in mmload.Collate"):
        TransformChain([{"step": name}])


@pytest.mark.parametrize(
    ("step", "sample", "message"),
    [
        (ResizeSample(size=60_000), made(1, 80), "over the limit"),
        (CenterCropSample(size=60_000), made(4, 4), "over the limit"),
        (PadSample(padding=30_000), made(4, 4), "over the limit"),
        (ResizeSample(size=5), Sample("it", {"features": np.zeros(3)}), "it has no image"),
        (ResizeSample(size=5), Sample("it", {"images": np.zeros((3, 8, 8), np.uint16)}), "image or mask is bfloat16"),
    ],
)
def test_samples_that_would_not_fit_in_memory_or_have_no_image_are_refused(
    step: ResizeSample, sample: Sample, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        step(sample)
