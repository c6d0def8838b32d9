"""The process of one contender: it receives commands, answers them, and ends when the bench ends.

It receives commands through a pipe and returns the result of each, or the reason of its failure. It redirects its
output to a log file and ignores Ctrl-C.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mmload.bench import usage
from mmload.bench.contender_server import ContenderServer
from mmload.errors import MmloadError
from mmload.runtime.processes import depend_on_parent

_TRACEBACK = "Traceback (most recent call last):"
_SOCKET = len("/pymp-12345678/listener-12345678")  # the names that multiprocessing uses
_LONGEST = 103  # bytes of a socket's path on macOS; Linux allows 107


def serve(pipe: Connection, payload: bytes, method: str, log: str) -> None:
    """The main function of the process.

    Args:
        pipe: receives commands as (name, arguments), None at the end; sends ("done", value) or ("failed", reason).
        payload: (entry, task, scratch folder), pickled.
        method: the default start method of the contenders' processes: this system's default in Python.
        log: the file that receives all output of the process.
    """
    _detach(log)
    _keep_below(Path(log).parent)
    multiprocessing.set_start_method(method, force=True)  # a spawned process would spawn, and DataLoader's workers fork
    try:
        server = ContenderServer(*pickle.loads(payload))
        while (command := pipe.recv()) is not None:
            pipe.send(_answer(server, *command))
    except (EOFError, BrokenPipeError):
        os._exit(0)


def _keep_below(folder: Path) -> None:
    """Create temporary files in the bench's own folder: a worker process that is killed would leave some behind.

    Not if the path would be too long for the sockets that DataLoader's workers create there.
    """
    if len(os.fsencode(folder)) + _SOCKET <= _LONGEST:
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder)


def _answer(server: ContenderServer, name: str, arguments: dict[str, Any]) -> tuple[str, Any]:
    try:
        return "done", getattr(server, name)(**arguments)
    except MmloadError as error:
        return "failed", reason(error)
    except (Exception, SystemExit) as error:  # third-party loaders raise any type of exception
        traceback.print_exc()
        return "failed", reason(error)


def reason(error: BaseException) -> str:
    """The error in one line. Of a text with a traceback, as DataLoader's workers send, only the last line."""
    text = str(error)
    _, found, shown = text.rpartition(_TRACEBACK)
    lines = [line.strip() for line in shown.splitlines() if line.strip() and not (found and line.startswith(" "))]
    line = " ".join(lines)
    return line if isinstance(error, MmloadError) or (found and line) else f"{type(error).__name__}: {line or text}"


def _detach(log: str) -> None:
    """Own session, own output, no Ctrl-C; this process and all its descendants end when the bench ends."""
    depend_on_parent(lambda: kill_tree(os.getpid()))
    if hasattr(os, "setsid"):
        os.setsid()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(handle, stream)
    os.close(handle)


def kill_tree(root: int) -> None:
    """SIGKILL a process and all its descendants, itself last."""
    for process in reversed(usage.tree(root)):
        try:
            os.kill(process, getattr(signal, "SIGKILL", signal.SIGTERM))
        except (ProcessLookupError, PermissionError):
            continue
