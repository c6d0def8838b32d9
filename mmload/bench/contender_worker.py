"""Starts, commands, monitors and ends the process of one contender, on the side of the bench.

A command returns the response of the process, or raises :class:`Fault` if it failed, crashed or timed out.
No process is left running.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from mmload.bench.contender_process import kill_tree, serve
from mmload.bench.contenders import Entry
from mmload.bench.task import Task
from mmload.runtime.processes import cause_of_death, start_process

_LOOK = 0.05  # polling interval of a busy process, in seconds


class Fault(Exception):
    """A contender cannot continue; the message is the reason."""


class Worker:
    """One contender's process.

    Args:
        entry: the contender that it creates.
        task: the task that the contender performs.
        scratch: a folder for conversions.
        log: the file that receives the output of the process.
    """

    def __init__(self, entry: Entry, task: Task, scratch: Path, log: Path) -> None:
        self.entry = entry
        self._log = log
        self._payload = (entry, task, scratch)
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    @property
    def pid(self) -> int | None:
        """The process id while the process is alive."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process; it imports its modules while the bench waits for others.

        Raises:
            Fault: if the entry cannot be pickled.
        """
        try:
            payload = pickle.dumps(self._payload)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise Fault(f"it cannot be sent to a process ({error})") from error
        arguments = payload, multiprocessing.get_start_method(), str(self._log)
        daemon = False  # DataLoader's workers are child processes of it
        self._process, self._pipe = start_process(serve, *arguments, name=self.entry.name, daemon=daemon)

    def ask(self, name: str, limit: float, tick: Callable[[int], None] | None = None, **arguments: Any) -> Any:
        """Send a command and wait for its response.

        Args:
            name: a method of :class:`~mmload.bench.contender_process.ContenderServer`.
            limit: timeout in seconds; the process is killed when it expires.
            tick: called periodically with the process id while waiting.
            arguments: the arguments of the command.

        Raises:
            Fault: if the command failed, crashed or timed out.
        """
        if self._pipe is None or self._process is None:
            raise Fault("it was not started")
        deadline = time.monotonic() + limit
        try:
            self._pipe.send((name, arguments))
            while not self._pipe.poll(_LOOK):
                if tick is not None and self._process.pid is not None:
                    tick(self._process.pid)
                if time.monotonic() > deadline:
                    self.kill()
                    raise Fault(f"no answer within {limit:,.0f} s ({name}); it was ended")
            kind, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise Fault(self._death()) from error
        if kind == "failed":
            raise Fault(value)
        return value

    def leave(self) -> None:
        """Ask the process to close its contender and to exit; call :meth:`wait` later."""
        if self._pipe is not None:
            with suppress(OSError):
                self._pipe.send(("close", {}))
                self._pipe.send(None)

    def wait(self, seconds: float) -> None:
        """Wait for the process to exit, and kill it after ``seconds``."""
        if self._process is not None:
            self._process.join(max(0.0, seconds))
            self.kill()

    def kill(self) -> None:
        """Kill the process and all its descendants now."""
        process, pipe = self._process, self._pipe
        if process is None or process.pid is None:
            return
        kill_tree(process.pid)
        process.kill()
        _kill_group(process.pid)
        process.join()
        self._process = self._pipe = None
        if pipe is not None:
            pipe.close()

    def _death(self) -> str:
        """How the process died, with the last line of its log."""
        if self._process is None:
            return "it was ended"
        cause = cause_of_death(self._process)
        self.kill()
        said = last_line(self._log)
        return f"its process died ({cause})" + (f": {said}" if said else "")


def last_line(log: Path) -> str:
    """The last non-empty line of a file, truncated to 200 characters."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


def _kill_group(session: int) -> None:
    """Kill the remaining processes: descendants without a parent are still in its session's group."""
    if hasattr(os, "killpg"):
        try:
            os.killpg(session, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
