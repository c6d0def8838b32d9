"""Makes a batch in a worker thread: rows from the tier, through the collate, into pooled memory or to the device.

It takes row numbers and an epoch, and returns a :class:`Delivery` for the training thread. It never decides the order.

Batches for a CUDA device are copied on a stream of the loader's threads, beside the training thread's stream. A copy
begins in memory of PyTorch's pinned allocator, which uses it again when the copy is done. The training thread does not
wait: its stream waits for the event behind the copies, and the memory on the device is not used again before the work
on that stream which reads it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.augment.collate import Collate, PreparedBatch, collates_of, has_per_sample
from mmload.augment.given_samples import on_device
from mmload.augment.mosaic import Tiles
from mmload.augment.step import Draws, batch_of_epoch, box_fields, seeds_of
from mmload.augment.views import Views
from mmload.batch import Batch, BatchOrViews, make_batch
from mmload.loader.order import RowSelection
from mmload.loader.tiers import Bytes, DeviceTier, HostTier, check_cuda, tier_of_files
from mmload.render.kernel_arguments import NEEDED, Places
from mmload.render.rendering import KERNEL_DTYPES, ImageLines
from mmload.render.torch_sampling import OwnMasks
from mmload.runtime.host_memory import MemoryPool, copied
from mmload.runtime.kernels import RecordArray, numba_compiled
from mmload.store.dataset import View, noting_rows
from mmload.store.row_numbers import Numbers
from mmload.store.row_reader import PaddedLists, memory_of, sizes_of

Delivery = Callable[[], BatchOrViews]
"""Finishes a batch as a worker thread leaves it, and returns it; called once, in the training thread."""


def as_it_is(batch: Any) -> Any:
    """Returns a batch, in place of a collate or of another form."""
    return batch


def as_made(made: BatchOrViews) -> Delivery:
    """Returns what returns the batch, as it is."""
    return lambda: made


class LoadingStatistics(NamedTuple):
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


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """Settings of the batches of a loader.

    Attributes:
        view: source of the rows, and which of them are read.
        fields: fields to read.
        collate: makes the batch of the rows; None: the rows as stored.
        device: device of the batches.
        tier: "disk", "memory" or "device".
        seed: seed of the loader.
        batch_size: largest number of rows per batch.
        slots: number of batches that can be alive in the loader at once.
        framed: see :meth:`mmload.augment.collate.Collate.prepare`.
        decode: decoder of JPEGs, one of :data:`~mmload.loader.loader.DECODERS`.
        ranks: number of ranks of this machine that read an epoch together.
    """

    view: View
    fields: Sequence[str]
    collate: Callable[[Batch], BatchOrViews] | None
    device: torch.device
    tier: str
    seed: int
    batch_size: int
    slots: int
    framed: bool
    decode: str
    ranks: int


class BatchWorker:
    """Work of a loader's threads, which share memory, tier and device. Thread-safe.

    Images come from a tier, or from the device. Beside them there are the ``_others``, of a fixed size or lists; those
    of them with ``_large`` rows have tiers of their own; and ``_masks`` of variable size, which have one, too.
    """

    def __init__(self, settings: BatchSettings) -> None:
        split, fields, collate = settings.view.rows, settings.fields, settings.collate
        self._settings, self._split = settings, split
        self._collate = as_it_is if collate is None else collate
        views = collates_of(collate)
        self._composer = collate.composer if isinstance(collate, Collate) else None
        # PerSample uses the global generators: the training thread runs it, so that no other thread draws from them.
        self._finish_in_training = has_per_sample(collate)
        self._others = [name for name in fields if name != "images" and not split.fields[name].variable_size]
        shapes = {name: split.fields[name].shape for name in self._others}
        self._composed = box_fields(shapes) if views else []
        # Arrays, of which a collate makes tensors once: each tensor that dies gives the interpreter lock away.
        self._boxes = [
            name
            for name in self._composed
            if split.reader.is_column(name) and split.fields[name].dtype != "bfloat16"  # which NumPy lacks
        ]
        # Beside the images, fields of large rows, such as masks, are read from maps of their files, too.
        large = [name for name in fields if name != "images" and not split.reader.is_column(name)]
        ranks = settings.ranks
        self._large: dict[str, HostTier] = {name: tier_of_files(split.reader.field(name), ranks) for name in large}
        self._masks = None if "masks" in self._others else self._large.get("masks")  # of variable size
        self._memory = MemoryPool(settings.slots)
        self._view_memories = [MemoryPool(settings.slots) for _ in views]
        self._images = split.reader.field("images") if "images" in fields else None
        self._tier: HostTier | None = None
        self._device_tier: DeviceTier | None = None
        if self._images is not None and settings.tier == "device" and settings.device.type != "cpu":
            self._device_tier = DeviceTier(split, settings.device)
        elif self._images is not None:
            self._tier = tier_of_files(self._images, ranks, populate=settings.tier in ("memory", "device"))
        self._lock = threading.Lock()
        self._read_seconds = self._render_seconds = 0.0
        self._side_stream: SideStream | None = None
        self._send: Callable[[BatchOrViews], Delivery] = as_made
        if settings.device.type == "cuda":
            self._side_stream = SideStream(settings.device)
            self._send = self._side_stream.send

    def statistics(self) -> LoadingStatistics:
        """Returns counters since the worker was made."""
        source, times = self._tier or self._device_tier, (self._read_seconds, self._render_seconds)
        return (
            LoadingStatistics(*times, source.hits, source.misses, source.note) if source else LoadingStatistics(*times)
        )

    def make(self, selection: RowSelection, epoch: int) -> Delivery:
        """Does everything for a batch that can run outside the training thread.

        The epoch seeds the samples, with the loader's seed and the rows; and it is for steps that follow it.

        Raises:
            Exception: from reading or the collate, with a note that names the dataset and the rows.
        """
        rows = selection.rows
        with noting_rows("making a batch of", self._split, rows):
            seeds = seeds_of(self._settings.seed, epoch, rows, selection.occurrences)
            side = self._side_stream
            if side is not None and self._is_rendered_there:
                return self._sent(side, rows, seeds, epoch)
            finish = self._begun(rows, seeds, epoch)
            return partial(self._finished_later, finish) if self._finish_in_training else self._send(finish())

    def _finished_later(self, finish: Delivery) -> BatchOrViews:
        """Finishes a batch and sends it, in the training thread."""
        return self._send(finish())()

    def _add_seconds(self, *, read: float = 0.0, render: float = 0.0) -> None:
        """Adds to the time spent. Thread-safe."""
        with self._lock:
            self._read_seconds += read
            self._render_seconds += render

    def _without_images(self, rows: Numbers, seeds: Numbers, tiles: Tiles | None = None) -> Batch:
        """Reads the rows' fields of fixed size, except images, into host memory.

        Those that will be composed of the tiles', and those of boxes that a collate gets as arrays, are not read.
        """
        left_out = self._boxes if tiles is None else self._composed
        fields = {name: self._read(name, rows) for name in self._others if name not in left_out}
        return make_batch(fields, len(rows), ids=torch.from_numpy(rows), seeds=torch.from_numpy(seeds))

    def _arrays(self, rows: Numbers) -> dict[str, Any]:
        """Reads the rows' fields of boxes that a collate gets as arrays."""
        return {name: self._split.reader.values(name, rows) for name in self._boxes}

    def _read(self, name: str, rows: Numbers) -> Tensor:
        """Reads rows of a field of fixed size, but images, into new memory."""
        tier, reader, spec = self._large.get(name), self._split.reader, self._split.fields[name]
        if tier is None:
            return reader.gather(name, rows)
        if tier.rows.spec.is_list:
            values = read_lists(tier, reader.lists(name), rows)
            reader.check_parts(name, rows, values)
            return torch.from_numpy(values)
        out = torch.empty((len(rows), *spec.shape), dtype=spec.torch_dtype, device="cpu")
        gather(tier, rows, out)
        return out

    @property
    def _is_rendered_there(self) -> bool:
        """Whether the device renders batches: their images are fixed-size, and none is made of several rows."""
        joins = isinstance(self._collate, Collate) and bool(self._collate.joining_step)
        return not joins and (self._images is None or not self._images.spec.variable_size)

    def _sent(self, side: SideStream, rows: Numbers, seeds: Numbers, epoch: int) -> Delivery:
        """Makes a batch in host memory and queues its copies to the device; returns what renders it there."""
        collate, device = self._collate, side.device
        batch = self._without_images(rows, seeds)
        views = self._prepared(batch, rows, seeds, epoch)
        stored = None if self._tier is None else self._gathered(self._tier, rows)

        def copy() -> tuple[Any, ...]:
            images = stored if self._device_tier is None else self._device_tier.images_at(rows)
            images = None if images is None else images.to(device, non_blocking=True)
            return images, *([view.copy_to(device) for view in views] if views else [on_device(batch, device)])

        receive = side.queue(copy)

        def deliver() -> BatchOrViews:
            images, there, *_ = receive()
            if views:
                return self._finished_views(views, [view.render_images(images) for view in views])
            if images is not None:
                there.images = images
            with batch_of_epoch(epoch):
                made: BatchOrViews = collate(there)
            return made

        return deliver

    def _begun(self, rows: Numbers, seeds: Numbers, epoch: int) -> Delivery:
        """Makes a batch in host memory, with its images read and, by a Collate, rendered; returns what finishes it."""
        collate, view = self._collate, self._settings.view
        if isinstance(collate, Collate) and collate.has_partners and self._tier is not None:
            rows, seeds = collate.with_partners(rows, seeds, len(view), view.ids)
        tiles = self._tiles(rows, seeds, epoch)
        batch = self._without_images(rows, seeds, tiles)
        views = self._prepared(batch, rows, seeds, epoch, tiles)
        if views and self._tier is not None:
            read = rows if tiles is None else tiles.rows.numbers
            return partial(self._finished_views, views, self._rendered(self._tier, views, read))
        if self._tier is not None:
            batch.images = self._gathered(self._tier, rows)

        def finish() -> BatchOrViews:
            with batch_of_epoch(epoch):
                return collate(batch)

        return finish

    def _finished_views(self, views: Sequence[PreparedBatch], rendered: Sequence[Tensor]) -> BatchOrViews:
        """Runs the steps that need rendered pixels."""
        began = perf_counter()
        made = tuple(view.finish(images) for view, images in zip(views, rendered, strict=True))
        self._add_seconds(render=perf_counter() - began)
        return made if isinstance(self._collate, Views) else made[0]

    def _tiles(self, rows: Numbers, seeds: Numbers, epoch: int) -> Tiles | None:
        """Draws the rows that samples are composed of, and reads their sizes and boxes; None: of their own."""
        if self._images is None or self._composer is None:
            return None
        view = self._settings.view
        drawn = self._composer.tile_rows(Draws(seeds, 0, epoch=epoch), rows, len(view), view.ids)
        fields = self._arrays(drawn.numbers) | {
            name: self._read(name, drawn.numbers) for name in self._composed if name not in self._boxes
        }
        return Tiles(drawn, sizes_of(self._images.located(drawn.numbers)), fields)

    def _prepared(
        self, batch: Batch, rows: Numbers, seeds: Numbers, epoch: int, tiles: Tiles | None = None
    ) -> Sequence[PreparedBatch]:
        """Draws for a batch without images, once per view; there are none without images, or by a function."""
        if self._images is None or not isinstance(self._collate, Collate | Views):
            return ()
        spec, sizes = self._images.spec, None
        own = self._arrays(rows) if tiles is None else {}
        channels, height, width = spec.shape
        if spec.variable_size:
            height = width = 0
            sizes = sizes_of(self._images.located(rows))
            own |= {} if self._masks is None else {"masks": read_masks(self._masks, rows, sizes)}
        with batch_of_epoch(epoch):
            prepared = self._collate.prepare(
                batch,
                (channels, height, width),
                source=spec.torch_dtype,
                seeds=seeds,
                sizes=sizes,
                framed=self._settings.framed,
                tiles=tiles,
                own=own,
            )
        return prepared if isinstance(prepared, tuple) else (prepared,)

    def _gathered(self, tier: HostTier, rows: Numbers) -> Tensor:
        """Reads the rows' images as they are stored into pooled memory, which is pinned if batches go to a device."""
        began, spec = perf_counter(), tier.rows.spec
        shape = len(rows), *spec.shape
        if self._side_stream is None:
            images = self._memory.empty(shape, spec.torch_dtype)
        else:
            images = torch.empty(shape, dtype=spec.torch_dtype, device="cpu", pin_memory=True)
        gather(tier, rows, images)
        self._add_seconds(read=perf_counter() - began)
        return images

    def _rendered(self, tier: HostTier, views: Sequence[PreparedBatch], rows: Numbers) -> list[Tensor]:
        """Renders each view's images, as far as steps compose, into pooled memory, by a compiled call for each.

        The rows of one view arrive while it is rendered; of several views they are there before.
        """
        spec, memories = tier.rows.spec, zip(views, self._view_memories, strict=True)
        outs = [Output(memory, view.shape, view.dtype, view.memory_format) for view, memory in memories]
        if spec.torch_dtype != torch.uint8:
            images = self._gathered(tier, rows)
            began = perf_counter()
            for view, out in zip(views, outs, strict=True):
                view.render_batch(images, out.tensor)
            self._add_seconds(render=perf_counter() - began)
            return [out.tensor for out in outs]
        began, first = perf_counter(), 0
        needed = _needed_by(views, self._settings.decode == "scaled") if spec.variable_size else None
        at_once = len(views) > 1 or not views[0].rendering.waits
        for stored in tier.parts(rows, needed, at_once=at_once):
            lines: ImageLines | None = stored.lines(at_once)
            stop = first + len(stored.rows)
            while lines is not None:
                first = stop - len(lines.places)
                for view, out in zip(views, outs, strict=True):
                    view.rendering.render_lines(first, lines, out.pixels)
                lines = stored.missing(lines)
            first = stop
        self._add_seconds(render=perf_counter() - began)
        return [out.tensor for out in outs]


class Output:
    """Pooled memory for the images of a view.

    Attributes:
        pixels: as kernels write it: see :func:`~mmload.render.rendering.written`.
    """

    def __init__(
        self, memory: MemoryPool, shape: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format
    ) -> None:
        count, channels, height, width = shape
        self._dtype, self._is_interleaved = dtype, memory_format == torch.channels_last
        self._tensor: Tensor | None = None
        kernel = KERNEL_DTYPES.get(dtype)
        if kernel is None:
            self._tensor = memory.empty(shape, dtype, memory_format)
            self.pixels: Any = self._tensor
        elif self._is_interleaved:
            self._array = memory.array((count, height, width, channels), kernel)
            self.pixels = self._array.reshape(count, 1, height, width * channels)
        else:
            self.pixels = self._array = memory.array(shape, kernel)

    @property
    def tensor(self) -> Tensor:
        """[B, C, h, w], in the same memory, which is not used again as long as it is alive."""
        if self._tensor is None:
            made = torch.from_numpy(self._array)
            made = made if made.dtype == self._dtype else made.view(self._dtype)
            self._tensor = made.permute(0, 3, 1, 2) if self._is_interleaved else made
        return self._tensor


def gather(tier: HostTier, rows: Numbers, out: Tensor) -> None:
    """Copies rows of a fixed size into ``out`` [B, *row shape]."""
    size = tier.rows.spec.row_bytes
    tier.gather_into(rows, np.frombuffer(memory_of(out), np.uint8), np.arange(0, len(rows) * size, size))


def _needed_by(views: Sequence[PreparedBatch], smaller: bool) -> Places:
    """Returns the lines that any of the views needs of each row, :data:`NEEDED` [B], in the size that suits all.

    A smaller image needs one more line at each side, for the rounding of its edges.
    """
    needed: Places = copied(views[0].rendering.needed)
    for view in views[1:]:
        _widen(needed, view.rendering.needed)
    _finish(needed, smaller)
    return needed


@numba_compiled(RecordArray(NEEDED), RecordArray(NEEDED), nogil=False)
def _widen(needed: Places, other: Places) -> None:
    """Adds the lines that another view needs."""
    for k in range(len(needed)):
        one, more = needed[k], other[k]
        one.first, one.stop = min(one.first, more.first), max(one.stop, more.stop)
        one.shrink = min(one.shrink, more.shrink)


@numba_compiled(RecordArray(NEEDED), "boolean", nogil=False)
def _finish(needed: Places, smaller: bool) -> None:
    """Adds the lines for the rounding of edges, or asks for the original size."""
    for k in range(len(needed)):
        one = needed[k]
        one.shrink = one.shrink if smaller else 1
        if one.shrink > 1:
            one.first, one.stop = max(one.first - one.shrink, 0), one.stop + one.shrink


def read_masks(masks: HostTier, rows: Numbers, sizes: Numbers) -> OwnMasks:
    """Reads variable-size masks into new memory.

    Raises:
        DamagedError: if one has another size than its image, int64 [B, 2].
        StoreError: if they cannot be read.
    """
    own = sizes_of(masks.rows.located(rows))
    wrong = np.flatnonzero((own != sizes).any(1))
    if len(wrong):
        height, width = own[wrong[0]].tolist()
        message = f"it is {height} x {width}, but its image has another size"
        raise masks.rows.damaged(int(rows[wrong[0]]), message)
    lengths = sizes.prod(1)
    return OwnMasks(_joined(masks, rows, lengths), np.cumsum(lengths) - lengths)


def read_lists(tier: HostTier, lists: PaddedLists, rows: Numbers) -> npt.NDArray[Any]:
    """Reads lists, [B, *row shape], with padding behind each.

    Raises:
        DamagedError, StoreError: as :meth:`~mmload.loader.tiers.HostTier.parts`.
    """
    _, lengths = lists.ranges(rows)
    filled = rows[lengths > 0]  # no map has a page for an empty row at the end of a file
    return lists.padded(_joined(tier, filled, lengths[lengths > 0]), np.cumsum(lengths) - lengths, lengths)


def _joined(tier: HostTier, rows: Numbers, lengths: Numbers) -> Bytes:
    """Copies rows of these lengths, int64 [B], one after another into new memory, uint8 [n]."""
    memory = np.empty(int(lengths.sum()), np.uint8)
    tier.gather_into(rows, memory, np.cumsum(lengths) - lengths)
    return memory


T = TypeVar("T")


class SideStream:
    """Stream of copies to a CUDA device. Thread-safe.

    Attributes:
        device: the device, with its number.

    Raises:
        ValueError: if torch finds no such device.
    """

    def __init__(self, device: torch.device) -> None:
        check_cuda(device)
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has none
        self.device = self._stream.device

    def queue(self, copy: Callable[[], T]) -> Callable[[], T]:
        """Calls ``copy`` with the stream as the current one.

        Returns:
            What makes the caller's stream wait for the copies and returns them: a tensor, a batch, or lists of them.
        """
        # A new thread starts on device 0: without the device guard, leaving the stream would create a context there.
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            copies = copy()
            event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has none
            event.record(self._stream)
        return partial(self._received, copies, event)

    def _received(self, copies: T, event: torch.cuda.Event) -> T:
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(event)
        for tensor in _tensors_in(copies):
            tensor.record_stream(stream)
        return copies

    def send(self, made: BatchOrViews) -> Callable[[], BatchOrViews]:
        """Queues the copies of a batch, or of those of several views; returns what :meth:`queue` does."""
        if isinstance(made, tuple):
            return self.queue(lambda: tuple(on_device(one, self.device) for one in made))
        return self.queue(lambda: on_device(made, self.device))


def _tensors_in(copies: object) -> Iterator[Tensor]:
    """Yields the tensors of what was copied."""
    if isinstance(copies, Tensor):
        yield copies
    elif isinstance(copies, Batch):
        yield from copies.values(include_nested=True, leaves_only=True)
    elif isinstance(copies, tuple | list):
        for one in copies:
            yield from _tensors_in(one)
