"""Ctrl-C ends the program with one line and exit code 130 at any time; SIGTERM with exit code 143.

After :func:`exit_on_interrupt` the program exits at once: there is nothing to clean up yet, and a KeyboardInterrupt
during the import of torch can become a RecursionError or be lost. Inside :func:`interruptible` Ctrl-C raises
KeyboardInterrupt, so that everything cleans up. Only the command line uses this module.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from mmload.cli.status import shown
from mmload.errors import one_line

INTERRUPTED = 130  # a shell's exit code for SIGINT
_ENDED = 143
_AGAIN_S = 0.01


def fail(message: str, code: int) -> NoReturn:
    """Ends the program with one line and an exit code; control characters in it are escaped."""
    shown()
    with suppress(OSError, AttributeError):  # stderr is full or closed
        sys.stderr.write(f"mmload: {one_line(message)}\n")
    sys.exit(code)


def exit_on_interrupt() -> None:
    """Makes Ctrl-C end the program at once, unless SIGINT was ignored at the start."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as nohup and a shell's & have it
        signal.signal(signal.SIGINT, _end_at_once)


def ignore_interrupts() -> None:
    """Ignores Ctrl-C from now on, so that it cannot change the exit code of a program that is ending.

    Python restores the default handlers before it exits, so a late Ctrl-C would kill it. It also kills itself after a
    KeyboardInterrupt in an ``exec`` of a string (dataclasses use that) until another ``exec`` has run.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exec("")


def _end_at_once(number: int, frame: FrameType | None) -> None:
    with suppress(OSError, AttributeError, ValueError):
        os.write(sys.stderr.fileno(), b"mmload: interrupted\n")  # the stream itself may be in mid-write
    os._exit(INTERRUPTED)


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Ends the program with one line on Ctrl-C or SIGTERM inside, after everything inside has cleaned up."""
    signals: list[int] = []
    with _ended_once(signals):
        try:
            yield
        except (KeyboardInterrupt, Exception) as error:
            if not signals and isinstance(error, Exception):
                raise
            ended = signals[:1] == [signal.SIGTERM]  # whatever a library made of the KeyboardInterrupt
            fail(f"{'ended' if ended else 'interrupted'}; {advice}", _ENDED if ended else INTERRUPTED)


@contextmanager
def _ended_once(signals: list[int]) -> Iterator[None]:
    """Raises KeyboardInterrupt on the first Ctrl-C or SIGTERM inside; later ones do not interrupt the clean-up."""
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked worker: Ctrl-C reaches it too, and its parent ends it
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        signals.append(number)
        if len(signals) == 1:
            raise KeyboardInterrupt

    report = sys.unraisablehook

    def again(lost: sys.UnraisableHookArgs) -> None:
        """Sends a signal once more that came while an object was deleted: Python ignores what is raised there."""
        if signals and issubclass(lost.exc_type, KeyboardInterrupt):
            threading.Timer(_AGAIN_S, os.kill, [owner, signals.pop()]).start()  # which also ends a wait of this thread
        else:
            report(lost)

    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    ours = [each for each in handlers if handlers[each] != signal.SIG_IGN]  # as nohup and a shell's & have it
    try:
        for each in ours:
            signal.signal(each, end)
        sys.unraisablehook = again
        yield
    finally:
        sys.unraisablehook = report
        for each in ours:
            signal.signal(each, signal.SIG_IGN if signals else handlers[each])  # the program is on its way out
