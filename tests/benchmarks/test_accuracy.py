"""Tiny runs of benchmarks/accuracy, and that its checks see what they look for."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from conftest import script

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def accuracy() -> Iterator[ModuleType]:
    with script("accuracy") as module:
        yield module


@pytest.fixture(scope="module")
def tasks(accuracy: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    work = tmp_path_factory.mktemp("accuracy")
    small = accuracy.accuracy_data.cifar(None, work, 40)
    large = accuracy.accuracy_data.photos(None, work, 12, 48)
    made = [
        accuracy.Task(name="padded", data=small, augment="crop", crop=32, padding=4, batch=16),
        accuracy.Task(name="crop", data=large, augment="crop", crop=40, batch=4),
        accuracy.Task(name="resized", data=large, augment="resized-crop", crop=40, batch=4),
    ]
    return {task.name: task for task in made}


def compared(accuracy: ModuleType, task: Any, *, shifted: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = accuracy.equal_draws(task, seed=1, epochs=2, shifted=shifted, device="cpu")
    return found


@pytest.mark.parametrize("name", ["padded", "crop", "resized"])
def test_equal_draws_give_equal_losses(accuracy: ModuleType, tasks: dict[str, Any], name: str) -> None:
    found = compared(accuracy, tasks[name])
    assert found["equal"]
    assert found["steps"] == 6
    assert found["pixels"] < 2e-6
    assert found["losses"][0][0] != found["losses"][-1][0]


def test_only_the_first_losses_are_judged_and_all_pixels(
    accuracy: ModuleType, tasks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding carries long trainings apart; a fault that comes late shows in its pixels."""
    monkeypatch.setattr(accuracy, "JUDGED_STEPS", 2)
    plain = accuracy.forced

    def late(by: float) -> Any:
        def changed(*args: Any, **kwargs: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            for number, (images, targets) in enumerate(plain(*args, **kwargs)):
                yield (images + by if number == 2 else images), targets

        return changed

    monkeypatch.setattr(accuracy, "TOLERANCE", 1e-3)  # what moves a loss by more than the resolution of float32
    monkeypatch.setattr(accuracy, "forced", late(5e-4))
    rounded = compared(accuracy, tasks["padded"])
    assert rounded["equal"]
    assert rounded["judged"] < rounded["largest"]
    monkeypatch.setattr(accuracy, "forced", late(2e-2))
    assert not compared(accuracy, tasks["padded"])["equal"]


@pytest.mark.parametrize("name", ["padded", "crop", "resized"])
def test_accuracy_crop_off_by_a_pixel_is_detected(accuracy: ModuleType, tasks: dict[str, Any], name: str) -> None:
    found = compared(accuracy, tasks[name], shifted=True)
    assert not found["equal"]
    assert found["first"] > accuracy.TOLERANCE


def test_accuracy_other_labels_are_detected(
    accuracy: ModuleType, tasks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = accuracy.forced

    def turned(*args: Any, **kwargs: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for images, targets in plain(*args, **kwargs):
            yield images, targets.roll(1)

    monkeypatch.setattr(accuracy, "forced", turned)
    assert not compared(accuracy, tasks["crop"])["labels_equal"]


def test_own_draws_train_three_networks_alike(accuracy: ModuleType, tasks: dict[str, Any]) -> None:
    runs = [accuracy.own_draws(tasks["padded"], seed=seed, epochs=1, device="cpu") for seed in (0, 0)]
    assert runs[0] == runs[1]
    assert set(runs[0]) == {"stock", "mmload", "swapped"}
    assert all(0 <= value <= 1 for value in runs[0].values())


def test_worse_is_worse_only_beyond_chance(accuracy: ModuleType, tasks: dict[str, Any]) -> None:
    def runs(*mine: float) -> list[dict[str, float]]:
        return [{"stock": 0.8, "mmload": one, "swapped": 0.7} for one in mine]

    assert accuracy.summed_up(tasks["crop"], runs(0.78, 0.81, 0.79, 0.8, 0.78))["no_worse"]
    assert accuracy.summed_up(tasks["crop"], runs(0.9, 0.91, 0.9, 0.92, 0.9))["no_worse"]
    assert not accuracy.summed_up(tasks["crop"], runs(0.70, 0.71, 0.70, 0.70, 0.71))["no_worse"]
    assert accuracy.summed_up(tasks["crop"], runs(0.70, 0.70))["no_worse"]


def test_the_interval_of_a_known_sample(accuracy: ModuleType) -> None:
    mean, low, high = accuracy.interval([1.0, 2.0, 3.0, 4.0, 5.0])
    reach = 2.7764 * math.sqrt(2.5 / 5)
    assert (mean, low, high) == pytest.approx((3.0, 3.0 - reach, 3.0 + reach), abs=2e-4)


def test_photographs_without_val_are_cut_into_tiles(accuracy: ModuleType, folder: Path, tmp_path: Path) -> None:
    built = accuracy.accuracy_data.photos(folder, tmp_path, 0, 16)
    assert len(built.torchvision("train", None)) == 18 * 9
    assert len(built.torchvision("val", None)) == 18 * 3


def test_a_quick_run_fails_where_one_crop_is_off(
    accuracy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.json"
    monkeypatch.setattr(sys, "argv", ["accuracy", "--quick", "--shift-one", "--json", str(record)])
    assert accuracy.main() == 1
    told = capsys.readouterr().out
    assert told.count("NOT EQUAL") == 3
    assert "FAILED: CIFAR, padded crop, photos, crop 56, photos, resized crop 56" in told
    found = json.loads(record.read_text())
    assert [len(found["equal_draws"]), len(found["own_draws"])] == [3, 2]
