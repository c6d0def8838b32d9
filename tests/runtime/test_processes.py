"""Worker processes: nothing stays running, whether they die, their parent does, or Ctrl-C comes while one starts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from waiting import until

from mmload.runtime import processes
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


PROGRAM = """
import os, signal, sys, time
from mmload.runtime.processes import start_process
from test_processes import waits
if __name__ == "__main__":
    _, pipe = start_process(waits, daemon=True)
    worker = pipe.recv()
    child = os.fork() if "forks" in sys.argv else os.getpid()
    if child:
        print(worker, child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(900)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells which processes run")
@pytest.mark.parametrize("forks", [False, True])
def test_a_process_ends_with_its_parent_though_a_fork_of_the_parent_may_go_on(forks: bool) -> None:
    place = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", PROGRAM, *["forks"] * forks]
    with subprocess.Popen(words, env=place, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker, child = map(int, parent.stdout.readline().split())
        assert parent.wait(60) == -signal.SIGKILL
        try:
            until(lambda: not runs(worker))
            assert runs(child) is forks
        finally:
            if forks:
                os.kill(child, signal.SIGKILL)


def runs(number: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_an_interrupt_does_not_reach_a_process_that_a_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "START_METHOD", "spawn")
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(lambda: start_process(blocked, daemon=True)[1].recv()).result() is True


def blocked(pipe: Connection) -> None:
    pipe.send(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
