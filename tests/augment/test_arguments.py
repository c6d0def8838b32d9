"""Arguments that are invalid are refused in one line when a step is made, or when it first meets a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mmload import augment
from mmload.augment import BoxRule, CutMix, MixUp, Normalize, RandomCrop, RandomErasing, RandomResizedCrop, Resize
from mmload.augment.collate import Collate

NAN, INF = math.nan, math.inf
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


@pytest.mark.parametrize("mix", [MixUp, CutMix])
def test_targets_past_the_classes_are_refused(mix: type[MixUp] | type[CutMix]) -> None:
    with pytest.raises(ValueError, match="targets are from 0 to 5, and num_classes is 2"):
        mix(num_classes=2)(torch.zeros(2, 3, 4, 4), torch.tensor([0, 5]))


def test_statistics_may_be_tensors() -> None:
    step = Normalize(torch.tensor([0.5, 0.25]), torch.tensor([1.0, 2.0]))  # type: ignore[arg-type]  # a tensor iterates
    assert step.mean == (0.5, 0.25)
    assert step.std == (1.0, 2.0)
