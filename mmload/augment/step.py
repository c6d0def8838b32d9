"""The kinds of steps of a collate: those that join the description of a pass, and those that run after it.

All but Mosaic, which composes samples of several rows, work alone on a batch and inside ``nn.Sequential``::

    DeclaredStep                its arguments, and what it needs
        Step                    describes itself in a plan: geometry, color map, holes
            LevelStep           ... by a program of operations on levels, which it draws
            OperationStep       is one such operation, with a probability
        TargetStep              also takes targets when it is called alone
            MixStep             a Step that mixes samples (in ``mix.py``)
            AfterStep           changes rendered pixels, or several samples at once
        Mosaic
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mmload.augment.arguments import chance
from mmload.augment.draws import Draws
from mmload.augment.given_samples import given_samples
from mmload.batch import Batch
from mmload.render.level_program import NONE, Program
from mmload.render.plan import Plan

if TYPE_CHECKING:
    from mmload.augment.boxes import BoxRule


class DeclaredStep(nn.Module):
    """Module of mmload, whose class is the one declaration of a step.

    The name and the arguments are torchvision's, and each argument is an attribute of the same name. ``repr``,
    torchvision's equivalent, the check of foreign modules and the table of docs/augment.md follow from that.

    Attributes:
        needs_boxes: how a dataset with boxes is built, for the message where they are missing; "": the step works
            without boxes.
        leaves_behind: reason and advice for each of the fields "boxes" and "masks" that does not follow the step.
        makes_floats: whether images cannot stay uint8.
        inner: steps that it contains.
    """

    needs_boxes = ""
    leaves_behind: Mapping[str, str] = {}
    makes_floats = False
    inner: Sequence[DeclaredStep] = ()

    def check_fields(self, fields: Mapping[str, Tensor]) -> None:
        """Raises a ValueError if fields of the batches would be left behind, or boxes are missing."""
        name = type(self).__name__
        if self.needs_boxes and "boxes" not in fields:
            raise ValueError(f"{name} needs boxes, and the batches have none; build the dataset {self.needs_boxes}")
        for field, why in self.leaves_behind.items():
            if field in fields:
                raise ValueError(f"{name} {why}")
        for step in self.inner:
            step.check_fields(fields)

    def alone(
        self, images: Tensor, targets: Tensor | None, seeds: Tensor | None, generator: torch.Generator | None
    ) -> Batch:
        """Runs the step alone on a batch, as a collate of it does.

        Returns:
            Images in their dtype, but floats where the step makes some, and the targets.
        """
        batch = given_samples(images).batch
        if seeds is not None and len(seeds) != len(batch):
            raise ValueError(f"seeds have the shape {tuple(seeds.shape)}, expected ({len(batch)},): one per image")
        levels = torch.float32 if self.makes_floats else torch.uint8  # what becomes of them
        dtype = images.dtype if images.is_floating_point() else levels
        collate = import_module("mmload.augment.collate").Collate(self, dtype=dtype)  # of a file that imports this one
        made: Batch = collate(batch.replace(images=images, targets=targets, seeds=seeds), generator)
        return made

    def extra_repr(self) -> str:
        shown = ((name, value) for name, value in arguments_of(self).items() if not isinstance(value, nn.Module))
        return ", ".join(f"{name}={value!r}" for name, value in shown)


class Step(DeclaredStep, ABC):
    """Step that can be described: geometry, linear color, holes.

    A subclass adds itself to a description (``describe``), by methods of the plan, which raise
    :class:`~mmload.render.plan.DoesNotFit` where another pass must begin.

    Attributes:
        takes_sizes: whether it can be done to variable-size images.
        is_drop_in: whether it does what torchvision's transform of its name does, in the same place of a list.
        channels: numbers of channels that images may have; None: any.
        is_random: whether it draws from the samples' seeds.
        moves_pixels: whether it moves pixels as an operation on levels.
    """

    takes_sizes = True
    is_drop_in = True
    channels: tuple[int, ...] | None = None
    is_random = True
    moves_pixels = False

    @abstractmethod
    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Adds this step to a plan; draws depend on seeds and shapes, never on pixels.

        Raises:
            DoesNotFit: if it cannot be rendered in the same pass as the steps that the plan describes so far.
        """

    def at_epoch(self, epoch: int) -> Step:
        """Returns the step with the settings of an epoch; itself if no setting depends on the epoch."""
        return self

    def check_images(self, plan: Plan) -> None:
        """Raises a ValueError if the step cannot be done to these images, such as to their number of channels."""
        channels = plan.source[0]
        if self.channels is not None and channels not in self.channels:
            allowed = " or ".join(str(number) for number in self.channels)
            raise ValueError(f"{type(self).__name__} takes images of {allowed} channels, these have {channels}")

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # as Collate.forward
    def forward(self, images: Tensor, seeds: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Runs the step alone on a batch.

        Args:
            images: [B, C, H, W], uint8 or floating.
            seeds: int64 [B], one per sample; None: fresh ones.
            generator: generator of fresh seeds; None: torch's default one.

        Returns:
            [B, C, h, w] in the dtype of ``images``; uint8 becomes float32 where the step makes floats.

        Raises:
            ValueError: if ``images`` has another shape, or the step cannot be done at its size.
        """
        return self.alone(images, None, seeds, generator).images


class TargetStep(DeclaredStep):
    """Step that works alone on a batch of images and targets."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # as Collate.forward
    def forward(
        self,
        images: Tensor,
        targets: Tensor | None = None,
        seeds: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """Runs the step alone on a batch.

        Args:
            images: [B, C, H, W], uint8 or floating.
            targets: class indices [B] or soft targets [B, K]; None: there are none.
            seeds: int64 [B], one per sample; None: fresh ones.
            generator: generator of fresh seeds; None: torch's default one.

        Returns:
            The images, and the targets too if any were given.

        Raises:
            ValueError: if ``images`` has another shape.
        """
        made = self.alone(images, targets, seeds, generator)
        return made.images if targets is None else (made.images, made.targets)


class AfterStep(TargetStep, ABC):
    """Step that needs pixels, or several samples at once: it runs on the rendered batch, uint8 before Normalize."""

    @abstractmethod
    def changed(self, batch: Batch, draws: Draws, box_rule: BoxRule) -> Batch:
        """Changes a batch.

        Args:
            batch: with all its fields.
            draws: the step's.
            box_rule: the collate's, for steps that move boxes.
        """


def arguments_of(step: nn.Module) -> dict[str, Any]:
    """Returns the arguments that a step was made with: its attributes that have the names of the parameters."""
    return {name: getattr(step, name) for name in _parameters(type(step)) if hasattr(step, name)}  # type: ignore[arg-type]  # torch's hash


@lru_cache(maxsize=256)
def _parameters(kind: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(kind).parameters)


def check_dtype(dtype: torch.dtype) -> None:
    """Rejects images that are neither uint8 nor floats.

    Raises:
        TypeError: if they have another dtype, which does not say what white is.
    """
    if dtype != torch.uint8 and not dtype.is_floating_point:
        raise TypeError(f"images are {dtype}, expected torch.uint8 (0 to 255) or a floating dtype (0 to 1)")


def check_shape(shape: Sequence[int]) -> None:
    """Rejects images [C, H, W] without pixels.

    Raises:
        ValueError: if a side or the number of channels is 0.
    """
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"images have the shape {tuple(shape)}, expected [C, H, W] with a pixel at least")


def plan_for(images: Tensor) -> Plan:
    """Returns the plan that changes nothing of a batch [B, C, H, W]."""
    count, *shape = images.shape
    return Plan.unchanged(count, (shape[0], shape[1], shape[2]), white(images.dtype))


def white(dtype: torch.dtype) -> float:
    """Returns the value of white: 255 for uint8, 1 for floating dtypes."""
    return 255.0 if dtype == torch.uint8 else 1.0


class LevelStep(Step):
    """Step whose effect is a :class:`~mmload.render.level_program.Program`, which a subclass draws."""

    channels: tuple[int, ...] | None = (1, 3)
    takes_sizes = False

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        plan.check_levels(moves=self.moves_pixels)
        self.check_images(plan)
        return plan.followed_by(self.program(plan, draws))

    @abstractmethod
    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws the operations of each sample of a plan; it must draw as many numbers for every batch."""


class OperationStep(Step):
    """Step that is one operation on levels with probability ``p``, drawn per sample, as in a list such as RandomApply.

    Attributes:
        operation: its code.
    """

    operation = NONE

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = chance(p)

    @property
    def numbers(self) -> tuple[float, ...]:
        """Numbers of the operation, the same for all samples."""
        return ()

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws for each sample of a plan whether it has the operation."""
        return Program.single_operation(self.operation, plan.count, *self.numbers, apply_mask=draws.chance(self.p))
