"""A short run of each attack of scripts/torture, and that its checks see what they look for."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from conftest import script
from forked_program import run_script

import mmload

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="it kills forks and makes FIFOs, sockets and devices"),
]


@pytest.fixture(scope="module")
def torture() -> Iterator[ModuleType]:
    with script("torture") as module:
        yield module


RUNS = {
    "killed builds": (
        ["builds", "--rounds", 2, "--images", 60, "--seed", 1],
        {r"2 rounds, (\d+) kills: every dataset equals": 1},
    ),
    "killed builds of variable-size rows": (
        ["builds", "--rounds", 1, "--images", 60, "--seed", 1, "--variable-size"],
        {r"1 rounds, (\d+) kills: every dataset equals": 1},
    ),
    "commands killed before each of their changes": (
        ["commands", "--seconds", 2, "--rounds", 2],
        {
            r"(\d+) kills of parity --record": 2,
            r"(\d+) kills of repair": 1,
            r"(?s)record and (\d+) at random moments.*repair and (\d+) at random moments": 1,
        },
    ),
    "a dataset replaced under its readers": (
        ["swaps", "--seconds", 1],
        {r"(\d+) swaps; disk: \d+ batches": 1, r"disk: (\d+) batches": 1, r"memory: (\d+) batches": 1},
    ),
    "files that change under a loader": (
        ["faults", "--rounds", 3],
        {
            r"(\d+) right epochs, ": 1,
            r"(\d+) processes ended by SIGBUS": 0,
        },
    ),
    "killed updates and clean-ups": (
        ["versions", "--rounds", 6, "--seed", 3],
        {
            r"(\d+) rounds, \d+ kills": 6,
            r"rounds, (\d+) kills, ": 1,
            r"(\d+) versions checked: each whole": 1,
        },
    ),
    "a small cache of many processes": (
        ["cache", "--seconds", 2],
        {r"([\d,]+) rows read by 3 processes, none wrong, the limit kept": 1},
    ),
    "datasets, recipes and folders of strangers": (
        ["manifests", "recipes", "trees", "--seconds", 2],
        {
            r"(\d+) commands over datasets": 36,
            r"(\d+) spoiled recipes": 1,
            r"kinds of trees, \d+ that vanished: (\d+) built": 1,
            r"built, (\d+) one line": 1,
        },
    ),
}
"""What is attacked: the words of the command; what it says, and the least sum of the numbers in it."""

NEEDS = {"faults": "obstore", "cache": "obstore"}


@pytest.mark.parametrize("attack", RUNS)
def test_torture_finds_nothing_in_a_short_run(attack: str) -> None:
    words, expected = RUNS[attack]
    if package := NEEDS.get(str(words[0])):
        pytest.importorskip(package, reason=f"{package} is not installed")
    done = run_script("torture", *words)  # in another process, as a fork of this one, with torch's threads, would hang
    assert done.returncode == 0, done.stdout + done.stderr
    for pattern, least in expected.items():
        found = re.search(pattern, done.stdout)
        assert found is not None, (pattern, done.stdout)
        assert sum(int(number.replace(",", "")) for number in found.groups()) >= least, pattern


def test_torture_build_that_differs_raises(torture: ModuleType, tmp_path: Path) -> None:
    builds = torture.torture_builds
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_bytes(b"1")
    new = builds.tree(tmp_path / "out")
    builds.check_equal(tmp_path / "out", new)
    builds.check_whole(tmp_path / "out", None, new)
    (tmp_path / "out" / "a").write_bytes(b"2")
    with pytest.raises(torture.DifferenceError, match="differs from the undisturbed build in a"):
        builds.check_equal(tmp_path / "out", new)
    with pytest.raises(torture.DifferenceError, match="neither the old nor the new"):
        builds.check_whole(tmp_path / "out", None, new)
    with pytest.raises(torture.DifferenceError, match="the old dataset is gone"):
        builds.check_whole(tmp_path / "gone", new, new)


def test_torture_damage_by_a_kill_raises(torture: ModuleType, copy: Path) -> None:
    commands = torture.torture_commands
    wanted = torture.torture_builds.tree(copy)
    commands.after_kill(copy, set(), wanted)
    file = copy / "train" / "000000" / "images.memmap"
    file.write_bytes(b"x" + file.read_bytes()[1:])
    with pytest.raises(torture.DifferenceError, match="a kill damaged train/000000/images.memmap"):
        commands.after_kill(copy, set(), wanted)


def test_torture_mixed_batch_raises(torture: ModuleType) -> None:
    def batch(values: list[int], labels: list[int]) -> mmload.Batch:
        pixels = torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
        return mmload.Batch(images=pixels, targets=torch.tensor(labels), batch_size=[len(labels)])

    check = torture.torture_swaps.check
    check(batch([41, 43], [1, 3]))
    for values, labels in (([41, 53], [1, 3]), ([41, 43], [1, 2])):
        with pytest.raises(torture.DifferenceError, match="a mixed batch"):
            check(batch(values, labels))


def test_torture_traceback_or_second_line_raises(torture: ModuleType) -> None:
    strangers = torture.torture_strangers
    answer = strangers.Answer
    strangers.check_line([], answer(2, "", "mmload: no\n"), (1, 2))
    strangers.check_line([], answer(0, "fine", ""), (0, 1, 2))
    for wrong in (
        answer(0, "", ""),
        answer(1, "", ""),
        answer(1, "", "mmload: a\nb\n"),
        answer(1, "", "Traceback\n"),
        answer(1, "", "mmload: TypeError (this is a bug in mmload; add --debug to see where)\n"),
        answer(139, "", "mmload: no\n"),
    ):
        with pytest.raises(torture.DifferenceError, match="exit code"):
            strangers.check_line(["build"], wrong, (1, 2))


def test_torture_postscript_that_runs_raises(
    torture: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A stand-in for Ghostscript does what the program in the image says: it makes the file."""
    trees = torture.torture_trees
    source = tmp_path / "programs"
    (source / "train" / "class0").mkdir(parents=True)
    trees.programs(source / "train" / "class0")
    canary = re.search(r"\((.*)\) \(w\) file", (source / "train" / "class0" / "a.jpg").read_text())

    def interpret(words: list[object]) -> object:
        Path(canary[1]).touch()
        return trees.Answer(1, "", "mmload: no\n")

    monkeypatch.setattr(trees, "command", interpret)
    with pytest.raises(torture.DifferenceError, match=r"programs ran the PostScript in a\.jpg"):
        trees.built(trees.Watch(), source, tmp_path / "out", [])


def test_torture_code_that_runs_raises(torture: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The canary sings where a command does what the dataset asks for."""
    strangers = torture.torture_strangers
    plain = strangers.command
    monkeypatch.setattr(strangers, "command", lambda words: plain([*words, "--trust"]))
    monkeypatch.setattr(strangers, "wishes", lambda folder: [{"kind": "python", "dataset": f"{strangers.CANARY}:rows"}])
    with pytest.raises(torture.DifferenceError, match=strangers.CANARY):
        strangers.manifests(tmp_path)
