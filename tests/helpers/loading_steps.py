"""Steps of a collate for the fuzz of loading, as strategies: those of mmload, and others as users bring them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from loading_stores import SHAPES
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from mmload import augment
from mmload.augment.boxes import BoxRule
from mmload.augment.collate import Collate
from mmload.augment.mix import MixStep
from mmload.augment.step import LevelStep

Draw = Any


class Halved(nn.Module):
    """A deterministic module of a user's own."""

    keeps_geometry = True

    def forward(self, images: Tensor) -> Tensor:
        return images * 0.5


def blends(step: nn.Module) -> bool:
    """Whether a step mixes levels into values between them."""
    return isinstance(step, MixStep) and step.makes_floats


@st.composite
def per_sample(draw: Draw) -> augment.PerSample:
    """A random transform of torchvision's, sample by sample: none that makes one level many."""
    turned = v2.RandomRotation(40, fill={tv_tensors.Mask: 255, "others": 0})
    modules = turned, v2.RandomInvert(0.5), v2.RandomHorizontalFlip(0.5), v2.RandomVerticalFlip(1.0)
    return augment.PerSample(draw(st.sampled_from(modules)))


def transformed(module: nn.Module, sample: dict[str, Any], key: int) -> dict[str, Any]:
    """A sample after a transform, whose draws are those of torch's generator seeded by ``key``."""
    state = torch.get_rng_state()
    torch.manual_seed(key)
    made: dict[str, Any] = module(sample)
    torch.set_rng_state(state)
    return made


_LEVELS: Sequence[tuple[Any, ...]] = (
    (augment.GaussianBlur, (3, 5)),
    (augment.RandomSolarize, 90),
    (augment.RandomPosterize, 3),
    (augment.RandomInvert,),
    (augment.RandomEqualize,),
    (augment.RandomAutocontrast,),
    (augment.RandomAdjustSharpness, 1.7),
    (augment.RandomPhotometricDistort,),
    (augment.RandomGrayscale, 0.5),
    (augment.ColorJitter, 0.4, 0.4, 0.4, 0.2),
    (augment.RandomRotation, 40),
    (augment.RandomAffine, 20, (0.1, 0.2), (0.7, 1.3), 9, "bilinear"),
    (augment.RandomPerspective, 0.6, 0.7),
)


_POLICIES: Sequence[tuple[Any, ...]] = (
    (augment.RandAugment, 2),
    (augment.TrivialAugmentWide,),
    (augment.AutoAugment, "cifar10", "bilinear"),
    (augment.AugMix,),
)


_SIZES: Sequence[tuple[Any, ...]] = (
    (augment.RandomResizedCrop, (9, 8)),
    (augment.Letterbox, (9, 12)),
    (augment.ScaleJitter, (9, 12), (0.5, 1.6)),
    (augment.RandomShortestSize, (6, 8, 11)),
    (augment.RandomZoomOut,),
    (augment.RandomHorizontalFlip,),
)


ALONE = (LevelStep, augment.ScaleJitter, augment.RandomShortestSize, augment.RandomZoomOut, augment.RandomIoUCrop)
"""Steps for which only the collate itself is the answer, a jitter by itself excepted."""


def is_alone(collate: Collate) -> bool:
    """Whether a collate's answer is what it makes of each row alone."""
    return any(isinstance(step, ALONE) and not isinstance(step, augment.ColorJitter) for step in collate.steps)


@st.composite
def alone_steps(draw: Draw, channels: int, store: str) -> list[nn.Module]:
    """A size, some changes of levels, and Normalize; for images of one or three channels."""
    steps = [_made(draw(st.sampled_from(_SIZES)))] if draw(st.booleans()) else []
    if store == "detection" and draw(st.booleans()):
        steps.append(augment.RandomIoUCrop())
    if any(isinstance(step, augment.RandomZoomOut | augment.RandomIoUCrop) for step in steps):
        steps.append(augment.Resize((11, 9)))
    many = _LEVELS if store in ("detection", "segmentation") else (*_LEVELS, *_POLICIES)
    changes = [_made(one) for one in draw(st.lists(st.sampled_from(many), min_size=1, max_size=3))]
    container = draw(st.sampled_from([None, augment.RandomApply, augment.RandomChoice, augment.RandomOrder]))
    steps += changes if container is None else [container(changes)]
    if draw(st.booleans()):
        steps.append(augment.RandomHorizontalFlip())
    if draw(st.booleans()):
        steps.append(augment.Normalize([0.4, 0.5, 0.45][:channels], [0.2, 0.25, 0.3][:channels]))
    return steps


def _made(spec: tuple[Any, ...]) -> nn.Module:
    kind, *arguments = spec
    made: nn.Module = kind(*arguments)
    return made


Shape = tuple[int, int, int]


FLOATS = (torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64)


FORMATS = (torch.contiguous_format, torch.channels_last)


chances = st.sampled_from([0.0, 0.5, 1.0])


@dataclass(frozen=True)
class Growing:
    """A size that follows the epoch: three pixels more in odd epochs, and so at least what later steps take."""

    height: int
    width: int

    def __call__(self, epoch: int) -> tuple[int, int]:
        """(height, width) in an epoch."""
        return self.height + 3 * (epoch % 2), self.width + 3 * (epoch % 2)


@st.composite
def collates(draw: Draw, kind: str) -> Collate | None:
    """A collate for a store, whose result is known: see loading_reference.py."""
    shape = SHAPES[kind]
    if shape is None or draw(st.integers(0, 9)) == 0:
        return None
    whole = kind != "floats"
    dtype = draw(st.sampled_from((*FLOATS, torch.uint8) if whole else FLOATS))
    if not whole:
        dtype = torch.float32
    if whole and shape[0] in (1, 3) and draw(st.integers(0, 2)) == 0:
        steps = draw(alone_steps(shape[0], kind))
    else:
        steps = _steps(draw, kind, shape, dtype == torch.float32)
    if dtype == torch.uint8:
        steps = [step for step in steps if not (isinstance(step, augment.Normalize | Halved) or blends(step))]
    shares = [0] if any(isinstance(step, augment.PerSample) for step in steps) else [0, 0.3771]  # it knows of none
    rule = BoxRule(min_size=draw(st.sampled_from([0, 1.013, 3.017])), min_visible=draw(st.sampled_from(shares)))
    return Collate(*steps, dtype=dtype, memory_format=draw(st.sampled_from(FORMATS)), box_rule=rule)


def _steps(draw: Draw, store: str, shape: Shape, halves: bool) -> list[nn.Module]:
    """Geometry and color while images are levels, then Normalize, and what comes after it."""
    whole = store != "floats"
    steps: list[nn.Module] = []
    size = shape[1], shape[2]
    exact = True
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(
            st.sampled_from(
                [
                    "crop",
                    "crop",
                    "pad",
                    "center",
                    "flip",
                    "flop",
                    "alternating",
                    "resized",
                    "resize",
                    "growing",
                    "gray",
                    "jitter",
                    "erase",
                    "other",
                ]
            )
        )
        if kind in ("gray", "jitter") and not (whole and shape[0] in (1, 3)):
            continue
        if kind == "other":
            steps.append(draw(per_sample()))
            continue
        step, size = _step(draw, kind, shape[0], size, exact)
        exact = exact and kind not in ("resized", "resize", "growing", "gray", "jitter")
        steps.append(step)
    if whole and draw(st.booleans()):
        steps.append(augment.Normalize([0.4, 0.5, 0.45, 0.6][: shape[0]], [0.2, 0.25, 0.3, 0.5][: shape[0]]))
    if halves and draw(st.integers(0, 3)) == 0:
        steps.append(Halved())
    for kind in draw(st.lists(st.sampled_from(["flip", "crop", "center", "erase", "resized"]), max_size=2)):
        step, size = _step(draw, kind, shape[0], size, exact)
        steps.append(step)
    if store != "detection" and draw(st.integers(0, 3)) == 0:
        mix = _mix(draw)
        if not blends(mix) or store != "segmentation":
            steps.append(mix)
    return steps


def _mix(draw: Draw) -> nn.Module:
    """MixUp, CutMix, or a choice of both, drawn for each sample or once a batch."""
    per = st.sampled_from(["sample", "batch"])
    mixes = [
        kind(alpha=draw(st.sampled_from([0.2, 1.0])), num_classes=4, p=draw(chances), per=draw(per))
        for kind in (augment.MixUp, augment.CutMix)
    ]
    return draw(st.sampled_from([*mixes, augment.RandomChoice(mixes, per=draw(per))]))


def _step(
    draw: Draw, kind: str, channels: int, size: tuple[int, int], exact: bool
) -> tuple[nn.Module, tuple[int, int]]:
    """A step that can be done at ``size``, and the size that it gives."""
    height, width = size
    smaller = draw(st.integers(1, height)), draw(st.integers(1, width))
    match kind:
        case "crop":
            return augment.RandomCrop(smaller), smaller
        case "pad":
            return _padded(draw, channels, size)
        case "center":
            wanted = draw(st.sampled_from([smaller, (height + 3, width), (max(1, height - 2), width + 5)]))
            return augment.CenterCrop(wanted), wanted
        case "flip":
            return augment.RandomHorizontalFlip(draw(chances)), size
        case "alternating":
            return augment.AlternatingHorizontalFlip(draw(st.integers(-3, 3))), size
        case "flop":
            return augment.RandomVerticalFlip(draw(chances)), size
        case "gray":
            return augment.RandomGrayscale(draw(chances)), size
        case "erase":
            value = draw(st.sampled_from([0.0, 1.0, [1.0, 0.0, 3.0, 2.0][:channels]]))
            return augment.RandomErasing(draw(chances), value=value), size
        case "jitter":
            hue = 0.5 if exact and draw(st.booleans()) else None
            return augment.ColorJitter(*(draw(st.sampled_from([None, 0.4])) for _ in range(3)), hue), size
    return _resized(draw, kind, size)


def _resized(draw: Draw, kind: str, size: tuple[int, int]) -> tuple[nn.Module, tuple[int, int]]:
    """A resize of a window or of the whole, to a size or, of the shorter side, to a length."""
    modes = "bilinear", "bilinear", "bicubic", "nearest", "nearest-exact"
    mode, antialias = draw(st.sampled_from(modes)), draw(st.booleans())
    wanted = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    if kind == "growing":
        step = draw(st.sampled_from([augment.RandomResizedCrop, augment.Resize]))
        return step(Growing(*wanted), interpolation=mode, antialias=antialias), wanted
    if kind == "resized":
        return augment.RandomResizedCrop(wanted, (0.1, 1.0), interpolation=mode, antialias=antialias), wanted
    if draw(st.booleans()):
        return augment.Resize(wanted, mode, antialias=antialias), wanted
    most = draw(st.sampled_from([None, wanted[0] + 2]))
    longer = wanted[0] * max(size) // min(size)
    if most is not None and most * wanted[0] < longer:  # refused, as it leaves nothing of the shorter side
        return augment.Resize(wanted, mode, antialias=antialias), wanted
    height, width = F.get_size(F.resize(torch.empty(1, *size), [wanted[0]], max_size=most))
    return augment.Resize(wanted[0], mode, most, antialias), (height, width)


def _padded(draw: Draw, channels: int, size: tuple[int, int]) -> tuple[nn.Module, tuple[int, int]]:
    """A padded crop; as far outside as torchvision can reflect."""
    mode = draw(st.sampled_from(["constant", "constant", "edge", "reflect", "symmetric"]))
    most = min(3, *(side - 1 for side in size)) if mode != "constant" else 3
    borders = [draw(st.integers(0, most)) for _ in range(4)]
    padding = draw(st.sampled_from([borders, borders[:2], borders[0]]))
    left, top, right, bottom = (padding,) * 4 if isinstance(padding, int) else (padding * 2)[:4]
    rows, cols = size[0] + top + bottom, size[1] + left + right
    wanted = draw(st.integers(1, rows)), draw(st.integers(1, cols))
    larger = mode == "constant" and draw(st.integers(0, 3)) == 0
    if larger:
        wanted = rows + 2, wanted[1]
    fill = draw(st.sampled_from([0, 7, [9, 0, 200, 30][:channels]])) if mode == "constant" else 0
    mask_fill = draw(st.sampled_from([0, 3, 255]))
    return augment.RandomCrop(wanted, padding, larger, fill, mode, mask_fill), wanted
