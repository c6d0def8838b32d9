"""A tiny run of benchmarks/bench_versions, so that it cannot rot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked_program import run_script

NUMBERS = ["--rounds", 1, "--rows", 128, "--small-rows", 1024, "--photographs", 20, "--epochs", 2]

pytestmark = pytest.mark.slow


def test_bench_versions_two_checkouts_are_compared(tmp_path: Path) -> None:
    record, root = tmp_path / "record.json", Path(__file__).parents[2]
    cases = ["cold, block", "build"]
    done = run_script(
        "bench_versions", root, "--cases", *cases, *NUMBERS, "--place", tmp_path, "--json", record, seconds=600
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(record.read_text())
    assert list(found) == cases
    for name, case in found.items():
        assert f"{name}: first" in done.stdout
        for version in ("other", "this"):
            assert all(value > 0 for value in case["medians"][version].values())
        assert all(len(ratios) == 1 for ratios in case["ratios"].values())


def test_bench_versions_something_that_is_no_version_is_an_error(tmp_path: Path) -> None:
    done = run_script("bench_versions", tmp_path, "--place", tmp_path)
    assert done.returncode == 1
    assert "is no checkout of mmload and no commit" in done.stderr
