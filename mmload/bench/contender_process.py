"""The process of one contender: it receives commands, answers them, and ends when the bench ends.

It takes commands through a pipe and returns the result of each, or the reason of its failure. It writes its own output
to a log file and ignores Ctrl-C.
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
_SOCKET = len("/pymp-12345678/listener-12345678")  # as multiprocessing calls them
_LONGEST = 103  # bytes of a socket's name on macOS; Linux takes 107


def serve(pipe: Connection, payload: bytes, method: str, log: str) -> None:
    """The main function of the process.

    Args:
        pipe: commands come in as (name, arguments), None at the end; ("done", value) or ("failed", why) go out.
        payload: (entry, task, scratch folder), pickled.
        method: how contenders start processes if they do not say: as this system's Python does by itself.
        log: the file that takes all that is printed here.
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
    """Make temporary files in the bench's own folder: of a worker process that is killed, some would be left.

    Not where that would be too deep for the names of sockets, which DataLoader's workers make there.
    """
    if len(os.fsencode(folder)) + _SOCKET <= _LONGEST:
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder)


def _answer(server: ContenderServer, name: str, arguments: dict[str, Any]) -> tuple[str, Any]:
    try:
        return "done", getattr(server, name)(**arguments)
    except MmloadError as error:
        return "failed", reason(error)
    except (Exception, SystemExit) as error:  # other people's loaders raise whatever they like
        traceback.print_exc()
        return "failed", reason(error)


def reason(error: BaseException) -> str:
    """Why, in one line. A text with a traceback in it, as DataLoader has of its workers, ends with what was raised."""
    text = str(error)
    _, found, shown = text.rpartition(_TRACEBACK)
    lines = [line.strip() for line in shown.splitlines() if line.strip() and not (found and line.startswith(" "))]
    line = " ".join(lines)
    return line if isinstance(error, MmloadError) or (found and line) else f"{type(error).__name__}: {line or text}"


def _detach(log: str) -> None:
    """Own session, own output, no Ctrl-C, and an end of this process and all below it when the bench ends."""
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
