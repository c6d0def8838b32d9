"""Whole photographs for a device: their JPEGs are decoded there, or all pixels kept, and batches of them arrive there.

All is queued on the device's copy stream by a loader's thread, which waits until it is done: the training thread never
waits. What batches are made of is decided by others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from mmload.batch import Made
from mmload.loader.device_transfer import Event, Port
from mmload.loader.jpeg_strips import decode_lines, refuse_other_size
from mmload.loader.row_counts import RowCounts
from mmload.loader.stored_rows import all_lines
from mmload.loader.whole_tiers import WholeTier
from mmload.runtime.nvjpeg import END, decode_batch

T = TypeVar("T")

_ROWS_AT_ONCE = 64
"""Rows that are brought to a device at a time, to stay there."""


class Finishing(Protocol):
    """A batch that the training thread may have to finish: a :class:`~mmload.loader.batch_worker.Delivery`."""

    def receive(self) -> Made:
        """The finished batch."""


class SentBatch:
    """A batch on a device: a :class:`~mmload.loader.batch_worker.Delivery`.

    Args:
        port: the device's.
        made: the batch, or the batches of several views.
        event: after all of it.
    """

    def __init__(self, port: Port, made: Made, event: Event) -> None:
        self._port, self._made, self._event = port, made, event

    def receive(self) -> Made:
        """Make the caller's stream wait for it."""
        for batch in self._made if isinstance(self._made, tuple) else (self._made,):
            for tensor in batch.values(include_nested=True, leaves_only=True):
                self._port.hand_over(tensor, self._event)
        return self._made


def sent(port: Port, made: Made) -> SentBatch:
    """A batch in host memory, or those of several views, on the device."""

    def copies() -> Made:
        return tuple(one.to(port.device) for one in made) if isinstance(made, tuple) else made.to(port.device)

    return SentBatch(port, *port.queue(copies))


class LateSent:
    """A batch that the training thread finishes in host memory, and sends: a delivery."""

    def __init__(self, port: Port, host: Finishing) -> None:
        self._port, self._host = port, host

    def receive(self) -> Made:
        """Finish it, and send it."""
        return sent(self._port, self._host.receive()).receive()


class WholeOnDevice(Protocol):
    """Makes batches of whole photographs that lie on a device. Thread-safe."""

    def batch(self, rows: Tensor, make: Callable[[list[Tensor]], Made]) -> SentBatch:
        """What ``make`` makes of the images of rows, int64 [B], finished on the device.

        Raises:
            DamagedError: if a JPEG has another size than its row, or is broken.
            DeviceError: if the device fails.
        """


class DeviceDecoder:
    """Decodes rows on a device, for any number of threads, one batch at a time.

    What it refuses, and JPEGs without an end, are decoded on the CPU, which says what is wrong with them.

    Args:
        tier: where the rows are read from.
        port: the device's.
        decode: "cuda"; "cpu": everything is decoded on the CPU, and sent.
    """

    def __init__(self, tier: WholeTier, port: Port, decode: str) -> None:
        self._tier, self._port, self._decode = tier, port, decode
        self._lock = threading.Lock()

    def batch(self, rows: Tensor, make: Callable[[list[Tensor]], Made]) -> SentBatch:
        """See :class:`WholeOnDevice`.

        Memory that one thread has given back, with work on it still queued, may be what the decoder gets, which does
        not wait for the stream: so the next batch begins when all of this is done.
        """
        return SentBatch(self._port, *self._queued(rows, make))

    def images(self, rows: Tensor) -> list[Tensor]:
        """The rows' images on the device, uint8 [C, h, w]; nothing is left to be done to them."""
        return list(self._queued(rows, tuple)[0])

    def _queued(self, rows: Tensor, make: Callable[[list[Tensor]], T]) -> tuple[T, Event]:
        """What is made of the rows' images, and an event after it that has come."""
        stored = self._stored(rows)
        with self._lock:
            made, event = self._port.queue(lambda: make(self._images(rows, stored)))
            event.synchronize()
        return made, event

    def _stored(self, rows: Tensor) -> list[bytes | Tensor]:
        """Each row's JPEG, or its pixels uint8 [C, h, w] in host memory."""
        reader, sizes = self._tier.reader, self._tier.sizes(rows).numpy()
        found: list[bytes | Tensor] = []
        for part in self._tier.parts(rows, all_lines(sizes)):
            for k, row in enumerate(part.rows.tolist()):
                if not part.jpeg[k]:
                    found.append(part.pixels.image(k, reader.spec.channels).clone())
                    continue
                data = part.data(k)
                try:
                    refuse_other_size(data, tuple(sizes[len(found)].tolist()))
                except ValueError as error:
                    raise reader.damaged(row, str(error)) from error
                found.append(data.tobytes())
        return found

    def _images(self, rows: Tensor, stored: list[bytes | Tensor]) -> list[Tensor]:
        """The rows on the device."""
        device, channels = self._port.device, self._tier.reader.spec.channels
        there = [k for k, data in enumerate(stored) if isinstance(data, bytes) and data.endswith(END)]
        there = there if self._decode == "cuda" else []
        files = [data for k in there if isinstance(data := stored[k], bytes)]
        decoded = dict(zip(there, decode_batch(files, channels == 1, str(device)), strict=True))
        sizes = self._tier.sizes(rows).tolist()
        images = []
        for k, (data, size) in enumerate(zip(stored, sizes, strict=True)):
            image = decoded.get(k)
            if image is None or list(image.shape) != [channels, *size]:
                image = self._on_cpu(data, int(rows[k]), size) if isinstance(data, bytes) else data
            images.append(image.to(device))
        return images

    def _on_cpu(self, data: bytes, row: int, size: list[int]) -> Tensor:
        """The pixels of a JPEG that the device does not decode, [C, h, w]."""
        height, width = size
        channels = self._tier.reader.spec.channels
        out, spare = np.empty(height * width * channels, np.uint8), np.empty(len(data) + 2, np.uint8)
        try:
            decode_lines(np.frombuffer(data, np.uint8), (height, width), channels, (0, height), 1, spare, out)
        except ValueError as error:
            raise self._tier.reader.damaged(row, str(error)) from error
        return torch.from_numpy(out).view(height, width, channels).permute(2, 0, 1)


class ResidentRows(RowCounts):
    """The pixels of all rows on a device, decoded and copied there once, when it is made.

    Args:
        decoder: brings the rows there.
        port: the device's.
        count: how many rows there are.
    """

    sharing = ""

    def __init__(self, decoder: DeviceDecoder, port: Port, count: int) -> None:
        super().__init__()
        self._port = port
        parts = (torch.arange(first, min(first + _ROWS_AT_ONCE, count)) for first in range(0, count, _ROWS_AT_ONCE))
        self._images = [image for rows in parts for image in decoder.images(rows)]
        self.count(misses=count)

    def batch(self, rows: Tensor, make: Callable[[list[Tensor]], Made]) -> SentBatch:
        """See :class:`WholeOnDevice`."""
        self.count(len(rows))
        images = [self._images[row] for row in rows.tolist()]
        return SentBatch(self._port, *self._port.queue(lambda: make(images)))
