"""Random lists of steps for images, as Hypothesis strategies: mmload's own, and others as users bring them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from loading_expected import Fields, collated
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from mmload import augment
from mmload.augment import BoxRule
from mmload.augment.collate import Collate

Draw = Any
Steps = st.SearchStrategy[nn.Module]

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
MODES = st.sampled_from(("nearest", "nearest-exact", "bilinear", "bicubic"))
CHANCES = st.sampled_from((0.0, 0.5, 1.0))
SHARES = st.sampled_from((0.0, 0.3771))
SIDES = st.integers(2, 3) | st.integers(2, 24)
SIZES = st.tuples(SIDES, SIDES)


class Halved(nn.Module):
    """A deterministic module of a user's own."""

    keeps_geometry = True

    def forward(self, images: Tensor) -> Tensor:
        return images * 0.5


@dataclass(frozen=True)
class Growing:
    """A size that follows the epoch: three pixels more in odd epochs, and so at least what later steps take."""

    height: int
    width: int

    def __call__(self, epoch: int) -> tuple[int, int]:
        """(height, width) in an epoch."""
        return self.height + 3 * (epoch % 2), self.width + 3 * (epoch % 2)


def plain_steps(channels: int) -> Steps:
    """A step that torchvision does to one sample; not all fit their images."""
    size = SIZES | SIDES
    padding = st.none() | st.integers(0, 30) | st.tuples(*[st.integers(0, 9)] * 4)
    modes_of_padding = st.sampled_from(("constant", "edge", "reflect", "symmetric"))
    scale = st.sampled_from(((0.08, 1.0), (1.0, 1.0), (0.001, 0.01)))
    ratio = st.sampled_from(((0.75, 1.333), (0.1, 0.2), (5.0, 9.0)))
    voids = st.sampled_from((0, 3, 255))
    kinds = [
        st.builds(augment.RandomCrop, size, padding, st.booleans(), st.sampled_from((0, 1)), modes_of_padding, voids),
        st.builds(augment.CenterCrop, size),
        st.builds(augment.RandomResizedCrop, size, scale, ratio, MODES, st.booleans()),
        st.builds(augment.Resize, size, MODES, antialias=st.booleans()),
        st.builds(lambda short, more, mode: augment.Resize(short, mode, max_size=short + more), SIDES, SIDES, MODES),
        st.builds(augment.RandomHorizontalFlip, CHANCES),
        st.builds(augment.RandomVerticalFlip, CHANCES),
        st.builds(augment.RandomErasing, CHANCES, value=st.sampled_from((0.0, 1.0))),
        st.builds(augment.Normalize, st.just((0.4,) * channels), st.just((0.2,) * channels)),
    ]
    if channels in (1, 3):
        factor = st.none() | st.sampled_from((0.3, 0.9))
        kinds.append(st.builds(augment.RandomGrayscale, CHANCES))
        kinds.append(st.builds(augment.ColorJitter, factor, factor, factor, st.none() | st.just(0.2)))
    return st.one_of(kinds)


def level_steps() -> Steps:
    """A step that changes levels, or a container of several."""
    steps = st.sampled_from([
        augment.GaussianBlur((3, 5)), augment.RandomSolarize(90), augment.RandomPosterize(3), augment.RandomInvert(),
        augment.RandomEqualize(), augment.RandomAutocontrast(), augment.RandomAdjustSharpness(1.7),
        augment.RandomPhotometricDistort(), augment.RandomRotation(40), augment.RandomPerspective(0.6, 0.7),
        augment.RandomAffine(20, (0.1, 0.2), (0.7, 1.3), 9, "bilinear"), augment.RandAugment(2),
        augment.TrivialAugmentWide(), augment.AutoAugment("cifar10", "bilinear"), augment.AugMix(),
    ])  # fmt: skip
    containers = st.sampled_from((augment.RandomApply, augment.RandomChoice, augment.RandomOrder))
    held = st.lists(steps, min_size=1, max_size=3)
    return steps | st.builds(lambda container, inner: container(inner), containers, held)


def other_steps() -> Steps:
    """A step that follows the epoch, jitters sizes, mixes samples, or is not mmload's."""
    turned = v2.RandomRotation(40, fill={tv_tensors.Mask: 255, "others": 0})
    modules = turned, v2.RandomInvert(0.5), v2.RandomHorizontalFlip(0.5), v2.RandomVerticalFlip(1.0)
    shares = {"num_classes": st.just(4), "p": CHANCES, "per": st.sampled_from(("sample", "batch"))}
    mixes = [st.builds(kind, st.sampled_from((0.2, 1.0)), **shares) for kind in (augment.MixUp, augment.CutMix)]
    growing = st.builds(Growing, SIDES, SIDES)
    return st.one_of(
        st.builds(augment.AlternatingHorizontalFlip, st.integers(-3, 3)),
        st.builds(augment.RandomResizedCrop, growing, interpolation=MODES),
        st.builds(augment.Resize, growing, MODES),
        st.builds(augment.PerSample, st.sampled_from(modules)),
        st.builds(Halved),
        st.sampled_from([augment.Letterbox((9, 12)), augment.ScaleJitter((9, 12), (0.5, 1.6))]),
        st.just(augment.RandomShortestSize((6, 8, 11))),
        *mixes,
        st.builds(lambda *both, per: augment.RandomChoice(both, per=per), *mixes, per=shares["per"]),
    )


def whole_windows() -> st.SearchStrategy[list[nn.Module]]:
    """Steps that leave a size each, and the resize that ends them."""
    steps = st.sampled_from([[augment.RandomZoomOut()], [augment.RandomIoUCrop()]])
    both = st.just([augment.RandomZoomOut(), augment.RandomIoUCrop()])
    return st.builds(lambda first: [*first, augment.Resize((11, 9))], steps | both)


@st.composite
def collates(draw: Draw, rows: Fields) -> Collate | None:
    """A collate for stored rows, of the steps of a random list that can be done to them; None: no collate."""
    images = rows.get("images")
    if images is None or draw(st.integers(0, 9)) == 0:
        return None
    whole = images.dtype == torch.uint8
    options: dict[str, Any] = {
        "dtype": draw(st.sampled_from((*FLOATS, torch.uint8) if whole else FLOATS)),
        "memory_format": draw(st.sampled_from((torch.contiguous_format, torch.channels_last))),
        "box_rule": draw(st.builds(BoxRule, min_size=st.sampled_from((0, 1.013, 3.017)), min_visible=SHARES)),
    }
    kinds = (plain_steps(images.shape[1]), plain_steps(images.shape[1]), level_steps(), other_steps())
    chosen = st.one_of(*(st.builds(lambda step: [step], kind) for kind in kinds), whole_windows())
    probe = {name: value[:2] for name, value in rows.items()}
    steps: list[nn.Module] = []
    for more in draw(st.lists(chosen, max_size=5)):
        with suppress(ValueError, TypeError):
            steps = _possible([*steps, *more], probe, options)
    return Collate(*steps, **options)


def _possible(steps: Sequence[nn.Module], probe: Fields, options: dict[str, Any]) -> list[nn.Module]:
    """These steps, which are refused if they cannot be done to the rows in even and in odd epochs."""
    for epoch in (0, 1):
        collated(Collate(*steps, **options), probe, torch.arange(2), epoch)
    return list(steps)
