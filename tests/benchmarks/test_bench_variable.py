"""The benchmark of variable-size images, on four tiny ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import script
from PIL import Image


def test_a_row_for_each_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photos").mkdir()
    for number, size in enumerate(((40, 30), (30, 44), (33, 33), (50, 31))):
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.jpg")
    words = [str(tmp_path / "photos"), "--rows", "6", "--size", "24", "--rounds", "1", "--threads", "1"]
    more = ["--layouts", "squares", "whole, jpeg", "--tiers", "memory", "--steps", "val"]
    monkeypatch.setattr("sys.argv", ["bench_variable", *words, *more])
    with script("bench_variable") as module:
        module.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["layout", "squares", "whole,", "to"]
    assert int(lines[1].split()[3].replace(",", "")) == 24 * 24 * 3
    assert all(float(line.split()[-1].replace(",", "")) > 0 for line in lines[1:3])
