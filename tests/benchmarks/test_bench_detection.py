"""The benchmark of detectors' lists of steps, on four tiny photographs."""

from __future__ import annotations

import json
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
    record = tmp_path / "record.json"
    monkeypatch.setattr("sys.argv", ["bench_detection", *words, "--batch-size", "3", "--json", str(record)])
    with script("bench_detection") as module:
        module.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| YOLO", "| LSJ"))]
    times = json.loads(record.read_text())["us_per_image"]
    assert len(rows) == len(times) >= 5
    assert all(used[0] > 0 for used in times.values())
