"""benchmarks/bench_coco_listing on a few images."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked_program import run_script

pytestmark = pytest.mark.slow


def test_coco_listing_is_measured(tmp_path: Path) -> None:
    done = run_script("bench_coco_listing", "--images", "20", "--objects", "200", "--folder", tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "20 images, 200 objects" in lines[0]
    assert [line.split(":")[0] for line in lines[1:]] == ["detection", "instances"]
