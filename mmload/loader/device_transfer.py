"""Copies host memory to a device without work or waiting in the training thread.

A loader thread fills one of a fixed ring of pinned buffers and queues its copy on one copy stream. It returns the
tensor on the device with an event that the user's stream waits for. A buffer is written again only after the event of
its last copy. A :class:`Port` hides the difference between CUDA and the simulated device of the tests.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Event(Protocol):
    """A point in the copy stream."""

    def synchronize(self) -> None:
        """Block this thread until everything queued before the event is done."""


class Port(Protocol):
    """The operations of a device that copies need. Thread-safe."""

    device: torch.device

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Page-locked host memory, which the device can read directly."""

    def copy(self, host: Tensor) -> tuple[Tensor, Event]:
        """Queue a copy; returns the tensor on the device, and an event after the copy."""

    def queue(self, work: Callable[[], T]) -> tuple[T, Event]:
        """Run ``work`` with all that it queues on the copy stream; returns what it made, and an event after it."""

    def hand_over(self, tensor: Tensor, event: Event) -> None:
        """Make the caller's stream wait for the event, and keep the memory until that stream is done with it."""


class CudaPort:
    """One side stream on a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has none

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See :class:`Port`."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def copy(self, host: Tensor) -> tuple[Tensor, Event]:
        """See :class:`Port`."""
        return self.queue(lambda: host.to(self._stream.device, non_blocking=True))

    def queue(self, work: Callable[[], T]) -> tuple[T, Event]:
        """See :class:`Port`."""
        # A new thread starts on device 0: without the device guard, leaving the stream would create a context there.
        # blocking=True: a thread that waits for a buffer sleeps; otherwise it would spin and occupy a core.
        with torch.cuda.device(self._stream.device), torch.cuda.stream(self._stream):
            made = work()
            event: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch has none
            event.record(self._stream)
        return made, event

    def hand_over(self, tensor: Tensor, event: Event) -> None:
        """See :class:`Port`."""
        stream = torch.cuda.current_stream(self._stream.device)
        stream.wait_event(event)  # type: ignore[arg-type]  # the one that copy recorded
        tensor.record_stream(stream)


@dataclass
class Shipped:
    """A tensor that is being copied to the device."""

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
