"""What a step of a collate is: it either joins the description of one pass, or runs on the rendered batch.

Comes in: settings in torchvision's names. Goes out: a :class:`Step` (described, then rendered with its neighbours) or
an :class:`AfterStep` (runs on what was rendered). Both work alone on a batch and inside ``nn.Sequential``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor, nn

from mmload.augment.draws import Draws, fresh_seeds
from mmload.augment.plan import Plan
from mmload.augment.render import Rendering


class Step(nn.Module):
    """A step that can be described: geometry, linear colour, holes.

    A subclass says whether it still fits into a description (``fits``) and adds itself to it (``describe``).
    """

    def fits(self, plan: Plan) -> bool:
        """Whether the step can be carried out in the same pass as what ``plan`` describes so far."""
        raise NotImplementedError

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """The plan followed by this step; draws depend on seeds and shapes, never on pixels."""
        raise NotImplementedError

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # as Collate.forward
    def forward(self, images: Tensor, seeds: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        """The step alone on a batch.

        Args:
            images: [B, C, H, W], uint8 or floating.
            seeds: int64 [B], one per sample; None: fresh ones.
            generator: where fresh seeds come from; None: torch's default generator.

        Returns:
            [B, C, h, w] in the dtype of ``images``; uint8 becomes float32 where the step scales values.

        Raises:
            ValueError: if ``images`` has another shape, or the step cannot be done at its size.
        """
        if images.dim() != 4:
            raise ValueError(f"images have the shape {tuple(images.shape)}, expected [B, C, H, W]")
        seeds = fresh_seeds(len(images), images.device, generator) if seeds is None else seeds
        plan = self.describe(plan_for(images), Draws(seeds, 0))
        dtype = torch.float32 if images.dtype == torch.uint8 and plan.shift is not None else images.dtype
        out = torch.empty(plan.shape, dtype=dtype, device=images.device)
        Rendering(plan, dtype).whole(images, out)
        return out


class AfterStep(nn.Module):
    """A step that needs pixels, or several samples at once: it runs on the rendered batch.

    Attributes:
        takes_uint8: whether it works on uint8 images as they are before Normalize; else they are converted first.
    """

    takes_uint8 = False

    def change(self, images: Tensor, targets: Tensor | None, draws: Draws) -> tuple[Tensor, Tensor | None]:
        """The images [B, C, H, W] and targets after this step; draws in the same order for every batch."""
        raise NotImplementedError

    @overload
    def forward(
        self,
        images: Tensor,
        targets: None = None,
        seeds: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        images: Tensor,
        targets: Tensor,
        seeds: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]: ...

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # as Collate.forward
    def forward(
        self,
        images: Tensor,
        targets: Tensor | None = None,
        seeds: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """The step alone on a batch.

        Args:
            images: [B, C, H, W], floating, or uint8 where the step takes it.
            targets: class indices [B] or soft targets [B, K]; None: there are none.
            seeds: int64 [B], one per sample; None: fresh ones.
            generator: where fresh seeds come from; None: torch's default generator.

        Returns:
            The images, and the targets too if any were given.

        Raises:
            ValueError: if ``images`` has another shape or dtype.
        """
        if images.dim() != 4:
            raise ValueError(f"images have the shape {tuple(images.shape)}, expected [B, C, H, W]")
        if images.dtype == torch.uint8 and not self.takes_uint8:
            raise ValueError(f"{type(self).__name__} takes floating images, not uint8: convert them first")
        seeds = fresh_seeds(len(images), images.device, generator) if seeds is None else seeds
        changed, mixed = self.change(images, targets, Draws(seeds, 0))
        return changed if targets is None else (changed, mixed)


def plan_for(images: Tensor) -> Plan:
    """The plan that changes nothing of a batch [B, C, H, W]."""
    count, *shape = images.shape
    return Plan.of(count, (shape[0], shape[1], shape[2]), white(images.dtype), images.device)


def white(dtype: torch.dtype) -> float:
    """The value of white: 255 for uint8, 1 for floating dtypes."""
    return 255.0 if dtype == torch.uint8 else 1.0


def pair(size: int | Sequence[int]) -> tuple[int, int]:
    """A size as (height, width), from one number or two.

    Raises:
        ValueError: if it is neither, or not positive.
    """
    sizes = (size, size) if isinstance(size, int) else tuple(size)
    if len(sizes) == 1:
        sizes = sizes * 2
    if len(sizes) != 2 or any(type(one) is not int or one < 1 for one in sizes):
        raise ValueError(f"size is {size!r}, expected a positive whole number or (height, width)")
    return sizes[0], sizes[1]


def chance(p: float) -> float:
    """A probability, checked.

    Raises:
        ValueError: if it is not within [0, 1].
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p is {p!r}, expected a probability from 0 to 1")
    return float(p)


def span(name: str, values: Sequence[float], *, above: float | None = None) -> tuple[float, float]:
    """A range (least, greatest), checked; ``above``: what both must exceed, else they are at least 0.

    Raises:
        ValueError: if it is not two numbers in order and in range.
    """
    ends = tuple(float(value) for value in values)
    if len(ends) != 2 or not ends[0] <= ends[1] or (ends[0] < 0 if above is None else ends[0] <= above):
        bound = "from 0" if above is None else f"above {above:g}"
        raise ValueError(f"{name} is {values!r}, expected (least, greatest), {bound}")
    return ends[0], ends[1]
