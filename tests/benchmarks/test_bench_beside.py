"""benchmarks/bench_beside on a few photographs: the table of a task, and its record."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked_program import run_script

from mmload.bench.record import read_record

pytestmark = pytest.mark.slow


def test_a_table_and_a_record_of_a_task(source: Path, tmp_path: Path) -> None:
    sizes = ["--images", "12", "--size", "32", "--batch-size", "4", "--rounds", "1", "--seconds", "600"]
    words = [
        "--tasks",
        "jpeg",
        "--loaders",
        "mmload.Loader, disk",
        "mmload.Loader, sub",
        "--json",
        str(tmp_path / "json"),
    ]
    done = run_script("bench_beside", source, *sizes, *words)
    assert done.returncode == 0, done.stderr
    lines = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("| mmload")]
    assert [cells[0].strip() for cells in lines] == [
        "mmload.Loader, disk, 1 thread",
        "mmload.Loader, subprocess, 1 thread",
    ]
    for cells in lines:
        alone, python, share, times, *rest = (cell.strip().replace(",", "") for cell in cells[1:])
        assert float(share) == pytest.approx(float(python) / float(alone), rel=0.1)
        assert times == ""
        assert all(float(cell) >= 0 for cell in rest)
    record = read_record(tmp_path / "json" / "beside-jpeg.json")
    assert record.settings["beside"]
    assert (record.settings["augment"], record.settings["crop"]) == ("resized-crop", 28)
