"""A tiny run of benchmarks/bench_variable_build."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from conftest import script
from PIL import Image


def test_it_compares_builds_with_a_bare_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.jpg")
    with script("bench_variable_build") as module:
        module.main([str(tmp_path), "--images", "3", "--rounds", "1"])
    raw, jpeg = capsys.readouterr().out.splitlines()
    bytes_ = [int(re.search(r"([0-9,]+) bytes a row", line)[1].replace(",", "")) for line in (raw, jpeg)]
    assert bytes_[0] == round(3 * 20 * 30 + 8 + 8 + 4 * 8 / 3)  # pixels, sizes, targets, offsets
    assert bytes_[1] < bytes_[0]
