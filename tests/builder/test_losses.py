"""What a build leaves out is counted, the same however it ran, and said by every command that shows the dataset."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import mmload
from devkit import Devkit, thing

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.errors import SampleError
from mmload.records import ONLY_VOID, OTHER_SIZE, SWAPPED_SIZE
from mmload.remote.opening import open as open_dataset

CROPPED = "boxes were dropped"


@pytest.fixture
def boxed(devkit: Devkit) -> Devkit:
    """Twelve images, 8 wide and 6 high: a middle square of 6 loses the first box of each, and all of every third."""
    names = [f"i{number:02d}" for number in range(12)]
    for number, name in enumerate(names):
        kept = [thing("dog", (3, 2, 5, 4))] if number % 3 else []
        devkit.add(name, thing("cat", (1, 1, 1, 6)), *kept)
    devkit.list("train", *names)
    return devkit


def recipe(devkit: Devkit, out: Path, **more) -> BuildRecipe:
    return BuildRecipe(kind="voc", root=devkit.root, out=out, **{"transforms": square(6), "shard_bytes": 600, **more})


def notes(out: Path, kind: str = "notes") -> list[str]:
    said: list[str] = json.loads((out / "dataset.json").read_text())["card"].get(kind, {}).get("train", [])
    return said


def test_voc_default_task_keeps_the_complete_image(boxed: Devkit, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = mmload("build", "voc", boxed.root, out, "--size", 16)
    assert done.returncode == 0, done.stderr
    assert CROPPED not in done.stdout
    kept = json.loads((out / "dataset.json").read_text())["recipe"]
    assert [step["step"] for step in kept["transforms"]] == ["Letterbox"]
    for same in (["--task", "detection"], ["--set", "task=detection"], ["--set", 'task="detection"']):
        again = mmload("build", "voc", boxed.root, out, "--size", 16, *same)
        assert again.returncode == 0, again.stderr
        assert "nothing to do" in again.stdout
    config = tmp_path / "voc.toml"
    config.write_text('[source]\nkind = "voc"\n[[transforms]]\nstep = "Letterbox"\nsize = 16\n')
    assert "nothing to do" in mmload("build", "--config", config, boxed.root, out).stdout
    other = mmload("build", "voc", boxed.root, out, "--size", 16, "--set", "task=classification")
    assert "another recipe" in other.stderr


_SCENES = """
import torch

WIDE = torch.arange(3 * 6 * 12, dtype=torch.uint8).reshape(3, 6, 12)
EDGES = torch.tensor([[0.0, 0, 2, 6], [10, 0, 12, 6]])

def scenes():
    return [{"image": WIDE, "boxes": EDGES, "labels": torch.tensor([0, 1])} for _ in range(3)]

def pictures():
    return [(WIDE, n) for n in range(3)]
"""


@pytest.mark.parametrize(("called", "steps"), [("scenes", ["Letterbox"]), ("pictures", ["Resize", "CenterCrop"])])
def test_default_transforms_of_a_python_source_keep_boxes(tmp_path: Path, called: str, steps: list[str]) -> None:
    (tmp_path / "made_scenes.py").write_text(_SCENES)
    dataset = f"dataset=made_scenes:{called}"
    done = mmload("build", "python", tmp_path, tmp_path / "out", "--size", 6, "--set", dataset)
    assert done.returncode == 0, done.stderr
    assert CROPPED not in done.stdout + done.stderr
    body = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert [step["step"] for step in body["recipe"]["transforms"]] == steps


@pytest.mark.parametrize("how", [{}, {"threads": 3}, {"processes": 2}, {"shuffle": 1}])
def test_boxes_that_a_crop_drops_are_counted(boxed: Devkit, tmp_path: Path, how: dict) -> None:
    seed = how.pop("shuffle", None)
    build(recipe(boxed, tmp_path / "out", shuffle_seed=seed), **how)
    (said,) = notes(tmp_path / "out", "warnings")
    assert said.startswith("12 of 20 boxes were dropped")
    assert "4 of 12 images" in said
    assert "Letterbox" in said


def test_build_and_info_warn_of_dropped_boxes_on_a_line_of_their_own(boxed: Devkit, tmp_path: Path) -> None:
    config = tmp_path / "crop.toml"
    config.write_text('[source]\nkind = "voc"\n[[transforms]]\nstep = "CenterCrop"\nsize = 6\n')
    done = mmload("build", "--config", config, boxed.root, tmp_path / "out")
    for shown in (done, mmload("info", tmp_path / "out")):
        (line,) = [line for line in shown.stderr.splitlines() if CROPPED in line]
        assert line.startswith("mmload: warning: split train: 12 of 20 boxes were dropped")


def test_boxes_that_count_from_0_are_cut_at_the_edge_with_a_note(devkit: Devkit, tmp_path: Path) -> None:
    devkit.add("a", thing("dog", (0, 0, 3, 4)), thing("dog", (1, 1, 8, 6)))
    devkit.list("train", "a")
    build(recipe(devkit, tmp_path / "out", transforms=()))
    (note,) = notes(tmp_path / "out")
    assert "one_based=false: 1 (VOC2007/JPEGImages/a.jpg)" in note
    boxes = open_dataset(tmp_path / "out")["train"][0].boxes
    assert boxes.tolist() == [[0, 0, 3, 4], [0, 0, 8, 6]]


def test_masks_of_0_and_255_are_noted(devkit: Devkit, tmp_path: Path) -> None:
    options = {"task": "segmentation", "classes": ["thing"]}
    devkit.add("a", mask=np.array([[0, 255, 0, 0]] * 6, np.uint8).repeat(2, axis=1))
    devkit.add("bb", mask=np.zeros((6, 8), np.uint8))
    devkit.add("ccc", mask=np.array([[0, 255, 1, 0]] * 6, np.uint8).repeat(2, axis=1))
    devkit.list("train", "a", "bb", "ccc", kind="Segmentation")
    build(recipe(devkit, tmp_path / "out", options=options, transforms=()))
    assert notes(tmp_path / "out") == [f"{ONLY_VOID}: 1 (VOC2007/JPEGImages/a.jpg)"]


def test_boxes_that_are_cut_at_the_edge_are_counted(devkit: Devkit, tmp_path: Path) -> None:
    devkit.add("a", thing("dog", (1, 1, 9, 4)), thing("dog", (1, 1, 3, 4)))
    devkit.list("train", "a")
    build(recipe(devkit, tmp_path / "out", options={"clip_boxes": True}, transforms=()))
    assert notes(tmp_path / "out") == ["1 of 2 boxes reached over the edge of the image and was cut there (clip_boxes)"]


def test_boxes_that_a_crop_only_cuts_are_counted(devkit: Devkit, tmp_path: Path) -> None:
    """A box that two steps cut counts once; one that only touches the edge, or is scaled to it, is whole."""
    devkit.add("a", thing("dog", (1, 1, 8, 4)), thing("dog", (2, 1, 7, 6)), thing("cat", (1, 1, 1, 6)))
    devkit.list("train", "a")
    steps = ({"step": "Resize", "size": 7}, {"step": "CenterCrop", "size": 7}, {"step": "CenterCrop", "size": [7, 5]})
    build(recipe(devkit, tmp_path / "twice", transforms=steps))
    assert notes(tmp_path / "twice") == ["2 of 3 boxes were cut: the transforms keep only a part of the object"]
    build(recipe(devkit, tmp_path / "once", transforms=square(6)))
    assert notes(tmp_path / "once") == ["1 of 3 boxes was cut: the transforms keep only a part of the object"]
    build(recipe(devkit, tmp_path / "whole", transforms=({"step": "Letterbox", "size": 7},)))
    assert notes(tmp_path / "whole") == []


def sized(devkit: Devkit, name: str, width: object, height: object) -> None:
    devkit.add(name)
    size = f"<size><width>{width}</width><height>{height}</height></size>"
    devkit.annotate(name, f"<annotation>{size}{thing('dog')}</annotation>")


@pytest.mark.parametrize("how", [{}, {"threads": 3}, {"processes": 2}])
def test_images_of_another_size_than_their_annotation_says_are_named(
    devkit: Devkit, tmp_path: Path, how: dict[str, int]
) -> None:
    for number in range(9):
        sized(devkit, f"a{number}", 16, 12)
    sized(devkit, "b", 6, 8)
    sized(devkit, "c", 8, 6)
    sized(devkit, "d", 0, 0)
    sized(devkit, "e", "", "unknown")
    devkit.list("train", *(f"a{number}" for number in range(9)), *"bcde")
    build(recipe(devkit, tmp_path / "out", transforms=()), **how)
    turned, other = notes(tmp_path / "out")
    folder = "VOC2007/JPEGImages"
    assert other == f"{OTHER_SIZE}: 9 ({folder}/a0.jpg, {folder}/a1.jpg, {folder}/a2.jpg, ...)"
    assert turned == f"{SWAPPED_SIZE}: 1 ({folder}/b.jpg)"


def test_a_box_that_does_not_fit_tells_the_size_that_it_was_drawn_for(devkit: Devkit) -> None:
    devkit.add("a")
    size = "<size><width>6</width><height>8</height></size>"
    devkit.annotate("a", f"<annotation>{size}{thing('dog', (1, 1, 3, 8))}</annotation>")
    devkit.list("train", "a")
    with pytest.raises(SampleError, match=r"drawn on an image of 6 x 8: .*leaves the 8 x 6 image"):
        devkit.splits()["train"].read(0)
