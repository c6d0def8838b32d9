"""How the program ends: a full or closed output, a full disk, names of several lines."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmload.dataset import Dataset
from mmload.errors import MmloadError
from mmload.terminal import last_resort

FULL = Path("/dev/full")
COMMANDS = (["--help"], ["bench", "--help"], ["info", "DATASET"])
UNBUFFERED = ("", "1")


def command(words: list[str], dataset: Dataset) -> list[str]:
    """A command as a program of its own."""
    return [sys.executable, "-m", "mmload", *(str(dataset.path) if word == "DATASET" else word for word in words)]


@pytest.mark.parametrize("unbuffered", UNBUFFERED)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_full_output_is_one_line(words: list[str], unbuffered: str, dataset: Dataset) -> None:
    if not FULL.exists():
        pytest.skip("there is no /dev/full")
    place = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with FULL.open("w") as full:
        done = subprocess.run(
            command(words, dataset), env=place, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == (
        "mmload: cannot write to standard output (No space left on device); free some space, or send it elsewhere\n"
    )


@pytest.mark.parametrize("unbuffered", UNBUFFERED)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_reader_that_is_gone_ends_it_quietly(words: list[str], unbuffered: str, dataset: Dataset) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    place = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    try:
        done = subprocess.run(
            command(words, dataset), env=place, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(theirs)
    assert (done.returncode, done.stderr) == (141, "")


def test_what_a_library_swallows_is_told_all_the_same() -> None:
    if not FULL.exists():
        pytest.skip("there is no /dev/full")
    script = (
        "import sys\n"
        "from mmload.terminal import last_resort\n"
        "with last_resort(False):\n"
        "    try: print('shown', flush=True)\n"
        "    except Exception: pass\n"
    )
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("mmload: cannot write to standard output")


@pytest.mark.parametrize("words", [["verify", "DATASET"], ["info", "nowhere"]], ids=" ".join)
def test_outputs_that_are_closed_or_full_for_both_change_nothing_of_the_end(words: list[str], dataset: Dataset) -> None:
    if not FULL.exists():
        pytest.skip("there is no /dev/full")
    line = " ".join(f"'{word}'" for word in command(words, dataset))
    expected = int("nowhere" in words)
    assert subprocess.run(f"{line} >&- 2>&-", shell=True, check=False).returncode == expected
    assert subprocess.run(f"{line} > /dev/full 2> /dev/full", shell=True, check=False).returncode == 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/t/a"), "No space left on device: /t/a; free some space"),
        (OSError(errno.EFBIG, "File too large"), "File too large; raise the limit of file sizes"),
        (MemoryError(), "out of memory (no more could be had); ask for less"),
        (RuntimeError("unable to resize file </t/a>: File too large (27)"), "(27); raise the limit of file sizes"),
        (RuntimeError("lost count (3)"), "RuntimeError: lost count (3) (this is a bug in mmload"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a"), "this is a bug in mmload"),
    ],
)
def test_what_the_system_refuses_is_not_called_a_bug(
    error: Exception, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, last_resort(False):
        raise error
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("mmload: ")
    assert said.count("\n") == 1
    assert expected in said


@pytest.mark.parametrize("name", ["a\nb", "a\r\x1b[31mb", "a\u2028b", "a\udcffb"])
def test_a_name_of_several_lines_is_told_in_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), last_resort(False):
        raise MmloadError(f"no such folder: {name}")
    said = capsys.readouterr().err
    assert said.splitlines() == [f"mmload: no such folder: {name.encode('unicode_escape').decode()}"]
