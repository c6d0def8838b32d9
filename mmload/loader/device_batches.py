"""Batches on a CUDA device: loader threads copy them on a stream of their own, beside the training thread's stream.

A copy begins in memory of PyTorch's pinned allocator, which uses it again when the copy is done. The training thread
does not wait: its stream waits for the event behind the copies, and the memory on the device is not used again before
the work on that stream which reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from mmload.augment.given_samples import on_device
from mmload.batch import Batch, BatchOrViews
from mmload.loader.tiers import check_cuda

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
