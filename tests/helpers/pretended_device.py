"""A pretended device: code for devices runs with real values in the CPU's memory, and nothing may be read back.

Inside of :class:`PretendedDevice` every tensor says that it lies on a device, and what is made there is made on the
CPU. So every branch for devices is taken. What would keep a thread waiting for a device is an error.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

DEVICE = torch.device("xpu")
"""A kind that no test has otherwise: constants that are kept for it are of the CPU."""

_READS = (
    *("item", "tolist", "nonzero", "numpy", "cpu", "masked_select", "unique", "equal", "allclose", "__array__"),
    *("__bool__", "__int__", "__float__", "__index__", "__contains__"),
)
_WAITS = {getattr(Tensor, name): name for name in _READS} | {
    getattr(torch, name): name for name in ("nonzero", "masked_select", "unique", "equal", "allclose", "bincount")
}


class PretendedDevice(TorchFunctionMode):
    """Within it all tensors are on :data:`DEVICE`."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function == Tensor.device.__get__:  # type: ignore[attr-defined]
            return DEVICE
        if function in _WAITS:
            raise AssertionError(f"{_WAITS[function]} waits for the device")
        if function in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            raise AssertionError(f"{function.__name__}({args[0]!r}) is copied to the device and waited for")
        if function in (Tensor.__getitem__, Tensor.__setitem__) and _has_mask(args[1]):
            raise AssertionError("an index of booleans waits for the device")
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        args = tuple(torch.device("cpu") if isinstance(one, torch.device) else one for one in args)
        return function(*args, **kwargs)


def _has_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts)
