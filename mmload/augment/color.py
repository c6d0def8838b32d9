"""Steps that change colors: Normalize, RandomGrayscale and ColorJitter, as in torchvision v2, and RandomHSV."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Self

import numpy as np

from mmload.augment.arguments import LARGEST, around, elements, number, numbers
from mmload.augment.step import Draws, LevelStep, OperationStep, Step
from mmload.errors import counted, shown
from mmload.render.hsv_kernel import HUES
from mmload.render.kernel_arguments import Floats
from mmload.render.level_operations import BRIGHTNESS, CONTRAST, GRAY, HSV, HUE, NONE, SATURATION
from mmload.render.plan import Plan, Program, ordered


class Normalize(Step):
    """(x - mean) / std per channel, with x in [0, 1]; uint8 images are scaled first.

    Args:
        mean: one number per channel.
        std: one number per channel.

    Raises:
        ValueError: if the lengths differ, a std is not positive, or (when run) the images have other channels, or are
            integers and a mean is above 1.
    """

    makes_floats = True
    is_random = False

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.mean = numbers("mean", mean, expected="finite numbers, one per channel")
        self.std = numbers("std", std, least=1 / LARGEST, expected="positive numbers, one per channel")
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"mean has {counted(len(self.mean), 'channel')} and std {len(self.std)}; give both the same number"
            )

    @classmethod
    def imagenet(cls) -> Self:
        """ImageNet's mean and std, as torchvision's weights expect them."""
        return cls((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

    @classmethod
    def cifar10(cls) -> Self:
        """CIFAR-10's mean and std over the training images."""
        return cls((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Adds the color map of the values as they are stored; nothing is drawn."""
        channels = plan.source[0]
        if channels != len(self.mean):
            raise ValueError(
                f"Normalize has {counted(len(self.mean), 'channel')} and the images {channels}; "
                "give mean and std one number per channel"
            )
        if max(self.mean) > 1 and plan.peak > 1:
            values = (
                "(" + ", ".join(f"{value / plan.peak:.3f}" for value in each) + ")" for each in (self.mean, self.std)
            )
            raise ValueError(
                f"Normalize has mean {self.mean}, and means are of pixels from 0 to 1: divide by {plan.peak:g}, "
                f"Normalize({', '.join(values)})"
            )
        return plan.scaled(*_color_map(self.mean, self.std, plan.peak if plan.shift is None else 1.0))

    @classmethod
    def from_split(cls, split: Any) -> Self:
        """Makes the step with a dataset's mean and std: of anything with ``mean`` and ``std`` lists, such as a split.

        Raises:
            ValueError: if the split has none, because its images are not uint8.
        """
        mean: Any = getattr(split, "mean", None)
        std: Any = getattr(split, "std", None)
        if not elements(mean) or not elements(std):
            raise ValueError(
                f"mean is {shown(mean)} and std {shown(std)}, but this split has no statistics; give numbers"
            )
        return cls(mean, std)


class RandomGrayscale(OperationStep):
    """All channels replaced by the luma with probability ``p``, drawn per sample; the number of channels stays.

    Raises:
        ValueError: if ``p`` is no probability, or (when run) the images have neither one nor three channels.
    """

    channels = (1, 3)
    operation = GRAY

    def __init__(self, p: float = 0.1) -> None:
        super().__init__(p)

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        self.check_images(plan)
        return plan.followed_by(self.program(plan, draws))


@lru_cache(maxsize=64)
def _color_map(mean: tuple[float, ...], std: tuple[float, ...], peak: float) -> tuple[Floats, Floats]:
    """Returns shift and scale, float32 [C] each, shared by all who ask for the same."""
    means, stds = np.array((mean, std), np.float32)
    return means * np.float32(peak), np.float32(1) / (stds * np.float32(peak))


_CODES = (BRIGHTNESS, CONTRAST, SATURATION, HUE)


class ColorJitter(LevelStep):
    """Random brightness, contrast, saturation and hue, in random order, drawn per sample.

    Args:
        brightness: factor, from max(0, 1 - x) to 1 + x, or (least, greatest); None or 0: none.
        contrast: the same, around the mean luma.
        saturation: the same, around each pixel's luma.
        hue: rotation of the color circle, from -x to x in full rotations, or (least, greatest), within 0.5 of 0.

    Raises:
        ValueError: if an argument is out of range, or (when run) the images have neither one nor three channels.
    """

    def __init__(
        self,
        brightness: float | Sequence[float] | None = None,
        contrast: float | Sequence[float] | None = None,
        saturation: float | Sequence[float] | None = None,
        hue: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.brightness = _factor("brightness", brightness)
        self.contrast = _factor("contrast", contrast)
        self.saturation = _factor("saturation", saturation)
        hue = 0.0 if hue is None else hue
        turned = around("hue", hue, 0.0, least=-0.5, reach=0.5, unit="a rotation")
        self.hue = turned if any(turned) else None

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws an order and four factors per sample; what has no range is left out."""
        order, uniform, parts = draws.orders(4), draws.uniform(4), []
        ranges = self.brightness, self.contrast, self.saturation, self.hue
        for place, (code, ends) in enumerate(zip(_CODES, ranges, strict=True)):  # NumPy keeps the lock for each
            least, greatest = np.array(ends or (0.0, 0.0), np.float32).tolist()
            factor = (least + (greatest - least) * uniform[:, place]).astype(np.float32).astype(np.float64)
            parts.append(Program.single_operation(code if ends else NONE, plan.count, factor, 1.0 - factor))
        return ordered(parts, order)


class RandomHSV(LevelStep):
    """Random hue, saturation and value, drawn per sample, as YOLO's recipes change them.

    An image becomes uint8 HSV as OpenCV has it (hue 0 to 179). With draws from -1 to 1, hues rotate by ``draw * hue``
    of a full turn, rounded down to a 180th, and saturation and value are multiplied by ``1 + draw * gain``, cut at 255
    and rounded down: the three tables of ``cv2.LUT``. It becomes RGB again, rounded down, too. Of one channel the value
    changes.

    Args:
        hue: greatest rotation either way, in full turns, 0 to 0.5.
        saturation: greatest change of the factor of the saturation, 0 to 1.
        value: greatest change of the factor of the value, 0 to 1.

    Raises:
        ValueError: if an argument is out of range, or (when run) the images have neither one nor three channels.
    """

    is_drop_in = False  # torchvision has none

    def __init__(self, hue: float = 0.015, saturation: float = 0.7, value: float = 0.4) -> None:
        super().__init__()
        self.hue = number("hue", hue, least=0.0, greatest=0.5, unit="a rotation")
        self.saturation = number("saturation", saturation, least=0.0, greatest=1.0, unit="a gain")
        self.value = number("value", value, least=0.0, greatest=1.0, unit="a gain")

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws a rotation and two factors per sample."""
        gains = np.array((self.hue, self.saturation, self.value), np.float32).astype(np.float64)
        turn, *factors = ((2 * uniform - 1) * gain for uniform, gain in zip(draws.uniform(3).T, gains, strict=True))
        turned = np.floor(turn * HUES) % HUES
        return Program.single_operation(HSV, plan.count, turned, *(1 + factor for factor in factors))


def _factor(name: str, value: float | Sequence[float] | None) -> tuple[float, float] | None:
    """Checks factors and returns a range around 1; None if it would change nothing."""
    if value is None:
        return None
    ends = around(name, value, 1.0, least=0.0, reach=LARGEST, unit="a number")
    return None if ends == (1.0, 1.0) else ends
