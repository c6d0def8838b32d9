"""A simulated device for transfers: its copies happen as late as they may, only when somebody waits for their event."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mmload.batch import Batch

T = TypeVar("T")


def tensors_in(made: Any) -> Iterator[torch.Tensor]:
    """The tensors of what a stream made: a tensor, a batch, or several."""
    if isinstance(made, tuple):
        for one in made:
            yield from tensors_in(one)
    elif isinstance(made, Batch):
        yield from made.values(include_nested=True, leaves_only=True)
    else:
        yield made


class LateEvent:
    """The mark behind a copy that has not happened yet."""

    def __init__(self, sources: list[torch.Tensor], targets: list[torch.Tensor]) -> None:
        self._sources, self._targets = sources, targets
        self._done = False
        self._lock = threading.Lock()

    def synchronize(self) -> None:
        with self._lock:
            if not self._done:
                for source, target in zip(self._sources, self._targets, strict=True):
                    target.copy_(source)
                self._done = True


class LatePort:
    """A device whose copy engine is as slow as it may be: it reads the host's buffer only when it must."""

    def __init__(self) -> None:
        self.buffers = 0
        self.device = torch.device("cpu")

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self.buffers += 1
        return torch.full(shape, -1, dtype=dtype)

    def copy(self, host: torch.Tensor) -> tuple[torch.Tensor, LateEvent]:
        target = torch.full_like(host, -2)
        return target, LateEvent([host], [target])

    def queue(self, work: Callable[[], T]) -> tuple[T, LateEvent]:
        made = work()
        targets = list(tensors_in(made))
        sources = [target.clone() for target in targets]
        for target in targets:
            target.fill_(1)  # not what was made
        return made, LateEvent(sources, targets)

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


class NoWaiting(TorchFunctionMode):
    """Refuses what would keep a thread waiting for its device: tensors made of Python numbers, and looks at values."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = torch.device(kwargs.get("device") or "cpu")
        if function in (torch.tensor, torch.as_tensor) and device.type != "cpu":
            raise AssertionError(f"{function.__name__}({args[0]!r}) is copied to the device and waited for")
        if function in (Tensor.tolist, Tensor.item, Tensor.nonzero, torch.nonzero) and args[0].device.type != "cpu":
            raise AssertionError(f"{function.__name__} waits for the device")
        return function(*args, **kwargs)
