"""Ultralytics' trainer, as it is, on batches of mmload."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from typing import Any

import change_scripts
import numpy as np
import pytest
import torch
from PIL import Image

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe

NAME = "yolo"


def squares(root: Path, count: int = 64) -> Path:
    """A dataset in YOLO's layout: bright squares on dark noise."""
    random = np.random.default_rng(0)
    for folder in ("images", "labels"):
        (root / folder / "train").mkdir(parents=True)
    (root / "data.yaml").write_text("path: .\ntrain: images/train\nnames: {0: red, 1: blue}\n")
    for number in range(count):
        image, lines = random.integers(0, 60, (64, 64, 3), dtype=np.uint8), []
        for kind in range(2):
            side, left, top = random.integers(16, 28), *random.integers(0, 36, 2)
            image[top : top + side, left : left + side, 2 * kind] = 250
            lines.append(f"{kind} {(left + side / 2) / 64} {(top + side / 2) / 64} {side / 64} {side / 64}\n")
        Image.fromarray(image).save(root / "images" / "train" / f"{number}.png")
        (root / "labels" / "train" / f"{number}.txt").write_text("".join(lines))
    return root


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what another package warns of is not ours
def test_yolo_ultralytics_trains_on_batches_of_mmload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    monkeypatch.setattr(Image, "open", Image.open)  # Ultralytics replaces it; the test gives it back
    pytest.importorskip("ultralytics")
    monkeypatch.syspath_prepend(change_scripts.CLIENTS.parent)
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    recipe: dict[str, Any] = {"kind": "yolo", "root": squares(tmp_path / "squares"), "out": tmp_path / "built"}
    build(BuildRecipe(**recipe, transforms=[{"step": "Letterbox", "size": 64}]))
    words = ["--size", "96", "--batch-size", "16", "--epochs", "8", "--project", str(tmp_path / "runs")]
    trainer = import_module(NAME).main([str(tmp_path / "built"), *words])
    torch.set_num_threads(threads)
    assert len(trainer.losses) == 8
    assert all(math.isfinite(loss) for loss in trainer.losses)
    assert trainer.losses[-1] < 0.85 * trainer.losses[0]
    assert "metrics/mAP50(B)" in trainer.metrics
    assert trainer.validator.metrics.nt_per_class.tolist() == [64, 64]
