"""A tiny run of scripts/bench_cold, so that it cannot rot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_a_tiny_run_tells_every_contender(tmp_path: Path) -> None:
    script, record = ROOT / "scripts" / "bench_cold", tmp_path / "record.json"
    options = ["--rows", "40", "--rounds", "1", "--place", str(tmp_path), "--json", str(record)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script), *options], capture_output=True, text=True, env=environment, check=False
    )
    if "cannot be evicted" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    results = json.loads(record.read_text())["results"]
    assert [len(contenders) for contenders in results.values()] == [4, 4]
    assert all(each["rates"][0] > 0 for contenders in results.values() for each in contenders.values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["record.json"]
