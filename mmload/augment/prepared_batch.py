"""A batch between its draws and its pixels: described, rendered from wherever its images lie, and finished.

It takes a :class:`~mmload.augment.collate.Collate` and a :class:`~mmload.batch.Batch` without images. A first pass
renders the steps that compose; what could not be composed, and boxes and masks, follow. It never reads files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from mmload.augment.boxes import BoxRule, Trail, boxes_in, followed, judged
from mmload.augment.checks import refuse_changed, refuse_values
from mmload.augment.draws import Draws
from mmload.augment.mix import MixStep
from mmload.augment.passes import one_pass, rendered
from mmload.augment.step import AfterStep, Step, sees_fields, white
from mmload.batch import Batch
from mmload.render.device_copies import copied_to
from mmload.render.image_lines import ImageLines, Numbers
from mmload.render.plan import Plan
from mmload.render.rendering import Rendering
from mmload.render.torch_sampling import OwnMasks


class Steps(Protocol):
    """What a batch takes from its Collate."""

    steps: nn.ModuleList
    dtype: torch.dtype
    memory_format: torch.memory_format
    box_rule: BoxRule

    @property
    def epoch(self) -> int | None:
        """The epoch whose batches are made; None: not known."""

    def refuse_later_passes(self, batch: Batch, first: Rendering, following: int) -> None:
        """Refuses steps from place ``following`` on that cannot be done to what the first pass gives."""


class PreparedBatch:
    """A batch whose draws are made and whose pixels are yet to be rendered.

    Attributes:
        shape: [B, C, h, w] of the memory to render into.
        dtype: of that memory.
        memory_format: of that memory.
    """

    def __init__(
        self,
        collate: Steps,
        batch: Batch,
        seeds: Tensor,
        shape: tuple[int, int, int],
        source: torch.dtype,
        sizes: Tensor | None = None,
        masks: OwnMasks | None = None,
        framed: bool = False,
    ) -> None:
        self._collate = collate
        self._own_masks, self._framed = masks, framed
        self._is_followed = False  # whether boxes, masks and targets went through the first pass
        self._batch = batch
        self._seeds = seeds
        self._epoch = collate.epoch
        self._trail: Trail | None = None
        self._mixer: MixStep | None = None
        start = Plan.of(len(seeds), shape, white(source), seeds.device)
        start = start if sizes is None else Plan.of_sizes(sizes, shape[0])
        self._rendering, self._next = self._described(0, start, source)
        collate.refuse_later_passes(batch, self._rendering, self._next)
        self.shape = self._rendering.plan.shape
        self.dtype = self._rendering.dtype
        self.memory_format = collate.memory_format

    def render_rows(self, first: int, images: Tensor, indices: Tensor, out: Tensor) -> None:
        """Renders samples from ``first`` on, on a CPU.

        Threads may share a batch, unless its samples are mixed: these are rendered in order, by one thread.

        Args:
            first: the first of them.
            images: contiguous uint8 [N, C, H, W].
            indices: int64 [b], which of the images each sample is.
            out: [b, C, h, w].
        """
        self._rendering.on_cpu.render_rows(first, images, indices, out)

    @property
    def needed(self) -> Numbers:
        """Of images of a size each, the lines that are needed: int64 [B, 2], the first and the one after the last."""
        return self._rendering.on_cpu.needed

    @property
    def shrinks(self) -> Numbers:
        """How many times smaller images of a size each may be decoded, int64 [B]: 1 where only the whole will do."""
        return self._rendering.on_cpu.shrinks

    def render_lines(self, first: int, lines: ImageLines, out: Tensor) -> None:
        """Renders samples from ``first`` on whose images have a size each, on a CPU; threads as in :meth:`render_rows`.

        Args:
            first: the first of them.
            lines: of the samples' images, at least those that are :attr:`needed`.
            out: [b, C, h, w].
        """
        self._rendering.on_cpu.render_lines(first, lines, out)

    def render_batch(self, images: Tensor, out: Tensor, indices: Tensor | None = None) -> None:
        """Renders all samples: see :meth:`mmload.render.rendering.Rendering.render_batch`."""
        refuse_values(images, indices, self._collate.steps)
        self._rendering.render_batch(images, out, indices)

    def render_images(self, images: Sequence[Tensor], device: torch.device) -> Tensor:
        """Renders images of a size each on a device, and takes all that is drawn there: what is finished is there.

        A batch that was drawn on the CPU has its draws whatever renders it. Nothing is read back from the device.

        Args:
            images: uint8 [C, h, w] on ``device``, one a sample, and one at least.
            device: not the CPU.

        Returns:
            [B, C, h, w] on the device.
        """
        self._follow(self._rendering.plan)
        self._is_followed = True
        self._batch, self._seeds = self._batch.to(device), self._seeds.to(device)
        self._trail = copied_to(self._trail, device)
        return self._rendering.render_images(images, device)

    def finish(self, out: Tensor) -> Batch:
        """Runs what could not be composed on the rendered images and gives the finished batch."""
        if not self._is_followed:
            self._follow(self._rendering.plan)
        images, at = out, self._next
        while at < len(self._collate.steps):
            step = self._collate.steps[at]
            if isinstance(step, Step):
                images, at = self._rendered(at, images)
                continue
            if not (isinstance(step, AfterStep) and step.takes_uint8):
                images = self._converted(images)
            before = images
            if self._batch.image_sizes is not None:  # such a step may move pixels
                self._batch = self._batch.replace(image_sizes=None)
            if isinstance(step, AfterStep):
                if sees_fields(step):
                    self._judge()
                rendered = self._batch.replace(images=images)
                self._batch = step.changed(rendered, self._draws(at), self._collate.box_rule)
                images = self._batch.images
            else:
                images = step(images)
            images = refuse_changed(step, images, before, self._collate.dtype, self._batch)
            at += 1
        self._judge()
        images = self._converted(images).contiguous(memory_format=self.memory_format)
        finished: Batch = self._batch.replace(images=images)
        return finished

    def _follow(self, plan: Plan) -> None:
        """Takes boxes, masks and targets through a pass."""
        self._batch, self._trail = followed(self._batch, plan, self._trail, self._own_masks)
        self._own_masks = None
        if self._mixer is not None:
            self._batch, self._mixer = self._mixer.mixed(self._batch, plan), None

    def _judge(self) -> None:
        """Drops boxes, after the last pass or before a step that sees them."""
        self._batch, self._trail = judged(self._batch, self._trail, self._collate.box_rule), None

    def _rendered(self, at: int, images: Tensor) -> tuple[Tensor, int]:
        """A further pass, from step ``at`` as far as steps compose; the images and the step after it."""
        shape = images.shape[1], images.shape[2], images.shape[3]
        nothing = Plan.of(len(images), shape, white(images.dtype), images.device)
        rendering, following = self._described(at, nothing, images.dtype)
        self._follow(rendering.plan)
        return rendered(rendering, images, self.memory_format), following

    def _converted(self, images: Tensor) -> Tensor:
        """The images in the collate's dtype, scaled to [0, 1] if they were integers."""
        if images.dtype == self._collate.dtype:
            return images
        shape = images.shape[1], images.shape[2], images.shape[3]
        plan = Plan.of(len(images), shape, white(images.dtype), images.device)
        return rendered(Rendering(plan, self._collate.dtype), images, self.memory_format)

    def _described(self, at: int, nothing: Plan, source: torch.dtype) -> tuple[Rendering, int]:
        """The description of the steps from ``at`` that compose, and the first step that does not."""
        rendering, following = one_pass(
            self._collate.steps, at, nothing, source, self._collate.dtype, self._draws, self._framed
        )
        mixers = [step for step in list(self._collate.steps)[at:following] if isinstance(step, MixStep)]
        self._mixer = mixers[-1] if mixers else self._mixer
        return rendering, following

    def _draws(self, at: int) -> Draws:
        """The draws of step ``at``."""
        boxes = None if self._batch.boxes is None else self._boxes_in
        return Draws(self._seeds, at, epoch=self._epoch, ids=self._batch.ids, boxes=boxes)

    def _boxes_in(self, plan: Plan) -> tuple[Tensor, Tensor]:
        return boxes_in(self._batch, plan, self._trail)
