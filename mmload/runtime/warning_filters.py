"""Settings of the whole process, changed in a block, in any number of threads at once: warnings kept quiet.

``warnings.catch_warnings`` puts back the filters that it found. Blocks of two threads that overlap put them back in the
wrong order, and what the program had set is lost for good. Here the first to enter sets them and the last to leave
puts them back.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType


class Shared:
    """A context that all threads share: entered by the first of them and left by the last.

    Args:
        make: makes the context each time that a first thread enters.
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
"""``with warnings_suppressed:`` ignores warnings, also those of other threads meanwhile. All of mmload uses this one,
so its blocks know of each other."""
