"""A tiny run of benchmarks/bench_cold, so that it cannot rot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked_program import run_script

pytestmark = pytest.mark.slow


def test_bench_cold_a_tiny_run_tells_every_contender(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    done = run_script("bench_cold", "--rows", 40, "--rounds", 1, "--place", tmp_path, "--json", record)
    if "cannot be evicted" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    results = json.loads(record.read_text())["results"]
    assert [len(contenders) for contenders in results.values()] == [2]
    assert all(each["rates"][0] > 0 for contenders in results.values() for each in contenders.values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["record.json"]
