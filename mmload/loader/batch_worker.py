"""Makes a batch in a worker thread: rows from the tier, through the collate, into pooled memory or to the device.

It takes row numbers and an epoch, and returns a :class:`Delivery` for the training thread. It never decides the order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from mmload.augment.collate import Collate, batch_of_epoch
from mmload.augment.draws import sample_seeds
from mmload.augment.foreign_modules import has_per_sample
from mmload.augment.prepared_batch import PreparedBatch
from mmload.augment.views import Views, collates_of
from mmload.batch import Batch, BatchOrViews, make_batch
from mmload.errors import MmloadError
from mmload.loader.order import RowSelection
from mmload.loader.stored_rows import lines_of
from mmload.loader.tiers import Tier, make_tier, read_masks, sizes_of, tier_of_files
from mmload.render.image_lines import Places
from mmload.runtime.memory_pool import MemoryPool
from mmload.store.row_numbers import shown_rows
from mmload.store.split_views import AnySplit

if TYPE_CHECKING:
    from mmload.loader.device_batches import DeviceBatches, DeviceDecoder, ResidentRows


class Delivery(Protocol):
    """Batch as a worker thread leaves it."""

    def receive(self) -> BatchOrViews:
        """Returns the finished batch. Called once, in the training thread."""


class Statistics(NamedTuple):
    """Counters of the threads that make batches.

    Attributes:
        read_seconds: time spent reading rows that were gathered at once, all threads together.
        render_seconds: time spent rendering, including reading row by row.
        hits: rows that were in memory.
        misses: rows that had to be read.
        note: how the rows are in memory now, as a sentence, or "".
    """

    read_seconds: float = 0.0
    render_seconds: float = 0.0
    hits: int = 0
    misses: int = 0
    note: str = ""


class BatchWorker:
    """Work of a loader's threads, which share memory, tier and device. Thread-safe.

    Args:
        split: source of the rows.
        fields: fields to read.
        collate: makes the batch of the rows; None: the rows as stored.
        device: device of the batches.
        tier: "disk", "memory" or "device".
        seed: seed of the loader.
        batch_size: largest number of rows per batch.
        slots: number of batches that can be alive in the loader at once.
        framed: see :meth:`mmload.augment.collate.Collate.prepare`.
        decoded: whether the tier "memory" keeps the pixels of JPEGs.
        decode: decoder of JPEGs, one of :data:`~mmload.loader.arguments.DECODERS`.
        new_pool: makes the memory of images, once per view; None: ordinary memory.

    Attributes:
        read_seconds: time spent reading rows that were gathered at once, all threads together.
        render_seconds: time spent rendering, including reading row by row.
    """

    def __init__(
        self,
        split: AnySplit,
        fields: Sequence[str],
        collate: Callable[[Batch], BatchOrViews] | None,
        *,
        device: torch.device,
        tier: str,
        seed: int,
        batch_size: int,
        slots: int,
        framed: bool = False,
        cache_pixels: bool = False,
        decode: str = "cpu",
        new_pool: Callable[[], MemoryPool] | None = None,
    ) -> None:
        self._framed = framed
        self._split, self._collate, self._seed = split, collate, seed
        views = collates_of(collate)
        # PerSample uses the global generators: the training thread runs it, so that no other thread draws from them.
        self._finish_in_training = has_per_sample(collate)
        self._others = [name for name in fields if name != "images" and not split.fields[name].variable_size]
        # Large rows beside the images, such as masks, come from maps of their files, too; small ones stay in memory.
        large = [name for name in fields if name != "images" and not split.reader.is_column(name)]
        self._large: dict[str, Tier] = {name: tier_of_files(split.reader.field(name)) for name in large}
        self._masks = None if "masks" in self._others else self._large.get("masks")  # of variable size
        new_pool = new_pool or partial(MemoryPool, slots)
        self._memory = new_pool()
        self._view_memories = [new_pool() for _ in views]
        self._tier = make_tier(tier, split, device, cache_pixels) if "images" in fields else None
        self._smaller = decode == "scaled"
        self._lock = threading.Lock()
        self.read_seconds = self.render_seconds = 0.0
        self._resident: ResidentRows | None = None
        self._on_device: DeviceDecoder | ResidentRows | None = None
        self._device_batches: DeviceBatches | None = None
        self._send: Callable[[HostBatch], Delivery] | None = None
        if device.type == "cuda":
            self._use_device(device, tier, decode, batch_size, slots)

    def _use_device(self, device: torch.device, tier: str, decode: str, batch_size: int, slots: int) -> None:
        """Prepares what batches on a CUDA device need, which the CPU path does not import."""
        from mmload.loader import device_batches as on_device

        port = on_device.CudaPort(device)
        late = self._finish_in_training
        self._send = partial(on_device.LateBatch if late else on_device.send_finished, port)
        if self._tier is not None and self._tier.rows.spec.variable_size:
            decoder = on_device.DeviceDecoder(self._tier, port, decode)
            if tier == "device":
                self._on_device = self._resident = on_device.ResidentRows(decoder, port, len(self._split))
            elif decode == "cuda":
                self._on_device = decoder
            return
        copied = self._others if self._tier is None or tier == "device" else [*self._others, "images"]
        self._device_batches = on_device.DeviceBatches(
            port,
            {name: self._split.fields[name] for name in copied},
            tier=self._tier,
            collate=self._collate,
            batch_size=batch_size,
            slots=slots,
        )

    def statistics(self) -> Statistics:
        """Returns counters since the worker was made."""
        source = self._resident or self._tier
        times = self.read_seconds, self.render_seconds
        return Statistics(*times, source.hits, source.misses, source.note) if source else Statistics(*times)

    def make(self, selection: RowSelection, epoch: int) -> Delivery:
        """Does everything for a batch that can run outside the training thread.

        Args:
            selection: rows of the batch.
            epoch: seeds the samples, with the loader's seed and the rows; and for steps that follow it.

        Raises:
            StoreError: if the dataset was overwritten by another since it was opened.
            Exception: from reading or the collate, with a note that names the dataset and the rows.
        """
        self._split.check_changed()  # rows in memory are not read, so no file would show it
        try:
            rows = selection.rows
            seeds = sample_seeds(self._seed, epoch, rows, selection.occurrences)
            if self._device_batches is not None:
                return self._device_batches.ship(rows, seeds, epoch, self._fill)
            if self._on_device is not None:
                views, began = self._prepared(self._without_images(rows, seeds), rows, epoch), perf_counter()
                batch = self._on_device.batch(rows, partial(self._made_of, views))
                self.add_seconds(render=perf_counter() - began)
                return batch
            host_batch = self._host_batch(rows, seeds, epoch)
            if not self._finish_in_training:
                host_batch.finish()
            return host_batch if self._send is None else self._send(host_batch)
        except MmloadError:
            raise
        except Exception as error:
            error.add_note(f"while making a batch of {self._split!r}: {shown_rows(selection.rows)}")
            raise

    def add_seconds(self, *, read: float = 0.0, render: float = 0.0) -> None:
        """Adds to the time spent. Thread-safe."""
        with self._lock:
            self.read_seconds += read
            self.render_seconds += render

    def _without_images(self, rows: Tensor, seeds: Tensor) -> Batch:
        """Reads the rows' fields of fixed size, except images, into host memory."""
        fields = {name: self._read(name, rows) for name in self._others}
        return make_batch(fields, len(rows), ids=rows, seeds=seeds)

    def _read(self, name: str, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Reads rows of a field of fixed size, into ``out`` or new memory."""
        tier = self._tier if name == "images" else self._large.get(name)
        if tier is None:
            return self._split.reader.gather(name, rows, out)
        if out is None:
            spec = tier.rows.spec
            out = torch.empty((len(rows), *spec.shape), dtype=spec.torch_dtype)
        tier.gather_into(rows, out)
        return out

    def _made_of(self, views: Sequence[PreparedBatch], images: list[Tensor]) -> BatchOrViews:
        """Returns the batch of variable-size images, [C, h, w] on a device."""
        made = tuple(view.finish(view.render_images(images, images[0].device)) for view in views)
        return made if isinstance(self._collate, Views) else made[0]

    def _host_batch(self, rows: Tensor, seeds: Tensor, epoch: int) -> HostBatch:
        """Makes a batch in host memory, with its images read and, by a Collate, rendered."""
        batch = self._without_images(rows, seeds)
        if self._tier is None:
            return HostBatch(self, self._collate, batch, epoch)
        if not isinstance(self._collate, Collate | Views):
            batch.images = self._gathered(self._tier, rows)
            return HostBatch(self, self._collate, batch, epoch)
        views = self._prepared(batch, rows, epoch)
        return HostBatch(self, self._collate, batch, epoch, list(zip(views, self._rendered(views, rows), strict=True)))

    def _prepared(self, batch: Batch, rows: Tensor, epoch: int) -> Sequence[PreparedBatch]:
        """Draws for a batch without images, once per view."""
        if self._tier is None or not isinstance(self._collate, Collate | Views):
            raise RuntimeError("no images are read, or a collate has no draws")
        spec, sizes, masks = self._tier.rows.spec, None, None
        channels, height, width = spec.shape
        if spec.variable_size:
            height = width = 0
            sizes = sizes_of(self._tier.rows, rows)
            masks = None if self._masks is None else read_masks(self._masks, rows, sizes)
        with batch_of_epoch(epoch):
            prepared = self._collate.prepare(
                batch,
                (channels, height, width),
                source=spec.torch_dtype,
                sizes=sizes,
                masks=masks,
                framed=self._framed,
            )
        return prepared if isinstance(prepared, tuple) else (prepared,)

    def _gathered(self, tier: Tier, rows: Tensor) -> Tensor:
        """Reads the rows' images as they are stored into pooled memory."""
        began, spec = perf_counter(), tier.rows.spec
        images = self._memory.empty((len(rows), *spec.shape), spec.torch_dtype)
        tier.gather_into(rows, images)
        self.add_seconds(read=perf_counter() - began)
        return images

    def _rendered(self, views: Sequence[PreparedBatch], rows: Tensor) -> list[Tensor]:
        """Renders each view's images, as far as steps compose, into pooled memory.

        Rows are read once. If they are uint8, a few at a time are rendered for all views, while they are in cache.
        """
        if self._tier is None:
            raise RuntimeError("no images are read")
        spec = self._tier.rows.spec
        outs = [
            memory.empty(view.shape, view.dtype, view.memory_format)
            for view, memory in zip(views, self._view_memories, strict=True)
        ]
        if spec.torch_dtype != torch.uint8:
            images = self._gathered(self._tier, rows)
            began = perf_counter()
            for view, out in zip(views, outs, strict=True):
                view.render_batch(images, out)
            self.add_seconds(render=perf_counter() - began)
            return outs
        began, first = perf_counter(), 0
        needed = _needed_by(views, self._smaller) if spec.variable_size else None
        for stored in self._tier.parts(rows, needed):
            lines, stop = lines_of(stored, self._tier.rows), first + len(stored.rows)
            for view, out in zip(views, outs, strict=True):
                view.render_lines(first, lines, out[first:stop])
            first = stop
        self.add_seconds(render=perf_counter() - began)
        return outs

    def _fill(self, name: str, rows: Tensor, buffer: Tensor) -> None:
        """Reads rows of one field into a pinned buffer."""
        began = perf_counter()
        self._read(name, rows, buffer)
        self.add_seconds(read=perf_counter() - began)


def _needed_by(views: Sequence[PreparedBatch], smaller: bool) -> Places:
    """Returns the lines that any of the views needs of each row, :data:`NEEDED` [B], in the size that suits all.

    A smaller image needs one more line at each side, for the rounding of its edges.
    """
    each = np.stack([view.needed for view in views])
    needed: Places = each[0].copy()
    needed["shrink"] = each["shrink"].min(0) if smaller else 1
    more = np.where(needed["shrink"] > 1, needed["shrink"], 0)
    needed["first"] = np.maximum(each["first"].min(0) - more, 0)
    needed["stop"] = each["stop"].max(0) + more
    return needed


class HostBatch:
    """Batch in host memory: a :class:`Delivery` that may still have steps to run.

    Args:
        worker: counts the time.
        collate: makes the batch.
        batch: its rows; without images where ``views`` are given.
        epoch: epoch of the batch.
        views: the batch as a Collate, or each of a Views, has drawn it, and the images to finish.
    """

    def __init__(
        self,
        worker: BatchWorker,
        collate: Callable[[Batch], BatchOrViews] | None,
        batch: Batch,
        epoch: int,
        views: Sequence[tuple[PreparedBatch, Tensor]] = (),
    ) -> None:
        self._worker, self._collate, self._epoch = worker, collate, epoch
        self._made: BatchOrViews = batch
        self._batch, self._views = batch, views
        self._is_finished = False

    def finish(self) -> None:
        """Runs the remaining steps."""
        if self._views:
            began = perf_counter()
            made = tuple(prepared.finish(rendered) for prepared, rendered in self._views)
            self._made = made if isinstance(self._collate, Views) else made[0]
            self._worker.add_seconds(render=perf_counter() - began)
        elif self._collate is not None:
            with batch_of_epoch(self._epoch):
                self._made = self._collate(self._batch)
        self._is_finished = True

    def receive(self) -> BatchOrViews:
        """Finishes the batch if needed and returns it."""
        if not self._is_finished:
            self.finish()
        return self._made
