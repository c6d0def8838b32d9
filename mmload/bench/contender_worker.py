"""Starts, commands, watches and ends the process of one contender, from the side of the bench.

A command returns the answer of the process, or raises :class:`Fault` if it failed, crashed or did not answer in time.
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

_LOOK = 0.05  # seconds between two looks at a busy process


class Fault(Exception):
    """A contender cannot go on; the text is why."""


class Worker:
    """One contender's process.

    Args:
        entry: what it makes.
        task: what that has to deliver.
        scratch: a folder for conversions.
        log: the file that takes what the process prints.
    """

    def __init__(self, entry: Entry, task: Task, scratch: Path, log: Path) -> None:
        self.entry = entry
        self._log = log
        self._payload = (entry, task, scratch)
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    @property
    def pid(self) -> int | None:
        """The process's number while it lives."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process; it imports what it needs while others are waited for.

        Raises:
            Fault: if the entry cannot be sent to it.
        """
        try:
            payload = pickle.dumps(self._payload)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise Fault(f"it cannot be sent to a process ({error})") from error
        arguments = payload, multiprocessing.get_start_method(), str(self._log)
        daemon = False  # DataLoader's workers are its children
        self._process, self._pipe = start_process(serve, *arguments, name=self.entry.name, daemon=daemon)

    def ask(self, name: str, limit: float, tick: Callable[[int], None] | None = None, **arguments: Any) -> Any:
        """Give a command and wait for its answer.

        Args:
            name: a method of :class:`~mmload.bench.contender_process.ContenderServer`.
            limit: seconds; the process is killed when there is no answer by then.
            tick: called with the process's number again and again meanwhile.
            arguments: the command's.

        Raises:
            Fault: if it failed, crashed or gave no answer in time.
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
        """Tell the process to close its contender and to exit; :meth:`wait` for it later."""
        if self._pipe is not None:
            with suppress(OSError):
                self._pipe.send(("close", {}))
                self._pipe.send(None)

    def wait(self, seconds: float) -> None:
        """Give the process so long to exit by itself, then end it."""
        if self._process is not None:
            self._process.join(max(0.0, seconds))
            self.kill()

    def kill(self) -> None:
        """End the process and everything below it now."""
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
        """How the process ended by itself, with the last thing that it said."""
        if self._process is None:
            return "it was ended"
        cause = cause_of_death(self._process)
        self.kill()
        said = last_line(self._log)
        return f"its process died ({cause})" + (f": {said}" if said else "")


def last_line(log: Path) -> str:
    """The last line of a file that has anything in it, cut to 200 characters."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


def _kill_group(session: int) -> None:
    """End what the process left behind: descendants whose parent is gone are still of its session's group."""
    if hasattr(os, "killpg"):
        try:
            os.killpg(session, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
