"""Parity of wrong stores: whatever is wrong fails, and the report says where."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from building import changed_manifest
from parity_stores import SIZE, built, check, failed, make_photos, photo, rewrite
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from mmload import parity
from mmload.builder import transforms
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.parity.report import Tally
from mmload.sources.decode import Decoder

PIXELS = {"pixels of jpeg", "pixels of png", "pixels of webp"}


decode, middle = Decoder.with_origin, transforms.middle


def resized_by(resize: Callable[[Tensor, list[int]], Tensor]) -> tuple[object, str, Callable[..., Tensor]]:
    """A build's resize by another function."""
    return (
        transforms,
        "_framed_image",
        lambda images, framing, out: F.crop_image(
            resize(torch.from_numpy(images), list(framing.size)), *framing.pixels
        ).numpy(),
    )


WRONG: dict[str, tuple[object, str, Callable[..., object]]] = {
    "no antialiasing": resized_by(
        lambda images, size: F.resize(images, size, InterpolationMode.BILINEAR, antialias=False)
    ),
    "nearest": resized_by(lambda images, size: F.resize(images, size, InterpolationMode.NEAREST)),
    "bicubic": resized_by(lambda images, size: F.resize(images, size, InterpolationMode.BICUBIC, antialias=True)),
    "Pillow": resized_by(lambda images, size: F.pil_to_tensor(F.resize(F.to_pil_image(images), size))),
    "swapped channels": (
        Decoder,
        "with_origin",
        lambda self, data: ((found := decode(self, data))[0][::-1], found[1]),
    ),
    "a crop off by one": (transforms, "middle", lambda have, want: middle(have, want) + (have > want)),
}
"""Faults of a build: what is replaced by what."""


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_build_is_caught(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(*WRONG[fault])
    assert set(failed(check(built(photos, tmp_path / "out"), photos))) == PIXELS


def test_one_value_that_is_one_level_off_is_caught_and_its_row_named(photos: Path, tmp_path: Path) -> None:
    out = built(photos, tmp_path / "out")
    change = np.zeros((20, 3, SIZE, SIZE), np.uint8)
    change[13, 1, 5, 7] = 1
    rewrite(out, "images", lambda rows: rows ^ change)
    report = check(out, photos)
    assert failed(report) == {"pixels of jpeg": "1 of 8 rows differ by up to 1 level; the worst: row 13 (cat/3.jpg)"}
    assert report.failures[0].numbers == {"rows": 8, "wrong": 1, "greatest": 1.0, "limit": 0.0}


def test_pixels_and_shapes_that_the_recipe_does_not_give_are_caught(photos: Path, tmp_path: Path) -> None:
    steps = ({"step": "Resize", "size": [SIZE, SIZE]},)  # squeezed
    out = build(BuildRecipe(kind="imagefolder", root=photos, out=tmp_path / "out", transforms=steps), threads=1).out
    changed_manifest(out, lambda body: body["recipe"].update(transforms=list(square(SIZE))))
    assert set(failed(check(out, photos))) == PIXELS
    changed_manifest(out, lambda body: body["recipe"].update(transforms=list(square(SIZE + 4))))
    text = failed(check(out, photos))["pixels of jpeg"]
    wrong = re.escape("8 of 8 rows differ in size or number; the worst: row 0 (ant/0.jpg) has [3, 24, 24], ")
    assert re.fullmatch(wrong + r".*the recipe gives \[3, 28, 28\]", text)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda labels: np.where(np.arange(20) == 13, 0, labels), "1 of 20 labels are wrong; the first: row 13 "),
        (lambda labels: labels + 1, "20 of 20 labels are wrong; the first: row 0 (ant/0.jpg) is 1, not 0"),
        (lambda labels: np.array([2, 1, 0, 3])[labels], "10 of 20 labels are wrong"),
        (lambda labels: np.roll(labels, 1), "4 of 20 labels are wrong; the first: row 0 (ant/0.jpg) is 3, not 0"),
    ],
)
def test_wrong_labels_are_caught_however_few_rows_are_decoded(
    photos: Path, tmp_path: Path, change: Callable[[np.ndarray], np.ndarray], text: str
) -> None:
    out = built(photos, tmp_path / "out")
    rewrite(out, "targets", change)
    [(name, found)] = failed(check(out, photos, rows=1)).items()
    assert name == "labels"
    assert found.startswith(text)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Photographs, to be changed."""
    return make_photos(tmp_path / "photos")


@pytest.fixture
def out(source: Path, tmp_path: Path) -> Path:
    """The dataset of ``source``."""
    return built(source, tmp_path / "out")


def test_classes_in_another_order_and_new_ones_are_caught(source: Path, out: Path) -> None:
    changed_manifest(out, lambda body: body["splits"]["train"].update(classes=["ant", "cat", "bee", "dog"]))
    text = "2 of 4 classes are not torchvision's; the first: class 1 is cat, not bee"
    assert failed(check(out, source, rows=1)) == {"classes": text}
    (source / "ant").rename(source / "eel")
    assert "class 0 is ant, not bee" in failed(check(out, source, rows=1))["classes"]


def test_rows_that_the_source_has_no_more_and_samples_without_a_row_are_caught(source: Path, out: Path) -> None:
    shutil.copy(source / "bee" / "1.png", source / "bee" / "9.png")
    text = failed(check(out, source))["rows"]
    assert text == (
        "11 of 20 rows are not in the source's order; the first: row 10; "
        "0 rows of no sample of the source; 1 sample of the source in no row"
    )
    (source / "bee" / "1.png").unlink()
    text = failed(check(out, source))["rows"]
    assert text.endswith("the first: row 6; 1 row of no sample of the source; 1 sample of the source in no row")


def test_samples_that_changed_or_cannot_be_read_are_caught(source: Path, out: Path) -> None:
    file = source / "bee" / "1.png"
    photo(np.random.default_rng(99)).save(file)
    assert list(failed(check(out, source))) == ["pixels of png"]
    file.write_bytes(b"no image")
    unread = check(out, source)
    assert "bee/1.png: not an image in any format that mmload reads" in failed(unread)["reading"]
    assert str(source.parent) not in parity.table(unread)
    file.write_bytes((source / "bee" / "4.png").read_bytes()[:300])
    assert "bee/1.png: Pillow cannot read it (" in failed(check(out, source))["reading"]


def test_a_tally_names_the_row_that_is_farthest_beyond_its_own_limit() -> None:
    tally = Tally(" levels")
    tally.add(3.0, "row 0", limit=3.5)
    assert tally.verdict("load", "x").text == "1 row within 3 levels, limit 3.5"
    tally.add(2.0, "row 1", limit=0.0)
    tally.add(2.0, "row 2", limit=0.0)
    assert tally.verdict("load", "x").text == "2 of 3 rows differ by up to 3 levels; the worst: row 1"
    tally.add(float("inf"), "row 3")
    assert tally.verdict("load", "x").text == "3 of 4 rows differ in size or number; the worst: row 3"
