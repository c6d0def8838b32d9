"""A short run of the fuzz of loading; scripts/fuzz_loading is the long one."""

from __future__ import annotations

import sys

import loading_machine
import numpy as np
import pytest
import torch
from conftest import script
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from loading_expected import differences
from loading_stores import build_stores

from mmload.store.row_numbers import row_numbers


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


def test_the_script_says_that_nothing_was_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fuzz_loading", "--steps", "20", "--sequences", "2", "--seed", "3"])
    with script("fuzz_loading") as fuzz:
        monkeypatch.setattr(fuzz, "build_stores", lambda folder: loading_machine.STORES)
        assert fuzz.main() == 0
    assert "steps: everything is the plain answer" in capsys.readouterr().out


def test_an_interrupted_script_prints_what_was_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fuzz_loading", "--steps", "1000", "--sequences", "1", "--seed", "3"])
    with script("fuzz_loading") as fuzz:
        monkeypatch.setattr(fuzz, "build_stores", lambda folder: loading_machine.STORES)
        play = fuzz.play

        def interrupted(number: int, *options: object) -> bool:
            if number == 4:
                loading_machine.STEPS["close"] += 1
                raise KeyboardInterrupt
            return bool(play(number, *options))

        monkeypatch.setattr(fuzz, "play", interrupted)
        assert fuzz.main() == 130
    shown = capsys.readouterr().out
    assert "interrupted at seed 4\n" in shown
    assert sum(int(line.split()[0].replace(",", "")) for line in shown.splitlines() if line.startswith("  ")) == int(
        shown.splitlines()[-1].split()[0].replace(",", "")
    )


def test_a_fault_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Row 0 in place of the last one of several."""

    def wrong(rows: object, count: int, what: str) -> np.ndarray:
        numbers = row_numbers(rows, count, what)
        return np.where(numbers == count - 1, 0, numbers)

    monkeypatch.setattr("mmload.store.dataset.row_numbers", wrong)
    words = ["fuzz_loading", "--steps", "20", "--sequences", "10", "--seed", "3", "--no-shrink"]
    monkeypatch.setattr(sys, "argv", words)
    with script("fuzz_loading") as fuzz:
        monkeypatch.setattr(fuzz, "build_stores", lambda folder: loading_machine.STORES)
        assert fuzz.main() == 1
    assert "ids differs in 1 of" in capsys.readouterr().out


def test_a_value_that_is_off_is_a_difference() -> None:
    images = torch.zeros((1, 3, 2, 2))
    assert differences({"images": images}, {"images": images}) == []
    assert "images differs in 12 of 12" in differences({"images": images + 1e-9}, {"images": images})[0]
    assert "fields" in differences({}, {"images": images})[0]
