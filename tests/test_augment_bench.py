"""A tiny run of scripts/bench_augment, so that it cannot rot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_tiny_run_tells_every_contender(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    command = [sys.executable, str(ROOT / "scripts" / "bench_augment"), "--tiny", "--json", str(record)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(record.read_text())["rows"]
    assert len(rows) == 12
    assert all(row["images_per_second"] > 0 for row in rows)
    assert done.stdout.count("img/s") == 12
