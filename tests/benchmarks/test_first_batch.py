"""A tiny run of benchmarks/first_batch, in this environment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "first_batch"


def test_a_first_batch_of_every_case_is_measured(tmp_path: Path) -> None:
    words = [PROGRAM, "unused.whl", "--environment", Path(sys.executable).parents[1], "--images", "40"]
    done = subprocess.run(
        [sys.executable, *words, "--json", tmp_path / "record"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "record").read_text())
    assert [one["turn"] for one in record] == ["first process"] * 2 + ["second"] * 2
    assert not any(one["numba"] for one in record[2:])
    assert all(one["after"] > 0 for one in record)
