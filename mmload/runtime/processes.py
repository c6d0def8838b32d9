"""Worker processes: starts them without Ctrl-C handling, ends them with their parent, and reports how they died."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

START_METHOD = "spawn"
"""A fork would copy torch's threads in an inconsistent state, and shared memory would count for no process. Tests set
"forkserver", to import torch once."""

_SECONDS_TO_EXIT = 5.0  # for a process that has closed its pipe
_LOOK_S = 2.0  # between looks at the parent

_LIKELY_CAUSES = {
    getattr(signal, "SIGKILL", 0): ", as when memory runs out",
    getattr(signal, "SIGBUS", 0): ", as when the disk of a mapped file is full",
}


def start_process(
    main: Callable[..., None], *arguments: object, name: str | None = None, daemon: bool, method: str | None = None
) -> tuple[BaseProcess, Connection]:
    """Starts a process that Ctrl-C does not interrupt during its start.

    ``main``, a module-level function, is called in the process with its end of a pipe and the arguments, which are
    picklable; it calls :func:`depend_on_parent` first. Python ends a ``daemon`` on exit; it cannot have children.
    ``method`` is :mod:`multiprocessing`'s way to start it; None: :data:`START_METHOD`.

    Returns:
        The process, and the parent's end of the pipe.
    """
    starting: Any = multiprocessing.get_context(method or START_METHOD)
    parent_end, child_end = starting.Pipe()
    process: BaseProcess = starting.Process(target=main, args=(child_end, *arguments), name=name, daemon=daemon)
    try:
        with _interrupts_blocked():
            process.start()
    except BaseException:  # Ctrl-C is raised after the start, before any other code knows this process
        if process.pid is not None:
            process.kill()
            process.join()
        raise
    finally:
        child_end.close()
    return process, parent_end


def depend_on_parent(end: Callable[[], None]) -> None:
    """Ignores Ctrl-C, which the parent handles, and ends the process with its parent; a worker calls it first.

    ``end`` is called in a thread as soon as the parent has ended, for any reason; it ends this process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    threading.Thread(target=_await_parent, args=(end,), daemon=True).start()


def _await_parent(end: Callable[[], None]) -> None:
    parent, started_by = parent_process(), os.getppid()
    # Processes that the parent forked hold the other end of the sentinel, too, and may go on without it.
    while parent is not None and not wait([parent.sentinel], _LOOK_S) and os.getppid() == started_by:
        pass
    end()


def cause_of_death(process: BaseProcess) -> str:
    """Returns how a process died: ``exit code 3``, or ``signal SIGKILL`` with a likely cause."""
    process.join(_SECONDS_TO_EXIT)
    code = process.exitcode
    if code is None or code >= 0:
        return f"exit code {code}"
    return f"signal {signal.Signals(-code).name}{_LIKELY_CAUSES.get(-code, '')}"


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Blocks Ctrl-C for the workers started inside, from their first instruction on: they inherit the signal mask.

    A Ctrl-C inside the block is raised at its end. The mask applies only to this thread: if another thread received the
    signal, it would be raised in the main thread, between the start of a worker and the message that the worker waits
    for, if that is this one.
    """
    resource_tracker.ensure_running()  # if the first worker started it, that would unblock the signal
    interrupts: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number)) if is_main else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if is_main:
            signal.signal(signal.SIGINT, handler)
        if interrupts:
            signal.raise_signal(signal.SIGINT)
