"""Whole photographs for a device: their JPEGs are decoded there, and batches of them arrive there.

All is queued on the device's copy stream by a loader's thread, which waits until it is done: the training thread never
waits. What batches are made of is decided by others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mmload.batch import Made
from mmload.loader.device_transfer import Event, Port
from mmload.loader.jpeg_strips import decode_lines, refuse_other_size
from mmload.loader.whole_tiers import WholeTier
from mmload.runtime.nvjpeg import END, decode_batch


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


class DeviceDecoder:
    """Decodes rows on a device, for any number of threads, one batch at a time.

    What it refuses, and JPEGs without an end, are decoded on the CPU, which says what is wrong with them.

    Args:
        tier: where the rows are read from.
        port: the device's.
    """

    def __init__(self, tier: WholeTier, port: Port) -> None:
        self._tier, self._port = tier, port
        self._lock = threading.Lock()

    def batch(self, rows: Tensor, make: Callable[[list[Tensor]], Made]) -> SentBatch:
        """A batch that is made of rows' images, finished on the device.

        Memory that one thread has given back, with work on it still queued, may be what the decoder gets, which does
        not wait for the stream: so the next batch begins when all of this is done.

        Args:
            rows: int64 [B].
            make: the batch of images uint8 [C, h, w] on the device, in the order of the rows.

        Raises:
            DamagedError: if a JPEG has another size than its row, or is broken.
            DeviceError: if the device fails.
        """
        stored = self._stored(rows)
        with self._lock:
            made, event = self._port.queue(lambda: make(self._images(rows, stored)))
            event.synchronize()
        return SentBatch(self._port, made, event)

    def _stored(self, rows: Tensor) -> list[bytes | Tensor]:
        """Each row's JPEG, or its pixels uint8 [C, h, w] in host memory."""
        reader, sizes = self._tier.reader, self._tier.sizes(rows).numpy()
        needed = np.stack((np.zeros_like(sizes[:, 0]), sizes[:, 0]), 1)
        found: list[bytes | Tensor] = []
        for part in self._tier.parts(rows, needed):
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
        sent_there = [k for k, data in enumerate(stored) if isinstance(data, bytes) and data.endswith(END)]
        files = [data for k in sent_there if isinstance(data := stored[k], bytes)]
        decoded = dict(zip(sent_there, decode_batch(files, channels == 1, str(device)), strict=True))
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
            decode_lines(np.frombuffer(data, np.uint8), (height, width), channels, (0, height), spare, out)
        except ValueError as error:
            raise self._tier.reader.damaged(row, str(error)) from error
        return torch.from_numpy(out).view(height, width, channels).permute(2, 0, 1)
