"""Steps that change the levels of an image with a probability, named and set as in ``torchvision.transforms.v2``."""

from __future__ import annotations

from collections.abc import Sequence

from mmload.augment.arguments import LARGEST, argument_error, chance, elements, integer, integers, number, span
from mmload.augment.draws import Draws
from mmload.augment.step import LevelStep
from mmload.render import level_program as levels
from mmload.render.level_program import Program, chain
from mmload.render.plan import Plan

_LARGEST_KERNEL = 1023


class _WithProbability(LevelStep):
    """One operation with probability ``p``, drawn per sample."""

    operation = levels.NONE

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = chance(p)

    def program(self, plan: Plan, draws: Draws) -> Program:
        return Program.single_operation(
            self.operation, plan.count, plan.device, *self.numbers(), apply_mask=draws.chance(self.p)
        )

    def numbers(self) -> tuple[float, ...]:
        """Returns the numbers of the operation, the same for all samples."""
        return ()


class RandomInvert(_WithProbability):
    """Levels inverted with probability ``p``, drawn per sample."""

    channels = None
    operation = levels.INVERT


class RandomAutocontrast(_WithProbability):
    """Each channel stretched over all levels with probability ``p``, drawn per sample."""

    operation = levels.AUTOCONTRAST


class RandomEqualize(_WithProbability):
    """Each channel's histogram equalized, by Pillow's scheme, with probability ``p``, drawn per sample."""

    channels = None
    operation = levels.EQUALIZE


class RandomPosterize(_WithProbability):
    """The highest ``bits`` of each level kept with probability ``p``, drawn per sample.

    Args:
        bits: from 0 to 8.
        p: probability that a sample is changed.

    Raises:
        ValueError: if an argument is out of range.
    """

    channels = None
    operation = levels.POSTERIZE

    def __init__(self, bits: int, p: float = 0.5) -> None:
        super().__init__(p)
        self.bits = integer("bits", bits, least=0, greatest=8, expected="an integer from 0 to 8")

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

    channels = None
    operation = levels.SOLARIZE

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.threshold = number("threshold", threshold, least=0.0, greatest=255.0, expected="a level from 0 to 255")

    def check_images(self, plan: Plan) -> None:
        super().check_images(plan)
        if self.threshold > plan.peak:
            raise ValueError(
                f"threshold is {self.threshold:g} and the images are floats from 0 to 1: give a threshold from 0 to 1, "
                "or put the step before what makes floats"
            )

    def numbers(self) -> tuple[float, ...]:
        return (self.threshold,)


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
        self.sharpness_factor = number(
            "sharpness_factor", sharpness_factor, least=0.0, greatest=LARGEST, expected="a number from 0"
        )

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

    channels = None

    def __init__(self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0)) -> None:
        super().__init__()
        self.kernel_size = _kernel(kernel_size)
        ends = (sigma, sigma) if elements(sigma) is None else sigma
        self.sigma = span("sigma", ends, least=1e-3, greatest=1e4, bounds="standard deviations above 0, in pixels")

    def check_images(self, plan: Plan) -> None:
        wide, high = self.kernel_size
        if plan.width <= wide // 2 or plan.height <= high // 2:
            raise ValueError(
                f"a blur of {wide} x {high} taps needs images larger than half of that, these have {plan.height} x "
                f"{plan.width} pixels: make kernel_size smaller"
            )

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws one standard deviation per sample."""
        wide, high = self.kernel_size
        least, greatest = self.sigma
        sigma = least + (greatest - least) * draws.uniform(1)[:, 0]
        reach = max(wide, high) // 2
        return Program.single_operation(
            levels.BLUR, plan.count, plan.device, float(wide), float(high), sigma, blur_radius=reach
        )


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
        self.brightness, self.contrast, self.saturation = (
            span(name, ends, bounds="finite numbers from 0") for name, ends in factors.items()
        )
        self.hue = span("hue", hue, least=-0.5, greatest=0.5, bounds="rotations within 0.5 of 0")
        self.p = chance(p)

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws per sample five probabilities, four factors and a key per channel; channels are ordered by keys."""
        on, values, keys = draws.uniform(5) < self.p, draws.uniform(4), draws.uniform(plan.source[0])
        first = draws.chance(0.5)
        factors = [
            least + (greatest - least) * values[:, place]
            for place, (least, greatest) in enumerate((self.brightness, self.contrast, self.saturation, self.hue))
        ]
        order = keys.argsort(1)
        parts = [
            (levels.BRIGHTNESS, [factors[0]], on[:, 0]),
            (levels.CONTRAST, [factors[1], 1.0 - factors[1]], on[:, 1] & first),
            (levels.SATURATION, [factors[2], 1.0 - factors[2]], on[:, 2]),
            (levels.HUE, [factors[3]], on[:, 3]),
            (levels.CONTRAST, [factors[1], 1.0 - factors[1]], on[:, 1] & ~first),
        ]
        if plan.source[0] == 3:
            parts.append((levels.PERMUTE, list(order.unbind(1)), on[:, 4]))
        made = [
            Program.single_operation(code, plan.count, plan.device, *numbers, apply_mask=mask)
            for code, numbers, mask in parts
        ]
        return chain(made)
