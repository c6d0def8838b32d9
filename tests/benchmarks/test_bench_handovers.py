"""A tiny run of benchmarks/bench_handovers: the numbers of a task are in its table and its record."""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path

import pytest
from forked_program import run_script

pytestmark = pytest.mark.slow


def test_bench_handovers_of_a_task_are_measured(source: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    few = ["--batch-sizes", 8, "--seconds", 0.2]
    done = run_script("bench_handovers", source, "--tasks", "jpeg", *few, "--json", record)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(record.read_text()).values()
    assert "| jpeg, 8 |" in done.stdout
    assert all(found[name] > 0 for name in ("alone", "beside python", "beside torch", "python keeps", "torch keeps"))
    if platform.machine() == "x86_64" and platform.system() == "Linux" and shutil.which("cc"):
        assert found["releases"] >= 1  # a batch is handed over at least once
    else:
        assert "releases are not counted" in done.stdout
