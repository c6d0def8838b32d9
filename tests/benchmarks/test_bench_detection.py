"""The benchmark of detectors' recipes, on four tiny photographs."""

from __future__ import annotations

from pathlib import Path

import pytest
from building import make_pictures
from conftest import script


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what another package warns of is not ours
def test_bench_detection_has_a_row_for_each_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    make_pictures(tmp_path / "photos", classes=1, each=8)  # every other one is a JPEG
    words = [str(tmp_path / "photos" / "class0"), "--images", "6", "--size", "64", "--side", "80", "--rounds", "1"]
    with script("bench_detection") as module:
        times = module.main([*words, "--batch-size", "3"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| yolo", "| lsj"))]
    assert len(rows) == len(times) >= 6
    assert all(used[0] > 0 for used in times.values())
