"""benchmarks/bench_look on a small dataset: it runs what a user runs, and records what it saw."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked_program import run_script

pytestmark = pytest.mark.slow


def test_it_measures_what_a_user_runs(tmp_path: Path) -> None:
    record = tmp_path / "look.json"
    sizes = ["--rows", "40", "--side", "32", "--classes", "4", "--rounds", "1", "--commands", "info;report"]
    done = run_script("bench_look", *sizes, "--place", tmp_path, "--json", record)
    assert done.returncode == 0, done.stderr
    results = json.loads(record.read_text(encoding="utf-8"))["results"]
    assert list(results) == ["info", "report"]
    assert all(result["seconds"] > 0 and result["peak_mib"] > 1 for result in results.values())
    assert results["report"]["bytes"] > 10_000
    assert results["info"]["bytes"] is None
