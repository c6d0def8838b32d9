"""Collate renders stored uint8 rows into the batch that training gets.

It takes a :class:`~mmload.batch.Batch` with images uint8 [B, C, H, W], a list of rows, or the images alone, and returns
the same. Steps that can be described are rendered in one pass; the others run after it. It never reads files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor, nn

from mmload.augment.arguments import integer, refusal, shown, torch_device
from mmload.augment.boxes import BoxRule, Trail, boxes_in, followed, judged
from mmload.augment.checks import (
    refuse_batch,
    refuse_changed,
    refuse_fields,
    refuse_steps,
    refuse_targets,
    refuse_values,
)
from mmload.augment.draws import Draws, fresh_seeds
from mmload.augment.epochs import SharedEpoch, epoch_of_loader
from mmload.augment.mix import MixStep
from mmload.augment.passes import one_pass, rehearse, rendered
from mmload.augment.rows import apart, have_sizes, stacked_rows
from mmload.augment.step import AfterStep, Step, sees_fields, white
from mmload.batch import Batch
from mmload.errors import counted
from mmload.render.image_lines import ImageLines, Numbers
from mmload.render.plan import Plan
from mmload.render.rendering import Rendering
from mmload.render.torch_sampling import OwnMasks
from mmload.runtime.memory_pool import MemoryPool

_FORMATS = (torch.contiguous_format, torch.channels_last)

_MOST_STARTS = 64
"""Upper bound of what a collate remembers of later passes: epochs and sizes of images have none."""


class Collate(nn.Module):
    """Steps of :mod:`mmload.augment`, and any other modules, as one pass over the pixels where that can be.

    The first steps that compose are rendered at once; from the first that does not, the rest runs after it in order,
    again as few passes as can be. Images stay uint8, as in torchvision, until Normalize or a step that needs floats; a
    foreign module gets images in ``dtype``, scaled to [0, 1] unless Normalize stands before it. Without steps this is
    the plain conversion: torchvision's ``ToDtype(dtype, scale=True)``.

    It is picklable, works as ``collate_fn`` of ``torch.utils.data.DataLoader`` and as the first part of a model:
    ``nn.Sequential(collate, model)``. Results depend on the samples' seeds alone, not on the batch they are in.

    Args:
        steps: in order; a step's draws are keyed by its place.
        device: where batches are moved before the first step; None: they stay where they are.
        dtype: of the images that come out: uint8 or floating.
        memory_format: ``torch.contiguous_format`` or ``torch.channels_last``.
        box_rule: which boxes stay after they were clipped; None: those with both sides of a pixel or more.

    Raises:
        TypeError: if a step is not a module.
        ValueError: if ``dtype`` or ``memory_format`` is something else, or a step cannot be done right in this dtype or
            order: Normalize or MixUp to uint8, ColorJitter after Normalize.
    """

    def __init__(
        self,
        *steps: nn.Module,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
        box_rule: BoxRule | None = None,
    ) -> None:
        super().__init__()
        refuse_steps(steps, dtype)
        if not isinstance(memory_format, torch.memory_format) or memory_format not in _FORMATS:
            raise refusal("memory_format", memory_format, "torch.contiguous_format or torch.channels_last")
        self.steps = nn.ModuleList(steps)
        self.device = None if device is None else torch_device(device)
        self.dtype = dtype
        self.memory_format = memory_format
        if not isinstance(box_rule, BoxRule | None):
            raise TypeError(f"box_rule is {shown(box_rule)}, expected a BoxRule or None")
        self.box_rule = box_rule or BoxRule()
        self._memory = MemoryPool(spare=2)
        self._epoch = SharedEpoch()
        self._possible: set[object] = set()  # what later passes start from, of those that were found to be possible

    @property
    def epoch(self) -> int | None:
        """The epoch whose batches are made: of the loader that calls in this thread, else as set; None: not known."""
        of_loader = epoch_of_loader()
        return self._epoch.get() if of_loader is None else of_loader

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next batches are of, for steps that depend on it; an mmload Loader needs no such call.

        With a ``DataLoader``, call it before each epoch, the first included; its worker processes see it, persistent
        ones too.

        Raises:
            ValueError: if it is no integer from 0.
        """
        self._epoch.set(integer("epoch", epoch, least=0, greatest=(1 << 63) - 1, expected="an integer from 0"))

    @overload
    def forward(self, batch: Tensor, generator: torch.Generator | None = None) -> Tensor: ...

    @overload
    def forward(self, batch: Batch | Sequence[Batch], generator: torch.Generator | None = None) -> Batch: ...

    # It runs as it is: there is nothing in it that torch could compile on a CPU. Compile the model alone: of a compiled
    # nn.Sequential with a collate in it torch compiles nothing, as it skips loops that it cannot trace.
    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch leaves it untyped
    def forward(
        self, batch: Tensor | Batch | Sequence[Batch], generator: torch.Generator | None = None
    ) -> Tensor | Batch:
        """Renders a batch.

        Args:
            batch: with images uint8 [B, C, H, W]; or a list of rows with images [C, H, W]; or the bare images.
            generator: where seeds come from if the batch has none; None: torch's default generator.

        Returns:
            What came in, with images in the collate's dtype and memory format; a list becomes a Batch.
        """
        if isinstance(batch, Tensor):
            if batch.dim() != 4:
                raise ValueError(f"images have the shape {tuple(batch.shape)}, expected [B, C, H, W]")
            return self.forward(Batch(images=batch, batch_size=[len(batch)]), generator).images
        if isinstance(batch, Sequence) and have_sizes(batch):
            rest, images, masks = apart(batch)
            return self.render_sizes(rest, images, masks, generator=generator)
        stacked = stacked_rows(batch)
        if self.device is not None:
            stacked = stacked.to(self.device)
        return self.render(stacked, stacked.images, generator=generator)

    def render_sizes(
        self,
        batch: Batch,
        images: Sequence[Tensor],
        masks: OwnMasks | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Batch:
        """Renders images of a size each, on a CPU.

        Args:
            batch: everything but the images and masks.
            images: uint8 [C, h, w], one a sample.
            masks: of the images' sizes; None: there are none.
            generator: where seeds come from if the batch has none; None: torch's default generator.

        Returns:
            The batch with images in the collate's dtype and memory format, where the collate's device is.
        """
        sizes = torch.tensor([image.shape[1:] for image in images], dtype=torch.int64).view(-1, 2)
        prepared = self.prepare(batch, (images[0].shape[0], 0, 0), sizes=sizes, masks=masks, generator=generator)
        out = self._memory.empty(prepared.shape, prepared.dtype, prepared.memory_format)
        prepared.render_lines(0, ImageLines.of_images(images), out)
        made = prepared.finish(out)
        return made if self.device is None else made.to(self.device)

    def render(
        self,
        batch: Batch,
        images: Tensor,
        indices: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        memory: MemoryPool | None = None,
    ) -> Batch:
        """Renders a batch from images that lie somewhere else, such as a whole split on a device.

        Args:
            batch: everything but the images, which are not looked at.
            images: uint8 [N, C, H, W], where the batch is to be.
            indices: int64 [B], which of the images each sample is; None: they are the samples.
            generator: where seeds come from if the batch has none; None: torch's default generator.
            memory: where the output is taken from on a CPU; None: the collate's own.

        Returns:
            The batch with images in the collate's dtype and memory format.
        """
        if images is None or images.dim() != 4:
            got = "missing" if images is None else f"of the shape {tuple(images.shape)}"
            raise ValueError(f"images are {got}, expected [B, C, H, W]")
        if indices is None and len(images) != batch.batch_size[0]:
            raise ValueError(f"{counted(len(images), 'image')} for a batch of {counted(batch.batch_size[0], 'sample')}")
        shape = images.shape[1], images.shape[2], images.shape[3]
        prepared = self.prepare(batch, shape, device=images.device, source=images.dtype, generator=generator)
        shape_out, dtype, memory_format = prepared.shape, prepared.dtype, prepared.memory_format
        if images.device.type == "cpu":
            out = (memory or self._memory).empty(shape_out, dtype, memory_format)
        else:
            out = torch.empty(shape_out, dtype=dtype, device=images.device, memory_format=memory_format)
        prepared.render_batch(images, out, indices)
        return prepared.finish(out)

    def prepare(
        self,
        batch: Batch,
        shape: tuple[int, int, int],
        *,
        device: torch.device | None = None,
        source: torch.dtype = torch.uint8,
        generator: torch.Generator | None = None,
        sizes: Tensor | None = None,
        masks: OwnMasks | None = None,
        framed: bool = False,
    ) -> PreparedBatch:
        """Draws and describes a batch whose images are yet to be read.

        Args:
            batch: everything but the images, which are not looked at.
            shape: (C, H, W) of the images as stored; (C, 0, 0) where ``sizes`` are given.
            device: where the images will be; None: where the seeds are, else the CPU.
            source: the images' dtype.
            generator: where seeds come from if the batch has none; None: torch's default generator.
            sizes: int64 [B, 2], height and width of each image; None: all have the same.
            masks: in place of the batch's where ``sizes`` are given; None: there are none.
            framed: whether images that no step makes one size are put on a canvas of the largest.

        Returns:
            The description, to be rendered row by row or at once, and then finished.
        """
        if device is None:
            device = torch.device("cpu") if batch.seeds is None else batch.seeds.device
        refuse_batch(batch, shape, source, sizes)
        refuse_fields(self.steps, boxes=batch.boxes is not None, masks=batch.masks is not None or masks is not None)
        refuse_targets(self.steps, batch.targets)
        seeds = fresh_seeds(batch.batch_size[0], device, generator) if batch.seeds is None else batch.seeds
        return PreparedBatch(self, batch, seeds.to(device), shape, source, sizes, masks, framed)

    def refuse_later_passes(self, batch: Batch, first: Rendering, following: int) -> None:
        """Refuses steps after the first pass that cannot be done to what it gives, before it is rendered.

        Args:
            batch: before it.
            first: the first pass.
            following: the place of the first step after it.

        Raises:
            ValueError, TypeError: as the step does.
        """
        if following == len(self.steps):
            return
        epoch, has_ids, has_boxes = self.epoch, batch.ids is not None, batch.boxes is not None
        start = first.plan.shape[1:], first.dtype, following, epoch, has_ids, has_boxes
        if start not in self._possible:
            rehearse(self.steps, following, first, self.dtype, epoch=epoch, has_ids=has_ids, has_boxes=has_boxes)
            if len(self._possible) >= _MOST_STARTS:
                self._possible.clear()
            self._possible.add(start)


class PreparedBatch:
    """A batch whose draws are made and whose pixels are yet to be rendered.

    Attributes:
        shape: [B, C, h, w] of the memory to render into.
        dtype: of that memory.
        memory_format: of that memory.
    """

    def __init__(
        self,
        collate: Collate,
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

    def finish(self, out: Tensor) -> Batch:
        """Runs what could not be composed on the rendered images and gives the finished batch."""
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
