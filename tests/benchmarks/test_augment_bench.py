"""A tiny run of benchmarks/bench_augment, so that it cannot rot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked_program import run_script

pytestmark = pytest.mark.slow


def test_a_tiny_run_compares_every_step_with_torchvision(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    done = run_script("bench_augment", "--rounds", 1, "--images", 2, "--json", record)
    assert done.returncode == 0, done.stderr
    rows = json.loads(record.read_text())["rows"]
    assert len(rows) == done.stdout.count("| `") == 32
    assert all(min(value for key, value in row.items() if key != "name") > 0 for row in rows)
    ratios = [row["ratio"] for row in rows]
    assert ratios == sorted(ratios)
