"""A simulated device for transfers: its copies happen as late as they may, only when somebody waits for their event."""

from __future__ import annotations

import threading

import torch


class LateEvent:
    """The mark behind a copy that has not happened yet."""

    def __init__(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self._source, self._target = source, target
        self._done = False
        self._lock = threading.Lock()

    def synchronize(self) -> None:
        with self._lock:
            if not self._done:
                self._target.copy_(self._source)
                self._done = True


class LatePort:
    """A device whose copy engine is as slow as it may be: it reads the host's buffer only when it must."""

    def __init__(self) -> None:
        self.buffers = 0

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self.buffers += 1
        return torch.full(shape, -1, dtype=dtype)

    def copy(self, host: torch.Tensor) -> tuple[torch.Tensor, LateEvent]:
        target = torch.full_like(host, -2)
        return target, LateEvent(host, target)

    def hand_over(self, tensor: torch.Tensor, event: LateEvent) -> None:
        event.synchronize()


class Hasty(LatePort):
    """The same device with the wait taken out of the ring's event, as if somebody had removed it."""

    def copy(self, host: torch.Tensor) -> tuple[torch.Tensor, LateEvent]:
        target, event = super().copy(host)
        real, event.synchronize = event.synchronize, lambda: None  # type: ignore[method-assign]
        event.real = real  # type: ignore[attr-defined]
        return target, event

    def hand_over(self, tensor: torch.Tensor, event: LateEvent) -> None:
        event.real()  # type: ignore[attr-defined]
