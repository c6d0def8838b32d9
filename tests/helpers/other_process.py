"""Another process that does what a test says, and keeps what it made until it is killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from mmload.runtime.processes import depend_on_parent, start_process


class OtherProcess:
    """Calls functions of test modules, which get a dict as their first argument: what they keep. A context manager.

    Attributes:
        pid: its number.
    """

    def __init__(self) -> None:
        self._process, self._pipe = start_process(_serve, daemon=True)
        self.pid = self._process.pid

    def do(self, task: Callable[..., Any], *arguments: object) -> Any:
        """What ``task(kept, *arguments)`` returns in the process; EOFError if it dies of it."""
        self._pipe.send((task, arguments))
        result, error = self._pipe.recv()
        if error:
            raise error
        return result

    def kill(self) -> None:
        """End it as ``kill -9`` does, and wait until it is gone."""
        self._process.kill()
        self._process.join()

    def __enter__(self) -> OtherProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _serve(pipe: Connection) -> None:
    depend_on_parent(lambda: os._exit(1))
    kept: dict[str, Any] = {}
    while True:
        task, arguments = pipe.recv()
        try:
            answer = task(kept, *arguments), None
        except Exception as error:
            answer = None, error
        pipe.send(answer)
