"""Ctrl-C from the program's first moment to its last: one line and exit code 130, whatever a library makes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys

class Interrupted:
    def find_spec(self, name, path, target=None):
        if name != WHERE: return None
        try: os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt: MADE_OF_IT

sys.meta_path.insert(0, Interrupted())
sys.argv = ["mmload", *WORDS]
from mmload.__main__ import main
main()
"""


IGNORING = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")
"""Starts a program as a job in the background of a shell: SIGINT is ignored."""


def interrupted(where: str, made_of_it: str, words: list[str]) -> str:
    """A program that is interrupted when it imports the module ``where``."""
    text = PROGRAM.replace("WHERE", repr(where)).replace("MADE_OF_IT", made_of_it)
    return text.replace("WORDS", repr(words))


def run(text: str, place: Path, *words: str) -> tuple[int, str, str]:
    """A program from its text as ``python -m``: how it ended and what it showed."""
    (place / "program.py").write_text(text)
    search = os.pathsep.join([str(Path(__file__).parents[2]), str(place)])
    done = subprocess.run(
        [*words, sys.executable, "-m", "program"],
        env=os.environ | {"PYTHONPATH": search, "TMPDIR": str(place)},
        capture_output=True,
        text=True,
        check=False,
        cwd=place,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "made_of_it"),
    [
        ("typer", "raise"),
        ("mmload.cli.app", "pass"),
        ("mmload.builder.verify", "raise"),
        ("mmload.builder.verify", "raise RecursionError"),
        ("mmload.builder.verify", "pass"),
        ("torch", "raise RecursionError"),
    ],
)
def test_an_interrupt_while_it_imports(where: str, made_of_it: str, tmp_path: Path) -> None:
    commands = {
        "mmload.builder.verify": ["verify", "nowhere"],
        "torch": ["add-field", "nowhere", "score", "nothing.npy"],
    }
    words = commands.get(where, ["--version"])
    assert run(interrupted(where, made_of_it, words), tmp_path) == (130, "", "mmload: interrupted\n")


@pytest.mark.slow
def test_interrupts_that_the_shell_has_it_ignore_are_ignored(tmp_path: Path) -> None:
    text = interrupted("mmload.builder.verify", "raise", ["verify", "nowhere"])
    code, _, said = run(text, tmp_path, *IGNORING)
    assert code == 1
    assert said.startswith("mmload: no such dataset: nowhere")


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        ("exec('raise_signal(SIGINT)')", 130, "interrupted"),  # Python would kill itself for that, after all is done
        ("exec('raise_signal(SIGTERM)')", 143, "ended"),
        ("swallowed(SIGINT)", 130, "interrupted"),
        ("swallowed(SIGTERM)", 143, "ended"),
    ],
)
def test_an_interrupt_at_work_is_one_whatever_becomes_of_it(work: str, code: int, said: str, tmp_path: Path) -> None:
    text = (
        "from signal import SIGINT, SIGTERM, raise_signal\n"
        "from mmload.cli import terminal as interrupt\n"
        "def swallowed(number):\n"
        "    try: raise_signal(number)\n"
        "    except KeyboardInterrupt: raise RuntimeError('a callback failed')\n"
        "interrupt.exit_on_interrupt()\n"
        "try:\n"
        f"    with interrupt.interruptible('nothing was changed'): {work}\n"
        "finally: interrupt.ignore_interrupts()\n"
    )
    assert run(text, tmp_path) == (code, "", f"mmload: {said}; nothing was changed\n")


def test_interrupts_at_work_that_the_shell_has_it_ignore_are_ignored(tmp_path: Path) -> None:
    text = (
        "from signal import SIGINT, raise_signal\n"
        "from mmload.cli import terminal as interrupt\n"
        "interrupt.exit_on_interrupt()\n"
        "with interrupt.interruptible('nothing was changed'): raise_signal(SIGINT)\n"
        "raise_signal(SIGINT)\n"
        "print('done')\n"
    )
    assert run(text, tmp_path, *IGNORING) == (0, "done\n", "")


def test_an_interrupt_while_an_object_is_deleted_is_not_lost(tmp_path: Path) -> None:
    program = (
        "import os, signal, time\n"
        "from mmload.cli.terminal import interruptible\n"
        "class Deleted:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        sum(range(1000))\n"
        "with interruptible('nothing was changed'):\n"
        "    Deleted()\n"
        "    time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "mmload: interrupted; nothing was changed\n")


def test_an_error_without_an_interrupt_stays_one(tmp_path: Path) -> None:
    text = (
        "from mmload.cli.terminal import interruptible\n"
        "with interruptible('nothing was changed'): raise ValueError(3)\n"
    )
    code, _, said = run(text, tmp_path)
    assert code == 1
    assert said.splitlines()[-1] == "ValueError: 3"


def test_an_interrupt_when_all_is_done_changes_nothing(tmp_path: Path) -> None:
    text = (
        "import os, signal, sys\n"
        "class Late:\n"
        "    def __del__(self, kill=os.kill, me=os.getpid(), number=signal.SIGINT): kill(me, number)\n"
        "late = Late()\n"  # Python drops it after it has given signals back their default actions
        "sys.argv = ['mmload', '--version']\n"
        "from mmload.__main__ import main\n"
        "main()\n"
    )
    code, out, said = run(text, tmp_path)
    assert (code, said) == (0, "")
    assert out.startswith("mmload ")


@pytest.mark.parametrize(("number", "code", "said"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "ended")])
def test_signals_again_and_again_leave_time_to_clean_up(number: str, code: int, said: str, tmp_path: Path) -> None:
    text = (
        "import signal, tempfile\n"
        "from mmload.cli.terminal import interruptible\n"
        f"def send(): signal.raise_signal(signal.{number})\n"
        "with interruptible('nothing was changed'), tempfile.TemporaryDirectory():\n"
        "    try: send()\n"
        "    finally: send(); send()\n"
    )
    assert run(text, tmp_path) == (code, "", f"mmload: {said}; nothing was changed\n")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("tmp")] == []
