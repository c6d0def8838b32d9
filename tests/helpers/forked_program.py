"""Programs in processes of their own, which are forks of a server that has imported torch: it takes seconds.

Signals, limits, outputs and exit codes are those of any process. What these do not show is how the program imports and
how Python ends: tests/cli/test_interrupt.py and test_terminal.py start Python for that. Processes that they start are
forks, too.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from mmload.runtime import processes

MMLOAD = "from mmload.__main__ import main; main()"
"""The program ``mmload``."""


class Program:
    """A program that runs, in a session of its own.

    Args:
        code: of the program.
        words: its arguments.
        place: variables that it has besides the environment.
        largest_file: RLIMIT_FSIZE in bytes.
    """

    def __init__(
        self, code: str, words: Sequence[object], place: Mapping[str, str] | None = None, largest_file: int = -1
    ) -> None:
        self.args = ["mmload", *map(str, words)]
        self._outputs = tempfile.TemporaryDirectory()
        self._paths = Path(self._outputs.name) / "out", Path(self._outputs.name) / "err"
        context: Any = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
        environment = {**os.environ, **(place or {})}
        self._process = context.Process(target=_run, args=(code, self.args, environment, largest_file, *self._paths))
        self._process.start()
        self.pid: int = self._process.pid

    @property
    def printed(self) -> str:
        """What it has printed so far."""
        return self._paths[0].read_text(errors="replace") if self._paths[0].exists() else ""

    @property
    def has_ended(self) -> bool:
        """Whether it runs no longer."""
        return self._process.exitcode is not None

    def wait_for(self, text: str, seconds: float = 120) -> None:
        """Wait until it has printed ``text``."""
        until = time.monotonic() + seconds
        while text not in self.printed:
            assert time.monotonic() < until, self.printed
            assert not self.has_ended, self.ended()
            time.sleep(0.005)

    def send_signal(self, number: int) -> None:
        """Send it a signal; it has to have begun its work."""
        os.kill(self.pid, number)

    def ended(self, seconds: float = 120) -> CompletedProcess[str]:
        """Wait for its end: how it ended and what it printed.

        Raises:
            TimeoutError: if it takes longer.
        """
        self._process.join(seconds)
        late = self._process.exitcode is None
        if late:
            self._process.kill()
            self._process.join()
        said = [path.read_text(errors="replace") if path.exists() else "" for path in self._paths]
        self._outputs.cleanup()
        if late:
            raise TimeoutError(f"{self.args} took more than {seconds:g} s; it printed: {said}")
        return CompletedProcess(self.args, self._process.exitcode, *said)


def run_program(code: str, *words: object, seconds: float = 120, **options: Any) -> CompletedProcess[str]:
    """Run a program to its end; the options are those of :class:`Program`."""
    return Program(code, words, **options).ended(seconds)


def path_of(script: str) -> Path:
    """Where a script of scripts/ or benchmarks/ is."""
    root = Path(__file__).parents[2]
    return next(path for folder in ("scripts", "benchmarks") if (path := root / folder / script).is_file())


def run_script(name: str, *words: object, seconds: float = 300) -> CompletedProcess[str]:
    """Run a script of scripts/ or benchmarks/ to its end."""
    path = path_of(name)
    start = f"import runpy, sys; sys.argv[0] = {str(path)!r}; sys.path.insert(0, {str(path.parent)!r})"
    return run_program(f"{start}; runpy.run_path({str(path)!r}, run_name='__main__')", *words, seconds=seconds)


def in_a_fork(task: Callable[[], object]) -> bool:
    """Whether ``task`` ends without an error in a fork of this process, and in time."""
    process = multiprocessing.get_context("fork").Process(target=task)
    process.start()
    process.join(120)
    ended = process.exitcode
    process.kill()
    return ended == 0


def _run(code: str, words: list[str], environment: dict[str, str], largest_file: int, *outputs: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(os, "fork"):
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # blocked where a build has started the server
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # TMPDIR may be another one
    for number, path in enumerate(outputs, 1):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(handle, number)
        os.close(handle)
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8:").partition(":")
    sys.stdout = open(1, "w", encoding=encoding, errors=errors or None, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
    if largest_file >= 0:
        import resource  # Windows has none

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    sys.argv = words
    processes.START_METHOD = "forkserver"
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
