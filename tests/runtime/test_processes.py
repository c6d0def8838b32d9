"""Worker processes: nothing stays running, whether they die, their parent does, or Ctrl-C comes while one starts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection

import pytest

from mmload.runtime.processes import cause_of_death, depend_on_parent, start_process


class Interrupts:
    """Sends Ctrl-C to this process while it is pickled: while the worker starts."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        signal.raise_signal(signal.SIGINT)
        return type(self), ()


def waits(pipe: Connection, *_: object) -> None:
    depend_on_parent(lambda: os._exit(1))
    pipe.send(os.getpid())
    pipe.recv()


def dies(pipe: Connection, number: int) -> None:
    if number < 0:
        os.kill(os.getpid(), -number)
    os._exit(number)


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-signal.SIGSEGV, "signal SIGSEGV"),
        (-signal.SIGKILL, "signal SIGKILL, as when memory runs out"),
        (-signal.SIGBUS, "signal SIGBUS, as when the disk of a mapped file is full"),
    ],
)
def test_how_a_process_died_is_said(number: int, cause: str) -> None:
    process, pipe = start_process(dies, int(number), daemon=True)
    with pytest.raises(EOFError):
        pipe.recv()
    assert cause_of_death(process) == cause


def test_an_interrupt_while_a_process_starts_leaves_none_running() -> None:
    with pytest.raises(KeyboardInterrupt):
        start_process(waits, Interrupts(), daemon=True)
    assert multiprocessing.active_children() == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_process_ends_with_its_parent() -> None:
    program = (
        "import os, signal\n"
        "from mmload.runtime.processes import start_process\n"
        "from test_processes import waits\n"
        "if __name__ == '__main__':\n"
        "    _, pipe = start_process(waits, daemon=True)\n"
        "    print(pipe.recv(), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    place = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # The worker holds the output open: the call returns only when it, too, has ended.
    done = subprocess.run([sys.executable, "-c", program], env=place, stdout=subprocess.PIPE, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL
    assert int(done.stdout) > 0
