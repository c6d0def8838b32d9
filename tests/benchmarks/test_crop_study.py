"""A tiny run of benchmarks/crop_study, and its numbers against what is known of each way of cropping."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from conftest import script
from PIL import Image

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    with script("crop_study") as module:
        yield module


def test_what_crops_of_one_size_cover(study: ModuleType) -> None:
    crop, square, row, whole = study.coverage([(512, 1024)], 4000)
    assert row["area"] == pytest.approx(whole["area"], rel=0.02)
    assert row["in_none"] == 0.0
    assert crop["area"] == [pytest.approx((224 / 256) ** 2 / 2)] * 3
    assert crop["zoom"] == crop["stretch"] == [1.0] * 3
    assert crop["in_none"] == square["in_none"] == 0.5
    assert crop["in_every"] == pytest.approx(0.75**2 / 2)
    assert whole["in_none"] == whole["in_every"] == 0.0
    assert 0.08 < whole["area"][0] < whole["area"][1] < whole["area"][2] < 1.0
    assert whole["area"][2] > 0.5 > square["area"][2]
    assert math.prod(square["stretch"][::2]) == pytest.approx(1.0, abs=0.03)


def test_a_store_as_large_as_the_photograph_loses_next_to_nothing(study: ModuleType, tmp_path: Path) -> None:
    """What is left is the rounding of Pillow's kernel against torch's."""
    pixels = np.random.default_rng(0).integers(0, 256, (320, 320, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "noise.png")
    found = {row["stored"]: row for row in study.resampling([tmp_path / "noise.png"], 6)[0]}
    assert found["square 320"]["psnr"][-1] > 40
    assert found["square 256"]["psnr"][-1] < 30
    assert found["square 320"]["photographs_smaller"] == 0.0
    assert found["square 384"]["photographs_smaller"] == 1.0
    assert found["square 256"]["enlarged"] >= found["square 512"]["enlarged"]
    assert found["whole 384"]["row_bytes"] == 3 * 320 * 320  # never enlarged
    assert found["whole 384"]["psnr"][-1] > 40 > found["JPEG 384"]["psnr"][-1]
    assert found["JPEG 384"]["row_bytes"] < found["whole 384"]["row_bytes"]


def test_psnr(study: ModuleType) -> None:
    assert study.psnr([1.0]) == pytest.approx(48.1308, abs=1e-4)
    assert study.psnr([0.0]) == math.inf
    assert math.isnan(study.psnr([]))


def test_a_tiny_run_with_its_picture(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ["--picture", str(tmp_path / "crops.jpg"), "--json", str(tmp_path / "record.json")]
    monkeypatch.setattr(sys, "argv", ["crop_study", "--draws", "1", *paths])
    study.main()
    found = json.loads((tmp_path / "record.json").read_text())
    assert [row["stored"] for row in found["resampling"]][:4] == [f"square {size}" for size in study.STORED]
    assert "of a letterboxed square" in capsys.readouterr().out
    with Image.open(tmp_path / "crops.jpg") as image:
        assert image.size[1] > 600
    assert (tmp_path / "crops.jpg").stat().st_size < 300_000


def test_a_folder_without_jpegs_is_refused(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["crop_study", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        study.main()
    assert "no .jpg or .jpeg in" in capsys.readouterr().err
