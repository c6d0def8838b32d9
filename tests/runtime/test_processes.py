"""Worker processes: nothing stays running, whether they die, their parent does, or Ctrl-C comes while one starts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

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


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells which processes run")
def test_a_process_ends_with_its_parent_though_a_fork_of_the_parent_goes_on() -> None:
    program = (
        "import os, signal, time\n"
        "from mmload.runtime.processes import start_process\n"
        "from test_processes import waits\n"
        "if __name__ == '__main__':\n"
        "    _, pipe = start_process(waits, daemon=True)\n"
        "    number = pipe.recv()\n"
        "    child = os.fork()\n"
        "    if child:\n"
        "        print(number, child, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    time.sleep(60)\n"
    )
    place = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", program], env=place, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker, child = map(int, parent.stdout.readline().split())
    parent.wait(60)
    until = time.monotonic() + 30
    try:
        while runs(worker):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert runs(child)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def runs(number: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_an_interrupt_does_not_reach_a_process_that_a_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "START_METHOD", "spawn")
    masks: list[object] = []
    thread = threading.Thread(target=lambda: masks.append(start_process(blocked, daemon=True)[1].recv()))
    thread.start()
    thread.join()
    assert masks == [True]


def blocked(pipe: Connection) -> None:
    pipe.send(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
