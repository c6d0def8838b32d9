"""Makes a batch in a worker thread: rows from the tier, through the collate, into pooled memory or to the device.

It takes row numbers and an epoch, and returns a :class:`Delivery` for the training thread. It never decides the order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.augment.collate import Collate
from mmload.augment.draws import sample_seeds
from mmload.augment.epochs import batch_of_epoch
from mmload.augment.per_sample import has_per_sample
from mmload.augment.prepared_batch import PreparedBatch
from mmload.augment.views import Views, collates_of
from mmload.batch import Batch, Made, make_batch
from mmload.errors import MmloadError
from mmload.loader.device_batches import DeviceBatches
from mmload.loader.device_rows import DeviceDecoder, LateSent, ResidentRows, WholeOnDevice, sent
from mmload.loader.device_transfer import CudaPort
from mmload.loader.order import Taken
from mmload.loader.stored_rows import lines_of
from mmload.loader.tiers import Tier, make
from mmload.loader.whole_tiers import WholeTier, make_whole, own_masks
from mmload.runtime.memory_pool import MemoryPool
from mmload.store.row_numbers import shown_rows
from mmload.store.split_views import Rows

PART_BYTES = 768 * 2**10
"""Bytes of rows that a thread reads at a time before it renders them: small enough to stay in cache."""


class Delivery(Protocol):
    """A batch as a worker thread leaves it."""

    def receive(self) -> Made:
        """The finished batch. Called once, in the training thread."""


class BatchWorker:
    """The work of a loader's threads, which share memory, tier and device; thread-safe.

    Args:
        split: where rows come from.
        fields: which of its fields to read.
        collate: makes the batch of the rows; None: the rows as stored.
        device: where batches go.
        tier: "disk", "memory" or "device".
        seed: the loader's.
        batch_size: the largest batch.
        slots: how many batches can be alive in the loader at once.
        framed: as :meth:`mmload.augment.collate.Collate.prepare` has it.
        decoded: whether the tier "memory" keeps the pixels of JPEGs.
        decode: what decodes JPEGs, one of :data:`~mmload.loader.arguments.DECODERS`.

    Attributes:
        read_seconds: time spent reading rows that were gathered at once, all threads together.
        render_seconds: time spent rendering, including reading row by row.
    """

    def __init__(
        self,
        split: Rows,
        fields: Sequence[str],
        collate: Callable[[Batch], Made] | None,
        *,
        device: torch.device,
        tier: str,
        seed: int,
        batch_size: int,
        slots: int,
        framed: bool = False,
        decoded: bool = False,
        decode: str = "cpu",
    ) -> None:
        self._framed = framed
        self._split, self._collate, self._seed = split, collate, seed
        views = collates_of(collate)
        # PerSample uses the global generators: the training thread runs it, so that no other thread draws from them.
        self._finish_in_training = has_per_sample(collate)
        self._others = [name for name in fields if name != "images" and not split.fields[name].own_sizes]
        self._own_masks = len(self._others) + ("images" in fields) < len(fields)
        self._memory = MemoryPool(spare=slots)
        self._view_memories = [MemoryPool(spare=slots) for _ in views]
        self._spec = split.fields["images"] if "images" in fields else None
        self._whole = self._tier = None
        if self._spec is not None and self._spec.own_sizes:
            self._whole = make_whole(tier, split, decoded)
        elif self._spec is not None:
            self._tier = make(tier, split, device)
        self._smaller = decode == "scaled"
        self._scratch = threading.local()
        self._lock = threading.Lock()
        self.read_seconds = self.render_seconds = 0.0
        self._resident: ResidentRows | None = None
        self._port = CudaPort(device) if device.type == "cuda" else None
        self._on_device: WholeOnDevice | None = None
        self._device_batches: DeviceBatches | None = None
        if self._port is not None and self._whole is not None:
            decoder = DeviceDecoder(self._whole, self._port, decode)
            if tier == "device":
                self._on_device = self._resident = ResidentRows(decoder, self._port, len(split))
            elif decode == "cuda":
                self._on_device = decoder
        elif self._port is not None:
            copied = self._others if self._tier is None or tier == "device" else [*self._others, "images"]
            self._device_batches = DeviceBatches(
                self._port,
                {name: split.fields[name] for name in copied},
                tier=self._tier,
                collate=collate,
                batch_size=batch_size,
                slots=slots,
            )

    @property
    def hits(self) -> int:
        """Rows that were in memory."""
        return self._source.hits if self._source else 0

    @property
    def misses(self) -> int:
        """Rows that had to be read."""
        return self._source.misses if self._source else 0

    @property
    def sharing(self) -> str:
        """Who shares the rows in memory now, as a sentence, or ""."""
        return self._source.sharing if self._source else ""

    @property
    def _source(self) -> ResidentRows | Tier | WholeTier | None:
        """Where images are read from."""
        return self._resident or self._tier or self._whole

    def make(self, taken: Taken, epoch: int) -> Delivery:
        """Do everything for a batch that need not run in the training thread.

        Args:
            taken: the rows.
            epoch: seeds the samples, with the loader's seed and the rows; and for steps that follow it.

        Raises:
            StoreError: if the dataset was overwritten by another since it was opened.
            Exception: from reading or the collate, with a note that names the dataset and the rows.
        """
        self._split.check_changed()  # rows in memory are not read, so no file would show it
        try:
            rows = taken.rows
            seeds = sample_seeds(self._seed, epoch, rows, taken.occurrences)
            if self._device_batches is not None:
                return self._device_batches.ship(rows, seeds, epoch, self._fill)
            if self._on_device is not None:
                views, began = self._prepared(self._without_images(rows, seeds), rows, epoch), perf_counter()
                batch = self._on_device.batch(rows, partial(self._made_of, views))
                self.add_seconds(render=perf_counter() - began)
                return batch
            host_batch = self._host_batch(rows, seeds, epoch)
            if self._finish_in_training:
                return host_batch if self._port is None else LateSent(self._port, host_batch)
            host_batch.finish()
            return host_batch if self._port is None else sent(self._port, host_batch.receive())
        except MmloadError:
            raise
        except Exception as error:
            error.add_note(f"while making a batch of {self._split!r}: {shown_rows(taken.rows)}")
            raise

    def add_seconds(self, *, read: float = 0.0, render: float = 0.0) -> None:
        """Add to the time spent. Thread-safe."""
        with self._lock:
            self.read_seconds += read
            self.render_seconds += render

    def _without_images(self, rows: Tensor, seeds: Tensor) -> Batch:
        """The rows' fields of one size each but images, read into host memory."""
        fields = {name: self._split.reader.gather(name, rows) for name in self._others}
        return make_batch(fields, len(rows), ids=rows, seeds=seeds)

    def _made_of(self, views: Sequence[PreparedBatch], images: list[Tensor]) -> Made:
        """The batch of images of a size each, [C, h, w] on a device."""
        made = tuple(view.finish(view.render_images(images, images[0].device)) for view in views)
        return made if isinstance(self._collate, Views) else made[0]

    def _host_batch(self, rows: Tensor, seeds: Tensor, epoch: int) -> HostBatch:
        """A batch in host memory, with its images read and, by a Collate, rendered."""
        batch = self._without_images(rows, seeds)
        if self._spec is None:
            return HostBatch(self, self._collate, batch, epoch)
        if not isinstance(self._collate, Collate | Views):
            batch.images = self._gathered(rows)
            return HostBatch(self, self._collate, batch, epoch)
        views = self._prepared(batch, rows, epoch)
        return HostBatch(self, self._collate, batch, epoch, list(zip(views, self._rendered(views, rows), strict=True)))

    def _prepared(self, batch: Batch, rows: Tensor, epoch: int) -> Sequence[PreparedBatch]:
        """A batch without images as the Collate has drawn it, or as each of the Views has."""
        if self._spec is None or not isinstance(self._collate, Collate | Views):
            raise RuntimeError("no images are read, or a collate has no draws")
        channels, height, width = self._spec.shape
        shape, sizes, masks = (channels, height, width), None, None
        if self._whole is not None:
            shape, sizes = (channels, 0, 0), self._whole.sizes(rows)
            masks = own_masks(self._split, rows, sizes) if self._own_masks else None
        with batch_of_epoch(epoch):
            prepared = self._collate.prepare(
                batch, shape, source=self._spec.torch_dtype, sizes=sizes, masks=masks, framed=self._framed
            )
        return prepared if isinstance(prepared, tuple) else (prepared,)

    def _gathered(self, rows: Tensor) -> Tensor:
        """The rows' images as they are stored, in pooled memory."""
        if self._tier is None or self._spec is None:
            raise RuntimeError("no images are read")
        began = perf_counter()
        images = self._memory.empty((len(rows), *self._spec.shape), self._spec.torch_dtype)
        self._tier.gather_into(rows, images)
        self.add_seconds(read=perf_counter() - began)
        return images

    def _rendered(self, views: Sequence[PreparedBatch], rows: Tensor) -> list[Tensor]:
        """Each view's images after the steps that compose, in pooled memory.

        Rows are read once. If they are uint8, a few at a time are rendered for all views, while they are in cache.
        """
        outs = [
            memory.empty(view.shape, view.dtype, view.memory_format)
            for view, memory in zip(views, self._view_memories, strict=True)
        ]
        if self._whole is not None:
            began = perf_counter()
            _render_whole(views, outs, self._whole, rows, self._smaller)
            self.add_seconds(render=perf_counter() - began)
            return outs
        if self._tier is None or self._spec is None:
            raise RuntimeError("no images are read")
        if self._spec.torch_dtype != torch.uint8:
            images = self._gathered(rows)
            began = perf_counter()
            for view, out in zip(views, outs, strict=True):
                view.render_batch(images, out)
            self.add_seconds(render=perf_counter() - began)
            return outs
        began = perf_counter()
        if not hasattr(self._scratch, "rows"):
            count = max(1, PART_BYTES // self._spec.row_bytes)
            self._scratch.rows = torch.empty((count, *self._spec.shape), dtype=torch.uint8)
        first = 0
        for images, indices in self._tier.parts(rows, self._scratch.rows):
            # All rows of a part at once for a view: the memory tier's part is the whole batch, and splitting it to keep
            # rows in cache between views made DINO's ten crops 4 to 8 % slower, as every call has a cost of its own.
            for view, out in zip(views, outs, strict=True):
                view.render_rows(first, images, indices, out[first : first + len(indices)])
            first += len(indices)
        self.add_seconds(render=perf_counter() - began)
        return outs

    def _fill(self, name: str, rows: Tensor, buffer: Tensor) -> None:
        """Rows of one field into a pinned buffer."""
        began = perf_counter()
        if name == "images" and self._tier is not None:
            self._tier.gather_into(rows, buffer)
        else:
            self._split.reader.gather(name, rows, out=buffer)
        self.add_seconds(read=perf_counter() - began)


def _needed_by(views: Sequence[PreparedBatch], smaller: bool) -> npt.NDArray[np.int64]:
    """The lines of each row that any of the views needs, and how many times smaller all of them take it: [B, 3].

    Of a smaller image a line more is needed at each side, for where its lines end.
    """
    firsts, stops = zip(*(view.needed.T for view in views), strict=True)
    shrinks = np.minimum.reduce([view.shrinks if smaller else np.ones_like(view.needed[:, 0]) for view in views])
    more = np.where(shrinks > 1, shrinks, 0)
    return np.stack((np.maximum(np.minimum.reduce(firsts) - more, 0), np.maximum.reduce(stops) + more, shrinks), 1)


def _render_whole(
    views: Sequence[PreparedBatch], outs: Sequence[Tensor], tier: WholeTier, rows: Tensor, smaller: bool
) -> None:
    """Renders all views of rows of a size each from one read, of the lines that any of the views needs."""
    needed, first = _needed_by(views, smaller), 0
    needed[:, 1] = np.minimum(needed[:, 1], tier.sizes(rows)[:, 0].numpy())
    for stored in tier.parts(rows, needed):
        lines, stop = lines_of(stored, tier.reader), first + len(stored.rows)
        for view, out in zip(views, outs, strict=True):
            view.render_lines(first, lines, out[first:stop])
        first = stop


class HostBatch:
    """A batch in host memory: a :class:`Delivery` that may still have steps to run.

    Args:
        worker: counts the time.
        collate: makes the batch.
        batch: its rows; without images where ``views`` are given.
        epoch: the batch's.
        views: the batch as a Collate, or each of a Views, has drawn it, and the images to finish.
    """

    def __init__(
        self,
        worker: BatchWorker,
        collate: Callable[[Batch], Made] | None,
        batch: Batch,
        epoch: int,
        views: Sequence[tuple[PreparedBatch, Tensor]] = (),
    ) -> None:
        self._worker, self._collate, self._epoch = worker, collate, epoch
        self._made: Made = batch
        self._batch, self._views = batch, views
        self._is_finished = False

    def finish(self) -> None:
        """Run the remaining steps."""
        if self._views:
            began = perf_counter()
            made = tuple(prepared.finish(rendered) for prepared, rendered in self._views)
            self._made = made if isinstance(self._collate, Views) else made[0]
            self._worker.add_seconds(render=perf_counter() - began)
        elif self._collate is not None:
            with batch_of_epoch(self._epoch):
                self._made = self._collate(self._batch)
        self._is_finished = True

    def receive(self) -> Made:
        """See :class:`Delivery`."""
        if not self._is_finished:
            self.finish()
        return self._made
