"""Other projects' training scripts, changed to read from mmload: each trains an epoch, evaluates and saves.

They need clones of these projects: ``MMLOAD_UPSTREAM=/path scripts/test -m slow tests/examples/test_upstream.py``
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import upstream_scripts
from conftest import build_splits
from devkits import voc_dataset

DATA = "{dataset}"  # where the dataset goes in the words
VISION = ["--data-path", DATA, "--device", "cpu", "--batch-size", "2", "--epochs", "1", "--print-freq", "1"]

RUNS = {  # words, what it prints, what it saves
    "imagenet_main": (
        [DATA, "-a", "squeezenet1_1", "-b", "4", "--epochs", "1", "-p", "1", "--no-accel", "--lr", "0.001"],
        [r"Epoch: \[0\]\[3/3\].*Loss \d", r"\* +Acc@1 +\d+\.\d+ Acc@5 +\d"],
        "checkpoint.pth.tar",
    ),
    "torchvision_classification": (
        [*VISION, "--model", "squeezenet1_1", "--lr", "0.001", "--output-dir", "."],
        [r"Epoch: \[0\] +\[5/6\].*loss: \d", r"Test: +Acc@1 \d+\.\d+ Acc@5 \d"],
        "checkpoint.pth",
    ),
    "torchvision_detection": (
        [*VISION, "--model", "ssdlite320_mobilenet_v3_large", "--lr", "0.001", "--output-dir", "."],
        [r"Epoch: \[0\] +\[0/1\].*loss: \d", r"Average Precision +\(AP\) @\[ IoU=0.50:0.95"],
        "checkpoint.pth",
    ),
    "torchvision_segmentation": (
        [*VISION, "--dataset", "voc", "--model", "lraspp_mobilenet_v3_large", "--output-dir", "."],
        [r"Epoch: \[0\] +\[0/1\].*loss: \d", r"mean IoU: "],
        "checkpoint.pth",
    ),
    "timm_train": (
        [
            "--data-dir",
            DATA,
            "--val-split",
            "val",
            "--model",
            "test_vit",
            "--num-classes",
            "6",
            "-b",
            "4",
            "--epochs",
            "1",
        ]
        + ["--device", "cpu", "--log-interval", "1", "--color-jitter", "0", "--experiment", "run"],
        [r"Train: 0 \[ +2/3 .*Loss: *\d", r"\*\*\* Best metric: \d"],
        "output/train/run/model_best.pth.tar",
    ),
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train and val of six classes with two rows each, as the scripts ask for the five best."""
    return build_splits(tmp_path_factory.mktemp("upstream"), classes=tuple("abcdef"))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_changed_script_trains_evaluates_and_saves(name: str, photos: Path, tmp_path: Path) -> None:
    task = name.removeprefix("torchvision_")
    if task == "detection":
        pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    script = upstream_scripts.changed_script(name, tmp_path)
    dataset = voc_dataset(tmp_path / "voc", task) if task in ("detection", "segmentation") else photos
    words, printed, saved = RUNS[name]
    command = [sys.executable, script, *(str(dataset) if word == DATA else word for word in words)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    for pattern in printed:
        assert re.search(pattern, done.stdout + done.stderr), done.stdout + done.stderr
    assert (tmp_path / saved).stat().st_size > 0
