"""Steps that change colors linearly: Normalize and RandomGrayscale, named and set as in torchvision v2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Self

import torch
from torch import Tensor

from mmload.augment.arguments import LARGEST, chance, elements, numbers, shown
from mmload.augment.draws import Draws
from mmload.augment.step import Step
from mmload.errors import counted
from mmload.render.device_constants import constant
from mmload.render.plan import Plan


class Normalize(Step):
    """(x - mean) / std per channel, with x in [0, 1]; uint8 images are scaled first.

    The constants are buffers: they move with ``.to`` and are saved with ``state_dict``. They stay float32 under
    ``.half()``, so that a model in half precision is fed the same pixels.

    Args:
        mean: one number per channel.
        std: one number per channel.

    Raises:
        ValueError: if the lengths differ, a std is not positive, or (when run) the images have other channels.
    """

    mean: Tensor
    std: Tensor

    takes_sizes = True

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        means = numbers("mean", mean, expected="finite numbers, one per channel")
        stds = numbers("std", std, least=1 / LARGEST, expected="positive numbers, one per channel")
        if len(means) != len(stds):
            raise ValueError(f"mean has {counted(len(means), 'channel')} and std {len(stds)}, expected as many")
        self.register_buffer("mean", torch.tensor(means))
        self.register_buffer("std", torch.tensor(stds))

    @classmethod
    def imagenet(cls) -> Self:
        """ImageNet's mean and std, as torchvision's weights expect them."""
        return cls((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

    @classmethod
    def cifar10(cls) -> Self:
        """CIFAR-10's mean and std over the training images."""
        return cls((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))

    def fits(self, plan: Plan) -> bool:
        """One channel map after another is a channel map."""
        return plan.fits_color()

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """The map on the values as they are stored; no draw."""
        channels = plan.source[0]
        if channels != len(self.mean):
            raise ValueError(f"Normalize has {counted(len(self.mean), 'channel')} and the images {channels}")
        peak = plan.peak if plan.shift is None else 1.0
        if self.mean.device.type == "cpu":  # wherever the images are: a collate that moves batches may stay here itself
            return plan.scaled(*_color_map(tuple(self.mean.tolist()), tuple(self.std.tolist()), peak, plan.device))
        mean, std = self.mean.to(plan.device), self.std.to(plan.device)
        return plan.scaled(mean * peak, 1 / (std * peak))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves with the module, but keeps its float32 where the module is cast."""
        exact = self.mean, self.std
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.mean, self.std = exact[0].to(self.mean.device), exact[1].to(self.std.device)
        return self

    @classmethod
    def of(cls, split: Any) -> Self:
        """The dataset's own mean and std: of anything with ``mean`` and ``std`` lists, such as a manifest's split.

        Raises:
            ValueError: if the split has none, because its images are not uint8.
        """
        mean: Any = getattr(split, "mean", None)
        std: Any = getattr(split, "std", None)
        if not elements(mean) or not elements(std):
            raise ValueError(f"mean is {shown(mean)} and std {shown(std)}: this split has no statistics")
        return cls(mean, std)

    def extra_repr(self) -> str:
        """The settings as ``repr`` shows them."""
        return f"mean={self.mean.tolist()}, std={self.std.tolist()}"


class RandomGrayscale(Step):
    """All channels replaced by the luma with probability ``p``, drawn per sample; the number of channels stays.

    Raises:
        ValueError: if ``p`` is no probability, or (when run) the images have neither one nor three channels.
    """

    takes_sizes = True

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        self.p = chance(p)

    def fits(self, plan: Plan) -> bool:
        """The luma is that of the image's own colors."""
        return plan.fits_levels()

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """One draw per sample."""
        self.refuse_channels(plan.source[0])
        return plan.grayed(draws.chance(self.p))

    def refuse_channels(self, channels: int) -> None:
        """Refuses images without a luma.

        Raises:
            ValueError: if they have neither one nor three channels.
        """
        if channels not in (1, 3):
            raise ValueError(f"RandomGrayscale takes images of 1 or 3 channels, these have {channels}")

    def extra_repr(self) -> str:
        """The settings as ``repr`` shows them."""
        return f"p={self.p}"


@lru_cache(maxsize=64)
def _color_map(
    mean: tuple[float, ...], std: tuple[float, ...], peak: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Shift and scale, float32 [C] each, shared by all who ask for the same."""
    means, stds = (constant(values, torch.float32, device) for values in (mean, std))
    with torch.inference_mode(False):
        return means * peak, 1 / (stds * peak)
