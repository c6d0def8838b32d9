"""How Ctrl-C ends the program: one line and exit code 130 from its first moment to its last; a SIGTERM likewise, 143.

Two ways. From :func:`begin` on it ends at once: nothing is there to clean up yet, and a KeyboardInterrupt in the middle
of importing torch comes out as a RecursionError, or not at all. Inside :func:`interruptible` it is a KeyboardInterrupt,
so that all cleans up after itself. Only the command line uses either.
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

from mmload.errors import one_line

INTERRUPTED = 130  # as a shell tells that SIGINT ended a program
_ENDED = 143


def fail(message: str, code: int) -> NoReturn:
    """End the program with one line and an exit code; line ends and the like in it, as of odd names, are escaped."""
    with suppress(OSError, AttributeError):  # stderr is full, or closed: there is nobody to tell
        sys.stderr.write(f"mmload: {one_line(message)}\n")
    sys.exit(code)


def begin() -> None:
    """From here on Ctrl-C ends the program at once, unless it was started with that ignored."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as nohup and a shell's & have it
        signal.signal(signal.SIGINT, _end_at_once)


def over() -> None:
    """From here on nothing changes how the program ends.

    Python gives signals back their default actions before it is done, and a Ctrl-C would kill it. And it kills itself
    where a KeyboardInterrupt has left an ``exec`` of a text, as those of dataclasses, until another has passed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exec("")


def _end_at_once(number: int, frame: FrameType | None) -> None:
    with suppress(OSError, AttributeError, ValueError):
        os.write(sys.stderr.fileno(), b"mmload: interrupted\n")  # the stream itself may be in mid-write
    os._exit(INTERRUPTED)


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Ctrl-C or a SIGTERM inside ends the program with one line, after all inside has cleaned up after itself."""
    asked: list[int] = []
    with _ended_once(asked):
        try:
            yield
        except (KeyboardInterrupt, Exception) as error:
            if not asked and isinstance(error, Exception):
                raise
            ended = asked[:1] == [signal.SIGTERM]  # whatever a library made of the KeyboardInterrupt
            fail(f"{'ended' if ended else 'interrupted'}; {advice}", _ENDED if ended else INTERRUPTED)


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
