"""Collates of variable-size images: every sample is rendered as it is alone, and drawn for its own size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.transforms import v2

from mmload.augment import (
    AlternatingHorizontalFlip,
    CenterCrop,
    ColorJitter,
    GaussianBlur,
    Letterbox,
    MixUp,
    Normalize,
    RandomAdjustSharpness,
    RandomAffine,
    RandomApply,
    RandomAutocontrast,
    RandomCrop,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomIoUCrop,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomResizedCrop,
    RandomShortestSize,
    RandomSolarize,
    RandomVerticalFlip,
    RandomZoomOut,
    Resize,
    ScaleJitter,
    Views,
)
from mmload.augment.collate import Collate, PreparedBatch
from mmload.batch import Batch
from mmload.presets import detection
from mmload.render.kernel_arguments import LINES, PIXELS, PLACE, PLANES
from mmload.render.rendering import ImageLines

SIZES = [(37, 61), (64, 48), (40, 40), (41, 203), (90, 33), (1, 300), (300, 1), (2, 2), (64, 48)]


def images_of(sizes: list[tuple[int, int]] = SIZES, channels: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, 256, (channels, *size), dtype=torch.uint8, generator=generator) for size in sizes]


def rows_of(images: list[Tensor]) -> list[Batch]:
    numbers = torch.arange(len(images))
    return [
        Batch(images=image, targets=numbers[k], ids=numbers[k], seeds=7919 * (numbers[k] + 1), batch_size=[])
        for k, image in enumerate(images)
    ]


def held(images: list[Tensor], layout: int, needed: np.ndarray) -> ImageLines:
    """The needed lines alone, of images in a layout."""
    parts, places, start = [], [], 0
    for image, (first, stop, _) in zip(images, needed.tolist(), strict=True):
        _, height, width = image.shape
        first, stop = (0, height) if layout == PLANES else (first, stop)
        axes = {PLANES: (0, 1, 2), LINES: (1, 0, 2), PIXELS: (1, 2, 0)}[layout]
        part = image[:, first:stop].permute(axes).reshape(-1)
        parts.append(part)
        places.append((start, first, stop - first, height, width, layout, 1))
        start += part.numel()
    memory = torch.cat(parts).numpy()
    return ImageLines(memory, np.array(places, PLACE), memory)


def prepared_of(collate: Collate, images: list[Tensor]) -> PreparedBatch:
    rows = torch.stack([row.replace(images=None) for row in rows_of(images)])
    sizes = np.array([image.shape[1:] for image in images])
    return collate.prepare(rows, (len(images[0]), 0, 0), sizes=sizes)


LISTS: dict[str, list[nn.Module]] = {
    "crop": [RandomResizedCrop(24), RandomHorizontalFlip(), Normalize.imagenet()],
    "bicubic": [RandomVerticalFlip(), RandomResizedCrop((20, 30), interpolation="bicubic")],
    "nearest": [RandomResizedCrop(24, interpolation="nearest")],
    "plain": [RandomResizedCrop(24, antialias=False), ColorJitter(0.4, 0.4, 0.4)],
    "exact": [Resize((31, 17)), RandomErasing(0.9)],
    "center": [CenterCrop(36), Normalize.imagenet()],
    "evaluation": [Resize(26), CenterCrop(24), Normalize.imagenet()],
    "larger": [Resize(20, interpolation="bicubic"), CenterCrop((33, 12)), RandomGrayscale(0.5)],
    "longest": [Resize(None, max_size=60), CenterCrop(30)],
    "short": [Resize(26, max_size=27), RandomCrop(24, pad_if_needed=True, fill=(9, 200, 30)), RandomHorizontalFlip()],
    "flipped": [RandomHorizontalFlip(1.0), RandomVerticalFlip(1.0), RandomCrop(30, padding=5, pad_if_needed=True)],
    "mirrored": [RandomCrop(30, padding=3, pad_if_needed=True, padding_mode="reflect"), RandomHorizontalFlip()],
    "edge": [RandomCrop((50, 8), pad_if_needed=True, padding_mode="edge")],
    "letterbox": [Letterbox((40, 44)), RandomHorizontalFlip(), Normalize.imagenet()],
    "corner": [Letterbox((40, 44), (7, 8, 9), "bicubic", scaleup=False, center=False), CenterCrop(35)],
    "jitter": [ScaleJitter((40, 44), (0.5, 1.5), fill=9), RandomHorizontalFlip()],
    "zoom": [RandomZoomOut(fill=(1, 2, 3)), Resize((25, 26))],
    "twice": [RandomCrop(40, pad_if_needed=True), RandomResizedCrop(24)],
    "colors first": [RandomPhotometricDistort(), RandomZoomOut(9), RandomHorizontalFlip(), Resize((25, 26))],
    "histograms first": [
        *(RandomVerticalFlip(), RandomApply([RandomEqualize(1.0), GaussianBlur((3, 1))], p=0.7)),
        *(RandomAutocontrast(), RandomAdjustSharpness(3.0), ColorJitter(0.4, hue=0.1), RandomInvert(0.2)),
        *(RandomResizedCrop(24, interpolation="bicubic"), RandomSolarize(90), RandomAffine(20), Normalize.imagenet()),
    ],
    "levels before a plain crop": [RandomPosterize(2), CenterCrop(36)],
    "alternating": [AlternatingHorizontalFlip(), Resize(12), CenterCrop(12)],
}


@pytest.mark.parametrize("layout", [PLANES, LINES, PIXELS])
@pytest.mark.parametrize("name", sorted(LISTS))
def test_each_is_rendered_as_it_is_alone(name: str, layout: int) -> None:
    collate = Collate(*LISTS[name], dtype=torch.float32)
    collate.set_epoch(3)
    least = 3 if name in ("jitter", "longest", "short", "histograms first") else 1
    images = [image for image in images_of() if min(image.shape[1:]) >= least]
    prepared = prepared_of(collate, images)
    out = torch.full(prepared.shape, -7, dtype=prepared.dtype)
    lines = held(images, layout, prepared.rendering.needed)
    for first in range(0, len(images), 2):
        stop = min(first + 2, len(images))
        prepared.rendering.render_lines(first, lines._replace(places=lines.places[first:stop]), out)
    made = prepared.finish(out)
    for k, row in enumerate(rows_of(images)):
        alone = collate(row[None])
        torch.testing.assert_close(made.images[k], alone.images[0], rtol=0, atol=0)


@pytest.mark.slow
def test_mixed_samples_and_other_dtypes_are_those_of_squares() -> None:
    images = images_of([(40, 52)] * 3) + images_of([(52, 40)])
    for dtype in (torch.float64, torch.float16):
        crop = Collate(RandomResizedCrop(24), dtype=torch.uint8)
        mixed = Collate(RandomResizedCrop(24), MixUp(num_classes=9), dtype=dtype)
        squares = Batch(images=crop(rows_of(images)).images, batch_size=[4])
        seeds, targets = torch.stack([row.seeds for row in rows_of(images)]), torch.arange(4)
        after = Collate(nn.Identity(), MixUp(num_classes=9), dtype=dtype)
        expected = after(squares.replace(seeds=seeds, targets=targets))
        torch.testing.assert_close(mixed(rows_of(images)).images, expected.images, rtol=0, atol=1e-3)


def test_only_lines_of_the_window_are_needed() -> None:
    images = images_of([(100, 60)] * 50)
    crops = prepared_of(Collate(RandomResizedCrop(24, scale=(0.1, 0.2))), images)
    counts = crops.rendering.needed["stop"] - crops.rendering.needed["first"]
    assert (counts < 65).all()
    assert counts.mean() < 45
    center = prepared_of(Collate(Resize(50), CenterCrop(48)), images)
    assert (np.abs(center.rendering.needed["first"] - 22) <= 6).all()
    assert (np.abs(center.rendering.needed["stop"] - 78) <= 6).all()
    mirrored = prepared_of(Collate(RandomCrop(70, pad_if_needed=True, padding_mode="reflect")), images)
    first, stop = mirrored.rendering.needed["first"], mirrored.rendering.needed["stop"]
    assert (((first == 0) & (stop == 100)) | (stop - first == 70)).all()


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([RandomAffine(9), RandomResizedCrop(24)], "RandomAffine needs fixed-size images, and these are variable-size"),
        ([RandomApply([RandomHorizontalFlip()]), Resize((9, 9))], "RandomApply needs fixed-size images"),
        ([Resize(20), ColorJitter(0.4), CenterCrop(9)], "ColorJitter needs fixed-size images"),
        ([GaussianBlur(9), Resize((9, 9))], r"a blur of 9 x 9 taps needs .* these have 1 x 300 pixels"),
        ([ColorJitter(0.4)], "the images are variable-size, and a batch has one size: put RandomResizedCrop"),
        ([RandomHorizontalFlip(), RandomErasing()], "RandomErasing needs fixed-size images"),
        ([], "the images are variable-size, and a batch has one size: put RandomResizedCrop"),
        ([Resize(20)], "the images are variable-size, and a batch has one size"),
        (
            [Resize(20), RandomErasing(), CenterCrop(9)],
            "RandomErasing needs .* Resize by one number gives variable-size",
        ),
        (
            [Resize(20), RandomResizedCrop(9)],
            "RandomResizedCrop needs .* Resize by one number gives variable-size",
        ),
        ([nn.Identity()], "Identity needs fixed-size images"),
        ([RandomCrop(60)], r"a crop of 60 x 60 does not fit into images of 1 x 300"),
        ([Resize(20), RandomCrop(30)], r"a crop of 30 x 30 does not fit into images of 20 x 32"),
        (
            [Normalize.imagenet(), Letterbox((9, 9))],
            "Letterbox cannot stand after Normalize if images are variable-size",
        ),
        ([RandomShortestSize(20)], "max_size is None, but the images are variable-size"),
        ([ScaleJitter((9, 9))], "leaves no pixel of an image of 1 x 300"),
    ],
)
def test_what_needs_one_size_says_so(steps: list[nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Collate(*steps)(rows_of(images_of()))


@pytest.mark.parametrize(
    "step",
    [
        RandomShortestSize(4, max_size=5),
        ScaleJitter((9, 9), (0.12, 1.0)),
        Resize(4, max_size=5),
        RandomResizedCrop(9, ratio=(60, 80)),
        RandomCrop((10, 100), padding=2),
    ],
)
def test_step_that_does_not_fit_an_image_names_that_image(step: nn.Module) -> None:
    sizes = {"RandomResizedCrop": [(9, 200), (99, 25)], "RandomCrop": [(20, 200), (50, 50)]}
    images = images_of(sizes.get(type(step).__name__, [(25, 25), (640, 48)]))
    expected = {"RandomResizedCrop": "99 x 25", "RandomCrop": "50 x 50"}.get(type(step).__name__, "640 x 48")
    with pytest.raises(ValueError, match=f"images? of {expected}"):
        Collate(step, CenterCrop(4))(rows_of(images))


def test_the_shortest_size_lies_on_a_canvas_of_the_longest() -> None:
    images = images_of([(40, 20), (30, 60)])
    made = Collate(RandomShortestSize((12, 16), max_size=30, fill=7), dtype=torch.uint8)(rows_of(images)).images
    assert made.shape == (2, 3, 30, 30)
    for image, each in zip(images, made, strict=True):
        possible = [Resize(short, max_size=30)(image[None])[0] for short in (12, 16)]
        shown = [torch.equal(each[:, : one.shape[1], : one.shape[2]], one) for one in possible]
        assert any(shown)


@pytest.mark.parametrize(
    "step", [RandomShortestSize((12, 16), max_size=30), Letterbox((31, 28)), ScaleJitter((20, 30))]
)
def test_a_flip_before_a_canvas_flips_the_images_alone(step: nn.Module) -> None:
    images = images_of([(40, 20), (30, 60), (41, 41)])
    boxes = [torch.tensor([[2.0, 3, 15, 28], [0, 0, image.shape[2], image.shape[1]]]) for image in images]
    right = [torch.tensor([image.shape[2], 0] * 2) for image in images]
    flipped = [
        (each * torch.tensor([-1, 1, -1, 1]) + wide)[:, [2, 1, 0, 3]] for each, wide in zip(boxes, right, strict=True)
    ]
    rows = [row.replace(boxes=box) for row, box in zip(rows_of(images), boxes, strict=True)]
    mirrored = [image.flip(2).contiguous() for image in images]
    others = [row.replace(boxes=box) for row, box in zip(rows_of(mirrored), flipped, strict=True)]
    made = Collate(RandomHorizontalFlip(1.0), step, dtype=torch.uint8)(rows)
    expected = Collate(RandomHorizontalFlip(0.0), step, dtype=torch.uint8)(others)
    assert torch.equal(made.images, expected.images)
    torch.testing.assert_close(made.boxes, expected.boxes)
    assert (made.image_sizes is None) == (not isinstance(step, RandomShortestSize))


@pytest.mark.parametrize("is_variable", [False, True])
def test_the_shortest_size_gives_sizes_until_a_step_moves_the_images(is_variable: bool) -> None:
    images = images_of([(40, 20), (30, 60)] if is_variable else [(30, 60), (30, 60)])
    size = RandomShortestSize(15, max_size=20)
    wanted = [[20, 10], [10, 20]] if is_variable else [[10, 20], [10, 20]]

    def found(*steps: nn.Module) -> Any:
        made = Collate(*steps)(rows_of(images))
        assert made.images.shape[2:] == ((20, 20) if is_variable else (10, 20)) or CenterCrop in map(type, steps)
        return None if made.image_sizes is None else made.image_sizes.tolist()

    for steps in ([], [ColorJitter(0.4), Normalize.imagenet()], [RandomErasing()]):
        assert found(size, *steps) == found(RandomHorizontalFlip(), size, *steps) == wanted
    for step in (RandomHorizontalFlip(0.0), RandomVerticalFlip(), CenterCrop(8), RandomAffine(3), nn.Identity()):
        assert found(size, step) is None
        assert found(size, ColorJitter(0.4), step) is None


def test_views_of_images_of_a_size_each() -> None:
    rows = rows_of(images_of())
    crop = Collate(RandomResizedCrop(16))
    first, second = Views(crop, crop)(rows)
    assert torch.equal(first.images, crop(rows).images)
    assert not torch.equal(first.images, second.images)


def test_boxes_follow() -> None:
    images = images_of([(40, 80), (90, 30)])
    boxes = torch.tensor([[[10.0, 5, 30, 25], [0, 0, 80, 40]], [[1, 2, 29, 80], [0, 0, 0, 0]]])
    counts, labels = torch.tensor([2, 1]), torch.tensor([[1, 2], [3, -1]])
    rows = [row.replace(boxes=boxes[k], counts=counts[k], labels=labels[k]) for k, row in enumerate(rows_of(images))]
    lists: list[list[Any]] = [
        [RandomHorizontalFlip(1.0), Resize((20, 20))],
        [Resize(20), CenterCrop(18)],
        [RandomIoUCrop(), RandomHorizontalFlip(), Resize((33, 22))],
        [RandomZoomOut(), RandomIoUCrop(), Resize((33, 22))],
        list(detection.ssd(size=20).steps),
        list(detection.rt_detr(size=20).steps),
        [RandomCrop(50, pad_if_needed=True)],
        [ScaleJitter((40, 40))],
        [Letterbox((40, 51)), RandomHorizontalFlip()],
    ]
    for steps in lists:
        collate = Collate(*steps)
        made = collate(rows)
        for k, row in enumerate(rows):
            alone = collate(row[None])
            torch.testing.assert_close(made.boxes[k], alone.boxes[0], rtol=0, atol=0)
            assert made.counts[k] == alone.counts[0]
            assert torch.equal(made.labels[k], alone.labels[0])
            assert torch.equal(made.images[k], alone.images[0])


def test_odd_rows_are_refused() -> None:
    first, second = images_of([(4, 5), (6, 7)])
    collate = Collate(CenterCrop(2))
    with pytest.raises(ValueError, match="a variable-size image is torch.float32 .*; expected torch.uint8"):
        collate(rows_of([first, second.float()]))
    with pytest.raises(ValueError, match="with the same C"):
        collate(rows_of([first, second[:1]]))
    with pytest.raises(ValueError, match="with a pixel at least"):
        collate(rows_of([first, second[:, :0]]))


def test_evaluation_is_torchvisions_of_each_photograph() -> None:
    images = images_of([(256, 341), (400, 256), (300, 301), (500, 333), (120, 90)])
    theirs = v2.Compose([v2.Resize(256), v2.CenterCrop(224)])
    found = Collate(Resize(256), CenterCrop(224), dtype=torch.uint8)(rows_of(images)).images
    for image, each in zip(images, found, strict=True):
        torch.testing.assert_close(each, theirs(image), rtol=0, atol=0)
