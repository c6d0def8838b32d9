"""The benchmark of detectors' recipes, on four tiny photographs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import script
from PIL import Image


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what another package warns of is not ours
def test_bench_detection_has_a_row_for_each_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    (tmp_path / "photos").mkdir()
    for number, size in enumerate(((40, 30), (30, 44), (33, 33), (50, 31))):
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.jpg")
    words = [str(tmp_path / "photos"), "--images", "6", "--size", "64", "--side", "80", "--rounds", "1"]
    with script("bench_detection") as module:
        times = module.main([*words, "--batch-size", "3"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| yolo", "| lsj"))]
    assert len(rows) == len(times) >= 6
    assert all(used[0] > 0 for used in times.values())
