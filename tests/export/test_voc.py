"""``mmload export --to voc``: boxes, masks and classes, back through ``mmload build``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from conftest import complaint, mmload
from devkit import Devkit, thing
from hypothesis import given
from hypothesis import strategies as st
from loading_stores import build_store
from PIL import Image

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, VariableLayout
from mmload.export import Choice, to_voc
from mmload.export.voc import _sides
from mmload.remote.opening import open as open_dataset
from mmload.store.dataset import Dataset

LETTERBOX = ({"step": "Letterbox", "size": 15},)


def of_devkit(devkit: Devkit, task: str, out: Path) -> Dataset:
    """Rows of all three images of a devkit, fitted into squares: the boxes get fractions."""
    rng = np.random.default_rng(0)
    mask = rng.choice([0, 1, 2, 255], (6, 8)).astype(np.uint8)
    devkit.add("a b&c", thing("cat", (1, 1, 3, 4)), thing("a <dog>", (2, 2, 8, 6), difficult=1), mask=mask)
    devkit.add("none", mask=mask.copy())
    devkit.add("one", thing("cat", (3, 2, 7, 5), difficult=1), mask=mask[::-1].copy())
    for kind in ("Main", "Segmentation"):
        devkit.list("train", "none", "one", kind=kind)
        devkit.list("val", "one", kind=kind)
    options = {"task": task, "classes": ["cat", "a <dog>"]}
    build(BuildRecipe(kind="voc", root=devkit.root, out=out, transforms=LETTERBOX, options=options))
    return open_dataset(out)


def rebuilt(made_next: str, new: Path) -> Dataset:
    done = mmload(*made_next.replace("NEW", str(new)).split()[1:])
    assert done.returncode == 0, done.stderr
    return open_dataset(new)


def check_same(stored: Dataset, again: Dataset, *names: str) -> None:
    assert stored.keys() == again.keys()
    for name, split in stored.items():
        mine, theirs = split.rows(slice(None)), again[name].rows(slice(None))
        for field in names:
            one, other = (each.extra[field] if field == "ignored" else getattr(each, field) for each in (mine, theirs))
            assert torch.equal(one, other), field
        assert again[name].classes == split.classes


def test_boxes_are_the_same_again(devkit: Devkit, tmp_path: Path) -> None:
    stored = of_devkit(devkit, "detection", tmp_path / "built")
    done = mmload("export", stored.path, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    first, line = done.stdout.splitlines()
    assert first == f"{tmp_path / 'out'}: 3 rows as voc"
    again = rebuilt(line.strip(), tmp_path / "again")
    check_same(stored, again, "images", "boxes", "labels", "difficult", "counts")
    assert not (stored["train"][1].boxes % 1 == 0).all()


def test_variable_size_boxes_and_masks_are_the_same_again(devkit: Devkit, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, (height, width) in {"tall": (9, 5), "wide": (4, 7)}.items():
        mask = rng.choice([0, 1, 2, 255], (height, width)).astype(np.uint8)
        devkit.add(name, thing("cat", (1, 1, 3, 4)), thing("dog", (2, 2, 5, 4)), mask=mask)
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        image.save(devkit.home / "JPEGImages" / f"{name}.jpg")
    for kind in ("Main", "Segmentation"):
        devkit.list("train", "tall", "wide", kind=kind)
    for task, fields in (("detection", ("images", "boxes", "labels")), ("segmentation", ("images", "masks"))):
        options = {"task": task, "classes": ["cat", "dog"], "image_set": "train"}
        out = tmp_path / task
        build(BuildRecipe(kind="voc", root=devkit.root, out=out, variable_layout=VariableLayout(), options=options))
        stored = open_dataset(out)["train"]
        (command,) = to_voc(open_dataset(out), tmp_path / f"{task}-voc").next
        again = rebuilt(command, tmp_path / f"{task}-again")["train"]
        assert len(again) == len(stored) == 2
        for row in range(2):
            for field in fields:
                assert torch.equal(
                    torch.as_tensor(getattr(again[row], field)), torch.as_tensor(getattr(stored[row], field))
                ), field


def test_masks_are_the_same_again(devkit: Devkit, tmp_path: Path) -> None:
    stored = of_devkit(devkit, "segmentation", tmp_path / "built")
    made = to_voc(stored, tmp_path / "out", threads=1)
    again = rebuilt(made.next[0], tmp_path / "again")
    check_same(stored, again, "images", "masks")
    file = next((tmp_path / "out").glob("VOCdevkit/VOC2012/SegmentationClass/val_one_0.png"))
    with Image.open(file) as mask:
        assert mask.mode == "P"
        assert mask.getpalette()[:3] == [0, 0, 0]
    assert not (tmp_path / "out" / "VOCdevkit" / "VOC2012" / "Annotations").exists()


def test_several_classes_are_the_same_again(devkit: Devkit, tmp_path: Path) -> None:
    stored = of_devkit(devkit, "classification", tmp_path / "built")
    made = to_voc(stored, tmp_path / "out")
    check_same(stored, rebuilt(made.next[0], tmp_path / "again"), "images", "targets", "ignored")


def test_boxes_and_masks_together(tmp_path: Path) -> None:
    stored = open_dataset(build_store("detection", tmp_path / "built"))
    made = to_voc(stored, tmp_path / "out")
    assert made.notes[0] == "VOC has no place for targets: left out"
    assert "no segmentation.toml" in made.notes[1]
    again = rebuilt(made.next[0], tmp_path / "again")
    name, split = next(iter(stored.items()))
    check_labels = again[name].rows(slice(None))
    assert torch.equal(check_labels.boxes, split.rows(slice(None)).boxes)
    assert torch.equal(check_labels.labels, split.rows(slice(None)).labels)
    files = sorted(
        (tmp_path / "out").glob("VOCdevkit/VOC2012/SegmentationClass/*.png"), key=lambda file: file.name[-6:]
    )
    for row, file in enumerate(files):
        with Image.open(file) as mask:
            assert np.array_equal(np.asarray(mask), split[row].masks)


def test_rows_with_a_box_of_a_class(devkit: Devkit, tmp_path: Path) -> None:
    stored = of_devkit(devkit, "detection", tmp_path / "built")
    assert to_voc(stored, tmp_path / "cats", Choice(of_class="cat")).rows == 2
    said = complaint(mmload("export", stored.path, tmp_path / "dogs", "--class", "a <dog>"), 2)
    assert said.endswith("has no row of class 'a <dog>' in train, val")


def test_shares_of_classes_are_refused(tmp_path: Path) -> None:
    said = complaint(mmload("export", build_store("soft", tmp_path / "built"), tmp_path / "out", "--to", "voc"), 2)
    assert "have no boxes, masks or vectors of classes" in said


@given(st.tuples(*[st.one_of(st.just(0.0), st.floats(2**-20, 4096, width=32))] * 4))
def test_sides_are_exact(box: tuple[float, ...]) -> None:
    x0, y0, x1, y1 = map(float, _sides(np.array(box, np.float32)))
    assert np.array_equal(np.array([x0 - 1, y0 - 1, x1, y1], np.float32), np.array(box, np.float32))
