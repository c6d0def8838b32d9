"""A build that finds nothing to do decides that without torch, whose import takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from coco_sets import example
from devkit import Devkit, thing
from picture_folders import folder_of, picture
from yolo_sets import YoloSet

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


def imagefolder(root: Path) -> Path:
    return folder_of(root, "cat/0.png", "dog/1.png")


def image_list(root: Path) -> Path:
    picture(root / "0.png")
    (root / "list.csv").write_text("path,label\n0.png,cat\n")
    return root / "list.csv"


def coco(root: Path) -> Path:
    return example(root, images=2).write()


def yolo(root: Path) -> Path:
    made = YoloSet(root)
    made.image("a", "0 0.5 0.5 0.2 0.2")
    return made.root


def voc(root: Path) -> Path:
    devkit = Devkit(root)
    devkit.add("a", thing("dog"))
    devkit.list("train", "a")
    return root


SOURCES = {
    "imagefolder": (imagefolder, {}),
    "list": (image_list, {}),
    "coco": (coco, {}),
    "yolo": (yolo, {}),
    "voc": (voc, {"task": "detection", "image_set": "train"}),
    "voc classes": (voc, {"task": "classification", "image_set": "train"}),
}

each_source = pytest.mark.parametrize(("name", "make", "options"), [(name, *of) for name, of in SOURCES.items()])


@each_source
def test_build_of_an_up_to_date_dataset_imports_no_torch(
    name: str, make: Callable[[Path], Path], options: dict[str, str], tmp_path: Path
) -> None:
    recipe = BuildRecipe(
        kind=name.split()[0], root=make(tmp_path / "source"), out=tmp_path / "out", side=32, options=options
    )
    assert build(recipe).built
    settings = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
    words = ["build", recipe.kind, str(recipe.root), "out", "--size", "32", *settings]
    commands = [words, [*words, "--update"], [*words, "--update", "--dry-run"], ["verify", "out"]]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "out is there already, of the same source and recipe: nothing to do" in done.stdout, done.stderr
    assert "out is up to date: nothing to do" in done.stdout
    assert "out would be updated: 0 new, 0 changed, 0 gone; nothing was written" in done.stdout
    assert "out is whole" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@each_source
def test_source_says_of_boxes_what_its_samples_have(
    name: str, make: Callable[[Path], Path], options: dict[str, str], tmp_path: Path
) -> None:
    splits = splits_of(BuildRecipe(kind=name.split()[0], root=make(tmp_path / "source"), options=options))
    for split in splits.values():
        assert isinstance(split, KnowsBoxes)
        assert split.has_boxes() is ("boxes" in split.read(0).fields)
