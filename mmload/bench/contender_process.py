"""The process of one contender: it receives commands, answers them, and ends when the bench ends.

It receives commands through a pipe and returns the result of each, or the reason of its failure. It leads a process
group of its own, redirects its output to a log file and ignores Ctrl-C.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import signal
import sys
import tempfile
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from mmload.bench import contenders
from mmload.bench.contender_server import ContenderServer
from mmload.bench.contenders import ContenderEntry
from mmload.bench.record import Row
from mmload.bench.task import Task
from mmload.errors import MmloadError
from mmload.runtime.processes import cause_of_death, depend_on_parent, start_process

_TRACEBACK = "Traceback (most recent call last):"
_SOCKET = len("/pymp-12345678/listener-12345678")  # the names that multiprocessing uses
_LONGEST = 103  # bytes of a socket's path on macOS; Linux allows 107
_METHOD = "forkserver" if sys.platform == "linux" else "spawn"
"""How contenders start: eight processes that each import torch took 12 s of two cores, a server that forks takes 4."""
_NO_TRACKER = "ignore:resource_tracker"  # it warns of each semaphore that a killed process leaves behind


def serve(pipe: Connection, payload: bytes, method: str, log: str) -> None:
    """Runs a contender's process: answers commands until the bench ends.

    The pipe gets commands as (name, arguments), and answers ("done", value) or ("failed", reason). The
    payload is (entry, task, scratch folder), pickled; ``method`` is how the contender starts its own processes.
    """
    os.setsid()
    depend_on_parent(lambda: os.killpg(0, signal.SIGKILL))
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(handle, stream)
    _keep_below(Path(log).parent)
    multiprocessing.set_start_method(method, force=True)  # a spawned process would spawn, and DataLoader's workers fork
    try:
        server = ContenderServer(*pickle.loads(payload))
        while True:
            pipe.send(_answer(server, *pipe.recv()))
    except (EOFError, BrokenPipeError):
        os._exit(0)


def _keep_below(folder: Path) -> None:
    """Creates temporary files in the bench's own folder: a killed worker process would leave some behind.

    Not if the path would be too long for the sockets that DataLoader's workers create there.
    """
    if len(os.fsencode(folder)) + _SOCKET <= _LONGEST:
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder)


def _answer(server: ContenderServer, name: str, arguments: dict[str, Any]) -> tuple[str, Any]:
    try:
        return "done", getattr(server, name)(**arguments)
    except (Exception, SystemExit) as error:  # third-party loaders raise any type of exception
        traceback.print_exc()
        return "failed", reason(error)


def reason(error: BaseException) -> str:
    """Returns an error in one line; of a text with a traceback, as DataLoader's workers send, only the last line."""
    text = str(error)
    _, found, shown = text.rpartition(_TRACEBACK)
    if found:
        shown = re.sub("^ .*", "", shown, flags=re.MULTILINE)  # the calls
    line = " ".join(shown.split())
    return line if isinstance(error, MmloadError) or (found and line) else f"{type(error).__name__}: {line or text}"


class ContenderFault(Exception):
    """A contender cannot continue; the message is the reason."""


class Worker:
    """One contender's process, whose output goes to a log, and its row."""

    def __init__(self, entry: ContenderEntry, task: Task, scratch: Path, log: Path) -> None:
        self.entry = entry
        self.row = Row(name=entry.name, group=entry.group, differs=entry.differs, on_device=entry.on_device)
        self._log = log
        self._payload = (entry, task, scratch)
        self._running: tuple[BaseProcess, Connection] | None = None

    def start(self) -> None:
        """Starts the process; it imports its modules while the bench waits for others."""
        arguments = pickle.dumps(self._payload), multiprocessing.get_start_method(), str(self._log)
        if _NO_TRACKER not in (warnings := os.environ.get("PYTHONWARNINGS", "")):
            os.environ["PYTHONWARNINGS"] = f"{warnings},{_NO_TRACKER}".lstrip(",")
        multiprocessing.set_forkserver_preload([__name__, contenders.__name__])
        self._running = start_process(
            serve,
            *arguments,
            name=self.entry.name,
            daemon=False,  # DataLoader's workers are child processes of it
            method=_METHOD,
        )

    def ask(self, name: str, limit: float, **arguments: Any) -> Any:
        """Sends a command, a method of ContenderServer, and returns its response.

        After ``limit`` seconds the process is killed.

        Raises:
            ContenderFault: if the command failed, crashed or timed out.
        """
        if self._running is None:
            raise ContenderFault("it was not started")
        process, pipe = self._running
        try:
            pipe.send((name, arguments))
            if not pipe.poll(limit):
                self.kill()
                raise ContenderFault(f"no answer within {limit:,.0f} s ({name}), so it was given up")
            kind, value = pipe.recv()
        except (EOFError, OSError) as error:
            raise ContenderFault(self._death(process)) from error
        if kind == "failed":
            raise ContenderFault(value)
        return value

    def kill(self) -> None:
        """Kills the process and all of its group now, such as workers that have lost their parent."""
        if self._running is None:
            return
        process, _ = self._running
        with suppress(ProcessLookupError, PermissionError):  # it leads no group yet, or none is left
            os.killpg(process.pid, signal.SIGKILL)  # type: ignore[arg-type]  # a process that was started has a number
        process.kill()
        process.join()
        self._running = None

    def _death(self, process: BaseProcess) -> str:
        """Returns how the process died, with the last line of its log."""
        cause = cause_of_death(process)
        self.kill()
        said = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return f"its process died ({cause})" + (f": {said[-1][:200]}" if said else "")
