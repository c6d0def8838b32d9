"""What the program is doing, on stderr: after a second, then at once on a terminal, and every ten seconds in a log.

A text stays until :func:`shown` takes it back, as the user sees a result, a note or an error then. On a terminal it is
one line that is drawn over, and erased at last; elsewhere it is a line of its own each time. The environment variable
``MMLOAD_QUIET`` switches these lines off, as for a job whose log should hold results only.

tqdm formats counts. It would draw when a count changes; these lines also come while nothing counts: during imports,
and between two steps of which each takes minutes.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from mmload.errors import one_line

_FIRST_S = 1.0
_AGAIN_S = 10.0
_REDRAWN_S = 0.1

_lock = threading.RLock()
_text = ""
_taken_back: threading.Event | None = None  # of the thread that shows the text; None: there is none
_is_drawn = False  # whether there is a line to draw over


def doing(text: str) -> None:
    """Sets what the program is doing from now on."""
    global _text, _taken_back
    with _lock:
        _text = text
        if _taken_back is None:
            _taken_back = threading.Event()
            threading.Thread(target=_show, args=(_taken_back,), daemon=True).start()


def shown() -> None:
    """Takes the text back, as the user sees something else now."""
    global _taken_back, _is_drawn
    with _lock:
        if _taken_back is not None:
            _taken_back.set()
            _taken_back = None
        if _is_drawn:
            _is_drawn = False
            _write("\r\033[K")


def progress(work: str, unit: str = "row") -> Callable[[int, int], None]:
    """Returns a callback that takes (done, total), of rows or bytes ("B"), and says how much of some work that is."""
    from tqdm import tqdm

    began: tuple[float, int] | None = None

    def update(done: int, total: int) -> None:
        nonlocal began
        began = began or (time.monotonic(), done)  # what is done at first may be of an earlier run
        doing(
            tqdm.format_meter(
                done,
                total,
                elapsed=time.monotonic() - began[0],
                initial=began[1],
                prefix=work,
                unit=unit,
                unit_scale=unit == "B",
                ascii=getattr(sys.stderr, "encoding", None) != "utf-8",
            )
        )

    doing(f"{work}: reading what there is")
    return update


def _show(taken_back: threading.Event) -> None:
    """Shows the text, whatever it is at the time, again and again until it is taken back."""
    global _is_drawn
    pause = _FIRST_S
    while not taken_back.wait(pause):
        with _lock:
            if taken_back.is_set():
                return
            _is_drawn = sys.stderr is not None and sys.stderr.isatty()
            pause = _REDRAWN_S if _is_drawn else _AGAIN_S
            if _is_drawn:
                _write(f"\r\033[K{one_line(_text)[: shutil.get_terminal_size().columns - 1]}")
            else:
                _write(f"mmload: {one_line(_text)} ...\n")


def _write(text: str) -> None:
    if sys.stderr is not None and not os.environ.get("MMLOAD_QUIET"):
        with suppress(OSError):  # stderr is full or closed
            sys.stderr.write(text)
            sys.stderr.flush()
