"""Worker processes: starts one that Ctrl-C does not reach, lets it end with its parent, and says how it died."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

START_METHOD = "spawn"
"""A fork would copy torch's threads in mid-step, and memory that it shares would be counted for no process. Tests set
"forkserver", to import torch once."""

_SECONDS_TO_EXIT = 5.0  # of a process that has closed its pipe

_LIKELY_CAUSES = {
    getattr(signal, "SIGKILL", 0): ", as when memory runs out",
    getattr(signal, "SIGBUS", 0): ", as when the disk of a mapped file is full",
}


def start_process(
    main: Callable[..., None], *arguments: object, name: str | None = None, daemon: bool
) -> tuple[BaseProcess, Connection]:
    """Start a process that Ctrl-C does not interrupt while it starts.

    Args:
        main: called in the process with its end of a pipe and the arguments; a function of a module, which calls
            :func:`depend_on_parent` first.
        arguments: picklable.
        name: of the process.
        daemon: whether Python ends the process at its own exit; such a process cannot have children.

    Returns:
        The process, and this end of the pipe.
    """
    context: Any = multiprocessing.get_context(START_METHOD)
    here, there = context.Pipe()
    process: BaseProcess = context.Process(target=main, args=(there, *arguments), name=name, daemon=daemon)
    try:
        with _interrupts_blocked():
            process.start()
    except BaseException:  # a Ctrl-C is raised after the start: nobody else knows this process
        if process.pid is not None:
            process.kill()
            process.join()
        raise
    finally:
        there.close()
    return process, here


def depend_on_parent(end: Callable[[], None]) -> None:
    """What a worker does first: leave Ctrl-C to its parent, and end when that is gone.

    Args:
        end: called in a thread as soon as the parent has ended, in whatever way; ends this process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent itself ends its workers
    threading.Thread(target=_await_parent, args=(end,), daemon=True).start()


def _await_parent(end: Callable[[], None]) -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
    end()


def cause_of_death(process: BaseProcess) -> str:
    """How a process ended by itself: ``exit code 3``, or ``signal SIGKILL`` with a likely cause."""
    process.join(_SECONDS_TO_EXIT)
    code = process.exitcode
    if code is None or code >= 0:
        return f"exit code {code}"
    return f"signal {signal.Signals(-code).name}{_LIKELY_CAUSES.get(-code, '')}"


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C for the workers started inside, from their first instruction on: they inherit the signal mask.

    A Ctrl-C meanwhile is raised at the end. The mask holds for this thread alone: if another thread took the signal, it
    would be raised here, between the start of a worker and the message that the worker waits for.
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    resource_tracker.ensure_running()  # starting it, as the first worker would, unblocks
    kept: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: kept.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
        if kept:
            signal.raise_signal(signal.SIGINT)
