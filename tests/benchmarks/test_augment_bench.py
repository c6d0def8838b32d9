"""A tiny run of benchmarks/bench_augment, so that it cannot rot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked_program import run_script

from mmload.store.dataset import Dataset

pytestmark = pytest.mark.slow


def test_augment_bench_a_tiny_run_tells_every_contender(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    done = run_script("bench_augment", "--tiny", "--json", record)
    assert done.returncode == 0, done.stderr
    rows = json.loads(record.read_text())["rows"]
    assert len(rows) == 32
    assert all(row["images_per_second"] > 0 for row in rows)
    assert done.stdout.count("img/s") == 32


def test_a_tiny_run_compares_a_recipe_with_the_stock_steps(dataset: Dataset, folder: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    short = ["--rounds", 1, "--images", 2, "--recipes", "bench_lists:jitter", "--json", record]
    done = run_script("bench_recipes", dataset.path, folder, *short)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| bench_lists:jitter |") == 1
    assert all(turns[0] > 0 for turns in json.loads(record.read_text())["bench_lists:jitter"].values())


def test_a_tiny_run_compares_every_step_with_torchvision(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    done = run_script("bench_augment", "--steps", "--tiny", "--json", record)
    assert done.returncode == 0, done.stderr
    rows = json.loads(record.read_text())["rows"]
    assert len(rows) == done.stdout.count("| `") == 32
    assert all(min(value for key, value in row.items() if key != "name") > 0 for row in rows)
    assert sum("alone_us" in row for row in rows) == 25
    ratios = [row["list_ratio"] for row in rows]
    assert ratios == sorted(ratios)
