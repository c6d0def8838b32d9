"""Arguments that are invalid are refused in one line when a step is made, or when it first meets a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from mmload import augment
from mmload.augment import (
    BoxRule,
    CutMix,
    MixUp,
    Normalize,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomOrder,
    RandomResizedCrop,
    Resize,
)
from mmload.augment.collate import Collate
from mmload.batch import Batch

NAN, INF = math.nan, math.inf
NO_OUTPUT = (torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn)
NO_WEIGHTS: tuple[Any, ...] = ((1,), (1, 2, 3), (0, 0), (-1, 2), (NAN, 1), 0.5, "12", (True, 1))
SIZED = ("RandomCrop", "CenterCrop", "RandomResizedCrop", "Resize")
DRAWN = ("RandomHorizontalFlip", "RandomVerticalFlip", "RandomGrayscale", "RandomErasing")
BAD: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    *[(getattr(augment, name), {"size": size}) for name in SIZED for size in (0, True, 8.0, (8, 8, 8), (0, 8), "8")],
    *[(getattr(augment, name), {"p": p}) for name in DRAWN for p in (NAN, 1.5, -0.1, None, "0.5")],
    *[
        (RandomResizedCrop, {"size": 8, name: ends})
        for name in ("scale", "ratio")
        for ends in ((2, 1), (NAN, 1), (1, NAN), (1, INF), 0.5, (1,), (1, 2, 3))
    ],
    *[(RandomErasing, {"value": value}) for value in (NAN, INF, (1, NAN), "noise")],
    *[(RandomErasing, {"scale": scale}) for scale in ((0, 2), (0.5, 0.1), 0.5)],
    *[(RandomCrop, {"size": 8, "padding": padding}) for padding in ((1, 2, 3), -1, True, (1.5, 1))],
    *[(RandomCrop, {"size": 8, "padding": 2, "fill": fill}) for fill in (NAN, INF, ())],
    *[(mix, {"alpha": alpha}) for mix in (MixUp, CutMix) for alpha in (0, -1, INF, NAN, "1", None)],
    *[(mix, {"num_classes": classes}) for mix in (MixUp, CutMix) for classes in (0, -1, 1.5, True)],
    *[(augment.ColorJitter, {"brightness": ends}) for ends in (NAN, INF, -1, (1, 0), (0, INF), (0.5,))],
    *[(augment.ColorJitter, {"hue": ends}) for ends in (NAN, 0.6, -0.1, (0.1, -0.1))],
    *[(BoxRule, {"min_size": size}) for size in (-1, NAN, INF, "1", None)],
    *[(BoxRule, {"min_visible": share}) for share in (-0.1, 2, NAN, None)],
    *[(Normalize, {"mean": [0.5] * 3, "std": std}) for std in ([0.0] * 3, [NAN] * 3, [1e-45] * 3, [1] * 2, 0.5)],
    *[(Normalize, {"mean": mean, "std": [1.0] * 3}) for mean in ([NAN] * 3, [1e300] * 3, [])],
    *[(Resize, {"size": 8, "max_size": most}) for most in (8, NAN, 9.5)],
    *[(Resize, {"size": None, "max_size": most}) for most in (0, True)],
    (Collate, {"box_rule": 1.0}),
    (augment.Views, {}),
    *[(lambda *, view: augment.Views(Collate(), view), {"view": view}) for view in (3, augment.Views(Collate()))],
    (lambda *, device: augment.Views(Collate(), Collate(device=device)), {"device": "cpu"}),
]


@pytest.mark.parametrize(("make", "arguments"), BAD, ids=lambda value: getattr(value, "__name__", str(value)))
def test_invalid_arguments_are_one_line(make: Callable[..., Any], arguments: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=" (is|are|has) ") as raised:
        make(**arguments)
    assert len(str(raised.value).splitlines()) == 1
    assert "not supported between" not in str(raised.value)


PAIR = torch.zeros(2, 3, 4, 4)
LEVELS = PAIR.to(torch.uint8)
NINE = torch.zeros(2, 3, 9, 9, dtype=torch.uint8)
BOXED = Batch(images=NINE, boxes=torch.zeros(2, 1, 4), batch_size=[2])
INVERT = augment.RandomInvert()


def prepared(*steps: nn.Module, bare: bool = False, shape: tuple[int, int, int] = (3, 9, 9), **given: Any) -> None:
    """Gives a batch without its images to a collate, which is not to look at them; without boxes, too, if ``bare``."""
    rows = BOXED.replace(images=None)
    Collate(*steps).prepare(rows.replace(boxes=None) if bare else rows, shape, **given)


def at_a_batch(*steps: nn.Module) -> None:
    """Gives images of 40 x 52 to a collate."""
    collate = Collate(*steps)
    collate.set_epoch(0)
    collate(BOXED.replace(images=torch.zeros(2, 3, 40, 52, dtype=torch.uint8)))


REFUSED: list[tuple[Callable[[], Any], str]] = [
    # Values
    (lambda: Resize(3, interpolation="lanczos"), "interpolation is 'lanczos'"),
    (lambda: RandomResizedCrop(3, scale=(0.5, 0.2)), r"scale is \(0.5, 0.2\)"),
    (lambda: RandomResizedCrop(3, ratio=(0.0, 0.2)), r"ratio is \(0.0, 0.2\)"),
    (lambda: Resize(None), "size and max_size are both None"),
    (lambda: Resize((3, 4), max_size=5), "max_size is 5, but size"),
    (lambda: Resize(9, max_size=5), "max_size is 5, expected more than size"),
    (lambda: Normalize([0.0], [0.0]), "std is"),
    (lambda: Normalize([0.0, 1.0], [1.0]), "mean has 2 channels and std 1"),
    (lambda: Normalize.from_split(SimpleNamespace(mean=[], std=[])), "this split has no statistics"),
    (lambda: augment.ColorJitter(hue=0.7), "hue is 0.7"),
    (lambda: augment.ColorJitter(brightness=-1), "brightness is -1"),
    (lambda: augment.RandomHSV(0.6), "hue is 0.6, expected a rotation from 0 to 0.5"),
    (lambda: RandomErasing(value="noise"), "value is 'noise'"),
    (lambda: RandomCrop(3, padding_mode="wrap"), "padding_mode is 'wrap', expected"),
    *[(lambda wrong=wrong: RandomCrop(8, mask_fill=wrong), "mask_fill is") for wrong in (-1, 256, 1.5)],
    (lambda: augment.CenterCrop((3, 0)), r"size is \(3, 0\)"),
    (lambda: augment.RandomHorizontalFlip(1.5), "p is 1.5"),
    (lambda: RandomCrop(9, padding=(1, 2, 3)), r"padding is \(1, 2, 3\)"),
    (lambda: MixUp(0), "alpha is 0"),
    (lambda: MixUp(per="batches"), "per is 'batches', expected one of sample, batch"),
    (lambda: augment.RandomRotation(10, expand=True), "expand is True, expected False"),
    (lambda: augment.RandomAffine(10, interpolation="bicubic"), "interpolation is 'bicubic', expected one of nearest"),
    (lambda: augment.RandomAffine(10, shear=90), "shear is 90, expected angles below 90"),
    (lambda: augment.RandomAffine(10, translate=(0.1,)), r"translate is \(0.1,\), expected two shares"),
    (lambda: augment.ScaleJitter(20), "target_size is 20, expected"),  # type: ignore[arg-type]
    (lambda: augment.ScaleJitter((20, 0)), r"target_size is \(20, 0\)"),
    (lambda: augment.ScaleJitter((20, 20), (2, 1)), "scale_range is"),
    (lambda: augment.ScaleJitter((20, 20), mask_fill=256), "mask_fill is 256"),
    (lambda: augment.Letterbox((20, 0)), r"size is \(20, 0\)"),
    (lambda: augment.Letterbox(20, scaleup=1), "scaleup is 1"),  # type: ignore[arg-type]
    (lambda: augment.RandomShortestSize([]), "min_size is"),
    (lambda: augment.RandomShortestSize((20, 0.5)), r"min_size is \(20, 0.5\)"),  # type: ignore[arg-type]
    (lambda: augment.RandomShortestSize(20, 0), "max_size is 0"),
    (lambda: augment.RandomZoomOut(side_range=(0.5, 2)), "side_range is"),
    (lambda: augment.RandomIoUCrop(min_scale=0), "min_scale is 0"),
    (lambda: augment.RandomIoUCrop(0.9, 0.5), r"\(min_scale, max_scale\) is \(0.9, 0.5\)"),
    (lambda: augment.RandomIoUCrop(min_aspect_ratio=3), r"\(min_aspect_ratio, max_aspect_ratio\) is \(3.0, 2.0\)"),
    (lambda: augment.RandomIoUCrop(sampler_options=[]), "sampler_options is"),
    (lambda: augment.RandomIoUCrop(trials=0), "trials is 0"),
    (lambda: augment.Mosaic(40, tiles=5), "tiles is 5, expected 4 or 9"),
    (lambda: augment.Mosaic(0), "size is 0"),
    (lambda: augment.Mosaic(4), "size is 4, .* tiles"),
    (lambda: augment.Mosaic((64, 9)), "size is .*9.*, .* tiles"),
    (lambda: augment.Mosaic(40, scale=1.0), "scale is 1"),
    (lambda: augment.Mosaic(40, perspective=0.1), "perspective is 0.1"),
    (lambda: augment.Mosaic(40, shear=90), "shear is 90"),
    (lambda: augment.Mosaic(40, mixup=2), "mixup is 2"),
    (lambda: augment.Mosaic(40, stop_epoch=-1), "stop_epoch is -1"),
    (lambda: augment.CopyPaste(1.5), "p is 1.5"),
    *[(lambda dtype=dtype: Collate(dtype=dtype), "dtype is torch") for dtype in NO_OUTPUT],
    # Steps that hold others, and their weights
    (lambda: RandomChoice([MixUp(), INVERT]), "transforms has RandomInvert.*, which does not mix samples, and steps"),
    (
        lambda: RandomChoice([MixUp(num_classes=4), CutMix(num_classes=5)]),
        r"num_classes is \[4, 5\], expected the same",
    ),
    (
        lambda: RandomChoice([INVERT], per="batch"),
        "per is 'batch', expected 'sample', or 'batch' for a choice of MixUp",
    ),
    (lambda: RandomChoice([MixUp()], per=3), "per is 3, expected one of sample, batch"),  # type: ignore[arg-type]
    (lambda: RandomChoice([MixUp(), CutMix()], p=[1]), "p is "),
    *[(lambda p=p: RandomChoice([INVERT, INVERT], p), "p is ") for p in NO_WEIGHTS],
    (lambda: augment.RandomApply([INVERT], 1.1), "p is 1.1, expected a probability"),
    # Collates and views
    (lambda: Collate(lambda images: images), "is not an nn.Module"),  # type: ignore[arg-type]
    (lambda: augment.PerSample(lambda image: image), "is not an nn.Module"),  # type: ignore[arg-type]
    (lambda: augment.Views(), "the number of views is 0"),
    (lambda: augment.Views(Collate(), RandomCrop(9)), "view 1 is RandomCrop"),  # type: ignore[arg-type]
    (lambda: augment.Views(Collate(), Collate(device="cpu")), "the device of one view is None, of another cpu: give"),
    (
        lambda: Collate(augment.RandomHorizontalFlip(), augment.Mosaic(40)),
        "Mosaic comes after other steps; put it first",
    ),
    (lambda: augment.Views(Collate(augment.Mosaic(40))), "Mosaic cannot be used in Views"),
    (lambda: augment.Views(Collate(augment.CopyPaste())), "CopyPaste cannot be used in Views"),
    (lambda: Collate(augment.CopyPaste(), augment.CopyPaste()), "CopyPaste is there several times"),
    (lambda: Collate(RandomChoice([MixUp(), CutMix()]), dtype=torch.uint8), "MixChoice makes floats, but dtype is"),
    (lambda: Collate(Normalize.imagenet(), dtype=torch.uint8), "Normalize makes floats, but dtype is torch.uint8"),
    (lambda: Collate(MixUp(num_classes=3), dtype=torch.uint8), "MixUp makes floats, but dtype is torch.uint8"),
    # Images and targets given to a step alone
    (lambda: Normalize.imagenet()(PAIR[:, :1]), "Normalize has 3 channels and the images 1"),
    (lambda: RandomErasing(1.0, value=(1.0, 2.0))(PAIR), "value has 2 numbers"),
    (lambda: RandomCrop(9)(PAIR), "a crop of 9 x 9 does not fit into images of 4 x 4"),
    (lambda: RandomCrop(2)(PAIR[0]), r"expected \[B, C, H, W\]"),
    (lambda: MixUp()(PAIR, torch.tensor([0, 1])), "set num_classes"),
    (lambda: MixUp(num_classes=2)(PAIR, torch.tensor([0, 5])), "targets are from 0 to 5, and num_classes is 2"),
    (lambda: CutMix(num_classes=2)(PAIR, torch.tensor([0, 5])), "targets are from 0 to 5, and num_classes is 2"),
    (lambda: augment.CopyPaste()(PAIR), "CopyPaste needs boxes, and the batches have none"),
    (lambda: augment.RandomIoUCrop()(LEVELS), "RandomIoUCrop needs boxes, and the batches have none"),
    (lambda: augment.RandomZoomOut()(LEVELS), "the images are variable-size"),
    (lambda: augment.Views(Collate())(LEVELS[0]), r"images have the shape \(3, 4, 4\)"),
    # Before a pixel is read
    (
        lambda: prepared(augment.RandomZoomOut()),
        r"a batch has one size: put RandomResizedCrop, Resize\(\(height, width",
    ),
    (
        lambda: prepared(augment.RandomIoUCrop(), augment.RandomHorizontalFlip()),
        "are variable-size, and a batch has one",
    ),
    (lambda: prepared(augment.RandomZoomOut(), Resize(30)), "the images are variable-size, and a batch has one size"),
    (lambda: prepared(augment.RandomIoUCrop(), nn.Identity(), Resize((3, 3))), "Identity needs fixed-size images, and"),
    (
        lambda: prepared(augment.RandomIoUCrop(), augment.RandomZoomOut()),
        "RandomZoomOut cannot stand after RandomIoUCrop",
    ),
    (lambda: prepared(augment.RandomIoUCrop(), augment.ColorJitter(0.1)), "ColorJitter needs fixed-size images"),
    (
        lambda: prepared(augment.RandomIoUCrop(), augment.RandomHorizontalFlip(), Resize((3, 3), "nearest")),
        "Resize cannot stand after RandomIoUCrop, RandomHorizontalFlip",
    ),
    (
        lambda: prepared(augment.RandomIoUCrop(), Resize((9, 9)), bare=True),
        "needs boxes, and the batches have none; build",
    ),
    (lambda: prepared(augment.GaussianBlur((9, 3)), shape=(3, 4, 4)), "blur of 9 x 3 taps .* make kernel_size smaller"),
    (lambda: prepared(augment.RandomSolarize(128), source=torch.float32), "threshold is 128 and the images are floats"),
    (lambda: prepared(RandomOrder([augment.RandomPerspective()]), shape=(3, 1, 4)), "2 x 2 pixels or more, not 1 x 4"),
    # At a batch
    (lambda: at_a_batch(augment.ScaleJitter((20, 20), (0.001, 1))), "leaves no pixel of images of 40 x 52"),
    (lambda: at_a_batch(augment.RandomShortestSize(9, max_size=1)), "max_size 1 leaves no pixel of images of 40 x 52"),
    (lambda: at_a_batch(augment.ScaleJitter((20, 20), fill=(1, 2))), "fill has 2 numbers and the images 3 channels"),
    (lambda: at_a_batch(augment.RandomZoomOut(0.5), Resize((9, 9))), "fill is 0.5"),
    (lambda: at_a_batch(augment.RandomZoomOut(), Resize(lambda epoch: 9)), "the images are variable-size, and a batch"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_cannot_be_done_is_refused_with_what_is_wrong(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_statistics_may_be_tensors() -> None:
    step = Normalize(torch.tensor([0.5, 0.25]), torch.tensor([1.0, 2.0]))  # type: ignore[arg-type]  # a tensor iterates
    assert step.mean == (0.5, 0.25)
    assert step.std == (1.0, 2.0)


def test_a_letterbox_shows_what_it_was_given() -> None:
    shown = repr(augment.Letterbox(20, fill=3, scaleup=False, center=False))
    assert all(part in shown for part in ("(20, 20)", "fill=", "3", "scaleup=False", "center=False"))
