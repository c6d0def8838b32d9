"""A batch between its draws and its pixels: described, rendered from wherever its images are, and finished.

Steps are divided into passes over the pixels. A first pass renders the steps that compose; the others, and boxes and
masks, follow. All that is drawn and described is in host memory; a device gets copies of it. Nothing here reads files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from mmload.augment.boxes import BoxRule, Trail, boxes_in, drop_boxes, move_fields
from mmload.augment.checks import check_output, check_values
from mmload.augment.draws import Boxes, Draws, Flags
from mmload.augment.mix import MixStep
from mmload.augment.mosaic import Mosaic, Tiles
from mmload.augment.step import AfterStep, LevelStep, Step, plan_for, sees_fields, white
from mmload.batch import Batch
from mmload.render.changed_images import changed_images, complete_images
from mmload.render.kernel_arguments import ImageLines, Places
from mmload.render.plan import Plan
from mmload.render.rendering import Rendering
from mmload.render.torch_sampling import OwnMasks
from mmload.runtime.random_words import Numbers


def one_pass(
    steps: Sequence[nn.Module],
    at: int,
    plan: Plan,
    source: torch.dtype,
    dtype: torch.dtype,
    draws_of: Callable[[int], Draws],
    framed: bool = False,
) -> tuple[Rendering, int]:
    """Describes one pass from step ``at``; returns it and the place of the first step after it.

    The plan is of images of dtype ``source`` and changes nothing. If ``framed``, images that are variable-size at the
    first step that needs one size, or at the end, get a canvas.
    """
    while at < len(steps):
        step = steps[at]
        if not isinstance(step, Step) or not step.fits(plan):
            break
        if plan.is_variable_size and not step.takes_sizes:
            if framed:
                plan = plan.framed()
                continue
            if not isinstance(step, LevelStep) or step.moves_pixels or not plan.fits_levels_first():
                break
        plan = step.describe(plan, draws_of(at))
        at += 1
    if framed and plan.is_variable_size and not (at < len(steps) and _takes_sizes(steps[at])):
        plan = plan.framed()
    if plan.sizes is not None and plan.is_variable_size:
        raise ValueError(_variable_size_message(steps, at))
    return Rendering(plan, _dtype_before(steps, at, plan, source, dtype)), at


def _takes_sizes(step: nn.Module) -> bool:
    """Returns whether a step takes variable-size images, so that it only did not fit into its pass."""
    return isinstance(step, Step) and step.takes_sizes


def _variable_size_message(steps: Sequence[nn.Module], at: int) -> str:
    """Returns the message where no step before ``at`` gives variable-size images one size."""
    made = "RandomResizedCrop, Resize((height, width)), Letterbox, or a crop"
    if at == len(steps):
        return f"the images are variable-size, and a batch has one size: put {made} among the steps"
    name = type(steps[at]).__name__
    if any(type(step).__name__ == "Resize" for step in steps[:at]):
        return f"{name} needs fixed-size images, and Resize by one number gives variable-size: put a crop before it"
    if _takes_sizes(steps[at]):
        before = ", ".join(type(step).__name__ for step in steps[:at])
        return f"{name} cannot stand after {before} if images are variable-size: put it before them"
    return f"{name} needs fixed-size images, and these are variable-size: put {made} before it"


def _dtype_before(
    steps: Sequence[nn.Module], at: int, plan: Plan, source: torch.dtype, dtype: torch.dtype
) -> torch.dtype:
    """Returns the dtype of a pass that ends before step ``at``: uint8 until a step needs floats."""
    if plan.shift is not None or plan.blends or source != torch.uint8 or at == len(steps):
        return dtype
    step = steps[at]
    keeps = isinstance(step, Step) or (isinstance(step, AfterStep) and step.takes_uint8)
    return source if keeps else dtype


def rendered(rendering: Rendering, images: Tensor, memory_format: torch.memory_format) -> Tensor:
    """Renders a batch into new memory."""
    out = torch.empty(rendering.plan.shape, dtype=rendering.dtype, device=images.device, memory_format=memory_format)
    rendering.render_batch(images, out)
    return out


def on_device(batch: Batch, device: torch.device) -> Batch:
    """Copies a batch to a device; from host to GPU by pinned memory, and nobody waits for it.

    ``batch.to(device)`` waits for all work on all streams of the GPU.
    """
    is_cuda = device.type == "cuda"

    def copied(field: Tensor) -> Tensor:
        host = field.pin_memory() if is_cuda and field.device.type == "cpu" else field
        return host.to(device, non_blocking=is_cuda)

    made: Batch = batch.apply(copied, device=device)
    return made


class Steps(Protocol):
    """Attributes of a Collate that its batches need."""

    steps: nn.ModuleList
    dtype: torch.dtype
    memory_format: torch.memory_format
    box_rule: BoxRule

    @property
    def composer(self) -> Mosaic | None:
        """Step that composes samples of several rows; None: there is none."""

    @property
    def epoch(self) -> int | None:
        """Epoch of the next batches; None: not known."""


class PreparedBatch:
    """Batch whose draws are made and whose pixels are yet to be rendered.

    All passes up to the first module that needs pixels are described, and boxes, masks and targets have gone through
    them: what cannot be done is refused before a pixel is rendered. It has everything but the images, of which
    ``start`` is the plan that changes nothing, and its seeds, int64 [B]; all of this is in host memory. ``masks`` are
    in place of its own. Without ``tiles``, the composer draws them among the rows of the batch.

    Attributes:
        rendering: the first pass.
        shape: [B, C, h, w] of the memory to render into.
        dtype: dtype of that memory.
        memory_format: memory format of that memory.
        tile_rows: rows that the samples are composed of; None: each is made of its own row.
    """

    def __init__(
        self,
        collate: Steps,
        batch: Batch,
        seeds: Numbers,
        start: Plan,
        source: torch.dtype,
        masks: OwnMasks | None,
        framed: bool,
        tiles: Tiles | None,
    ) -> None:
        self._collate, self._steps = collate, list(collate.steps)  # a ModuleList takes 2 us for each access
        self._own_masks, self._framed = masks, framed
        self._batch = batch
        self._copied: tuple[Batch, Batch] | None = None  # the batch, and its copy on the images' device
        self._seeds = seeds
        self._epoch = collate.epoch
        self._ids: tuple[Tensor | None, Numbers | None] | None = None  # those of the batch, also as an array
        self._trail: Trail | None = None
        self._mixer: MixStep | None = None
        first = collate.composer
        if first is not None:
            tiles = tiles or first.tiles_of(batch, self._draws(0), start.source, source, start.sizes)
            start, self._batch, self._trail = first.composed(batch, tiles, self._draws(0), start.source[0])
        self.tile_rows = None if tiles is None else tiles.rows
        self.rendering, following = self._described(0 if first is None else 1, start, source)
        self._follow(self.rendering.plan)
        self.shape = self.rendering.plan.shape
        self.dtype = self.rendering.dtype
        self.memory_format = collate.memory_format
        self._later = self._described_passes(following, self.shape, self.dtype)

    @property
    def needed(self) -> Places:
        """Lines that are needed of variable-size images: :data:`~mmload.render.kernel_arguments.NEEDED` [B]."""
        plan = self.rendering.plan
        if plan.first_program is None or plan.sizes is None:
            return self.rendering.on_cpu.needed
        return complete_images(plan.sizes)

    @property
    def waits(self) -> bool:
        """Whether images may arrive while they are rendered, each when it is needed."""
        return self.rendering.plan.first_program is None and self.rendering.on_cpu.waits

    def render_lines(self, first: int, lines: ImageLines, out: Tensor) -> None:
        """Renders samples (composed ones: tiles) from ``first`` on from wherever their lines are, on a CPU.

        Threads may share a batch, unless its samples are mixed or composed: these are rendered in order, by one thread.
        Of variable-size images, the lines are at least those :attr:`needed`. ``out`` is [b, C, h, w]; of composed
        samples, all of the batch.
        """
        if self.tile_rows is None:
            program = self.rendering.plan.first_program
            if program is not None:
                lines = changed_images(program, first, lines, self.shape[1])
            self.rendering.on_cpu.render_lines(first, lines, out)
        else:
            self.rendering.on_cpu.render_tiles(first, lines, out)

    def render_batch(self, images: Tensor, out: Tensor, indices: Tensor | None = None) -> None:
        """Renders all samples, as :meth:`mmload.render.rendering.Rendering.render_batch` does."""
        check_values(images, indices, self._steps)
        if self.tile_rows is not None:
            rows = self.tile_rows.numbers if indices is None else indices.numpy()[self.tile_rows.numbers]
            self.render_lines(0, ImageLines.of_batch(images.contiguous(), rows), out)
            return
        self.rendering.render_batch(images, out, indices)

    def copy_to(self, device: torch.device) -> list[Tensor]:
        """Copies the batch to a device, and what rendering there needs; returns the copies.

        They are queued on the caller's stream, and nobody waits for them.
        """
        renderings = [self.rendering, *self._later]
        copies = [copy for rendering in renderings for copy in rendering.copy_to(device)]
        return [*copies, *self._batch_on(device).values(include_nested=True, leaves_only=True)]

    def render_images(self, images: Tensor, device: torch.device) -> Tensor:
        """Renders fixed-size images [B, C, H, W] on a device by torch's operations; :meth:`copy_to` may come before.

        Nothing is read back from the device.

        Returns:
            [B, C, h, w] on the device.
        """
        out = torch.empty(self.shape, dtype=self.dtype, device=device, memory_format=self.memory_format)
        self.rendering.by_operations(images.to(device), out, at_once=True)
        return out

    def finish(self, out: Tensor) -> Batch:
        """Runs the steps that could not be composed on the rendered images and returns the finished batch.

        Its fields are on the device of the images. Where an :class:`~mmload.augment.step.AfterStep` changes a batch on
        a device, the device is waited for.
        """
        images, passes = out, self._later
        while True:
            for rendering in passes:
                images = rendered(rendering, images, self.memory_format)
            if self._next == len(self._steps):
                break
            images = self._changed(self._steps[self._next], images)
            passes = self._described_passes(self._next + 1, images.shape, images.dtype)
        images = self._converted(images).contiguous(memory_format=self.memory_format)
        finished: Batch = self._batch_on(images.device).replace(images=images)
        return finished

    def _described_passes(self, at: int, shape: Sequence[int], dtype: torch.dtype) -> list[Rendering]:
        """Describes the passes from step ``at``, up to a module or the end, and takes boxes, masks and targets along.

        ``shape`` [B, C, H, W] and ``dtype`` are of the images that come in.
        """
        passes = []
        while at < len(self._steps) and isinstance(self._steps[at], Step):
            count, channels, height, width = shape
            nothing = Plan.unchanged(count, (channels, height, width), white(dtype))
            rendering, at = self._described(at, nothing, dtype)
            self._follow(rendering.plan)
            passes.append(rendering)
            shape, dtype = rendering.plan.shape, rendering.dtype
        self._next = at
        if at == len(self._steps) or sees_fields(self._steps[at]):
            self._batch, self._trail = drop_boxes(self._batch, self._trail, self._collate.box_rule), None
        if at < len(self._steps) and self._batch.image_sizes is not None:  # such a module may move pixels
            self._batch = self._batch.replace(image_sizes=None)
        return passes

    def _changed(self, step: nn.Module, images: Tensor) -> Tensor:
        """Runs a module that needs pixels on rendered images, and perhaps on the batch."""
        if not (isinstance(step, AfterStep) and step.takes_uint8):
            images = self._converted(images)
        if not isinstance(step, AfterStep):
            return check_output(step, step(images), images, self._collate.dtype, self._batch)
        batch = self._batch_on(images.device).replace(images=images)
        changed = step.changed(batch, self._draws(self._next), self._collate.box_rule)
        on_host = images.device.type == "cpu"
        self._batch = changed if on_host else on_device(changed.replace(images=None), torch.device("cpu"))
        self._seeds = self._seeds[: len(changed)]  # partners of the samples may be gone
        return check_output(step, changed.images, images[: len(changed)], self._collate.dtype, changed)

    def _batch_on(self, device: torch.device) -> Batch:
        """Returns the batch on a device, to which it is copied once."""
        if device.type == "cpu":
            return self._batch
        if self._copied is None or self._copied[0] is not self._batch:
            self._copied = self._batch, on_device(self._batch, device)
        return self._copied[1]

    def _follow(self, plan: Plan) -> None:
        """Takes boxes, masks and targets through a pass."""
        self._batch, self._trail = move_fields(self._batch, plan, self._trail, self._own_masks)
        self._own_masks = None
        if self._mixer is not None:
            self._batch, self._mixer = self._mixer.mixed(self._batch, plan), None

    def _converted(self, images: Tensor) -> Tensor:
        """Converts images to the collate's dtype, scaled to [0, 1] if they were integers."""
        if images.dtype == self._collate.dtype:
            return images
        return rendered(Rendering(plan_for(images), self._collate.dtype), images, self.memory_format)

    def _described(self, at: int, nothing: Plan, source: torch.dtype) -> tuple[Rendering, int]:
        """Describes the pass from step ``at``; returns it and the place of the first step after it."""
        rendering, following = one_pass(
            self._steps, at, nothing, source, self._collate.dtype, self._draws, self._framed
        )
        mixers = [step for step in self._steps[at:following] if isinstance(step, MixStep)]
        self._mixer = mixers[-1] if mixers else self._mixer
        return rendering, following

    def _draws(self, at: int) -> Draws:
        """Returns the draws of step ``at``."""
        boxes = None if self._batch.boxes is None else self._boxes_in
        ids = self._batch.ids
        if self._ids is None or self._ids[0] is not ids:  # an array of a tensor gives the interpreter lock away
            self._ids = ids, None if ids is None else ids.numpy()
        return Draws(self._seeds, at, epoch=self._epoch, ids=self._ids[1], boxes=boxes)

    def _boxes_in(self, plan: Plan) -> tuple[Boxes, Flags]:
        return boxes_in(self._batch, plan, self._trail)
