"""Properties that are computed once, without a lock."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mmload
from mmload.lazy import lazy_property


class Slow:
    """Counts how often its value is computed, and waits for ``goes_on``."""

    def __init__(self) -> None:
        self.computed = 0
        self.begun, self.goes_on = threading.Event(), threading.Event()

    @lazy_property
    def value(self) -> int:
        """Forty-two."""
        self.computed += 1
        self.begun.set()
        self.goes_on.wait(timeout=60)
        return 42


def test_a_value_is_computed_once() -> None:
    one = Slow()
    one.goes_on.set()
    assert (one.value, one.value, one.computed) == (42, 42, 1)
    assert Slow.value.__doc__ == "Forty-two."


def test_a_thread_that_computes_does_not_hold_up_other_instances() -> None:
    first, second = Slow(), Slow()
    second.goes_on.set()
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(lambda: first.value)
        first.begun.wait(timeout=60)
        try:
            assert pool.submit(lambda: second.value).result(60) == 42
        finally:
            first.goes_on.set()
        assert held.result(60) == 42


def test_no_module_uses_the_property_with_a_lock() -> None:
    """functools' own is locked before Python 3.12, for a whole class: a fork in the meantime locked it for good."""
    using = [file.name for file in Path(mmload.__file__).parent.rglob("*.py") if "cached_property" in file.read_text()]
    assert using == ["lazy.py"]
