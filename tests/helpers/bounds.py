"""Kernels whose indices are checked: NUMBA_BOUNDSCHECK=1 makes the kernels of this process so."""

from __future__ import annotations

import os
from typing import Any

from mmload.runtime import kernels

BOUNDS_CHECK = os.environ.get("NUMBA_BOUNDSCHECK", "0") not in ("", "0")

_CHECKED: list[Any] = []


def check_bounds() -> None:
    """Compiles kernels by numba's own linker, as the checks, which report on stderr, need numba's functions."""

    def load(symbol: str, compile_: Any) -> int:
        from mmload.runtime.kernel_compiler import c_function

        _CHECKED.append(c_function(compile_.__self__))
        return int(_CHECKED[-1].address)

    kernels.load = load
