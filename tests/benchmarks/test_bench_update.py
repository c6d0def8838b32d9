"""A tiny run of benchmarks/bench_update, so that it cannot rot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked_program import run_script

pytestmark = pytest.mark.slow


def test_bench_update_builds_and_updates_are_timed(source: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    done = run_script("bench_update", source, "--images", 100, "--folder", tmp_path, "--json", record)
    assert done.returncode == 0, done.stderr
    seconds = json.loads(record.read_text())["seconds"]
    assert list(seconds) == ["full build", "update, 1% new", "update, nothing changed"]
    assert all(wall > 0 for wall, _ in seconds.values())
