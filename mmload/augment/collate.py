"""Collate renders stored uint8 rows into the batch that training gets.

It takes a :class:`~mmload.batch.Batch` with images uint8 [B, C, H, W], a list of rows, or the images alone, and returns
the same. Its steps are divided into passes over the pixels: a first pass renders the steps that compose, and the
others, boxes and masks follow. All that is drawn and described is in host memory; a device gets copies of it. Nothing
here reads files. Checks run once per collate or per batch, on shapes and dtypes; only the values of float images are
read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmload.augment.arguments import argument_error, integer, torch_device
from mmload.augment.boxes import BoxRule, Fields, Trail, boxes_in, check_counts, drop_boxes, move_fields
from mmload.augment.color import Normalize
from mmload.augment.copy_paste import CopyPaste
from mmload.augment.foreign_modules import PerSample, check_foreign, moves
from mmload.augment.given_samples import Given, given_samples, on_device
from mmload.augment.mix import MixStep, mixed_fields
from mmload.augment.mosaic import Mosaic, Tiles
from mmload.augment.step import (
    GEOMETRY,
    AfterStep,
    DeclaredStep,
    Draws,
    LevelStep,
    Step,
    check_dtype,
    check_shape,
    epoch_of_loader,
    following_fields,
    fresh_seeds,
    plan_for,
    white,
    with_following,
)
from mmload.augment.tile_geometry import TileRows
from mmload.batch import Batch, fields_of
from mmload.errors import shown
from mmload.records import SEGMENT_FIELDS, segment_fields
from mmload.render.plan import DoesNotFit, Plan
from mmload.render.rendering import ImageLines, Rendering
from mmload.runtime.host_memory import MemoryPool
from mmload.runtime.random_words import Numbers

_FORMATS = (torch.contiguous_format, torch.channels_last)


class HasCollates(nn.Module, ABC):
    """Base of Collate and Views. A module that only passes on the attributes of one, as a compiled one, is no such."""

    @property
    @abstractmethod
    def collates(self) -> tuple[Collate, ...]:
        """The collate of each view."""


class Collate(HasCollates):
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
        with torch.inference_mode(False):  # else it could not be set outside of that mode
            self._epoch = torch.full((1,), -1, dtype=torch.int64, device="cpu")

    @property
    def is_random(self) -> bool:
        """Whether results may depend on the samples' seeds."""
        return any(getattr(step, "is_random", True) for step in self.steps)

    @property
    def composer(self) -> Mosaic | None:
        """Step that composes samples of several rows; None: there is none."""
        return next((step for step in self.steps if isinstance(step, Mosaic)), None)

    @property
    def collates(self) -> tuple[Collate, ...]:
        """The collate alone, as Views have the collate of each view."""
        return (self,)

    @property
    def joining_step(self) -> str:
        """Name of the first step that makes samples of several rows, which is done on a CPU; "": there is none."""
        return next((type(step).__name__ for step in self.steps if isinstance(step, Mosaic | CopyPaste)), "")

    @property
    def has_partners(self) -> bool:
        """Whether samples may need partners: a batch to prepare has the partners behind the samples."""
        return bool(self._pastes)

    @property
    def _pastes(self) -> list[tuple[int, CopyPaste]]:
        """The step that pastes objects, with its place; there is one at most."""
        return [(place, step) for place, step in enumerate(self.steps) if isinstance(step, CopyPaste)]

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
        for place, step in self._pastes:
            drawn, own = step.partners(Draws(seeds, place), total, ids)
            rows, seeds = np.concatenate((rows, drawn)), np.concatenate((seeds, own))
        return rows, seeds

    @property
    def epoch(self) -> int | None:
        """Epoch of the next batches: of the loader that calls in this thread, else as set; None: not known."""
        of_loader = epoch_of_loader.get()
        epoch = int(self._epoch) if of_loader is None else of_loader
        return None if epoch < 0 else epoch

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next batches, for steps that depend on it; an mmload Loader needs no such call.

        With a ``DataLoader``, call it before each epoch, the first included; its worker processes see it, persistent
        ones too.

        Raises:
            ValueError: if it is no integer from 0.
        """
        self._epoch.share_memory_().fill_(integer("epoch", epoch, least=0, greatest=(1 << 63) - 1))  # type: ignore[no-untyped-call]  # torch has none

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
        made = self.render(given_samples(batch), generator)
        return made.images if isinstance(batch, Tensor | np.ndarray) else made

    def render(self, given: Given, generator: torch.Generator | None, memory: MemoryPool | None = None) -> Batch:
        """Renders samples; seeds that they do not have are drawn by the generator.

        Variable-size images are rendered on a CPU. Memory there is of a pool: ``memory``; None: the collate's.
        """
        device = self.device or given.one.device
        is_rendered_there = device.type != "cpu" and given.sizes is None and not self.joining_step
        given = given.moved(device if is_rendered_there else torch.device("cpu"))
        seeds = _seeds_of(given.batch, generator)
        if self.has_partners:
            count = len(seeds)
            numbers, seeds = self.with_partners(np.arange(count), seeds, count, lambda drawn: drawn)
            given = given.chosen(numbers)
            given.batch.seeds = torch.from_numpy(seeds)
        images, source = given.images, given.one.dtype
        prepared = self.prepare(given.batch, given.shape, source=source, seeds=seeds, sizes=given.sizes, own=given.own)
        if is_rendered_there:
            return prepared.finish(prepared.render_images(images))
        out = (memory or self._memory).empty(prepared.shape, prepared.dtype, prepared.memory_format)
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
        framed: bool = False,
        tiles: Tiles | None = None,
        own: Mapping[str, Any] = MappingProxyType({}),
    ) -> PreparedBatch:
        """Draws and describes a batch whose images are yet to be read.

        Args:
            batch: everything but the images, which are ignored, in host memory; with the partners of
                :meth:`with_partners`.
            shape: (C, H, W) of the images as stored; H and W are ignored if ``sizes`` are given.
            source: dtype of the images.
            seeds: int64 [B]; None: those of the batch, else fresh ones.
            sizes: int64 [B, 2], height and width of each image; None: images are fixed-size.
            framed: whether images to which no step gives one size are put on a canvas of the largest.
            tiles: rows that the :attr:`composer` composes samples of; None: it draws them among those of the batch.
            own: fields that the batch does not have: arrays, which keep the interpreter lock, and the ``masks`` of
                variable-size images, as :class:`~mmload.render.torch_sampling.OwnMasks`.

        Returns:
            The prepared batch, to be rendered row by row or at once, and then finished.
        """
        check_batch(batch, shape, source, sizes)
        check_fields(self.steps, {**fields_of(batch), **own, **({} if tiles is None else tiles.fields)})
        seeds = _seeds_of(batch) if seeds is None else seeds
        if sizes is None:
            plan = Plan.unchanged(len(seeds), shape, white(source))
        else:
            plan = Plan.unchanged_sizes(sizes, shape[0])
        return PreparedBatch(self, batch, seeds, plan, source, framed, tiles, own)


def collates_of(collate: object) -> tuple[Collate, ...]:
    """Returns the collates of Views, or a Collate as a tuple of one; an empty tuple for anything else."""
    return collate.collates if isinstance(collate, HasCollates) else ()


def has_per_sample(collate: object) -> bool:
    """Returns whether there is a :class:`PerSample` somewhere in a collate."""
    return isinstance(collate, nn.Module) and any(isinstance(module, PerSample) for module in collate.modules())


class _End(nn.Module):
    """End of a list of steps, as one more step: each pass ends before a step that it cannot take, or before this."""


class PreparedBatch:
    """Batch whose draws are made and whose pixels are yet to be rendered.

    On a CPU, call :meth:`render_batch`, or render rows by ``rendering``, and then :meth:`finish`; on a device
    :meth:`copy_to`, :meth:`render_images` and :meth:`finish`.

    All passes up to the first module that needs pixels are described, and boxes, masks and targets have gone through
    them, as NumPy arrays: what cannot be done is refused before a pixel is rendered. It has everything but the images,
    of which ``start`` is the plan that changes nothing, and its seeds, int64 [B]; all of this is in host memory.
    ``own`` are fields beside its own. Without ``tiles``, the composer draws them among the rows of the batch.

    Attributes:
        rendering: the first pass.
        shape: [B, C, h, w] of the memory to render into.
        dtype: dtype of that memory.
        memory_format: memory format of that memory.
        tile_rows: rows that the samples are composed of; None: each is made of its own row.
    """

    def __init__(
        self,
        collate: Collate,
        batch: Batch,
        seeds: Numbers,
        start: Plan,
        source: torch.dtype,
        framed: bool,
        tiles: Tiles | None,
        own: Mapping[str, Any],
    ) -> None:
        self._collate, self._steps, self._epoch = collate, [*collate.steps, _End()], collate.epoch
        self._framed, self._seeds = framed, seeds
        # Only what may change is an array: each of a tensor gives the interpreter lock away when it dies.
        unchanged = () if any(isinstance(step, MixStep) for step in collate.steps) else ("targets",)
        self._batch, self._made = batch, following_fields(fields_of(batch), unchanged)
        self._fields = {**self._made, **own}  # as passes have changed those of the batch
        if "boxes" in self._fields:
            check_counts(self._fields)
        self._copied: tuple[Batch, Batch] | None = None  # the batch, and its copy on the images' device
        self._trail: Trail | None = None
        self.tile_rows: TileRows | None = None
        first, composer = 0, collate.composer
        if composer is not None:
            tiles = tiles or composer.tiles_of(batch, self._draws(0), start.source, source, start.sizes)
            start, composed, self._trail = composer.composed(tiles, self._draws(0), start.source[0])
            self._fields = self._fields | composed
            self.tile_rows, first = tiles.rows, 1
        self.rendering, following = self._described(first, start, source)
        self._follow(self.rendering.plan)
        self.shape = self.rendering.plan.shape
        self.dtype = self.rendering.dtype
        self.memory_format = collate.memory_format
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
            step = self._steps[self._next]
            if isinstance(step, _End):
                break
            images = self._changed(step, images)
            passes = self._described_passes(self._next + 1, images.shape, images.dtype)
        images = self._converted(images).contiguous(memory_format=self.memory_format)
        finished: Batch = self._batch_on(images.device).replace(images=images)
        return finished

    def _described_passes(self, at: int, shape: Sequence[int], dtype: torch.dtype) -> list[Rendering]:
        """Describes the passes from step ``at``, up to a module or the end, and takes boxes, masks and targets along.

        ``shape`` [B, C, H, W] and ``dtype`` are of the images that come in.
        """
        passes = []
        while isinstance(self._steps[at], Step):
            count, channels, height, width = shape
            nothing = Plan.unchanged(count, (channels, height, width), white(dtype))
            rendering, at = self._described(at, nothing, dtype)
            self._follow(rendering.plan)
            passes.append(rendering)
            shape, dtype = rendering.plan.shape, rendering.dtype
        self._next = at
        if self._trail is not None and isinstance(self._steps[at], AfterStep | _End):
            self._fields, self._trail = drop_boxes(self._fields, self._trail, self._collate.box_rule), None
        if not isinstance(self._steps[at], _End):  # such a module may move pixels
            self._fields = {name: value for name, value in self._fields.items() if name != "image_sizes"}
        return passes

    def _changed(self, step: nn.Module, images: Tensor) -> Tensor:
        """Runs a module that needs pixels on rendered images, and perhaps on the batch."""
        if not isinstance(step, AfterStep):
            images = self._converted(images)
            return check_output(step, step(images), images, self._collate.dtype, self._fields)
        batch = self._batch_on(images.device).replace(images=images)
        changed = step.changed(batch, self._draws(self._next), self._collate.box_rule)
        on_host = images.device.type == "cpu"
        self._batch = changed if on_host else on_device(changed.replace(images=None), torch.device("cpu"))
        self._fields = self._made = following_fields(fields_of(self._batch))
        self._seeds = self._seeds[: len(changed)]  # partners of the samples may be gone
        return check_output(step, changed.images, images[: len(changed)], self._collate.dtype, self._fields)

    def _batch_on(self, device: torch.device) -> Batch:
        """Returns the batch on a device, to which it is copied once."""
        if self._fields is not self._made:
            self._batch, self._made = with_following(self._batch, self._fields, self._made), self._fields
        if device.type == "cpu":
            return self._batch
        if self._copied is None or self._copied[0] is not self._batch:
            self._copied = self._batch, on_device(self._batch, device)
        return self._copied[1]

    def _follow(self, plan: Plan) -> None:
        """Takes boxes, masks and targets through a pass."""
        if self._fields or plan.is_framed:
            self._fields, self._trail = move_fields(self._fields, plan, self._trail)
        if plan.mixing is not None:
            self._fields = mixed_fields(self._fields, plan, plan.mixing)

    def _converted(self, images: Tensor) -> Tensor:
        """Converts images to the collate's dtype, scaled to [0, 1] if they were integers."""
        if images.dtype == self._collate.dtype:
            return images
        return Rendering(plan_for(images), self._collate.dtype).rendered(images, self.memory_format)

    def _described(self, at: int, plan: Plan, source: torch.dtype) -> tuple[Rendering, int]:
        """Describes the pass from step ``at``; returns it and the place of the first step after it.

        The plan is of images of dtype ``source`` and changes nothing. If the batch is framed, images that are
        variable-size at the first step that needs one size, or at the end, get a canvas.
        """
        while isinstance(step := self._steps[at], Step):
            if plan.is_variable_size and not step.takes_sizes:
                if self._framed:
                    plan = plan.framed()
                elif not isinstance(step, LevelStep):
                    break
            try:
                plan = step.describe(plan, self._draws(at))
            except DoesNotFit:
                break
            at += 1
        if self._framed and plan.is_variable_size and not _takes_sizes(step):
            plan = plan.framed()
        if plan.is_variable_size:
            raise ValueError(_variable_size_message(self._steps, at))
        return Rendering(plan, _dtype_before(self._steps, at, plan, source, self._collate.dtype)), at

    def _draws(self, at: int) -> Draws:
        """Returns the draws of step ``at``."""
        boxes = partial(boxes_in, self._fields, trail=self._trail) if "boxes" in self._fields else None
        return Draws(self._seeds, at, epoch=self._epoch, ids=self._batch.ids, boxes=boxes)


def _seeds_of(batch: Batch, generator: torch.Generator | None = None) -> Numbers:
    """Returns a batch's seeds, int64 [B]; fresh ones if it has none."""
    if batch.seeds is None:
        return fresh_seeds(batch.batch_size[0], generator)
    seeds: Numbers = batch.seeds.numpy()
    return seeds


def _takes_sizes(step: nn.Module) -> bool:
    """Returns whether a step takes variable-size images, so that it only did not fit into its pass."""
    return isinstance(step, Step) and step.takes_sizes


def _variable_size_message(steps: Sequence[nn.Module], at: int) -> str:
    """Returns the message where no step before ``at`` gives variable-size images one size."""
    made = "RandomResizedCrop, Resize((height, width)), Letterbox, or a crop"
    if isinstance(steps[at], _End):
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
    are_levels = source == torch.uint8 and plan.shift is None and not plan.blends
    return source if are_levels and isinstance(steps[at], Step | AfterStep) else dtype


OUTPUT_DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Permitted dtypes of rendered images."""


def check_steps(steps: Sequence[nn.Module], dtype: torch.dtype) -> None:
    """Rejects steps that give garbage in this dtype or order.

    Raises:
        TypeError: if a step is not a module.
        ValueError: if the dtype is not one of :data:`OUTPUT_DTYPES`, or a step cannot stand where it stands.
    """
    if not isinstance(dtype, torch.dtype) or dtype not in OUTPUT_DTYPES:
        raise argument_error("dtype", dtype, "torch.uint8 or one of float16, bfloat16, float32, float64")
    if sum(isinstance(step, CopyPaste) for step in steps) > 1:
        raise ValueError("CopyPaste is there several times; put it in once, as each sample has one partner")
    normalized = False
    for place, step in enumerate(steps):
        name = type(step).__name__
        if not isinstance(step, nn.Module):
            raise TypeError(f"{shown(step)} is not an nn.Module: wrap a function in a module with a forward")
        if isinstance(step, Mosaic) and place:
            raise ValueError("Mosaic comes after other steps; put it first, as it composes rows as they are stored")
        if not isinstance(step, DeclaredStep):
            check_foreign(step)
        if dtype == torch.uint8 and isinstance(step, Step) and step.makes_floats:
            raise ValueError(f"{name} makes floats, but dtype is torch.uint8; give the collate a floating dtype")
        if normalized and isinstance(step, LevelStep):
            raise ValueError(
                f"{name} comes after Normalize and would clamp its values to [0, 1]; put it before Normalize"
            )
        normalized |= isinstance(step, Normalize)


def check_fields(steps: Iterable[nn.Module], fields: Mapping[str, Any]) -> None:
    """Rejects fields that steps need, or would leave behind.

    Raises:
        ValueError: if a step moves pixels or mixes samples, and boxes or masks cannot follow, or it lacks what it
            needs; or if fields of masks of instances are incomplete.
    """
    segment_fields({name: fields[name].shape[1:] for name in SEGMENT_FIELDS.keys() & fields.keys()})
    for step in steps:
        if isinstance(step, DeclaredStep):
            step.check_fields(fields)
        elif fields.keys() & GEOMETRY and moves(step):
            name = type(step).__name__
            raise ValueError(
                f"{name} may move pixels but not boxes and masks; set keeps_geometry = True on it if it moves "
                "none, or use PerSample with a torchvision v2 transform"
            )


def check_batch(batch: Batch, shape: tuple[int, int, int], source: torch.dtype, sizes: Numbers | None) -> None:
    """Rejects a batch whose fields do not fit each other.

    It has everything but the images, of whose shape (C, H, W) and dtype it is told, and of their sizes, int64 [B, 2],
    if they are variable-size.

    Raises:
        TypeError: if a field has another dtype than it must have.
        ValueError: if it has another shape.
    """
    check_dtype(source)
    if len(batch.batch_size) != 1:
        raise ValueError(f"batch_size is {list(batch.batch_size)}, expected [B]: stack rows, or give a list of them")
    (count,) = batch.batch_size
    if sizes is None:
        check_shape(shape)
    else:
        _check_tensor("sizes", sizes, (count, 2), (np.dtype(np.int64),))
        if count:
            check_shape((shape[0], int(sizes[:, 0].min()), int(sizes[:, 1].min())))
        if batch.masks is not None:
            raise ValueError("the images are variable-size, but their masks are not; give masks of the same sizes")
    checked: dict[str, tuple[tuple[int, ...], Sequence[Any]]] = {
        "masks": ((count, *shape[1:]), (torch.uint8,)),
        "seeds": ((count,), (torch.int64,)),
        "ids": ((count,), (torch.int64,)),
    }
    if batch.boxes is not None:
        if batch.boxes.dim() != 3:
            raise ValueError(f"boxes have the shape {tuple(batch.boxes.shape)}, expected [B, M, 4]")
        most = batch.boxes.shape[1]
        checked |= {
            "boxes": ((count, most, 4), (torch.float32, torch.float64)),
            "labels": ((count, most), (torch.int64,)),
            "difficult": ((count, most), (torch.bool,)),
            "counts": ((count,), (torch.int64,)),
        }
    for name, (expected, dtypes) in checked.items():
        field = getattr(batch, name)
        if field is not None:
            _check_tensor(name, field, expected, dtypes)


def _check_tensor(name: str, tensor: Tensor | Numbers, shape: tuple[int, ...], dtypes: Sequence[Any]) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name} have the shape {tuple(tensor.shape)}, expected {shape} beside these images")
    if tensor.dtype not in dtypes:
        raise TypeError(f"{name} are {tensor.dtype}, expected {' or '.join(map(str, dtypes))}")


def check_values(images: Tensor, steps: Iterable[nn.Module]) -> None:
    """Rejects float images on a CPU whose white is not 1, before steps whose result depends on it.

    On other devices nobody looks: the device would be waited for at every batch.

    Raises:
        ValueError: if a value lies outside of [0, 1].
    """
    if images.device.type != "cpu" or not images.is_floating_point() or not images.numel():
        return
    if any(isinstance(step, Normalize | LevelStep) for step in steps):
        least, greatest = map(float, images.aminmax())
        if not (least >= -0.01 and greatest <= 1.01):
            raise ValueError(
                f"images are {images.dtype} with values from {least:g} to {greatest:g}: give uint8 levels, or floats "
                "from 0 to 1"
            )


def check_output(step: nn.Module, images: object, before: Tensor, dtype: torch.dtype, fields: Fields) -> Tensor:
    """Checks the images that a step made of the images ``before``, of a batch with ``fields``, and returns them.

    Raises:
        TypeError: if it is no tensor, or one of another dtype.
        ValueError: if it is no batch of as many images.
    """
    name = type(step).__name__
    if not isinstance(images, Tensor):
        raise TypeError(f"{name} gave {type(images).__name__}, expected a tensor [B, C, H, W]")
    if images.dim() != 4 or len(images) != len(before):
        raise ValueError(f"{name} made {tuple(images.shape)} of images {tuple(before.shape)}, expected [B, C, H, W]")
    if images.dtype != torch.uint8 and (dtype == torch.uint8 or not images.is_floating_point()):
        raise TypeError(
            f"{name} gave {images.dtype}, but dtype is {dtype}; give uint8, or floats in a collate of a floating dtype"
        )
    if images.shape[2:] != before.shape[2:] and fields.keys() & GEOMETRY and not isinstance(step, AfterStep):
        raise ValueError(
            f"{name} resized images {tuple(before.shape)} to {tuple(images.shape)} but not their boxes or masks; use "
            "PerSample with a torchvision v2 transform"
        )
    return images
