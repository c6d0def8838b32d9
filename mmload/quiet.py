"""Warnings kept quiet in a block, in any number of threads at once.

``warnings.catch_warnings`` puts back the filters that it found. Blocks of two threads that overlap put them back in the
wrong order, and what the program had set is lost for good. Here the first to enter sets them and the last to leave
puts them back.
"""

from __future__ import annotations

import threading
import warnings
from types import TracebackType


class Quiet:
    """``with quiet:`` ignores warnings, also those of other threads meanwhile; may be entered by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._caught = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._caught = warnings.catch_warnings()
                self._caught.__enter__()
                warnings.simplefilter("ignore")
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._caught.__exit__(None, None, None)


quiet = Quiet()
"""The one that all of mmload uses, so that its blocks know of each other."""
