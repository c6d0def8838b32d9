"""Number of the epoch of batches, as a collate learns it.

A loader sets the epoch around the making of each batch, in the thread that makes it, so that batches of two epochs may
be made at once. Without a loader the user sets it on the collate; it lies in shared memory, so that the worker
processes of a ``DataLoader`` see it, persistent ones included.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_of_loader: ContextVar[int | None] = ContextVar("epoch of the batch that a loader makes", default=None)


@contextmanager
def batch_of_epoch(epoch: int) -> Iterator[None]:
    """Sets the epoch of the batches that collates make in this thread while it runs."""
    before = _of_loader.set(epoch)
    try:
        yield
    finally:
        _of_loader.reset(before)


def epoch_of_loader() -> int | None:
    """Returns the epoch of the batch that a loader is making in this thread; None: none is."""
    return _of_loader.get()


class SharedEpoch:
    """The number of an epoch, the same in the process that sets it and in the workers that it starts.

    A pickle of it has the number. Only what ``torch.multiprocessing`` sends to a worker shares the memory too; other
    copies have memory of their own, and share that.
    """

    def __init__(self) -> None:
        self._number: Tensor | None = None

    def set(self, epoch: int) -> None:
        """Sets it; the first call takes the shared memory, so it has to come before workers start."""
        if self._number is None:
            self._number = _shared(torch.full((1,), epoch, dtype=torch.int64))
        self._number.fill_(epoch)

    def get(self) -> int | None:
        """Returns the number; None: it was never set."""
        return None if self._number is None else int(self._number)

    def __getstate__(self) -> tuple[Tensor | None]:
        return (self._number,)  # pickle would not call __setstate__ with a bare None

    def __setstate__(self, state: tuple[Tensor | None]) -> None:
        (number,) = state
        self._number = None if number is None else _shared(number)


def _shared(number: Tensor) -> Tensor:
    """Moves the tensor to shared memory, unless it is there already."""
    shared: Tensor = number.share_memory_()  # type: ignore[no-untyped-call]  # torch has none
    return shared
