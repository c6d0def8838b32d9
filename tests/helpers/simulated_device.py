"""Simulated devices: one whose copies happen as late as they may, only when somebody waits for their event; one with
the CPU's memory, whose tensors say that they are elsewhere; and a guard against waiting for any device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mmload.batch import Batch

T = TypeVar("T")

DEVICE = torch.device("xpu")
"""A kind that no test has otherwise: constants that are cached for it are of the CPU."""


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


_READS = (
    *("item", "tolist", "nonzero", "numpy", "cpu", "masked_select", "unique", "equal", "allclose", "__array__"),
    *("__bool__", "__int__", "__float__", "__index__", "__contains__"),
)
_WAITS = {getattr(Tensor, name): name for name in _READS} | {
    getattr(torch, name): name for name in ("nonzero", "masked_select", "unique", "equal", "allclose", "bincount")
}


class NoWaiting(TorchFunctionMode):
    """Refuses what would keep a thread waiting for its device: tensors made of Python numbers, and looks at values."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _check_no_wait(function, args, kwargs or {}, lambda device: torch.device(device).type != "cpu")
        return function(*args, **(kwargs or {}))


class PretendedDevice(TorchFunctionMode):
    """Within it all tensors say that they are on :data:`DEVICE`, with real values in the CPU's memory.

    What is made there is made on the CPU. So every branch for devices is taken, and what would wait is an error.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function == Tensor.device.__get__:  # type: ignore[attr-defined]
            return DEVICE
        _check_no_wait(function, args, kwargs, lambda device: True)
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        args = tuple(torch.device("cpu") if isinstance(one, torch.device) else one for one in args)
        return function(*args, **kwargs)


def _check_no_wait(function: Any, args: Any, kwargs: Any, is_device: Callable[[Any], bool]) -> None:
    """Raises AssertionError if a call on a device waits for it."""
    if function in (torch.tensor, torch.as_tensor):
        device = torch.device(kwargs.get("device") or "cpu")
        if device.type != "cpu" and is_device(device):
            raise AssertionError(f"{function.__name__}({args[0]!r}) is copied to the device and waited for")
    elif function in _WAITS:
        if is_device(args[0].device):
            raise AssertionError(f"{_WAITS[function]} waits for the device")
    elif function in (Tensor.__getitem__, Tensor.__setitem__) and is_device(args[0].device) and _has_mask(args[1]):
        raise AssertionError("an index of booleans waits for the device")


def _has_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts)
