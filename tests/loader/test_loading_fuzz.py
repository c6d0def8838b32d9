"""A short run of the fuzz of loading; scripts/fuzz_loading is the long one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import loading_machine
import numpy as np
import pytest
import torch
from conftest import script
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from loading_expected import Expected, differences
from loading_stores import build_stores

from mmload.store.row_numbers import row_numbers

Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module", autouse=True)
def stores(tmp_path_factory: pytest.TempPathFactory) -> None:
    loading_machine.STORES.update(build_stores(tmp_path_factory.mktemp("stores")))


def test_whatever_a_user_does_is_the_plain_answer() -> None:
    how = settings(
        max_examples=5,
        stateful_step_count=30,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(loading_machine.Loading, settings=how)
    assert len(loading_machine.STEPS) > 10


@pytest.fixture
def fuzz() -> Iterator[ModuleType]:
    """The script, as a module."""
    with script("fuzz_loading") as module:
        yield module


@pytest.fixture
def run(fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the script on the datasets of this module from seed 3 on: its exit code, and what it prints."""

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fuzz_loading", "--seed", "3", *words])
        monkeypatch.setattr(fuzz, "build_stores", lambda folder: loading_machine.STORES)
        return fuzz.main(), capsys.readouterr().out

    return run


def test_the_script_says_that_nothing_was_found(run: Run) -> None:
    code, shown = run("--steps", "20", "--sequences", "2")
    assert code == 0
    assert "steps: everything is the plain answer" in shown


def test_an_interrupted_script_prints_what_was_done(
    run: Run, fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = fuzz.play

    def interrupted(number: int, *options: object) -> bool:
        if number == 4:
            loading_machine.STEPS["close"] += 1
            raise KeyboardInterrupt
        return bool(play(number, *options))

    monkeypatch.setattr(fuzz, "play", interrupted)
    code, shown = run("--steps", "1000", "--sequences", "1")
    assert code == 130
    assert "interrupted at seed 4\n" in shown
    counts = [int(line.split()[0].replace(",", "")) for line in shown.splitlines() if line[0] in " 0123456789"]
    assert sum(counts[:-1]) == counts[-1]


def test_a_fault_is_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 0 in place of the last one of several."""

    def wrong(rows: object, count: int, what: str) -> np.ndarray:
        numbers = row_numbers(rows, count, what)
        return np.where(numbers == count - 1, 0, numbers)

    monkeypatch.setattr("mmload.store.dataset.row_numbers", wrong)
    code, shown = run("--steps", "20", "--sequences", "10", "--no-shrink")
    assert code == 1
    assert "ids differs in 1 of" in shown


def test_a_value_that_is_off_is_a_difference() -> None:
    images = torch.zeros((1, 3, 2, 2))
    assert differences({"images": images}, Expected({"images": images})) == []
    assert "images differs in 12 of 12" in differences({"images": images + 1e-9}, Expected({"images": images}))[0]
    unit = torch.tensor(1 / 255, dtype=torch.float64)
    assert differences({"images": images + 1 / 255}, Expected({"images": images}, 1, unit)) == []
    assert differences({"images": images + 2 / 255}, Expected({"images": images}, 1, unit))
    assert "fields" in differences({}, Expected({"images": images}))[0]
