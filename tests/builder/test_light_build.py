"""What a build imports, as torch takes seconds and torchvision two more, and from when on it counts its images."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from every_source import coco, devkit, folders, only_boxes, table, tars
from PIL import Image
from updating import make_old

from mmload.builder.pipeline import build
from mmload.builder.planned_build import splits_of
from mmload.builder.recipe import BuildRecipe
from mmload.sources import KnowsBoxes

PROGRAM = """
import json, sys
from contextlib import suppress
from mmload.cli.app import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["mmload", *words]
    with suppress(SystemExit):
        main()
    print(sorted({"torch", "torchvision", "tensordict", "numba", "llvmlite"} & set(sys.modules)))
"""


SOURCES = {
    "imagefolder": (folders, {}),
    "list": (table, {"file": "labels.csv"}),
    "coco": (coco("instances"), {}),
    "yolo": (only_boxes, {}),
    "voc": (devkit, {"task": "detection", "image_set": "train"}),
    "webdataset": (tars, {}),
    "voc classes": (devkit, {"task": "classification", "image_set": "train"}),
}


def run(commands: list[list[str]], folder: Path) -> list[str]:
    """Runs commands in one process; returns what they show, each followed by the packages imported until then."""
    words = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()


def test_build_of_an_up_to_date_dataset_imports_no_torch(tmp_path: Path) -> None:
    commands = []
    for name, (make, options) in SOURCES.items():
        source, kind = make(tmp_path / f"source {name}"), name.split()[0]
        make_old(source)  # new files may have been written once more, so that an update reads rows to compare them
        assert build(BuildRecipe(kind=kind, root=source, out=tmp_path / name, side=32, options=options)).built
        settings = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
        updates = [["update", name, str(source)], ["update", name, str(source), "--dry-run"]]
        commands += [["build", kind, str(source), name, "--size", "32", *settings], *updates]
        commands += [["verify", name], ["info", name, "--versions"], ["gc", name]]
    shown = run(commands, tmp_path)
    for name in SOURCES:
        assert f"{name} is there already, of the same source and recipe: nothing to do" in shown
        assert shown.count(f"{name} is up to date: nothing to do") == 2
        assert f"{name} is whole" in shown
    assert [line for line in shown if line.startswith("[")] == ["[]"] * len(commands)


@pytest.mark.parametrize(("name", "make", "options"), [(name, *of) for name, of in SOURCES.items()])
def test_source_says_of_boxes_what_its_samples_have(
    name: str, make: Callable[[Path], Path], options: dict[str, str], tmp_path: Path
) -> None:
    splits = splits_of(BuildRecipe(kind=name.split()[0], root=make(tmp_path / "source"), options=options))
    for split in splits.values():
        assert isinstance(split, KnowsBoxes)
        assert split.has_boxes() is ("boxes" in split.read(0).fields)


def test_build_and_update_of_photographs_import_torch_only_to_shrink_large_ones_and_no_torchvision(
    tmp_path: Path,
) -> None:
    for name, size in (("large", 200), ("small", 40)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.fromarray(np.zeros((size, size, 3), np.uint8)).save(tmp_path / "photos" / name / "it.png")
    half = run([["build", "imagefolder", "photos", "half", "--size", "100"]], tmp_path)
    assert half[0].startswith("built half: 2 images")
    assert "torch" not in half[-1]
    Image.fromarray(np.zeros((50, 50, 3), np.uint8)).save(tmp_path / "photos" / "small" / "new.png")
    assert "torch" not in run([["update", "half"]], tmp_path)[-1]
    assert "torch" not in run([["build", "imagefolder", "photos", "less", "--size", "32"]], tmp_path)[-1]
    Image.fromarray(np.zeros((1500, 1500, 3), np.uint8)).save(tmp_path / "photos" / "large" / "it.png")
    shown = run([["build", "imagefolder", "photos", "out", "--size", "32"]], tmp_path)
    assert shown[0].startswith("built out: 3 images")
    assert "torchvision" not in shown[-1]
