"""Collate renders stored uint8 rows into the batch that training gets.

It takes a :class:`~mmload.batch.Batch` with images uint8 [B, C, H, W], a list of rows, or the images alone, and returns
the same. Steps that can be described are rendered in one pass; the others run after it. It never reads files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from mmload.augment.arguments import argument_error, integer, torch_device
from mmload.augment.boxes import BoxRule
from mmload.augment.checks import check_batch, check_fields, check_instances, check_steps, check_targets
from mmload.augment.copy_paste import CopyPaste
from mmload.augment.draws import Draws, SharedEpoch, epoch_of_loader, fresh_seeds
from mmload.augment.given_samples import Given, given_samples
from mmload.augment.mosaic import Mosaic, Tiles
from mmload.augment.prepared_batch import CollateSettings, PreparedBatch, on_device
from mmload.augment.step import white
from mmload.batch import Batch
from mmload.errors import shown
from mmload.render.plan import Plan
from mmload.render.torch_sampling import OwnMasks
from mmload.runtime.memory_pool import MemoryPool
from mmload.runtime.random_words import Numbers


def _seeds_of(batch: Batch, generator: torch.Generator | None = None) -> Numbers:
    """Returns a batch's seeds, int64 [B]; fresh ones if it has none."""
    if batch.seeds is None:
        return fresh_seeds(batch.batch_size[0], generator)
    seeds: Numbers = batch.seeds.numpy()
    return seeds


_FORMATS = (torch.contiguous_format, torch.channels_last)


class Collate(nn.Module):
    """Steps of :mod:`mmload.augment` and other modules, rendered in as few passes over the pixels as possible.

    The first steps that compose are rendered at once; from the first that does not, the rest runs after it in order,
    again in as few passes as possible. Images stay uint8, as in torchvision, until Normalize or a step that needs
    floats; a foreign module gets images in ``dtype``, scaled to [0, 1] unless Normalize stands before it. Without steps
    this is the plain conversion: torchvision's ``ToDtype(dtype, scale=True)``.

    It is picklable, works as ``collate_fn`` of ``torch.utils.data.DataLoader`` and as the first part of a model:
    ``nn.Sequential(collate, model)``. Results depend on the samples' seeds alone, not on the batch they are in.

    Args:
        steps: steps in order, or lists of them; the draws of a step are keyed by its position.
        device: device of the batches that come out; None: that of the images that come in. Images are rendered there,
            but where a step makes samples of several rows.
        dtype: dtype of the images that come out: uint8 or floating.
        memory_format: ``torch.contiguous_format`` or ``torch.channels_last``.
        box_rule: decides which boxes remain after they were clipped; None: those with sides of a pixel or more.

    Raises:
        TypeError: if a step is not a module.
        ValueError: if ``dtype`` or ``memory_format`` is something else, or a step cannot be done right in this dtype or
            order: Normalize or MixUp to uint8, ColorJitter after Normalize.
    """

    def __init__(
        self,
        *steps: nn.Module | Sequence[nn.Module],
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
        box_rule: BoxRule | None = None,
    ) -> None:
        super().__init__()
        listed: list[Any] = [
            step for given in steps for step in (given if isinstance(given, list | tuple) else [given])
        ]
        check_steps(listed, dtype)
        if not isinstance(memory_format, torch.memory_format) or memory_format not in _FORMATS:
            raise argument_error("memory_format", memory_format, "torch.contiguous_format or torch.channels_last")
        self.steps = nn.ModuleList(listed)
        self.device = None if device is None else torch_device(device)
        self.dtype = dtype
        self.memory_format = memory_format
        if not isinstance(box_rule, BoxRule | None):
            raise TypeError(f"box_rule is {shown(box_rule)}, expected a BoxRule or None")
        self.box_rule = box_rule or BoxRule()
        self._memory = MemoryPool(spare=2)
        self._epoch = SharedEpoch()

    @property
    def is_random(self) -> bool:
        """Whether results may depend on the samples' seeds."""
        return any(getattr(step, "is_random", True) for step in self.steps)

    @property
    def composer(self) -> Mosaic | None:
        """Step that composes samples of several rows; None: there is none."""
        first = self.steps[0] if len(self.steps) else None
        return first if isinstance(first, Mosaic) else None

    @property
    def joining_step(self) -> str:
        """Name of the first step that makes samples of several rows, which is done on a CPU; "": there is none."""
        return next((type(step).__name__ for step in self.steps if isinstance(step, Mosaic | CopyPaste)), "")

    @property
    def _pasting(self) -> tuple[int, CopyPaste] | None:
        """Place of the one CopyPaste and the step; None: there is none."""
        return next(((place, step) for place, step in enumerate(self.steps) if isinstance(step, CopyPaste)), None)

    @property
    def has_partners(self) -> bool:
        """Whether samples may need partners: a batch to prepare has the partners behind the samples."""
        return self._pasting is not None

    def with_partners(
        self, rows: Numbers, seeds: Numbers, total: int, ids: Callable[[Numbers], Numbers]
    ) -> tuple[Numbers, Numbers]:
        """Draws partners; returns rows and seeds of B samples and of P partners behind them, int64 [B + P] each.

        Args:
            rows: int64 [B], row of each sample.
            seeds: int64 [B].
            total: number of rows to draw from.
            ids: returns the row at each of these places, int64 [...].
        """
        pasting = self._pasting
        if pasting is None:
            return rows, seeds
        place, step = pasting
        drawn, own = step.partners(Draws(seeds, place), total, ids)
        return np.concatenate((rows, drawn)), np.concatenate((seeds, own))

    @property
    def epoch(self) -> int | None:
        """Epoch of the next batches: of the loader that calls in this thread, else as set; None: not known."""
        of_loader = epoch_of_loader()
        return self._epoch.get() if of_loader is None else of_loader

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next batches, for steps that depend on it; an mmload Loader needs no such call.

        With a ``DataLoader``, call it before each epoch, the first included; its worker processes see it, persistent
        ones too.

        Raises:
            ValueError: if it is no integer from 0.
        """
        self._epoch.set(integer("epoch", epoch, least=0, greatest=(1 << 63) - 1, expected="an integer from 0"))

    @overload
    def forward(self, batch: Tensor | np.ndarray[Any, Any], generator: torch.Generator | None = None) -> Tensor: ...

    @overload
    def forward(self, batch: Batch | Sequence[Any], generator: torch.Generator | None = None) -> Batch: ...

    # It runs as it is: there is nothing in it that torch could compile on a CPU. Compile the model alone: of a compiled
    # nn.Sequential with a collate in it torch compiles nothing, as it skips loops that it cannot trace.
    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch leaves it untyped
    def forward(
        self, batch: Tensor | np.ndarray[Any, Any] | Batch | Sequence[Any], generator: torch.Generator | None = None
    ) -> Tensor | Batch:
        """Renders a batch.

        Draws are made in host memory: of a batch on a device, the fields but images are copied there and back, which
        waits for the device. Bare images, and a batch in host memory that goes to a device, are not waited for.

        Args:
            batch: images [B, C, H, W], a tensor or a NumPy array (also uint8 [B, H, W, C]); a Batch with such images,
                or with variable-size ones, as :meth:`Split.rows` gives them; or a list: of rows of a split, of images
                (tensors [C, H, W], NumPy arrays [H, W, C], PIL images) of equal or other sizes, of (image, label)
                pairs, or of dicts with ``image`` and ``label``, or with ``boxes`` float [n, 4] and ``labels`` [n].
            generator: generator of seeds if the batch has none; None: torch's default one of the CPU.

        Returns:
            Images for images, else a Batch, in the collate's dtype and memory format.
        """
        made = self.render(given_samples(batch), generator, self._memory)
        return made.images if isinstance(batch, Tensor | np.ndarray) else made

    def render(self, given: Given, generator: torch.Generator | None, memory: MemoryPool) -> Batch:
        """Renders samples, in memory of a pool if on a CPU; seeds that they do not have are drawn by the generator.

        Variable-size images are rendered on a CPU.
        """
        device = self.device or given.one.device
        is_rendered_there = device.type != "cpu" and given.sizes is None and not self.joining_step
        given = given.moved(device if is_rendered_there else torch.device("cpu"))
        seeds = _seeds_of(given.batch, generator)
        if self.has_partners:
            count = len(seeds)
            numbers, seeds = self.with_partners(np.arange(count), seeds, count, lambda drawn: drawn)
            given = given.chosen(torch.from_numpy(numbers))
            given.batch.seeds = torch.from_numpy(seeds)
        batch, images, masks = given
        source = given.one.dtype
        prepared = self.prepare(batch, given.shape, source=source, seeds=seeds, sizes=given.sizes, masks=masks)
        if is_rendered_there:
            return prepared.finish(prepared.render_images(images))
        out = memory.empty(prepared.shape, prepared.dtype, prepared.memory_format)
        prepared.render_batch(images, out)
        finished = prepared.finish(out)
        return finished if device.type == "cpu" else on_device(finished, device)

    def prepare(
        self,
        batch: Batch,
        shape: tuple[int, int, int],
        *,
        source: torch.dtype = torch.uint8,
        seeds: Numbers | None = None,
        sizes: Numbers | None = None,
        masks: OwnMasks | None = None,
        framed: bool = False,
        tiles: Tiles | None = None,
    ) -> PreparedBatch:
        """Draws and describes a batch whose images are yet to be read.

        Args:
            batch: everything but the images, which are ignored, in host memory; with the partners of
                :meth:`with_partners`.
            shape: (C, H, W) of the images as stored; (C, 0, 0) if ``sizes`` are given.
            source: dtype of the images.
            seeds: int64 [B]; None: those of the batch, else fresh ones.
            sizes: int64 [B, 2], height and width of each image; None: images are fixed-size.
            masks: masks in place of the batch's if ``sizes`` are given; None: there are none.
            framed: whether images to which no step gives one size are put on a canvas of the largest.
            tiles: rows that the :attr:`composer` composes samples of; None: it draws them among those of the batch.

        Returns:
            The prepared batch, to be rendered row by row or at once, and then finished.
        """
        check_batch(batch, shape, source, sizes)
        steps, pasting = list(self.steps), self._pasting
        check_fields(steps, boxes=batch.boxes is not None, masks=batch.masks is not None or masks is not None)
        check_instances(batch, None if pasting is None else pasting[1])
        check_targets(steps, batch.targets)
        if seeds is None:
            seeds = _seeds_of(batch)
        if pasting is not None:
            place, step = pasting
            step.applied(Draws(seeds, place))
        if sizes is None:
            plan = Plan.unchanged(len(seeds), shape, white(source))
        else:
            plan = Plan.unchanged_sizes(sizes, shape[0])
        settings = CollateSettings(
            steps=steps,
            composer=self.composer,
            dtype=self.dtype,
            memory_format=self.memory_format,
            box_rule=self.box_rule,
            epoch=self.epoch,
        )
        return PreparedBatch(settings, batch, seeds, plan, source, masks, framed, tiles)
