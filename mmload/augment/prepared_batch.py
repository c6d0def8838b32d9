"""A batch between its draws and its pixels: described, rendered from wherever its images are, and finished.

Steps are divided into passes over the pixels. A first pass renders the steps that compose; the others, and boxes and
masks, follow. All that is drawn and described is in host memory; a device gets copies of it. Nothing here reads files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from mmload.augment.boxes import BoxRule, Trail, boxes_in, drop_boxes, move_fields
from mmload.augment.checks import check_output, check_values
from mmload.augment.draws import Draws
from mmload.augment.mix import MixStep
from mmload.augment.mosaic import Mosaic, Tiles
from mmload.augment.step import AfterStep, LevelStep, Step, plan_for, sees_fields, white
from mmload.batch import Batch
from mmload.render.kernel_arguments import ImageLines
from mmload.render.plan import Plan
from mmload.render.rendering import Rendering
from mmload.render.torch_sampling import OwnMasks
from mmload.runtime.random_words import Numbers


@dataclass(frozen=True, kw_only=True)
class CollateSettings:
    """What a collate does with a batch; :class:`~mmload.augment.collate.Collate` says what each of these is."""

    steps: list[nn.Module]
    composer: Mosaic | None
    dtype: torch.dtype
    memory_format: torch.memory_format
    box_rule: BoxRule
    epoch: int | None


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
        settings: CollateSettings,
        batch: Batch,
        seeds: Numbers,
        start: Plan,
        source: torch.dtype,
        masks: OwnMasks | None,
        framed: bool,
        tiles: Tiles | None,
    ) -> None:
        self._settings, self._steps = settings, settings.steps
        self._own_masks, self._framed = masks, framed
        self._batch = batch
        self._copied: tuple[Batch, Batch] | None = None  # the batch, and its copy on the images' device
        self._seeds = seeds
        self._ids: Numbers | None = None if batch.ids is None else batch.ids.numpy()
        self._trail: Trail | None = None
        self._mixer: MixStep | None = None
        first = settings.composer
        if first is not None:
            tiles = tiles or first.tiles_of(batch, self._draws(0), start.source, source, start.sizes)
            start, self._batch, self._trail = first.composed(batch, tiles, self._draws(0), start.source[0])
        self.tile_rows = None if tiles is None else tiles.rows
        self.rendering, following = self._described(0 if first is None else 1, start, source)
        self._follow(self.rendering.plan)
        self.shape = self.rendering.plan.shape
        self.dtype = self.rendering.dtype
        self.memory_format = settings.memory_format
        self._later = self._described_passes(following, self.shape, self.dtype)

    def render_batch(self, images: Tensor | Sequence[Tensor], out: Tensor) -> None:
        """Renders all samples on a CPU, of images [B, C, H, W], or uint8 [C, h, w] each."""
        rows = None if self.tile_rows is None else self.tile_rows.numbers
        if not isinstance(images, Tensor):
            chosen = images if rows is None else [images[row] for row in rows.tolist()]
            self.rendering.render_lines(0, ImageLines.of_images(chosen), out)
        elif rows is not None:
            self.rendering.render_lines(0, ImageLines.of_batch(images.contiguous(), rows), out)
        else:
            check_values(images, self._steps)
            self.rendering.render_batch(images, out)

    def copy_to(self, device: torch.device) -> list[Tensor]:
        """Copies the batch to a device, and what rendering there needs; returns the copies.

        They are queued on the caller's stream, and nobody waits for them.
        """
        renderings = [self.rendering, *self._later]
        copies = [copy for rendering in renderings for copy in rendering.copy_to(device)]
        return [*copies, *self._batch_on(device).values(include_nested=True, leaves_only=True)]

    def render_images(self, images: Tensor) -> Tensor:
        """Renders fixed-size images [B, C, H, W] on their device: [B, C, h, w]; :meth:`copy_to` may come before.

        Nothing is read back from the device.
        """
        return self.rendering.rendered(images, self.memory_format)

    def finish(self, out: Tensor) -> Batch:
        """Runs the steps that could not be composed on the rendered images and returns the finished batch.

        Its fields are on the device of the images. Where an :class:`~mmload.augment.step.AfterStep` changes a batch on
        a device, the device is waited for.
        """
        images, passes = out, self._later
        while True:
            for rendering in passes:
                images = rendering.rendered(images, self.memory_format)
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
            self._batch, self._trail = drop_boxes(self._batch, self._trail, self._settings.box_rule), None
        if at < len(self._steps) and self._batch.image_sizes is not None:  # such a module may move pixels
            self._batch = self._batch.replace(image_sizes=None)
        return passes

    def _changed(self, step: nn.Module, images: Tensor) -> Tensor:
        """Runs a module that needs pixels on rendered images, and perhaps on the batch."""
        if not (isinstance(step, AfterStep) and step.takes_uint8):
            images = self._converted(images)
        if not isinstance(step, AfterStep):
            return check_output(step, step(images), images, self._settings.dtype, self._batch)
        batch = self._batch_on(images.device).replace(images=images)
        changed = step.changed(batch, self._draws(self._next), self._settings.box_rule)
        on_host = images.device.type == "cpu"
        self._batch = changed if on_host else on_device(changed.replace(images=None), torch.device("cpu"))
        self._seeds = self._seeds[: len(changed)]  # partners of the samples may be gone
        self._ids = None if self._ids is None else self._ids[: len(changed)]
        return check_output(step, changed.images, images[: len(changed)], self._settings.dtype, changed)

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
        if images.dtype == self._settings.dtype:
            return images
        return Rendering(plan_for(images), self._settings.dtype).rendered(images, self.memory_format)

    def _described(self, at: int, plan: Plan, source: torch.dtype) -> tuple[Rendering, int]:
        """Describes the pass from step ``at``; returns it and the place of the first step after it.

        The plan is of images of dtype ``source`` and changes nothing. If the batch is framed, images that are
        variable-size at the first step that needs one size, or at the end, get a canvas.
        """
        while at < len(self._steps):
            step = self._steps[at]
            if not isinstance(step, Step) or not step.fits(plan):
                break
            if plan.is_variable_size and not step.takes_sizes:
                if self._framed:
                    plan = plan.framed()
                    continue
                if not isinstance(step, LevelStep) or step.moves_pixels or not plan.fits_levels_first():
                    break
            plan = step.describe(plan, self._draws(at))
            self._mixer = step if isinstance(step, MixStep) else self._mixer
            at += 1
        if self._framed and plan.is_variable_size and not (at < len(self._steps) and _takes_sizes(self._steps[at])):
            plan = plan.framed()
        if plan.sizes is not None and plan.is_variable_size:
            raise ValueError(_variable_size_message(self._steps, at))
        return Rendering(plan, _dtype_before(self._steps, at, plan, source, self._settings.dtype)), at

    def _draws(self, at: int) -> Draws:
        """Returns the draws of step ``at``."""
        boxes = None if self._batch.boxes is None else partial(boxes_in, self._batch, trail=self._trail)
        return Draws(self._seeds, at, epoch=self._settings.epoch, ids=self._ids, boxes=boxes)
