"""Shows on stderr what the program is doing if it has shown nothing for two seconds.

The environment variable ``MMLOAD_QUIET`` switches these lines off, as for a job whose log should hold results only.
"""

from __future__ import annotations

import os
import sys
import threading

from mmload.errors import one_line

_PATIENCE = 2.0  # seconds

START = "importing torch and mmload; the first run after an installation takes longest"

_timer: threading.Timer | None = None


def report(text: str) -> None:
    """Shows a line on stderr that says what takes long, unless the user wants none."""
    if sys.stderr is not None and not os.environ.get("MMLOAD_QUIET"):
        sys.stderr.write(f"mmload: {one_line(text)} ...\n")
        sys.stderr.flush()


def report_if_slow(text: str) -> None:
    """Shows the line in two seconds, unless :func:`shown` or another line comes first."""
    global _timer
    shown()
    _timer = threading.Timer(_PATIENCE, report, (text,))
    _timer.daemon = True
    _timer.start()


def shown() -> None:
    """Takes the last line back, as the user sees something else now."""
    global _timer
    if _timer is not None:
        _timer.cancel()
        _timer = None
