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


def run(*words: object) -> str:
    """In a process of its own, as a fork of this one, with torch's threads at work, would hang; what it said."""
    done = run_script("torture", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def counts(pattern: str, text: str) -> list[int]:
    """The numbers in a line."""
    found = re.search(pattern, text)
    assert found is not None, text
    return [int(number) for number in found.groups()]


@pytest.mark.parametrize("layout", [(), ("--variable-size",)], ids=["squares", "whole"])
def test_a_few_rounds_of_killed_builds(layout: tuple[str, ...]) -> None:
    told = run("builds", "--rounds", 2, "--images", 60, "--seed", 1, *layout)
    assert counts(r"2 rounds, (\d+) kills: every dataset equals", told)[0] > 0


def test_a_node_of_a_ray_cluster_is_killed() -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    told = run("ray", "--rounds", 1, "--images", 80, "--nodes", 2, "--seed", 2)
    nodes, workers = counts(r"1 rounds, (\d+) nodes and (\d+) workers killed, \d+ shards begun again: every", told)
    assert nodes + workers == 1


def test_commands_killed_before_each_of_their_changes() -> None:
    told = run("commands", "--seconds", 4, "--rounds", 4)
    records, at_random = counts(r"(\d+) kills of parity --record and (\d+) at random moments", told)
    repairs, more = counts(r"(\d+) kills of repair and (\d+) at random moments", told)
    assert records >= 2
    assert repairs >= 1
    assert at_random + more > 0


def test_a_dataset_replaced_under_its_readers() -> None:
    told = run("swaps", "--seconds", 1)
    swaps, from_disk, from_memory = counts(r"(\d+) swaps; disk: (\d+) batches.*memory: (\d+) batches", told)
    assert min(swaps, from_disk, from_memory) > 0


def test_files_that_change_under_a_loader_give_right_pixels_or_an_error() -> None:
    pytest.importorskip("obstore", reason="object storage needs obstore")
    told = run("faults", "--rounds", 40)
    right, errors, killed = counts(
        r"(\d+) right epochs, (\d+) errors that name the file, (\d+) processes ended by SIGBUS", told
    )
    assert right > 20
    assert errors > 0
    assert killed >= 0


def test_updates_and_clean_ups_are_killed() -> None:
    told = run("versions", "--rounds", 12, "--seed", 3)
    rounds, kills, versions = counts(r"(\d+) rounds, (\d+) kills, (\d+) versions checked: each whole", told)
    assert rounds >= 12
    assert min(kills, versions) > 0


def test_processes_share_a_small_cache_that_is_attacked() -> None:
    pytest.importorskip("obstore", reason="object storage needs obstore")
    rows = re.search(r"([\d,]+) rows read by 6 processes, none wrong, the limit kept", run("cache", "--seconds", 5))
    assert rows is not None
    assert int(rows[1].replace(",", "")) > 0


def test_datasets_recipes_and_folders_of_strangers() -> None:
    told = run("manifests", "recipes", "trees", "--seconds", 2)
    assert counts(r"(\d+) commands over datasets", told)[0] == 36
    assert counts(r"(\d+) spoiled recipes", told)[0] > 0
    built, refused = counts(r"kinds of trees, \d+ that vanished: (\d+) built, (\d+) one line", told)
    assert min(built, refused) > 0


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
        assert canary is not None
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
