"""A tiny run of benchmarks/accuracy, and that it judges what it should."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from cifar_files import write_cifar10
from conftest import script
from forked_program import run_script

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def accuracy() -> Iterator[ModuleType]:
    with script("accuracy") as module:
        yield module


def test_accuracy_of_both_tasks_is_reported(tmp_path: Path) -> None:
    record, cifar = tmp_path / "record.json", write_cifar10(tmp_path / "cifar")
    few = ["--images", 8, "--stored", 32, "--epochs", 1, "--seeds", 2]
    done = run_script("accuracy", "--cifar", cifar, *few, "--json", record)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("passed\n")
    tasks = json.loads(record.read_text())["tasks"]
    assert [task["task"] for task in tasks] == ["photographs, resized crop and flip", "CIFAR, padded crop and flip"]
    runs = [run for task in tasks for run in task["runs"]]
    assert len(runs) == 4
    assert all(0 <= value <= 1 for run in runs for value in run.values())


def test_accuracy_of_a_seed_is_the_same_again(accuracy: ModuleType, tmp_path: Path) -> None:
    task = accuracy.photos_task(None, tmp_path, 8, 32)
    first, again = (accuracy.trained(task, 0, 1, "cpu") for _ in "12")
    assert first == again


def test_accuracy_worse_is_worse_only_beyond_chance(accuracy: ModuleType, tmp_path: Path) -> None:
    task = accuracy.Task(name="any", dataset=tmp_path, root=tmp_path, size=None, crop=32, held_out="test")

    def is_no_worse(*mine: float) -> bool:
        runs = [{"stock": 0.8, "mmload": one, "swapped": 0.7} for one in mine]
        return bool(accuracy.summary(task, runs)["no_worse"])

    assert is_no_worse(0.78, 0.81, 0.79, 0.8, 0.78)
    assert is_no_worse(0.9, 0.91, 0.9, 0.92, 0.9)
    assert not is_no_worse(0.70, 0.71, 0.70, 0.70, 0.71)
    assert is_no_worse(0.70, 0.70)


def test_accuracy_interval_of_a_known_sample(accuracy: ModuleType) -> None:
    mean, low, high = accuracy.interval([1.0, 2.0, 3.0, 4.0, 5.0])
    reach = 2.7764 * math.sqrt(2.5 / 5)
    assert (mean, low, high) == pytest.approx((3.0, 3.0 - reach, 3.0 + reach), abs=2e-4)


def test_accuracy_photographs_without_val_are_cut_into_tiles(
    accuracy: ModuleType, folder: Path, tmp_path: Path
) -> None:
    task = accuracy.photos_task(folder, tmp_path, 0, 16)
    assert len(task.stock("train").dataset) == 18 * 9
    assert len(task.stock("val").dataset) == 18 * 3
