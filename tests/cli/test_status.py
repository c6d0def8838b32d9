"""What the program says on stderr while it works: after a while, again and again, and never over a result."""

from __future__ import annotations

import io
import threading
import time

import pytest

from mmload.cli import terminal as status


class Stderr(io.StringIO):
    """Standard error that is a terminal or none, and tells when something is written."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal, self.written = terminal, threading.Semaphore(0)

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        count = super().write(text)
        self.written.release()
        return count


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are shown at once, and again at once."""
    monkeypatch.delenv("MMLOAD_QUIET")
    for name in ("_FIRST_S", "_AGAIN_S", "_REDRAWN_S"):
        monkeypatch.setattr(status, name, 0.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("terminal", [True, False])
def test_status_is_shown_again_and_again_until_a_result_is(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Stderr(terminal)
    monkeypatch.setattr("sys.stderr", stderr)
    update = status.progress("build")
    for _ in range(3):
        assert stderr.written.acquire(timeout=60)
    update(0, 4)
    update(2, 4)
    while "build:  50%|#####     | 2/4 " not in stderr.getvalue():
        assert stderr.written.acquire(timeout=60)
    status.shown()
    said = stderr.getvalue()
    if terminal:
        assert "\n" not in said
        assert said.endswith("\r\033[K")
    else:
        assert said.startswith("mmload: build: reading what there is ...\n")
        assert "\r" not in said


def test_status_is_switched_off_for_logs_of_results(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Stderr(terminal=False)
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setattr(status, "_FIRST_S", 0.0)
    monkeypatch.setenv("MMLOAD_QUIET", "1")
    status.doing("working")
    time.sleep(0.05)
    status.shown()
    assert stderr.getvalue() == ""
