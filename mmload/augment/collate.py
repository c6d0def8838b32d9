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
from mmload.augment.boxes import BoxRule
from mmload.augment.checks import refuse_batch, refuse_fields, refuse_steps, refuse_targets
from mmload.augment.draws import fresh_seeds
from mmload.augment.epochs import SharedEpoch, epoch_of_loader
from mmload.augment.passes import rehearse
from mmload.augment.prepared_batch import PreparedBatch
from mmload.augment.rows import apart, stacked_rows, variable_size_rows
from mmload.batch import Batch
from mmload.errors import counted
from mmload.render.image_lines import ImageLines
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
            batch: with images uint8 [B, C, H, W], or with variable-size images, as :meth:`Split.rows` gives them; or a
                list of rows with images [C, H, W]; or the bare images.
            generator: where seeds come from if the batch has none; None: torch's default generator.

        Returns:
            What came in, with images in the collate's dtype and memory format; a list becomes a Batch.
        """
        if isinstance(batch, Tensor):
            if batch.dim() != 4:
                raise ValueError(f"images have the shape {tuple(batch.shape)}, expected [B, C, H, W]")
            return self.forward(Batch(images=batch, batch_size=[len(batch)]), generator).images
        if rows := variable_size_rows(batch):
            rest, images, masks = apart(rows)
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
