"""The two kinds of steps of a collate: those that join the description of a pass, and those that run after it.

Both work alone on a batch and inside ``nn.Sequential``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor, nn

from mmload.augment.draws import Draws, fresh_seeds
from mmload.batch import Batch
from mmload.render.plan import Plan
from mmload.render.rendering import Rendering

if TYPE_CHECKING:
    from mmload.augment.boxes import BoxRule


class Step(nn.Module):
    """A step that can be described: geometry, linear color, holes.

    A subclass says whether it still fits into a description (``fits``) and adds itself to it (``describe``).

    Attributes:
        needs_boxes: whether it cannot be done without boxes.
        takes_sizes: whether it can be done to images of a size each.
    """

    needs_boxes = False
    takes_sizes = False

    def fits(self, plan: Plan) -> bool:
        """Whether the step can be carried out in the same pass as what ``plan`` describes so far."""
        raise NotImplementedError

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """The plan followed by this step; draws depend on seeds and shapes, never on pixels."""
        raise NotImplementedError

    def at_epoch(self, epoch: int) -> Step:
        """The step with the settings of an epoch; itself where none follows the epoch."""
        return self

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
        seeds = seeds_for(images, seeds, generator)
        plan = self.describe(plan_for(images), Draws(seeds, 0))
        dtype = torch.float32 if images.dtype == torch.uint8 and plan.shift is not None else images.dtype
        out = torch.empty(plan.shape, dtype=dtype, device=images.device)
        Rendering(plan, dtype).render_batch(images, out)
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

    def changed(self, batch: Batch, draws: Draws, box_rule: BoxRule) -> Batch:
        """The batch after this step; to be overridden where more than images and targets change.

        Args:
            batch: with all its fields.
            draws: the step's.
            box_rule: the collate's, for steps that move boxes.
        """
        images, targets = self.change(batch.images, batch.targets, draws)
        changed: Batch = batch.replace(images=images, targets=targets)
        return changed

    def refuse_fields(self, *, boxes: bool, masks: bool) -> None:
        """Raises a ValueError if batches have boxes or masks and the step would leave them behind."""

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
        seeds = seeds_for(images, seeds, generator)
        if images.dtype == torch.uint8 and not self.takes_uint8:
            raise ValueError(f"{type(self).__name__} takes floating images, not uint8: convert them first")
        changed, mixed = self.change(images, targets, Draws(seeds, 0))
        return changed if targets is None else (changed, mixed)


def sees_fields(step: nn.Module) -> bool:
    """Whether a step is given the whole batch, boxes and masks included, and not images and targets alone."""
    return isinstance(step, AfterStep) and type(step).changed is not AfterStep.changed


def seeds_for(images: Tensor, seeds: Tensor | None, generator: torch.Generator | None) -> Tensor:
    """The seeds of a batch that a step renders alone, both checked."""
    if images.dim() != 4:
        raise ValueError(f"images have the shape {tuple(images.shape)}, expected [B, C, H, W]")
    refuse_dtype(images.dtype)
    refuse_shape(images.shape[1:])
    if seeds is None:
        return fresh_seeds(len(images), images.device, generator)
    if seeds.shape != (len(images),):
        raise ValueError(f"seeds have the shape {tuple(seeds.shape)}, expected ({len(images)},): one per image")
    return seeds


def refuse_dtype(dtype: torch.dtype) -> None:
    """Refuses images that are neither uint8 nor floats.

    Raises:
        TypeError: if they have another dtype, which does not say what white is.
    """
    if dtype != torch.uint8 and not dtype.is_floating_point:
        raise TypeError(f"images are {dtype}, expected torch.uint8 (0 to 255) or a floating dtype (0 to 1)")


def refuse_shape(shape: Sequence[int]) -> None:
    """Refuses images [C, H, W] without pixels.

    Raises:
        ValueError: if a side or the number of channels is 0.
    """
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"images have the shape {tuple(shape)}, expected [C, H, W] with a pixel at least")


def plan_for(images: Tensor) -> Plan:
    """The plan that changes nothing of a batch [B, C, H, W]."""
    count, *shape = images.shape
    return Plan.of(count, (shape[0], shape[1], shape[2]), white(images.dtype), images.device)


def white(dtype: torch.dtype) -> float:
    """The value of white: 255 for uint8, 1 for floating dtypes."""
    return 255.0 if dtype == torch.uint8 else 1.0
