"""Waits for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(happened: Callable[[], T], seconds: float = 300) -> T:
    """Returns what a function returns as soon as that is true.

    Raises:
        AssertionError: if it takes so many seconds, which no machine is too busy for.
    """
    end = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < end, f"this did not happen in {seconds:g} s"
        time.sleep(0.005)
    return found
