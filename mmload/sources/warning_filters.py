"""Suppresses warnings in a block for the whole process; safe with any number of concurrent threads.

``warnings.catch_warnings`` restores the filters that it found. Overlapping blocks of two threads restore them in the
wrong order, and the program's own filters are lost. Here the first thread to enter sets them and the last to leave
restores them.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType


class Shared:
    """A context that all threads share: entered by the first thread and left by the last.

    Args:
        make: creates the context each time that a first thread enters.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._inside = 0
        self._held = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._held.enter_context(self._make())
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._held.close()


@contextmanager
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


warnings_suppressed = Shared(_no_warnings)
"""``with warnings_suppressed:`` ignores warnings, also in other threads meanwhile. All of mmload uses this instance,
so that overlapping blocks share one state."""
