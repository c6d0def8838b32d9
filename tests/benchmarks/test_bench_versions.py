"""A tiny run of benchmarks/bench_versions, so that it cannot rot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked_program import run_script


@pytest.mark.slow
def test_two_checkouts_are_compared(tmp_path: Path) -> None:
    record, root = tmp_path / "record.json", Path(__file__).parents[2]
    numbers = ["--rounds", 1, "--rows", 128, "--small-rows", 1024, "--epochs", 2, "--place", tmp_path]
    done = run_script("bench_versions", root, "--modes", "cold", *numbers, "--json", record)
    assert done.returncode == 0, done.stderr
    cases = json.loads(record.read_text())
    assert len(cases) == 2
    for name, case in cases.items():
        assert f"{name}: first" in done.stdout
        for version in ("other", "this"):
            assert all(value > 0 for value in case["medians"][version].values())
