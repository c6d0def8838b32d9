"""What the program is doing, on stderr: after a second, then at each step on a terminal, every ten seconds in a log.

A text stays until :func:`shown` takes it back, as the user sees a result, a note or an error then. On a terminal it is
one line that is drawn over, and erased at last; elsewhere it is a line of its own each time. The environment variable
``MMLOAD_QUIET`` switches these lines off, as for a job whose log should hold results only.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from mmload.errors import one_line

_FIRST_S = 1.0
_AGAIN_S = 10.0
_REDRAWN_S = 0.1

_lock = threading.RLock()
_text = ""
_timer: threading.Timer | None = None
_drawn_at: float | None = None  # on time.monotonic(); None: there is no line to draw over


def doing(text: str) -> None:
    """Sets what the program is doing from now on."""
    global _text
    with _lock:
        _text = text
        if _timer is None:
            _draw_in(_FIRST_S)
        elif _drawn_at is not None and time.monotonic() - _drawn_at > _REDRAWN_S:
            _draw()


def shown() -> None:
    """Takes the text back, as the user sees something else now."""
    global _timer, _drawn_at
    with _lock:
        if _timer is not None:
            _timer.cancel()
            _timer = None
        if _drawn_at is not None:
            _drawn_at = None
            _write("\r\033[K")


def report(text: str) -> None:
    """Shows at once a line that stays."""
    shown()
    _write(f"mmload: {one_line(text)} ...\n")


@contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """Yields :func:`doing`, and takes its last text back at the end."""
    try:
        yield doing
    finally:
        shown()


@contextmanager
def progress(work: str, amount: Callable[[int], str] = "{:,}".format) -> Iterator[Callable[[int, int], None]]:
    """Yields a callback that takes (done, total), and says how much of some work that is; ``amount`` formats either."""
    began: tuple[float, int] | None = None

    def update(done: int, total: int) -> None:
        nonlocal began
        began = began or (time.monotonic(), done)  # what is done at first may be of an earlier run
        seconds, moved = time.monotonic() - began[0], done - began[1]
        left = f", {seconds / moved * (total - done):.0f} s left" if moved else ""
        doing(f"{work}: {amount(done)} of {amount(total)}{left}")

    with status_line():
        doing(f"{work}: reading what there is")
        yield update


def _draw_in(seconds: float) -> None:
    global _timer
    _timer = threading.Timer(seconds, _due)
    _timer.daemon = True
    _timer.start()


def _due() -> None:
    with _lock:
        if _timer is threading.current_thread():  # else the text has been taken back meanwhile
            _draw()
            _draw_in(_AGAIN_S)


def _draw() -> None:
    global _drawn_at
    if sys.stderr is not None and sys.stderr.isatty():
        _drawn_at = time.monotonic()
        _write(f"\r\033[K{one_line(_text)[: shutil.get_terminal_size().columns - 1]}")
    else:
        _write(f"mmload: {one_line(_text)} ...\n")


def _write(text: str) -> None:
    if sys.stderr is not None and not os.environ.get("MMLOAD_QUIET"):
        with suppress(OSError):  # stderr is full or closed
            sys.stderr.write(text)
            sys.stderr.flush()
