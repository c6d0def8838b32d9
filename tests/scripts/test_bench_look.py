"""scripts/bench_look on a small dataset: it runs what a user runs, and records what it saw."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_look"


def test_it_measures_what_a_user_runs(tmp_path: Path) -> None:
    record = tmp_path / "look.json"
    sizes = ["--rows", "40", "--side", "32", "--classes", "4", "--rounds", "1", "--commands", "info;report"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *sizes, "--place", str(tmp_path), "--json", str(record)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(record.read_text(encoding="utf-8"))["results"]
    assert list(results) == ["info", "report"]
    assert all(result["seconds"] > 0 and result["peak_mib"] > 1 for result in results.values())
    assert results["report"]["bytes"] > 10_000
    assert results["info"]["bytes"] is None
