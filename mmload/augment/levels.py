"""Steps that change the levels of an image with a probability, named and set as in ``torchvision.transforms.v2``.

RandomApply, RandomChoice and RandomOrder hold such steps, flips and grayscale included, and each other, and are drawn
per sample. A choice may instead hold MixUp and CutMix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from mmload.augment.arguments import argument_error, chance, elements, integer, integers, number, span
from mmload.augment.mix import MixChoice, MixStep, inner_steps, weights
from mmload.augment.resize import size_with_least
from mmload.augment.step import ANY_CHANNELS, Draws, LevelStep, OperationStep
from mmload.render import level_operations as levels
from mmload.render.plan import Plan, Program, chain, one_of, ordered

_LARGEST_KERNEL = 1023


class _WithProbability(OperationStep, LevelStep):
    """One operation that changes levels, and is added to a plan as such."""


class RandomInvert(_WithProbability):
    """Levels inverted with probability ``p``, drawn per sample."""

    channels = ANY_CHANNELS
    operation = levels.INVERT


class RandomAutocontrast(_WithProbability):
    """Each channel stretched over all levels with probability ``p``, drawn per sample."""

    operation = levels.AUTOCONTRAST


class RandomEqualize(_WithProbability):
    """Each channel's histogram equalized, by Pillow's scheme, with probability ``p``, drawn per sample."""

    channels = ANY_CHANNELS
    operation = levels.EQUALIZE


class RandomPosterize(_WithProbability):
    """The highest ``bits`` of each level kept with probability ``p``, drawn per sample.

    Args:
        bits: from 0 to 8.
        p: probability that a sample is changed.

    Raises:
        ValueError: if an argument is out of range.
    """

    channels = ANY_CHANNELS
    operation = levels.POSTERIZE

    def __init__(self, bits: int, p: float = 0.5) -> None:
        super().__init__(p)
        self.bits = integer("bits", bits, least=0, greatest=8)

    @property
    def numbers(self) -> tuple[float, ...]:
        return (float(self.bits),)


class RandomSolarize(_WithProbability):
    """Values from ``threshold`` on inverted with probability ``p``, drawn per sample.

    Args:
        threshold: in the images' values: 0 to 255 of uint8 images, 0 to 1 of floats.
        p: probability that a sample is changed.

    Raises:
        ValueError: if an argument is out of range, or (when run) the threshold is above white.
    """

    channels = ANY_CHANNELS
    operation = levels.SOLARIZE

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.threshold = number("threshold", threshold, least=0.0, greatest=255.0, unit="a level")

    @property
    def numbers(self) -> tuple[float, ...]:
        return (self.threshold,)

    def check_images(self, plan: Plan) -> None:
        super().check_images(plan)
        if self.threshold > plan.peak:
            raise ValueError(
                f"threshold is {self.threshold:g} and the images are floats from 0 to 1: give a threshold from 0 to 1, "
                "or put the step before what makes floats"
            )


class RandomAdjustSharpness(_WithProbability):
    """Sharpness changed with probability ``p``, drawn per sample.

    Args:
        sharpness_factor: 0 blurs, 1 changes nothing, 2 doubles the sharpness.
        p: probability that a sample is changed.

    Raises:
        ValueError: if an argument is out of range, or (when run) the images have neither one nor three channels.
    """

    operation = levels.SHARPNESS

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.sharpness_factor = number("sharpness_factor", sharpness_factor, least=0.0)

    @property
    def numbers(self) -> tuple[float, ...]:
        return self.sharpness_factor, 1.0 - self.sharpness_factor


class GaussianBlur(LevelStep):
    """Blurred by a Gaussian whose width is drawn per sample; the image is mirrored at its edges.

    Args:
        kernel_size: taps, odd: one number, or (width, height), in torchvision's order.
        sigma: standard deviation in pixels: one number, or (least, greatest).

    Raises:
        ValueError: if an argument is out of range, or (when run) the images are not larger than half of the kernel.
    """

    channels = ANY_CHANNELS

    def __init__(self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0)) -> None:
        super().__init__()
        self.kernel_size = _kernel(kernel_size)
        ends = (sigma, sigma) if elements(sigma) is None else sigma
        self.sigma = span("sigma", ends, least=1e-3, greatest=1e4, unit="pixels")

    def check_images(self, plan: Plan) -> None:
        (wide, high), (height, width) = self.kernel_size, plan.frame
        room = np.minimum(height - high // 2, width - wide // 2)
        if np.any(room < 1):
            raise ValueError(
                f"a blur of {wide} x {high} taps needs images larger than half of that, these have "
                f"{size_with_least(room, plan.frame)} pixels: make kernel_size smaller"
            )

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws one standard deviation per sample."""
        wide, high = self.kernel_size
        least, greatest = self.sigma
        sigma = least + (greatest - least) * draws.uniform(1)[:, 0]
        reach = max(wide, high) // 2
        return Program.single_operation(levels.BLUR, plan.count, float(wide), float(high), sigma, blur_radius=reach)


def _kernel(size: object) -> tuple[int, int]:
    """Checks the size of a kernel and returns (width, height), torchvision's order."""
    expected = f"an odd integer from 1 to {_LARGEST_KERNEL}, or two"
    taps = integers("kernel_size", size, (1, 2), least=1, greatest=_LARGEST_KERNEL, expected=expected)
    if any(count % 2 == 0 for count in taps):
        raise argument_error("kernel_size", size, expected)
    return taps[0], taps[-1]


class RandomPhotometricDistort(LevelStep):
    """Brightness, contrast, saturation, hue and the order of channels, each with probability ``p``, as for SSD.

    Contrast changes before saturation and hue, or after them, with equal probability.

    Args:
        brightness: (least, greatest) factor.
        contrast: the same.
        saturation: the same.
        hue: (least, greatest) rotation of the color circle, in full rotations within 0.5 of 0.
        p: probability of each of the five.

    Raises:
        ValueError: if an argument is out of range, or (when run) the images have neither one nor three channels.
    """

    def __init__(
        self,
        brightness: Sequence[float] = (0.875, 1.125),
        contrast: Sequence[float] = (0.5, 1.5),
        saturation: Sequence[float] = (0.5, 1.5),
        hue: Sequence[float] = (-0.05, 0.05),
        p: float = 0.5,
    ) -> None:
        super().__init__()
        factors = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
        self.brightness, self.contrast, self.saturation = (span(name, ends) for name, ends in factors.items())
        self.hue = span("hue", hue, least=-0.5, greatest=0.5, unit="rotations")
        self.p = chance(p)

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws per sample five probabilities, four factors and an order of the channels."""
        on = [uniform < self.p for uniform in draws.uniform(5).T]
        values, order = draws.uniform(4), draws.orders(plan.source[0])
        first = draws.chance(0.5)
        factors = [
            least + (greatest - least) * values[:, place]
            for place, (least, greatest) in enumerate((self.brightness, self.contrast, self.saturation, self.hue))
        ]
        parts = [
            (levels.BRIGHTNESS, [factors[0]], on[0]),
            (levels.CONTRAST, [factors[1], 1.0 - factors[1]], on[1] & first),
            (levels.SATURATION, [factors[2], 1.0 - factors[2]], on[2]),
            (levels.HUE, [factors[3]], on[3]),
            (levels.CONTRAST, [factors[1], 1.0 - factors[1]], on[1] & ~first),
        ]
        if plan.source[0] == 3:
            parts.append((levels.PERMUTE, list(order.T), on[4]))
        return chain(
            Program.single_operation(code, plan.count, *numbers, apply_mask=mask) for code, numbers, mask in parts
        )


class _OfSteps(LevelStep):
    """Base of the steps that contain steps; the draws of each do not depend on those of the others."""

    channels = ANY_CHANNELS

    def __init__(self, transforms: Sequence[nn.Module] | nn.ModuleList) -> None:
        super().__init__()
        name = type(self).__name__
        why = f"cannot be drawn per sample: {name} takes flips, RandomGrayscale and steps that change levels"
        self.inner: Sequence[LevelStep | OperationStep] = inner_steps(transforms, LevelStep | OperationStep, why)
        self.transforms = nn.ModuleList(self.inner)
        self.moves_pixels = any(step.moves_pixels for step in self.inner)

    def check_images(self, plan: Plan) -> None:
        for step in self.inner:
            step.check_images(plan)

    def programs(self, plan: Plan, draws: Draws) -> list[Program]:
        """Returns the program of each step."""
        return [step.program(plan, draws.branch(place)) for place, step in enumerate(self.inner)]


class RandomApply(_OfSteps):
    """All of the steps with probability ``p``, or none of them, drawn per sample.

    Args:
        transforms: steps, in order.
        p: probability that a sample is changed.

    Raises:
        TypeError: if a step changes the size, or is not a step of mmload.
        ValueError: if ``p`` is no probability, or there is no step.
    """

    def __init__(self, transforms: Sequence[nn.Module] | nn.ModuleList, p: float = 0.5) -> None:
        super().__init__(transforms)
        self.p = chance(p)

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws for the step itself once per sample, and for the inner steps."""
        return chain(self.programs(plan, draws)).masked(draws.chance(self.p))


class RandomChoice(_OfSteps):
    """One of the steps, drawn per sample.

    A choice of MixUp and CutMix is a :class:`~mmload.augment.mix.MixChoice`.

    Args:
        transforms: steps that change levels; or MixUp, CutMix and choices of them.
        p: relative probability of each; None: all are equal.
        per: ``"sample"``; for MixUp and CutMix also ``"batch"``: one draw per batch.

    Raises:
        TypeError: if a step changes the size, or is not a step of mmload, or only some mix samples.
        ValueError: if there is no step, ``per`` is something else, or ``p`` is not one number from 0 for each of
            which some are above 0.
    """

    def __new__(cls, transforms: Any = (), p: Any = None, per: Any = "sample") -> Any:
        """Makes a choice of steps that change levels, or of steps that mix samples."""
        steps = transforms if isinstance(transforms, nn.ModuleList | Sequence) else ()
        if any(isinstance(step, MixStep) for step in steps):
            return MixChoice(transforms, p, per)
        return super().__new__(cls)

    def __init__(self, transforms: Sequence[nn.Module], p: Sequence[float] | None = None, per: str = "sample") -> None:
        super().__init__(transforms)
        if not isinstance(per, str) or per != "sample":
            raise argument_error("per", per, "'sample', or 'batch' for a choice of MixUp and CutMix")
        self.p, self.per = weights(p, len(self.transforms)), per

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws for the step itself once per sample, and for the inner steps."""
        return one_of(self.programs(plan, draws), draws.weighted(self.p))


class RandomOrder(_OfSteps):
    """All of the steps in an order drawn per sample.

    Args:
        transforms: steps.

    Raises:
        TypeError: if a step changes the size, or is not a step of mmload.
        ValueError: if there is no step.
    """

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws an order per sample, and what the steps draw."""
        return ordered(self.programs(plan, draws), draws.orders(len(self.transforms)))
