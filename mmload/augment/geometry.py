"""Steps that move pixels but keep their size: crops and flips, named and set as in torchvision v2."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmload.augment.arguments import borders, choice, flag, integer, mask_level, pair, per_channel
from mmload.augment.resize import size_with_least
from mmload.augment.step import Draws, OperationStep, Step, seeds_of
from mmload.render.kernel_arguments import PADDING_MODES
from mmload.render.level_operations import FLIP_X, FLIP_Y
from mmload.render.plan import Padding, Plan
from mmload.runtime.random_words import Numbers


class RandomCrop(Step):
    """A crop at a random place of the image, which can be padded first.

    Args:
        size: (height, width), or one number for both.
        padding: pixels added before the crop: one number, (left and right, top and bottom), or (left, top, right,
            bottom).
        pad_if_needed: pad both sides by what is missing where the image is smaller than the crop.
        fill: value of constant padding, in the images' values; one number or one per channel.
        padding_mode: ``constant``, ``edge``, ``reflect`` or ``symmetric``.
        mask_fill: value of constant padding of a segmentation mask, 0 to 255: 255 is void, as in builds
            (torchvision: a dict as ``fill``, else 0, which is a class).

    Raises:
        ValueError: if an argument is out of range, or (when run) the padded image is smaller than the crop.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: float | Sequence[float] = 0,
        padding_mode: str = "constant",
        mask_fill: int = 255,
    ) -> None:
        super().__init__()
        self.size = pair(size)
        self.padding = borders(padding)
        self.pad_if_needed = flag("pad_if_needed", pad_if_needed)
        self.fill = per_channel("fill", fill)
        self.padding_mode = choice("padding_mode", padding_mode, PADDING_MODES)
        self.mask_fill = mask_level(mask_fill)

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Draws one window of ``size`` per sample, every place equally likely."""
        height, width = self.size
        high, wide = plan.frame
        left, top, right, bottom = self._padding_for(plan)
        down, across = high + top + bottom - height, wide + left + right - width
        spare = np.minimum(down, across)
        if np.any(spare < 0):
            size = size_with_least(spare, plan.frame)
            raise ValueError(
                f"a crop of {height} x {width} does not fit into images of {size} "
                "with their padding: make it smaller, or set padding or pad_if_needed"
            )
        tops, lefts = draws.integers((-top, down - top), (-left, across - left))
        # Equal on both sides, because an earlier flip swaps them.
        margin = max(_greatest(top), _greatest(bottom)), max(_greatest(left), _greatest(right))
        around = Padding(mode=self.padding_mode, fill=self.fill, mask_fill=self.mask_fill, margin=margin)
        return plan.cropped(tops, lefts, height, width, around if any(margin) else None)

    def _padding_for(self, plan: Plan) -> tuple[Numbers | int, Numbers | int, Numbers | int, Numbers | int]:
        """Returns left, top, right and bottom; ``pad_if_needed`` pads both sides by what is missing, as torchvision."""
        left, top, right, bottom = self.padding
        if not self.pad_if_needed:
            return self.padding
        high, wide = plan.frame
        rows = np.maximum(self.size[0] - (high + top + bottom), 0)
        cols = np.maximum(self.size[1] - (wide + left + right), 0)
        return left + cols, top + rows, right + cols, bottom + rows


class CenterCrop(Step):
    """The middle of the image; an image smaller than the crop is padded with zeros, its mask with 255 (void).

    Args:
        size: (height, width), or one number for both.
    """

    is_random = False

    def __init__(self, size: int | Sequence[int]) -> None:
        super().__init__()
        self.size = pair(size)

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Crops the middle of every sample; halves are rounded as torchvision rounds them. Nothing is drawn."""
        high, wide = map(plan.per_sample, plan.frame)
        margin = _greatest(self.size[0] - high), _greatest(self.size[1] - wide)
        around = Padding(margin=margin) if any(margin) else None
        return plan.cropped(_center(high, self.size[0]), _center(wide, self.size[1]), *self.size, around)


class RandomHorizontalFlip(OperationStep):
    """Flip from left to right with probability ``p``, drawn per sample."""

    operation = FLIP_X
    moves_pixels = True

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        return plan.flipped(FLIP_X, draws.chance(self.p))


class RandomVerticalFlip(OperationStep):
    """Flip upside down with probability ``p``, drawn per sample."""

    operation = FLIP_Y
    moves_pixels = True

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        return plan.flipped(FLIP_Y, draws.chance(self.p))


class AlternatingHorizontalFlip(Step):
    """Flip from left to right every other epoch, as in KellerJordan/cifar10-airbench: two epochs show both sides once.

    A hash of the row's id decides whether a row is mirrored in the even epochs or in the odd ones. It needs the epoch
    (see :meth:`mmload.augment.collate.Collate.set_epoch`) and the rows' ids; both views of a row show the same side.

    Args:
        seed: any integer; selects the rows that are mirrored in even epochs.

    Raises:
        ValueError: if ``seed`` is no integer, or (when run) epoch or ids are not known.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = integer("seed", seed)

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Flips by the last bit of hash + epoch; nothing is drawn."""
        name = type(self).__name__
        epoch, ids = draws.epoch(name), draws.ids(name)
        return plan.flipped(FLIP_X, (seeds_of(self.seed, 0, ids) + epoch % 2) & 1 == 1)


def _center(length: Numbers, size: int) -> Numbers:
    """Returns the start of the middle ``size`` of ``length``: odd padding is larger at the end, crops round to even."""
    return np.where(length < size, -((size - length) // 2), np.rint((length - size) / 2)).astype(np.int64)


def _greatest(side: Numbers | int) -> int:
    """Returns the greatest number of pixels of all samples, at least 0."""
    return max(side, 0) if isinstance(side, int) else int(np.max(side, initial=0))
