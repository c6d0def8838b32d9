"""``mmload bench`` as a command: what it refuses, Ctrl-C, its progress. test_variable_bench.py has a whole one."""

from __future__ import annotations

import json
import os
import re
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import complaint, mmload
from fake_contenders import SETTINGS, alive, measured, tree
from forked_program import MMLOAD, Program
from waiting import until

from mmload.bench.record import Record, Row
from mmload.store.dataset import Dataset


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        ([], 2, "missing argument"),
        (["nowhere"], 1, "nowhere; build it with: mmload build"),
        (["nowhere", "--threads", "5000"], 2, "threads is 5000; use 1 to 1024"),
        (["nowhere", "--steps", "moco"], 2, "--steps is 'moco'; use crop, "),
        (["nowhere", "--steps", "evaluation"], 2, "--steps is 'evaluation'"),
        (["nowhere", "--steps", "mae", "--train", "resnet50"], 2, "--train is resnet50, and --steps mae is no crop"),
        (["nowhere", "--batch-size", "-1"], 2, "--batch-size is -1"),
        (["nowhere", "--size", "0"], 2, "--size is 0; use 1 to 16384"),
        (["nowhere", "--size", "1000000"], 2, "--size is 1000000; use 1 to 16384"),
        (["nowhere", "--build"], 2, "--build reads the photographs themselves: give --source ROOT"),
        (["nowhere", "--json", "no/such/a.json"], 2, "the folder no/such does not exist"),
        (["nowhere", "--json", "."], 2, "is a folder"),
        (["nowhere", "--plot", "a.pdf"], 2, r"--plot is a.pdf; give a name that ends in \.png"),
        (["copy", "--size", 33], 2, "--size is 33, the stored images are 32 x 32; use 1 to 32"),
        (["copy", "--loaders", "tfds"], 2, "no loader has that in its name"),
        (
            ["copy", "--batch-size", 10**9],
            2,
            r"--batch-size is 10{9}: 8 batches of .* GiB do not fit .*; use at most \d+$",
        ),
        (["copy", "--source", "empty"], 1, "torchvision cannot read empty as an ImageFolder"),
        (["copy", "--train", "resnet19"], 2, "'resnet19', which torchvision has not"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_or_does_not_fit_is_one_line(
    words: list[object], code: int, expected: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy.parent)
    Path("empty").mkdir()
    assert re.search(expected, complaint(mmload("bench", *words), code))


def test_a_bench_in_which_every_loader_fails_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        Row(name="DataLoader", group="stock", failure="OSError: it is full"),
        Row(name="mmload.Loader", group="mmload", failure="its process died"),
        measured("fill_", 3.0, "ceiling"),
    ]
    record = Record(settings=SETTINGS, machine={}, versions={}, rows=rows, verdict="Nothing can be said.")
    monkeypatch.setattr("mmload.bench.run.run_on_dataset", lambda *_, **__: record)
    chart = ["--plot", tmp_path / "a.png"] if find_spec("matplotlib") else []
    done = mmload("bench", "nowhere", "--json", tmp_path / "a.json", *chart)
    assert done.returncode == 1
    assert not (tmp_path / "a.png").exists()
    assert done.stderr == "mmload: no loader could be measured: OSError: it is full; its process died\n"
    assert "failed: mmload.Loader: its process died" in done.stdout
    assert json.loads((tmp_path / "a.json").read_text()) == record.as_json()
    rows[1] = measured("mmload.Loader", 2.0)
    assert mmload("bench", "nowhere").returncode == 0


def test_an_interrupt_ends_every_process_with_one_line(dataset: Dataset, folder: Path, tmp_path: Path) -> None:
    if not Path("/proc").is_dir():
        pytest.skip("there is no /proc to see processes in")
    words = ["bench", dataset.path, "--source", folder, "--size", 24, "--batch-size", 6]
    bench = Program(MMLOAD, words, {"TMPDIR": str(tmp_path)})
    seen = until(lambda: len(found := tree(bench.pid)) >= 3 and found)
    os.killpg(bench.pid, signal.SIGINT)
    done = bench.ended(300)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "mmload: interrupted; nothing was changed\n")
    until(lambda: not any(map(alive, seen)))
    assert list(tmp_path.iterdir()) == []
