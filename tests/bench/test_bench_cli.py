"""``mmload bench`` as a command: a folder alone, what it refuses, Ctrl-C. test_variable_bench.py has a whole one."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import complaint, mmload
from fake_contenders import alive
from forked_program import MMLOAD, Program

from mmload.bench.machine import process_tree
from mmload.bench.record import Record, Row, read_record
from mmload.errors import UsageError
from mmload.store.dataset import Dataset

TINY = ["--crop", 24, "--images", 18, "--batch-size", 6, "--workers", 0, "--device", "cpu", "--time-budget", 3]


@pytest.mark.slow
def test_a_folder_alone_is_sampled_and_says_what_a_build_would_gain(folder: Path) -> None:
    words = ["--size", 32, "--images", 9, "--quick", *TINY[4:], "--time-budget", 1]
    done = mmload("bench", "--source", folder, *words)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "delivers" in text
    assert "Building all 18 images would take about" in text
    assert "9 of them were built" in text


def test_building_is_measured_by_a_command_of_two_words(folder: Path, tmp_path: Path) -> None:
    words = ["--source", folder, "--size", 32, "--images", 6, "--rounds", 1, "--json", tmp_path / "b.json"]
    done = mmload("bench", "build", *words)
    assert done.returncode == 0, done.stderr
    assert "mmload build" in done.stdout
    assert json.loads((tmp_path / "b.json").read_text())["machine"]["cores"] >= 1
    assert "--rounds is 0" in complaint(mmload("bench", "build", "--source", folder, "--rounds", 0), 2)
    assert "--source" in complaint(mmload("bench", "build"), 2)


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        ([], 2, "bench needs a DATASET and its --source ROOT, or --source ROOT alone"),
        (["--source", "nowhere"], 1, "no such folder: nowhere"),
        (["nowhere"], 1, "nowhere; build it with: mmload build"),
        (["nowhere", "--size", 3], 2, "--size is 3, and nowhere has its size already"),
        (["nowhere", "--workers", "two"], 2, "--workers is 'two'"),
        (["nowhere", "--workers", ""], 2, "--workers is ''"),
        (["nowhere", "--workers", "0,5000"], 2, "--workers is '0,5000'; give integers from 0 to 1024"),
        (["nowhere", "--threads", "5000"], 2, "threads is 5000; use 1 to 1024"),
        (["--source", "nowhere", "--size", "0"], 2, "--size is 0; use at least 1"),
        (["build", "--source", "nowhere", "--threads", "5000"], 2, "threads is 5000; use 1 to 1024"),
        (["nowhere", "--device", "tpu"], 2, "--device is 'tpu'"),
        (["nowhere", "--images", "100000000"], 2, "--images is 100000000; use at most 10000000"),
        (["nowhere", "--epochs", "100000"], 2, "--epochs is 100000; use at most 1000"),
        (["--source", "nowhere", "--size", "1000000"], 2, "--size is 1000000; use at most 16384"),
        (["build", "--source", "nowhere", "--size", "1000000"], 2, "--size is 1000000; use at most 16384"),
        (["build", "--source", "nowhere", "--images", "2000000"], 2, "--images is 2000000; use at most 1000000"),
        (["build", "--source", "nowhere", "--rounds", "2000"], 2, "--rounds is 2000; use at most 1000"),
        (["build", "--source", "nowhere", "--size", "16384", "--images", "1000000"], 1, "set TMPDIR to a place"),
        (["nowhere", "--augment", "none", "--crop", "3"], 2, "--crop is 3, and --augment none does not take it"),
        (["nowhere", "--augment", "resized-crop", "--padding", "3"], 2, "--padding is 3, and --augment resized-crop"),
        (["nowhere", "--time-budget", "-1"], 2, "--time-budget is -1"),
        (["nowhere", "--json", "no/such/a.json"], 2, "the folder no/such does not exist"),
        (["nowhere", "--json", "."], 2, "is a folder"),
        (["--source", "nowhere", "--record"], 2, "--record saves the results in a dataset, and none is given"),
        (["--compare", "a.json", "b.json"], 2, "cannot read the record a.json"),
        (["nowhere", "--compare", "a.json", "b.json"], 2, "measures nothing; leave the other arguments out"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    words: list[object], code: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in complaint(mmload("bench", *words), code)


def test_numbers_that_do_not_fit_the_images_or_the_memory_are_one_line(dataset: Dataset, tmp_path: Path) -> None:
    words = ["bench", dataset.path, "--device", "cpu"]
    assert "--padding is 33, the stored images are 32 x 32; use 0 to 32" in complaint(
        mmload(*words, "--padding", 33), 2
    )
    line = complaint(mmload(*words, "--batch-size", 10**9), 2)
    assert re.search(r"--batch-size is 1000000000: 8 batches of .* GiB do not fit .*; use at most \d+$", line)
    line = complaint(mmload(*words, "--source", tmp_path), 1)
    assert f"torchvision cannot read {tmp_path} as an ImageFolder" in line


def test_a_bench_in_which_every_loader_fails_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        Row(name="DataLoader", group="stock", failure="OSError: it is full"),
        Row(name="mmload.Loader", group="mmload", failure="its process died"),
        Row(name="fill_", group="ceiling", images_per_second=3.0, epochs=[3.0]),
    ]
    record = Record(settings={}, machine={}, versions={}, rows=rows, verdict="Nothing can be said.")
    monkeypatch.setattr("mmload.cli.bench._measure", lambda *_: record)
    done = mmload("bench", "nowhere", "--json", tmp_path / "a.json")
    assert done.returncode == 1
    assert done.stderr == (
        "mmload: none of 2 loaders could be measured: OSError: it is full; 1 more reason is in the table\n"
    )
    assert "not measured: mmload.Loader: its process died" in done.stdout
    assert read_record(tmp_path / "a.json") == record
    rows[1] = replace(rows[1], images_per_second=2.0, epochs=[2.0])
    assert mmload("bench", "nowhere").returncode == 0


def test_a_model_or_device_that_is_not_there_is_one_line(dataset: Dataset, folder: Path) -> None:
    import torch

    words = ["bench", dataset.path, "--source", folder]
    assert "'resnet19', which torchvision has not" in complaint(mmload(*words, "--train", "resnet19"), 2)
    if not torch.cuda.is_available():
        assert "finds no CUDA device" in complaint(mmload(*words, "--device", "cuda"), 2)


@pytest.mark.parametrize("body", [{"settings": []}, {"notes": "text"}, {"verdict": 3}, {"results": [{"name": 3}]}])
def test_a_damaged_record_is_one_line(body: dict[str, object], tmp_path: Path) -> None:
    whole = {"format": "mmload bench", "version": 1, "settings": {}, "machine": {}, "versions": {}, "notes": []}
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(whole | {"verdict": "", "results": []} | body))
    with pytest.raises(UsageError, match="is a damaged record"):
        read_record(path)


@pytest.mark.parametrize("patience", [0.0, 2.0])
def test_an_interrupt_ends_every_process_with_one_line(
    dataset: Dataset, folder: Path, tmp_path: Path, patience: float
) -> None:
    if not Path("/proc").is_dir():
        pytest.skip("there is no /proc to see processes in")
    words = ["bench", dataset.path, "--source", folder, *TINY]
    bench = Program(MMLOAD, words, {"TMPDIR": str(tmp_path)})
    seen: set[int] = set()
    deadline = time.monotonic() + 300
    while len(seen) < 3 and time.monotonic() < deadline:
        seen.update(process_tree(bench.pid))
        time.sleep(0.02)
    time.sleep(patience)
    seen.update(process_tree(bench.pid))
    os.killpg(bench.pid, signal.SIGINT)
    done = bench.ended(300)
    assert len(seen) >= 3
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "mmload: interrupted; nothing was changed\n")
    deadline = time.monotonic() + 60
    while any(alive(each) for each in seen) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [each for each in seen if alive(each)]
    assert list(tmp_path.iterdir()) == []
