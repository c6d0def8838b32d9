"""A thread of pure Python beside a contender, as a training loop's own code is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_ADDITIONS = 1000  # about 50 us, in which Python never releases the interpreter lock


def add_integers() -> None:
    """Adds integers in pure Python, as a training loop's own code: a piece of work."""
    total = 0
    for number in range(_ADDITIONS):
        total += number


class Neighbor:
    """A thread that repeats a piece of work while the block that it is entered for runs.

    Attributes:
        pieces: pieces of work that it has done.
    """

    def __init__(self, work: Callable[[], None] = add_integers) -> None:
        self.pieces = 0
        self._work, self._stopped = work, False
        self._thread = threading.Thread(target=self._run, name="mmload-bench-neighbor", daemon=True)

    def __enter__(self) -> Neighbor:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped = True
        self._thread.join()

    def speed(self, seconds: float) -> float:
        """Returns its pieces per second while the calling thread sleeps; longer if it did none on a busy machine."""
        began, pieces = time.perf_counter(), self.pieces
        while self.pieces == pieces:
            time.sleep(seconds)
        return (self.pieces - pieces) / (time.perf_counter() - began)

    def _run(self) -> None:
        while not self._stopped:
            self._work()
            self.pieces += 1
