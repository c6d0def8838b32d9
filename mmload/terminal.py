"""The terminal, as the commands share it: one-line ends, progress bars, a line of status.

Only the command line uses it. It writes to stderr; results go to stdout from the commands themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn


def fail(message: str, code: int) -> NoReturn:
    """End the program with one line and an exit code."""
    sys.stderr.write(f"mmload: {message}\n")
    sys.exit(code)


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Ctrl-C inside ends the program with one line."""
    try:
        yield
    except KeyboardInterrupt:
        fail(f"interrupted; {advice}", 130)


@contextmanager
def progress_bar(name: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar; yields what to call with (done, all)."""
    from tqdm import tqdm

    with tqdm(desc=name, unit=unit, dynamic_ncols=True, disable=None, file=sys.stderr) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield progress


@contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """One line of status that is overwritten and goes away; only where stderr is a terminal."""
    terminal = sys.stderr.isatty()

    def show(text: str) -> None:
        if terminal:
            sys.stderr.write(f"\r\033[K{text[:79]}")
            sys.stderr.flush()

    try:
        yield show
    finally:
        if terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
