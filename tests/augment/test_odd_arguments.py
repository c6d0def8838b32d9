"""Every argument of every public step with odd values: it works as documented, or is refused in one clear line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mmload import augment
from mmload.augment import BoxRule
from mmload.augment.collate import Collate
from mmload.augment.views import Views
from mmload.batch import Batch

ODD: list[Any] = [
    *(None, True, False, np.True_, math.nan, math.inf, -math.inf, -1, 0, 1, 2, 3, 7, 0.25, 1.5, -0.5),
    *(10**9, 10**400, 1e300, 1j, "", "0", "0.5", "nan", "random", "a\nb", b"8", "nowhere", object(), int, BoxRule()),
    *(np.uint8(3), np.int64(2), np.float32(0.1), np.float64(math.nan), np.float16(1), np.str_("8")),
    *(np.array(2), np.array([1, 2]), np.array([0.5, 0.7]), np.zeros((2, 2)), np.array(["a"])),
    *(torch.tensor(2), torch.tensor(0.5), torch.tensor(True), torch.tensor([1, 2]), torch.zeros(2, 2)),
    *([], (), {}, {1: 2}, {1}, (0, 0), (2, 3), (3, 2), (1, 2, 3), (1, 2, 3, 4), (0.5, 0.6, 0.7), (0.2, 0.4)),
    *((math.nan, 1), (1, math.inf), (-1, 1), (1e308, 1e308), (10**9, 10**9), (0.0, 1e-320), (None, None)),
    *(("1", "2"), (True, True), ((1, 2), (3, 4)), [2, 2], range(2), [np.int64(2), 2], (np.float32(0.5), 1)),
    *((x for x in (1, 2)), torch.float32, torch.uint8, torch.channels_last, torch.device("cpu")),
]
ACCEPTED = {
    "size": [1, 2, 3, 7, np.uint8(3), np.int64(2), (2, 3), np.array([1, 2])],
    "padding": [None, 0, np.int64(2), (1, 2, 3, 4)],
    "p": [0, 1, 0.25, np.float32(0.1), torch.tensor(0.5)],
    "alpha": [1, 0.25, np.float32(0.1)],
    "brightness": [None, 0, 1.5, np.float32(0.1), (0.2, 0.4)],
    "hue": [None, 0, 0.25, np.float32(0.1)],
    "min_size": [0, 1.5, np.float32(0.1)],
    "mask_fill": [0, 7, np.uint8(3)],
    "bits": [0, 7, np.uint8(3)],
    "kernel_size": [1, 3, np.uint8(3), torch.tensor(3), [3, 3]],
    "degrees": [0, 1.5, np.float32(0.1), (-1, 1), np.array([0.5, 0.7])],
    "translate": [None, (0.5, 0.7), np.array([0.5, 0.7])],
    "num_ops": [0, 2, np.int64(2)],
    "sigma": [1, 0.25, np.float32(0.1), np.array([0.5, 0.7])],
    "seed": [-1, 10**400, np.int64(2)],
}
PLAIN = (0.5, 0.5, 0.5)


def sized(**sizes: Any) -> Collate:
    """A collate whose size follows the epoch."""
    return Collate(augment.Resize(augment.ProgressiveSize(**sizes)))


def zoomed(**given: Any) -> Collate:
    """A collate that zooms out."""
    return Collate(augment.RandomZoomOut(**given), augment.Resize((5, 6)))


def cropped(**given: Any) -> Collate:
    """A collate that crops to boxes."""
    return Collate(augment.RandomIoUCrop(**given), augment.Resize((5, 6)))


STEPS: list[tuple[Callable[..., Any], dict[str, Any], tuple[str, ...]]] = [
    (augment.RandomCrop, {"size": 4}, ("size", "padding", "pad_if_needed", "fill", "padding_mode", "mask_fill")),
    (augment.RandomCrop, {"size": 4, "padding": 2}, ("fill", "padding_mode", "mask_fill")),
    (augment.CenterCrop, {"size": 4}, ("size",)),
    (augment.AlternatingHorizontalFlip, {}, ("seed",)),
    (augment.RandomHorizontalFlip, {}, ("p",)),
    (augment.RandomVerticalFlip, {}, ("p",)),
    (augment.RandomGrayscale, {}, ("p",)),
    (augment.RandomResizedCrop, {"size": 4}, ("size", "scale", "ratio", "interpolation", "antialias")),
    (augment.Resize, {"size": 4}, ("size", "interpolation", "max_size", "antialias")),
    (augment.Resize, {"size": None, "max_size": 9}, ("max_size",)),
    (sized, {"min_size": 3, "max_size": 5, "start_epoch": 0, "end_epoch": 1}, ("min_size", "max_size")),
    (sized, {"min_size": 3, "max_size": 5, "start_epoch": 0, "end_epoch": 9}, ("start_epoch", "end_epoch", "multiple")),
    (
        augment.ScaleJitter,
        {"target_size": (9, 8)},
        ("target_size", "scale_range", "interpolation", "antialias", "fill", "mask_fill"),
    ),
    (
        augment.Letterbox,
        {"size": (9, 8)},
        ("size", "fill", "interpolation", "antialias", "mask_fill", "scaleup", "center"),
    ),
    (
        augment.RandomShortestSize,
        {"min_size": 5},
        ("min_size", "max_size", "interpolation", "antialias", "fill", "mask_fill"),
    ),
    (zoomed, {}, ("fill", "side_range", "p", "mask_fill")),
    (
        cropped,
        {},
        ("min_scale", "max_scale", "min_aspect_ratio", "max_aspect_ratio", "sampler_options", "trials"),
    ),
    (augment.RandomErasing, {"p": 1.0}, ("p", "scale", "ratio", "value")),
    (augment.ColorJitter, {}, ("brightness", "contrast", "saturation", "hue")),
    (augment.RandomInvert, {}, ("p",)),
    (augment.RandomAutocontrast, {}, ("p",)),
    (augment.RandomEqualize, {}, ("p",)),
    (augment.RandomPosterize, {"bits": 3, "p": 1.0}, ("bits", "p")),
    (augment.RandomSolarize, {"threshold": 9, "p": 1.0}, ("threshold", "p")),
    (augment.RandomAdjustSharpness, {"sharpness_factor": 2, "p": 1.0}, ("sharpness_factor", "p")),
    (augment.GaussianBlur, {"kernel_size": 3}, ("kernel_size", "sigma")),
    (augment.RandomPhotometricDistort, {"p": 1.0}, ("brightness", "contrast", "saturation", "hue", "p")),
    (augment.RandomRotation, {"degrees": 9}, ("degrees", "interpolation", "expand", "center", "fill", "mask_fill")),
    (
        augment.RandomAffine,
        {"degrees": 9},
        ("degrees", "translate", "scale", "shear", "interpolation", "fill", "center", "mask_fill"),
    ),
    (augment.RandomPerspective, {"p": 1.0}, ("distortion_scale", "p", "interpolation", "fill", "mask_fill")),
    (augment.RandAugment, {}, ("num_ops", "magnitude", "num_magnitude_bins", "interpolation", "fill")),
    (augment.TrivialAugmentWide, {}, ("num_magnitude_bins", "interpolation", "fill")),
    (augment.AutoAugment, {}, ("policy", "interpolation", "fill")),
    (augment.AugMix, {}, ("severity", "mixture_width", "chain_depth", "alpha", "all_ops", "interpolation", "fill")),
    (augment.RandomApply, {"transforms": [augment.RandomInvert(1.0)]}, ("transforms", "p")),
    (augment.RandomChoice, {"transforms": [augment.RandomInvert(1.0)] * 2}, ("transforms", "p", "per")),
    (augment.RandomChoice, {"transforms": [augment.MixUp(num_classes=5)] * 2}, ("transforms", "p", "per")),
    (augment.RandomOrder, {}, ("transforms",)),
    (augment.Normalize, {"mean": PLAIN, "std": PLAIN}, ("mean", "std")),
    (augment.Normalize.from_split, {}, ("split",)),
    (augment.MixUp, {"num_classes": 5}, ("alpha", "num_classes", "p", "per")),
    (augment.CutMix, {"num_classes": 5}, ("alpha", "num_classes", "p", "per")),
    (augment.PerSample, {}, ("module",)),
    (BoxRule, {}, ("min_size", "min_visible")),
    (Collate, {}, ("device", "dtype", "memory_format", "box_rule")),
    (augment.sample_seeds, {"seed": 0, "epoch": 0, "ids": torch.arange(3)}, ("seed", "epoch", "ids")),
    (Collate().set_epoch, {}, ("epoch",)),
    (augment.view_seeds, {"seeds": torch.arange(3), "view": 1}, ("seeds", "view")),
]
OTHERS = (
    (augment.RandomChoice, "p"),
    (augment.RandomPhotometricDistort, "brightness"),
    (augment.RandomPhotometricDistort, "hue"),
    (sized, "min_size"),
    (augment.RandomShortestSize, "min_size"),
)
"""Arguments that have another meaning than those of the same name."""
CASES = [(make, given, name) for make, given, names in STEPS for name in names]


def batch_of() -> Batch:
    generator = torch.Generator().manual_seed(1)
    return Batch(
        images=torch.randint(0, 256, (3, 3, 8, 9), dtype=torch.uint8, generator=generator),
        ids=torch.arange(3),
        seeds=torch.arange(3),
        targets=torch.arange(3),
        batch_size=[3],
    )


def run(made: Any) -> None:
    """A batch through what was made; its images must be finite."""
    if isinstance(made, BoxRule):
        made = Collate(augment.RandomCrop(4), box_rule=made)
    if isinstance(made, torch.nn.Module) and not isinstance(made, Collate | Views):
        made = Collate(made)
    if isinstance(made, Collate | Views):
        made.set_epoch(1)
    batch = batch_of()
    if isinstance(made, Collate) and any(isinstance(step, augment.RandomIoUCrop) for step in made.steps):
        batch = batch.replace(boxes=torch.tensor([[[1.0, 1, 5, 6]]]).expand(3, 1, 4).clone())
    got = made(batch) if isinstance(made, torch.nn.Module) else ()
    for one in got if isinstance(got, tuple) else (got,):
        assert one.images.isfinite().all()
        assert one.images.shape[-1] < 1000


def _id(part: object) -> str:
    """Of a function its name: its text has an address in it, and workers of pytest-xdist must collect the same."""
    return getattr(part, "__qualname__", str(part)[:30])


PLAIN_CASES = [case for case in CASES if case[2] in ACCEPTED and case[::2] not in OTHERS]


@pytest.mark.parametrize(("make", "given", "name"), PLAIN_CASES, ids=_id)
def test_scalars_of_numpy_and_torch_are_numbers(make: Callable[..., Any], given: dict[str, Any], name: str) -> None:
    for value in ACCEPTED[name]:
        made, plain = make(**{**given, name: value}), make(**{**given, name: _plain(value)})
        assert repr(made) == repr(plain)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray | Tensor) else value


@pytest.mark.parametrize(("make", "given", "name"), CASES, ids=_id)
def test_odd_values_work_or_are_one_line(make: Callable[..., Any], given: dict[str, Any], name: str) -> None:
    for value in ODD:
        try:
            run(make(**{**given, name: value}))
        except (ValueError, TypeError) as error:
            text = str(error)
            assert len(text.splitlines()) == 1, text
            assert len(text) < 400, text
            assert name in text or "images" in text, f"{name}={value!r}: {text}"
            assert not any(raw in text for raw in ("not supported between", "argument must be", "Traceback")), text
