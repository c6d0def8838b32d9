"""Copies from host memory to a device, without the training thread copying, pinning or waiting.

A loader thread fills one of a fixed ring of pinned buffers and queues its copy on one copy stream. It returns the
tensor on the device with an event that the user's stream waits for. A buffer is written again only after the event of
its last copy. A :class:`Port` is what differs between CUDA and the stand-in of the tests.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Event(Protocol):
    """A mark in the copy stream."""

    def synchronize(self) -> None:
        """Block this thread until all that was queued before the mark is done."""


class Port(Protocol):
    """What a device offers for copies. Thread-safe."""

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Host memory that the device can read by itself."""

    def copy(self, host: Tensor) -> tuple[Tensor, Event]:
        """Queue a copy; the tensor on the device, and the mark behind the copy."""

    def hand_over(self, tensor: Tensor, event: Event) -> None:
        """Make the caller's stream wait for the mark, and keep the memory until that stream is done with it."""


class CudaPort:
    """One side stream on a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has none

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See :class:`Port`."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def copy(self, host: Tensor) -> tuple[Tensor, Event]:
        """See :class:`Port`."""
        # A new thread's device is the first: without the guard, leaving the stream would start a context there. The
        # event blocks: a thread that waits for a buffer sleeps, where it would otherwise spin and take a core.
        with torch.cuda.device(self._stream.device), torch.cuda.stream(self._stream):
            moved = host.to(self._stream.device, non_blocking=True)
            event: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch has none
            event.record(self._stream)
        return moved, event

    def hand_over(self, tensor: Tensor, event: Event) -> None:
        """See :class:`Port`."""
        stream = torch.cuda.current_stream(self._stream.device)
        stream.wait_event(event)  # type: ignore[arg-type]  # it is the one that copy made
        tensor.record_stream(stream)


@dataclass
class Shipped:
    """A tensor under way to the device."""

    tensor: Tensor
    event: Event

    def arrive(self, port: Port) -> Tensor:
        """The tensor, safe to use on the caller's stream."""
        port.hand_over(self.tensor, self.event)
        return self.tensor


class Ring:
    """A fixed number of pinned buffers, taken in turn by loader threads.

    Args:
        port: the device's.
        shape: of one buffer, [B, *row shape].
        dtype: of the rows.
        buffers: how many; as many threads can gather at once.
    """

    def __init__(self, port: Port, shape: tuple[int, ...], dtype: torch.dtype, buffers: int) -> None:
        self._port = port
        self._free: deque[tuple[Tensor, Event | None]] = deque(
            (port.pinned(shape, dtype), None) for _ in range(buffers)
        )
        self._available = threading.Semaphore(buffers)

    def ship(self, rows: int, fill: Callable[[Tensor], None]) -> Shipped:
        """Fill a buffer and queue its copy.

        Args:
            rows: how many of the buffer's rows are used.
            fill: writes them; called with the [rows, *row shape] part of a buffer that no copy reads any more.
        """
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
