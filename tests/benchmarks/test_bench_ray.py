"""benchmarks/bench_ray on a few photographs, with a cluster of one node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked_program import run_script

pytestmark = pytest.mark.slow


def test_every_way_to_build_has_a_line_and_its_rounds(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray.data", reason="ray[data] is not installed")
    words = ["--nodes", "1", "--images", "8", "--size", "16", "--rounds", "1", "--json", str(tmp_path / "a.json")]
    done = run_script("bench_ray", "--source", source, *words)
    assert done.returncode == 0, done.stderr
    names = ["Ray Data read_images", "mmload build", "mmload build --engine ray"]
    assert [line.split("  ")[0] for line in done.stdout.splitlines() if "images/s" in line] == names
    rates = json.loads((tmp_path / "a.json").read_text())["rates"]
    assert {name: len(each) for name, each in rates.items()} == dict.fromkeys(names, 1)
