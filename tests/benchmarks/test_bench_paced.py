"""benchmarks/bench_paced on a few photographs: a line for each task and tier, at no more than the rate asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked_program import run_script

pytestmark = pytest.mark.slow


def test_a_paced_loader_delivers_at_most_its_rate(source: Path) -> None:
    done = run_script("bench_paced", source, "--tasks", "simclr", "--tiers", "memory", "--turns", "2")
    assert done.returncode == 0, done.stderr
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()[2:]]
    assert [cells[:2] for cells in lines] == [["simclr", "memory"]]
    for cells in lines:
        assert all(0 < float(cells[column].replace(",", "")) <= 4200 for column in (2, 4))
        assert all(float(cells[column].split()[0]) > 0 for column in (3, 5))
