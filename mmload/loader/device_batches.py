"""Batches on a device: rows are copied there through pinned memory, are decoded there, or stay there.

A loader thread fills one of a fixed ring of pinned buffers and queues its copy on one copy stream. The training thread
never waits; its stream waits for the event of the copy. A buffer is written again only after the event of its last
copy. A :class:`Port` hides the difference between CUDA and the simulated device of the tests.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from mmload.augment.collate import Collate
from mmload.augment.draws import batch_of_epoch
from mmload.augment.views import Views
from mmload.batch import Batch, BatchOrViews, make_batch
from mmload.errors import DamagedError
from mmload.loader.tiers import DeviceTier, HitCounter, Tier, check_cuda, sizes_of
from mmload.records import FieldSpec
from mmload.render.kernel_arguments import ImageLines
from mmload.runtime.nvjpeg import END, decode_batch
from mmload.store.variable_rows import JPEG, check_jpeg, decoded

T = TypeVar("T")


class Event(Protocol):
    """Point in the copy stream."""

    def synchronize(self) -> None:
        """Blocks this thread until everything queued before the event is done."""


class Port(Protocol):
    """Operations of a device that copies need. Thread-safe."""

    device: torch.device

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Returns page-locked host memory, which the device can read directly."""

    def copy(self, host: Tensor) -> tuple[Tensor, Event]:
        """Queues a copy; returns the tensor on the device and an event after the copy."""

    def queue(self, work: Callable[[], T]) -> tuple[T, Event]:
        """Runs ``work`` with all that it queues on the copy stream; returns its result and an event after it."""

    def hand_over(self, tensor: Tensor, event: Event) -> None:
        """Makes the caller's stream wait for the event, and keeps the memory until the stream is done with it."""


class CudaPort:
    """Side stream on a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        check_cuda(device)
        self.device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has none

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True, device="cpu")

    def copy(self, host: Tensor) -> tuple[Tensor, Event]:
        return self.queue(lambda: host.to(self._stream.device, non_blocking=True))

    def queue(self, work: Callable[[], T]) -> tuple[T, Event]:
        # A new thread starts on device 0: without the device guard, leaving the stream would create a context there.
        # blocking=True: a thread that waits for a buffer sleeps; otherwise it would spin and occupy a core.
        with torch.cuda.device(self._stream.device), torch.cuda.stream(self._stream):
            made = work()
            event: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch has none
            event.record(self._stream)
        return made, event

    def hand_over(self, tensor: Tensor, event: Event) -> None:
        stream = torch.cuda.current_stream(self._stream.device)
        stream.wait_event(event)  # type: ignore[arg-type]  # the one that copy recorded
        tensor.record_stream(stream)


@dataclass
class Shipped:
    """Tensor that is being copied to the device."""

    tensor: Tensor
    event: Event

    def arrive(self, port: Port) -> Tensor:
        """Returns the tensor, safe to use on the caller's stream."""
        port.hand_over(self.tensor, self.event)
        return self.tensor


class Ring:
    """Fixed number of pinned buffers of a shape [B, *row shape], taken in turn by loader threads."""

    def __init__(self, port: Port, shape: tuple[int, ...], dtype: torch.dtype, buffers: int) -> None:
        self._port = port
        self._free: deque[tuple[Tensor, Event | None]] = deque(
            (port.pinned(shape, dtype), None) for _ in range(buffers)
        )
        self._available = threading.Semaphore(buffers)

    def ship(self, rows: int, fill: Callable[[Tensor], None]) -> Shipped:
        """Fills the first rows of a buffer, which no copy reads any more, and queues its copy."""
        with self._available:
            buffer, last = self._free.popleft()
            event = last
            try:
                if last is not None:
                    last.synchronize()
                part = buffer[:rows]
                fill(part)
                moved, event = self._port.copy(part)
            finally:
                self._free.append((buffer, event))
        return Shipped(moved, event)


_ROWS_AT_ONCE = 64
"""Rows that are brought to a device at a time, to stay there."""


class DeviceBatches:
    """Pinned buffers for every field of a batch. Thread-safe.

    Nothing is copied from pageable memory: such a copy would block the training thread until its stream gets there. The
    fields to copy do not have the images of a ``DeviceTier``. The collate renders on the device, ``batch_size`` rows at
    most; ``slots`` batches can be in flight at once.
    """

    def __init__(
        self,
        port: Port,
        fields: Mapping[str, FieldSpec],
        *,
        tier: Tier | None,
        collate: Callable[[Batch], BatchOrViews] | None,
        batch_size: int,
        slots: int,
    ) -> None:
        self._port, self._collate = port, collate
        self._resident = tier if isinstance(tier, DeviceTier) else None
        self._fields = {
            name: Ring(port, (batch_size, *spec.shape), spec.torch_dtype, slots) for name, spec in fields.items()
        }
        self._ids, self._seeds = (Ring(port, (batch_size,), torch.int64, slots) for _ in range(2))

    def ship(
        self, rows: Tensor, seeds: Tensor, epoch: int, fill: Callable[[str, Tensor, Tensor], None]
    ) -> Callable[[], BatchOrViews]:
        """Gathers a batch, rows and seeds int64 [B], into pinned buffers and queues the copies.

        ``fill`` (field, rows, buffer) writes the rows of a field into its buffer.

        Returns:
            What makes the caller's stream wait for the copies, and renders there.
        """
        count = len(rows)
        ids, keys = self._ids.ship(count, partial(_copy, rows)), self._seeds.ship(count, partial(_copy, seeds))
        fields = {name: ring.ship(count, partial(fill, name, rows)) for name, ring in self._fields.items()}
        return partial(self._arrived, epoch, ids, keys, fields)

    def _arrived(self, epoch: int, ids: Shipped, seeds: Shipped, fields: Mapping[str, Shipped]) -> BatchOrViews:
        """Makes the caller's stream wait for the copies, and renders there."""
        rows, collate, resident = ids.arrive(self._port), self._collate, self._resident
        arrived = {name: shipped.arrive(self._port) for name, shipped in fields.items()}
        batch = make_batch(arrived, len(rows), ids=rows, seeds=seeds.arrive(self._port), device=rows.device)
        with batch_of_epoch(epoch):
            if resident is not None:
                resident.count(len(rows))
                if isinstance(collate, Collate | Views):
                    return collate.render(batch, resident.images, rows)
                batch.images = resident.images[rows]
            return batch if collate is None else collate(batch)


def _copy(values: Tensor, buffer: Tensor) -> None:
    buffer.copy_(values)


def send_batch(port: Port, made: BatchOrViews) -> Callable[[], BatchOrViews]:
    """Sends a batch in host memory, or those of several views, to the device."""

    def copies() -> BatchOrViews:
        return tuple(one.to(port.device) for one in made) if isinstance(made, tuple) else made.to(port.device)

    return partial(_received, port, *port.queue(copies))


def _received(port: Port, made: BatchOrViews, event: Event) -> BatchOrViews:
    """Makes the caller's stream wait for the ``event`` that ends a batch on the device, and returns the batch."""
    for batch in made if isinstance(made, tuple) else (made,):
        for tensor in batch.values(include_nested=True, leaves_only=True):
            port.hand_over(tensor, event)
    return made


class DeviceDecoder:
    """Decoder of rows on a device, for any number of threads, one batch at a time.

    JPEGs that the device refuses or that have no end are decoded on the CPU, which reports what is wrong with them.
    With ``decode`` "cpu" everything is decoded on the CPU, and sent.
    """

    def __init__(self, tier: Tier, port: Port, decode: str) -> None:
        self._tier, self._port, self._decode = tier, port, decode
        self._lock = threading.Lock()

    def batch(self, rows: Tensor, make: Callable[[list[Tensor]], BatchOrViews]) -> Callable[[], BatchOrViews]:
        """Makes a batch of the images of rows, int64 [B], on the device.

        Memory that one thread has freed, with work on it still queued, may be reused by the decoder, which does not
        wait for the stream: so the next batch begins when all of this one is done.

        Raises:
            DamagedError: if a JPEG has another size than its row, or is broken.
            DeviceError: if the device fails.
        """
        return partial(_received, self._port, *self._queued(rows, make))

    def images(self, rows: Tensor) -> list[Tensor]:
        """Returns the rows' images on the device, uint8 [C, h, w], with no work left in the queue."""
        return list(self._queued(rows, tuple)[0])

    def _queued(self, rows: Tensor, make: Callable[[list[Tensor]], T]) -> tuple[T, Event]:
        """Calls ``make`` with the rows' images; returns its result and an event after it that has passed."""
        stored = self._stored(rows)
        with self._lock:
            made, event = self._port.queue(lambda: make(self._images(rows, stored)))
            event.synchronize()
        return made, event

    def _stored(self, rows: Tensor) -> list[bytes | Tensor]:
        """Reads each row's JPEG, or its pixels, uint8 [C, h, w], into host memory."""
        field = self._tier.rows
        found: list[bytes | Tensor] = []
        for part in self._tier.parts(rows):
            lines = ImageLines(part.memory, part.places)
            for k, row in enumerate(part.rows.tolist()):  # each is an argument of the decoder, or a copy, of its own
                if not part.jpeg[k]:
                    found.append(lines.image(k, field.spec.channels).clone())
                    continue
                data = part.data(k)
                try:
                    check_jpeg(data, (int(part.places["height"][k]), int(part.places["width"][k])))
                except DamagedError as error:
                    raise field.damaged(row, str(error)) from error
                found.append(data.tobytes())
        return found

    def _images(self, rows: Tensor, stored: list[bytes | Tensor]) -> list[Tensor]:
        """Returns the rows' images on the device, decoded there where possible."""
        device, channels = self._port.device, self._tier.rows.spec.channels
        on_device = [k for k, data in enumerate(stored) if isinstance(data, bytes) and data.endswith(END)]
        on_device = on_device if self._decode == "cuda" else []
        files = [data for k in on_device if isinstance(data := stored[k], bytes)]
        decoded_images = dict(zip(on_device, decode_batch(files, channels == 1, str(device)), strict=True))
        sizes = sizes_of(self._tier.rows, rows).tolist()
        images = []
        for k, (data, size) in enumerate(zip(stored, sizes, strict=True)):
            image = decoded_images.get(k)
            if image is None or list(image.shape) != [channels, *size]:
                image = self._on_cpu(data, int(rows[k]), size) if isinstance(data, bytes) else data
            images.append(image.to(device))
        return images

    def _on_cpu(self, data: bytes, row: int, size: list[int]) -> Tensor:
        """Decodes a JPEG that the device cannot decode, to [C, h, w]."""
        height, width = size
        field = self._tier.rows
        try:
            return torch.from_numpy(decoded(np.frombuffer(data, np.uint8), JPEG, height, width, field.spec.channels))
        except DamagedError as error:
            raise field.damaged(row, str(error)) from error


class ResidentRows(HitCounter):
    """Pixels of all rows on a device, decoded and copied there once on creation."""

    note = ""

    def __init__(self, decoder: DeviceDecoder, port: Port, count: int) -> None:
        super().__init__()
        self._port = port
        parts = (
            torch.arange(first, min(first + _ROWS_AT_ONCE, count), device="cpu")
            for first in range(0, count, _ROWS_AT_ONCE)
        )
        self._images = [image for rows in parts for image in decoder.images(rows)]
        self.count(misses=count)

    def batch(self, rows: Tensor, make: Callable[[list[Tensor]], BatchOrViews]) -> Callable[[], BatchOrViews]:
        """Makes a batch of the images of rows, int64 [B], on the device."""
        self.count(len(rows))
        images = [self._images[row] for row in rows.tolist()]
        return partial(_received, self._port, *self._port.queue(lambda: make(images)))
