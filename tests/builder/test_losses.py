"""What a build leaves out is counted, the same however it ran, and said by every command that shows the dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import complaint, mmload
from devkit import Devkit, thing

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.errors import SampleError
from mmload.records import ONLY_VOID, OTHER_SIZE, SWAPPED_SIZE
from mmload.remote.opening import open as open_dataset

CROPPED = "boxes were dropped"
CUT = "of 3 boxes {} cut: the transforms keep only a part of the object"


@pytest.fixture
def boxed(devkit: Devkit) -> Devkit:
    """Twelve images, 8 wide and 6 high: a middle square of 6 loses the first box of each, and all of every third."""
    names = [f"i{number:02d}" for number in range(12)]
    for number, name in enumerate(names):
        kept = [thing("dog", (3, 2, 5, 4))] if number % 3 else []
        devkit.add(name, thing("cat", (1, 1, 1, 6)), *kept)
    devkit.list("train", *names)
    return devkit


def recipe(devkit: Devkit, out: Path, **more: Any) -> BuildRecipe:
    return BuildRecipe(kind="voc", root=devkit.root, out=out, **{"transforms": (), "shard_bytes": 600, **more})


def steps_of(out: Path) -> list[str]:
    return [step["step"] for step in open_dataset(out).manifest.recipe["transforms"]]


def test_voc_default_task_keeps_the_complete_image(boxed: Devkit, tmp_path: Path) -> None:
    out, config = tmp_path / "out", tmp_path / "voc.toml"
    words = ("build", "voc", boxed.root, out, "--size", 16)
    done = mmload(*words)
    assert done.returncode == 0, done.stderr
    assert CROPPED not in done.stdout
    assert steps_of(out) == ["Letterbox"]
    config.write_text('[source]\nkind = "voc"\n[[transforms]]\nstep = "Letterbox"\nsize = 16\n')
    for same in (
        (*words, "--task", "detection"),
        (*words, "--set", "task=detection"),
        (*words, "--set", 'task="detection"'),
        ("build", "--config", config, boxed.root, out),
    ):
        assert "nothing to do" in mmload(*same).stdout
    assert "another recipe" in complaint(mmload(*words, "--set", "task=classification"), 1)


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
    assert steps_of(tmp_path / "out") == steps


@pytest.mark.parametrize("how", [{}, {"threads": 3}, {"processes": 2}, {"shuffle": 1}])
def test_boxes_that_a_crop_drops_are_counted(boxed: Devkit, tmp_path: Path, how: dict[str, int]) -> None:
    run = {key: value for key, value in how.items() if key != "shuffle"}
    made = recipe(boxed, tmp_path / "out", transforms=square(6), shuffle_seed=how.get("shuffle"))
    (said,) = build(made, **run).manifest.card_lines("warnings", "train")
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


THREE = ((1, 1, 8, 4), (2, 1, 7, 6), (1, 1, 1, 6))
TWICE = ({"step": "Resize", "size": 7}, {"step": "CenterCrop", "size": 7}, {"step": "CenterCrop", "size": [7, 5]})


@pytest.mark.parametrize(
    ("boxes", "more", "expected"),
    [
        (
            [(1, 1, 9, 4), (1, 1, 3, 4)],
            {"options": {"clip_boxes": True}},
            ["1 of 2 boxes reached over the edge of the image and was cut there (clip_boxes)"],
        ),
        # A box that two steps cut counts once; one that only touches the edge, or is scaled to it, is whole.
        (THREE, {"transforms": TWICE}, ["2 " + CUT.format("were")]),
        (THREE, {"transforms": square(6)}, ["1 " + CUT.format("was")]),
        (THREE, {"transforms": ({"step": "Letterbox", "size": 7},)}, []),
    ],
    ids=["clipped", "twice", "once", "whole"],
)
def test_boxes_that_are_cut_are_counted(
    devkit: Devkit, tmp_path: Path, boxes: list[tuple[int, ...]], more: dict[str, Any], expected: list[str]
) -> None:
    devkit.add("a", *(thing("dog", box) for box in boxes))
    devkit.list("train", "a")
    assert build(recipe(devkit, tmp_path / "out", **more)).manifest.card_lines("notes", "train") == expected


def test_boxes_that_count_from_0_are_cut_at_the_edge_with_a_note(devkit: Devkit, tmp_path: Path) -> None:
    devkit.add("a", thing("dog", (0, 0, 3, 4)), thing("dog", (1, 1, 8, 6)))
    devkit.list("train", "a")
    (note,) = build(recipe(devkit, tmp_path / "out")).manifest.card_lines("notes", "train")
    assert note.endswith("one_based=false: 1")
    boxes = open_dataset(tmp_path / "out")["train"][0].boxes
    assert boxes.tolist() == [[0, 0, 3, 4], [0, 0, 8, 6]]


def test_masks_of_0_and_255_are_noted(devkit: Devkit, tmp_path: Path) -> None:
    for name, values in (("a", [0, 255, 0, 0]), ("bb", [0, 0, 0, 0]), ("ccc", [0, 255, 1, 0])):
        devkit.add(name, mask=np.array([values] * 6, np.uint8).repeat(2, axis=1))
    devkit.list("train", "a", "bb", "ccc", kind="Segmentation")
    report = build(recipe(devkit, tmp_path / "out", options={"task": "segmentation", "classes": ["thing"]}))
    assert report.manifest.card_lines("notes", "train") == [f"{ONLY_VOID}: 1"]


def sized(devkit: Devkit, name: str, width: object, height: object, box: tuple[int, ...] = (1, 1, 3, 4)) -> None:
    devkit.add(name)
    size = f"<size><width>{width}</width><height>{height}</height></size>"
    devkit.annotate(name, f"<annotation>{size}{thing('dog', box)}</annotation>")


@pytest.mark.parametrize("how", [{}, {"threads": 3}, {"processes": 2}])
def test_images_of_another_size_than_their_annotation_says_are_counted(
    devkit: Devkit, tmp_path: Path, how: dict[str, int]
) -> None:
    sizes = {f"a{number}": (16, 12) for number in range(9)}
    sizes |= {"b": (6, 8), "c": (8, 6), "d": (0, 0), "e": ("", "unknown")}
    for name, size in sizes.items():
        sized(devkit, name, *size)
    devkit.list("train", *sizes)
    turned, other = build(recipe(devkit, tmp_path / "out"), **how).manifest.card_lines("notes", "train")
    assert (turned, other) == (f"{SWAPPED_SIZE}: 1", f"{OTHER_SIZE}: 9")


def test_a_box_that_does_not_fit_tells_the_size_that_it_was_drawn_for(devkit: Devkit) -> None:
    sized(devkit, "a", 6, 8, (1, 1, 3, 8))
    devkit.list("train", "a")
    with pytest.raises(SampleError, match=r"drawn on an image of 6 x 8: .*leaves the 8 x 6 image"):
        devkit.splits()["train"].read(0)
