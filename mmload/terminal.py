"""The terminal, as the commands share it: one-line ends, progress bars, a line of status.

Only the command line uses it. It writes to stderr; results go to stdout from the commands themselves.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from mmload.errors import UsageError


def fail(message: str, code: int) -> NoReturn:
    """End the program with one line and an exit code."""
    sys.stderr.write(f"mmload: {message}\n")
    sys.exit(code)


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Ctrl-C or a SIGTERM inside ends the program with one line, after all inside has cleaned up after itself."""
    asked: list[int] = []
    with _ended_once(asked):
        try:
            yield
        except KeyboardInterrupt:
            ended = asked[:1] == [signal.SIGTERM]
            fail(f"{'ended' if ended else 'interrupted'}; {advice}", 143 if ended else 130)


@contextmanager
def _ended_once(asked: list[int]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM inside raises KeyboardInterrupt; further ones do not cut its clean-up short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked worker: Ctrl-C reaches it too, and its parent ends it
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        asked.append(number)
        if len(asked) == 1:
            raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGTERM]
    kept = {each: signal.getsignal(each) for each in numbers}
    ours = [each for each in numbers if kept[each] != signal.SIG_IGN]  # as nohup and a shell's & have it
    try:
        for each in ours:
            signal.signal(each, end)
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_IGN if asked else kept[each])  # the program is on its way out


def check_target(name: str, path: Path | None) -> None:
    """Whether a result can be written there, told before minutes of work.

    Args:
        name: the option's.
        path: its value; None passes.

    Raises:
        UsageError: if there is no such folder, or nothing can be written there.
    """
    if path is None:
        return
    if not path.parent.is_dir():
        raise UsageError(f"{name} is {path}, and there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise UsageError(f"{name} is {path}, which is a folder; give a file's name")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{name} is {path}, which may not be written; give another file, or change its permissions")


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
