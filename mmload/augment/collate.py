"""Collate renders stored uint8 rows into the batch that training gets.

It takes a :class:`~mmload.batch.Batch` with images uint8 [B, C, H, W], a list of rows, or the images alone, and returns
the same. Steps that can be described are rendered in one pass; the others run after it. It never reads files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import torch
from tensordict import lazy_stack
from torch import Tensor, nn

from mmload.augment.arguments import argument_error, integer, torch_device
from mmload.augment.boxes import BoxRule
from mmload.augment.checks import check_batch, check_fields, check_instances, check_steps, check_targets
from mmload.augment.copy_paste import CopyPaste
from mmload.augment.draws import Draws, SharedEpoch, epoch_of_loader, fresh_seeds
from mmload.augment.given_samples import EXPECTED, images_of, samples_of
from mmload.augment.mosaic import Mosaic, Tiles
from mmload.augment.prepared_batch import PreparedBatch, on_device
from mmload.augment.step import white
from mmload.batch import Batch, lazy_rows
from mmload.errors import counted, shown
from mmload.render.kernel_arguments import ImageLines
from mmload.render.plan import Plan
from mmload.render.torch_sampling import OwnMasks
from mmload.runtime.memory_pool import MemoryPool
from mmload.runtime.random_words import Numbers


def stacked_rows(batch: Batch | Sequence[Batch]) -> Batch:
    """Returns rows as one batch, which is a lazy stack where their images differ in size."""
    if isinstance(batch, Batch):
        return batch
    rows: list[Any] = list(batch)
    try:
        stacked: Any = lazy_stack(rows) if variable_size_rows(rows) else torch.stack(rows)
    except RuntimeError as error:  # of tensordict
        advice = "as several datasets pad boxes to different numbers; give the datasets to mmload.Loader"
        raise ValueError(f"rows cannot be stacked, perhaps {advice} ({error})") from error
    whole: Batch = stacked
    return whole


def batch_given(given: Any) -> tuple[Batch, Sequence[Tensor] | None, OwnMasks | None]:
    """Returns what a collate is called with as a batch; if images differ in size, they and their masks are apart.

    Raises:
        TypeError, ValueError: if it is none of :data:`~mmload.augment.given_samples.EXPECTED`.
    """
    if isinstance(given, np.ndarray):
        given = images_of(given)
    if isinstance(given, Tensor):
        if given.dim() != 4:
            raise ValueError(f"images have the shape {tuple(given.shape)}, expected [B, C, H, W]")
        return Batch(images=given, batch_size=[len(given)]), None, None
    if not isinstance(given, Batch) and (not isinstance(given, Sequence) or isinstance(given, str) or not given):
        raise TypeError(f"got {shown(given) if given or given is None else 'an empty list'}, expected {EXPECTED}")
    if isinstance(given, Batch) or all(isinstance(row, Batch) for row in given):
        if rows := variable_size_rows(given):
            return split_rows(rows)
        return stacked_rows(given), None, None
    batch, images = samples_of(given)
    if len({image.shape for image in images}) == 1:
        return batch.replace(images=torch.stack(images)), None, None
    if batch.masks is not None:
        raise ValueError("images differ in size, so their masks cannot be stacked: build a dataset, or resize them")
    return batch, images, None


def variable_size_rows(batch: Batch | Sequence[Batch]) -> Sequence[Batch]:
    """Returns the rows of a batch or list if their images differ in size; none if they do not."""
    rows = lazy_rows(batch) if isinstance(batch, Batch) else batch
    images = [row.images for row in rows if isinstance(row, Batch) and isinstance(row.images, Tensor)]
    return rows if len(images) == len(rows) and len({image.shape for image in images}) > 1 else ()


def _seeds_of(batch: Batch, generator: torch.Generator | None = None) -> Numbers:
    """Returns a batch's seeds, int64 [B]; fresh ones if it has none."""
    if batch.seeds is None:
        return fresh_seeds(batch.batch_size[0], generator)
    seeds: Numbers = batch.seeds.numpy()
    return seeds


def fields_on_host(batch: Batch, images: Tensor) -> Batch:
    """Returns a batch whose fields are in host memory, which waits for the images' device; images may be left out."""
    if images.device.type == "cpu":
        return batch
    return on_device(batch.replace(images=None), torch.device("cpu"))


def split_rows(rows: Sequence[Batch]) -> tuple[Batch, list[Tensor], OwnMasks | None]:
    """Divides rows with variable-size images into a batch without images and masks, the images, and the masks.

    Raises:
        TypeError: if an image or mask is not uint8.
        ValueError: if an image is not [C, h, w], or has another number of channels than the first; or if some rows have
            no mask, or one of another size than its image.
    """
    images = [row.images for row in rows]
    for image in images:
        if image.dtype != torch.uint8:
            raise TypeError(f"variable-size images are {image.dtype}, expected torch.uint8")
        if image.dim() != 3 or image.shape[0] != images[0].shape[0]:
            shapes = tuple(image.shape), tuple(images[0].shape)
            raise ValueError(f"images have the shapes {shapes[0]} and {shapes[1]}, expected [C, h, w] with the same C")
    masks = _masks_of(rows)
    stacked = stacked_rows([row.replace(images=None, masks=None) for row in rows])
    return stacked.replace(images=None, masks=None), images, masks  # of None, stack makes a list


def _masks_of(rows: Sequence[Batch]) -> OwnMasks | None:
    """Joins the masks of rows whose images are variable-size."""
    masks: list[Tensor] = []
    for row in rows:
        if row.masks is None:
            continue
        if row.masks.dtype != torch.uint8:
            raise TypeError(f"variable-size masks are {row.masks.dtype}, expected torch.uint8")
        if row.masks.shape != row.images.shape[1:]:
            raise ValueError(
                f"masks have the shape {tuple(row.masks.shape)}, but images {tuple(row.images.shape)}; "
                "give both the same size"
            )
        masks.append(row.masks.reshape(-1))
    if not masks:
        return None
    if len(masks) < len(rows):
        raise ValueError(f"{len(masks)} of {len(rows)} rows have masks: give all of them, or none")
    ends = torch.tensor([len(mask) for mask in masks], device="cpu").cumsum(0)
    return OwnMasks(torch.cat(masks), ends - torch.tensor([len(mask) for mask in masks], device="cpu"))


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
        given, images, masks = batch_given(batch)
        if images is not None:
            return self.render_sizes(given, images, masks, generator=generator)
        made = self.render(given, given.images, generator=generator)
        return made.images if isinstance(batch, Tensor | np.ndarray) else made

    def render_sizes(
        self,
        batch: Batch,
        images: Sequence[Tensor],
        masks: OwnMasks | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Batch:
        """Renders variable-size images on a CPU.

        Args:
            batch: everything but the images and masks.
            images: uint8 [C, h, w], one a sample.
            masks: masks with the sizes of the images; None: there are none.
            generator: generator of seeds if the batch has none; None: torch's default one.

        Returns:
            The batch with images in the collate's dtype and memory format, on the collate's device.
        """
        if self.has_partners:
            batch, numbers = self._paired(batch, generator)
            images = [images[k] for k in numbers.tolist()]
            masks = None if masks is None else masks._replace(starts=masks.starts[numbers])
        sizes = np.array([image.shape[1:] for image in images], np.int64).reshape(-1, 2)
        seeds = _seeds_of(batch, generator)
        prepared = self.prepare(batch, (images[0].shape[0], 0, 0), seeds=seeds, sizes=sizes, masks=masks)
        if prepared.tile_rows is not None:
            images = [images[row] for row in prepared.tile_rows.numbers.tolist()]
        out = self._memory.empty(prepared.shape, prepared.dtype, prepared.memory_format)
        prepared.render_lines(0, ImageLines.of_images(images), out)
        finished = prepared.finish(out)
        return finished if self.device is None else on_device(finished, self.device)

    def render(
        self,
        batch: Batch,
        images: Tensor,
        indices: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        memory: MemoryPool | None = None,
    ) -> Batch:
        """Renders a batch from images that are somewhere else, such as a complete split.

        Args:
            batch: everything but the images, which are ignored.
            images: uint8 [N, C, H, W].
            indices: int64 [B], the image of each sample; None: image k is sample k.
            generator: generator of seeds if the batch has none; None: torch's default one.
            memory: pool of the output on a CPU; None: the collate's own.

        Returns:
            The batch with images in the collate's dtype and memory format.
        """
        if images is None or images.dim() != 4:
            got = "missing" if images is None else f"of the shape {tuple(images.shape)}"
            raise ValueError(f"images are {got}, expected [B, C, H, W]")
        if indices is None and len(images) != batch.batch_size[0]:
            raise ValueError(
                f"got {counted(len(images), 'image')} for a batch of {counted(batch.batch_size[0], 'sample')}; "
                "give one per sample"
            )
        batch, device = fields_on_host(batch, images), self.device or images.device
        is_rendered_there = device.type != "cpu" and not self.joining_step
        images = images.to(device, non_blocking=True) if is_rendered_there else images.cpu()
        if self.has_partners:
            batch, numbers = self._paired(batch, generator)
            indices = numbers if indices is None else indices[numbers]
        shape = images.shape[1], images.shape[2], images.shape[3]
        prepared = self.prepare(batch, shape, source=images.dtype, seeds=_seeds_of(batch, generator))
        if is_rendered_there:
            return prepared.finish(prepared.render_images(images if indices is None else images[indices], device))
        out = (memory or self._memory).empty(prepared.shape, prepared.dtype, prepared.memory_format)
        prepared.render_batch(images, out, indices)
        finished = prepared.finish(out)
        return finished if device.type == "cpu" else on_device(finished, device)

    def _paired(self, batch: Batch, generator: torch.Generator | None) -> tuple[Batch, Tensor]:
        """Returns a batch's samples and partners, which are others of it, and their numbers, int64 [B + P]."""
        count = batch.batch_size[0]
        numbers, seeds = self.with_partners(np.arange(count), _seeds_of(batch, generator), count, lambda drawn: drawn)
        chosen = torch.from_numpy(numbers)
        return batch.replace(images=None)[chosen].replace(seeds=torch.from_numpy(seeds)), chosen

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
        return PreparedBatch(self, batch, seeds, plan, source, masks, framed, tiles)
