"""Steps that change colours linearly: Normalize and RandomGrayscale, named and set as in ``torchvision.transforms.v2``.

Comes in: settings. Goes out: a colour map in a :class:`~mmload.augment.plan.Plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Self

import torch
from torch import Tensor

from mmload.augment.constants import constant
from mmload.augment.draws import Draws
from mmload.augment.plan import Plan
from mmload.augment.step import Step, chance


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

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean:
            raise ValueError(f"mean has {len(mean)} channels and std {len(std)}, expected as many, at least one")
        if any(not one > 0 for one in std):
            raise ValueError(f"std is {list(std)}, expected positive numbers")
        self.register_buffer("mean", torch.tensor([float(one) for one in mean]))
        self.register_buffer("std", torch.tensor([float(one) for one in std]))

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
        return plan.fits_colour()

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """The map on the values as they are stored; no draw."""
        channels = plan.source[0]
        if channels != len(self.mean):
            raise ValueError(f"Normalize has {len(self.mean)} channels and the images {channels}")
        peak = plan.peak if plan.shift is None else 1.0
        if self.mean.device.type == "cpu":  # wherever the images are: a collate that moves batches may stay here itself
            return plan.scaled(*_colour_map(tuple(self.mean.tolist()), tuple(self.std.tolist()), peak, plan.device))
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
        if not split.mean or not split.std:
            raise ValueError(f"mean is {split.mean!r} and std {split.std!r}: this split has no statistics")
        return cls(split.mean, split.std)

    def extra_repr(self) -> str:
        """The settings as ``repr`` shows them."""
        return f"mean={self.mean.tolist()}, std={self.std.tolist()}"


class RandomGrayscale(Step):
    """All channels replaced by the luma with probability ``p``, drawn per sample; the number of channels stays.

    Raises:
        ValueError: if ``p`` is no probability, or (when run) the images have neither one nor three channels.
    """

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        self.p = chance(p)

    def fits(self, plan: Plan) -> bool:
        """The luma is that of the image's own colours."""
        return plan.fits_grey()

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """One draw per sample."""
        if plan.source[0] not in (1, 3):
            raise ValueError(f"RandomGrayscale takes images of 1 or 3 channels, these have {plan.source[0]}")
        return plan.greyed(draws.chance(self.p))

    def extra_repr(self) -> str:
        """The settings as ``repr`` shows them."""
        return f"p={self.p}"


@lru_cache(maxsize=64)
def _colour_map(
    mean: tuple[float, ...], std: tuple[float, ...], peak: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Shift and scale, float32 [C] each, shared by all who ask for the same."""
    means, stds = (constant(values, torch.float32, device) for values in (mean, std))
    with torch.inference_mode(False):
        return means * peak, 1 / (stds * peak)
