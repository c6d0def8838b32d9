"""How the program ends: a full or closed output, a full disk, names of several lines."""

from __future__ import annotations

import ast
import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import make_folder, mmload
from forked_program import MMLOAD, run_program
from PIL import Image

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.cli.terminal import last_resort
from mmload.errors import MmloadError, one_line
from mmload.store.dataset import Dataset

FULL = Path("/dev/full")
COMMANDS = (["--help"], ["bench", "--help"], ["info", "DATASET"])
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")


def command(words: list[str], dataset: Dataset) -> list[str]:
    """A command as a program of its own."""
    return [sys.executable, "-m", "mmload", *(str(dataset.path) if word == "DATASET" else word for word in words)]


def run(words: list[str], unbuffered: str, output: Any) -> tuple[int, str]:
    """A program with this output: its exit code, and what it writes to standard error."""
    place = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(words, env=place, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


SWALLOWED = """
import sys
from mmload.cli.terminal import last_resort
with last_resort(False):
    try: print('shown', flush=True)
    except Exception: pass
"""


@needs_full
@pytest.mark.parametrize(
    ("words", "unbuffered"), [(words, each) for words in COMMANDS for each in ("", "1")] + [(["SWALLOWED"], "")]
)
def test_a_full_output_is_one_line(words: list[str], unbuffered: str, dataset: Dataset) -> None:
    program = [sys.executable, "-c", SWALLOWED] if words == ["SWALLOWED"] else command(words, dataset)
    with FULL.open("w") as full:
        code, said = run(program, unbuffered, full)
    assert code == 1
    assert said.startswith("mmload: No space left on device; free some space")
    assert said.count("\n") == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_reader_that_is_gone_ends_it_quietly(words: list[str], unbuffered: str, dataset: Dataset) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with open(theirs, "w") as output:
        assert run(command(words, dataset), unbuffered, output) == (141, "")


@pytest.mark.slow
@needs_full
@pytest.mark.parametrize("words", [["verify", "DATASET"], ["info", "nowhere"]], ids=" ".join)
def test_outputs_that_are_closed_or_full_for_both_change_nothing_of_the_end(words: list[str], dataset: Dataset) -> None:
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
def test_terminal_name_of_several_lines_is_shown_in_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), last_resort(False):
        raise MmloadError(f"no such folder: {name}")
    said = capsys.readouterr().err
    assert said.splitlines() == [f"mmload: no such folder: {name.encode('unicode_escape').decode()}"]


def test_a_message_with_a_long_text_of_a_file_keeps_its_begin_and_its_advice() -> None:
    text = str(MmloadError(f"a.yaml names {'x' * 5000}, which does not exist; correct it"))
    assert len(text) <= 600
    assert text.startswith("a.yaml names xxx")
    assert text.endswith("xxx, which does not exist; correct it")


ODD = "\x1b]0;owned\x07\u202egnp.tac"
"""Sets the title of a terminal's window, and turns the direction of what follows."""


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A dataset of classes that a terminal should not see, and that ASCII does not have."""
    make_folder(tmp_path / "photos", per_class=1, classes=(ODD, "naïve"))
    build(BuildRecipe(kind="imagefolder", root=tmp_path / "photos", out=tmp_path / "out", transforms=square(16)))
    return tmp_path / "out"


@pytest.mark.parametrize("words", [["info"], ["verify"], ["parity", "--rows", "1"]], ids=lambda words: words[0])
def test_names_do_not_reach_the_terminal_as_they_are(odd: Path, words: list[str]) -> None:
    source = odd.parent / "photos"
    more = ["--source", source] if words[0] != "info" else []
    done = run_program(MMLOAD, *words, odd, *more, place={"PYTHONIOENCODING": "ascii"})
    said = done.stdout + done.stderr
    assert said.isascii()
    assert "Traceback" not in said
    assert "Encode" not in said
    assert not set(said) & {"\x1b", "\x07"}
    if words == ["info"]:
        assert done.returncode == 0, said
        assert "\\x1b]0;owned\\x07\\u202egnp.tac" in said
        assert "na\\xefve" in said


def test_what_a_build_says_to_do_next_can_be_pasted(tmp_path: Path) -> None:
    """Into a shell and into Python, whatever is in the names."""
    photos = make_folder(tmp_path / "Meine Fotos; $1", per_class=1, classes=("a", "b"))
    out = tmp_path / 'of "size" 16'
    said = mmload("build", "imagefolder", photos, out, "--size", 16).stdout
    shell, python = said.partition("next:\n")[2].splitlines()
    assert shlex.split(shell) == ["mmload", "bench", str(out), "--source", str(photos)]
    loader = ast.parse(python.strip()).body[0]
    assert isinstance(loader, ast.For)
    assert ast.literal_eval(loader.iter.args[0].value.args[0]) == str(out)  # type: ignore[attr-defined]


def test_names_cannot_forge_lines(tmp_path: Path) -> None:
    """A line end in the name of a folder, a class or a file is escaped, and begins no line of its own."""
    photos = make_folder(tmp_path / "photos\nFORGED", per_class=2, classes=("a\nFORGED", "b"))
    (photos / "b" / "00.png").rename(photos / "b" / "0\nFORGED.png")
    out = tmp_path / "out\nFORGED"
    words: list[list[object]] = [
        ["build", "imagefolder", photos, out, "--size", 16],
        ["info", out],
        ["verify", out, "--source", photos],
        ["parity", out, "--source", photos, "--rows", 1, "--record", "--json", tmp_path / "a\nFORGED.json"],
        ["verify", out, "--repair", "--source", photos],
        ["info", out, "--row", 2],
        ["build", "imagefolder", photos, out, "--size", 16],
    ]
    for each in words:
        done = mmload(*each)
        assert "FORGED" in done.stdout, done.stderr
        lines = (done.stdout + done.stderr).splitlines()
        assert not [line for line in lines if line.strip().startswith("FORGED")], each


def test_bytes_of_a_name_are_shown_as_the_text_that_they_are() -> None:
    """As names are read where the locale is not UTF-8; what is no UTF-8 is escaped."""
    assert one_line(os.fsencode("Müller \x1b").decode("ascii", "surrogateescape")) == "Müller \\x1b"
    assert one_line("\udcff \ud800 \udcc3ü") == "\\udcff \\ud800 \\udcc3ü"


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_build_under_a_limit_of_address_space_names_it_in_one_line(tmp_path: Path) -> None:
    make_folder(tmp_path / "photos")
    photo = next(path for path in (tmp_path / "photos").rglob("*") if path.is_file())
    Image.new("RGB", (1600, 1600)).save(photo)  # to shrink it, torch is imported
    limited = (
        "import resource, runpy; resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29)); "
        "runpy.run_module('mmload', run_name='__main__')"
    )
    words = [
        sys.executable,
        "-c",
        limited,
        "build",
        "imagefolder",
        tmp_path / "photos",
        tmp_path / "out",
        "--size",
        "16",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert "the limit of address space is 1.5 GiB: raise it (ulimit -v)" in line
    assert "Traceback" not in done.stderr
