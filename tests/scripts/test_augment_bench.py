"""A tiny run of scripts/bench_augment, so that it cannot rot."""

from __future__ import annotations

import json
from pathlib import Path

from script_process import run_script


def test_a_tiny_run_tells_every_contender(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    done = run_script("bench_augment", "--tiny", "--json", record)
    assert done.returncode == 0, done.stderr
    rows = json.loads(record.read_text())["rows"]
    assert len(rows) == 32
    assert all(row["images_per_second"] > 0 for row in rows)
    assert done.stdout.count("img/s") == 32
