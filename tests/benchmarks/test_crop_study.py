"""A tiny run of benchmarks/crop_study, and its numbers against what is known."""

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


def test_a_store_as_large_as_the_photograph_loses_next_to_nothing(study: ModuleType, tmp_path: Path) -> None:
    """What is left is the rounding of Pillow's kernel against torch's."""
    pixels = np.random.default_rng(0).integers(0, 256, (320, 320, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "noise.png")
    found = {row["stored"]: row for row in study.study([tmp_path / "noise.png"], 6)}
    assert found["pixels 384"]["psnr"] > 40 > found["JPEG 384"]["psnr"]
    assert found["square 256"]["psnr"] < 30
    assert found["square 256"]["enlarged"] >= found["square 384"]["enlarged"]
    assert found["pixels 384"]["row_bytes"] == 3 * 320 * 320  # never enlarged
    assert found["JPEG 384"]["row_bytes"] < found["pixels 384"]["row_bytes"]


def test_psnr(study: ModuleType) -> None:
    assert study.psnr(1.0) == pytest.approx(48.1308, abs=1e-4)
    assert study.psnr(0.0) == math.inf


def test_a_tiny_run_writes_its_record(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["crop_study", "--draws", "1", "--json", str(tmp_path / "record.json")])
    study.main()
    found = json.loads((tmp_path / "record.json").read_text())
    assert [row["stored"] for row in found["rows"]] == [f"{kind} {size}" for kind, size in study.KINDS]
    assert "| JPEG 384 |" in capsys.readouterr().out


def test_a_folder_without_jpegs_is_refused(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["crop_study", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        study.main()
    assert "no .jpg or .jpeg in" in capsys.readouterr().err
