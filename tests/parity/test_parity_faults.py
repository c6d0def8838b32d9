"""Parity of wrong stores: every fault is caught and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from building import resealed
from parity_stores import SIZE, built, check, failed, make_photos, photo, rewrite
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from mmload import parity
from mmload.builder import sample_geometry, transforms
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.builder.sample_geometry import Window
from mmload.sources.decode import Decoder


def resized(monkeypatch: pytest.MonkeyPatch, mode: InterpolationMode, antialias: bool) -> None:
    def wrong(images: Tensor, size: tuple[int, int], kind: str, window: Window, out: object) -> Tensor:
        pixels: Tensor = F.resize_image(images, list(size), interpolation=mode, antialias=antialias)
        return F.crop_image(pixels, *window)

    monkeypatch.setattr(sample_geometry, "_resize_pixels", wrong)


RESAMPLING = [
    (InterpolationMode.BILINEAR, False, "bilinear resampling without antialiasing"),
    (InterpolationMode.NEAREST, True, "nearest-neighbor resampling"),
    (InterpolationMode.NEAREST_EXACT, True, "nearest-neighbor resampling"),
    (InterpolationMode.BICUBIC, True, "bicubic resampling"),
]


@pytest.mark.parametrize(("mode", "antialias", "name"), RESAMPLING)
def test_wrong_resampling_is_caught_and_named(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: InterpolationMode, antialias: bool, name: str
) -> None:
    resized(monkeypatch, mode, antialias)
    out = built(photos, tmp_path / "out")
    report = check(out, photos)
    for kind in ("jpeg", "png", "webp"):
        for reference in ("tensor", "Pillow"):
            assert f"looks like {name} (8 of the 8 worst rows)" in failed(report)[f"pixels of {kind}, {reference}"]
    assert {row.diagnosis for row in report.worst} == {name}
    assert not {"rows", "classes", "labels"} & set(failed(report))


def test_known_fault_pillow_resize_is_distinguished_from_torchvision(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pillows(images: Tensor, size: tuple[int, int], kind: str, window: Window, out: object) -> Tensor:
        pixels: Tensor = F.pil_to_tensor(F.resize(F.to_pil_image(images), list(size), InterpolationMode(kind)))
        return F.crop_image(pixels, *window)

    monkeypatch.setattr(sample_geometry, "_resize_pixels", pillows)
    found = failed(check(built(photos, tmp_path / "out"), photos))
    assert "looks like Pillow's own resize" in found["pixels of jpeg, tensor"]
    assert not [name for name in found if name.endswith("Pillow")]


def test_swapped_channels_are_caught_and_named(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = Decoder.with_origin

    def swapped(self: Decoder, data: bytes) -> tuple[Tensor, bool]:
        pixels, is_own = decode(self, data)
        return pixels.flip(0), is_own

    monkeypatch.setattr(Decoder, "with_origin", swapped)
    report = check(built(photos, tmp_path / "out"), photos)
    assert "channels swapped (BGR)" in failed(report)["pixels of jpeg, tensor"]
    assert "channels swapped (BGR)" in failed(report)["pixels of png, Pillow"]


def test_two_faults_are_both_named(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resized(monkeypatch, InterpolationMode.NEAREST, True)
    out = built(photos, tmp_path / "out")
    rewrite(out, "images", lambda rows: rows[:, ::-1])
    assert (
        "nearest-neighbor resampling, and channels swapped (BGR)" in failed(check(out, photos))["pixels of png, tensor"]
    )


def test_a_crop_that_is_off_by_one_is_caught_and_named(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    middle = transforms.middle
    monkeypatch.setattr(transforms, "middle", lambda have, want: middle(have, want) + (have > want))
    report = check(built(photos, tmp_path / "out"), photos)
    named = {row.diagnosis for row in report.worst}
    assert named <= {"the crop 1 row too low", "the crop 1 column too far right"}
    assert "the crop 1 " in failed(report)["pixels of jpeg, tensor"]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda rows: rows[..., ::-1], "mirrored left to right"),
        (lambda rows: rows[..., ::-1, :], "upside down"),
        (lambda rows: 255 - rows, "inverted levels"),
        (lambda rows: np.swapaxes(rows, -1, -2), "rows and columns exchanged"),
    ],
)
def test_pixels_in_other_places_are_named(
    photos: Path, tmp_path: Path, change: Callable[[np.ndarray], np.ndarray], name: str
) -> None:
    out = built(photos, tmp_path / "out")
    rewrite(out, "images", change)
    assert name in failed(check(out, photos))["pixels of webp, tensor"]


def test_squeezed_images_are_named(photos: Path, tmp_path: Path) -> None:
    squeezed = BuildRecipe(
        kind="imagefolder", root=photos, out=tmp_path / "out", transforms=({"step": "Resize", "size": [SIZE, SIZE]},)
    )
    build(squeezed, threads=1)
    manifest = tmp_path / "out" / "dataset.json"
    body = json.loads(manifest.read_text())
    body["recipe"]["transforms"] = list(square(SIZE))
    manifest.write_text(resealed(body))
    assert "the whole image squeezed into the row" in failed(check(tmp_path / "out", photos))["pixels of jpeg, tensor"]


def test_rows_that_hold_each_others_pictures_are_named(photos: Path, tmp_path: Path) -> None:
    out = built(photos, tmp_path / "out")
    rewrite(out, "images", lambda rows: np.roll(rows, 1, axis=0))
    report = check(out, photos)
    assert "pixels of jpeg, tensor" in failed(report)
    assert {row.diagnosis for row in report.worst} == {
        f"the picture of row {(row.row - 1) % 20}" for row in report.worst
    }


def test_one_bit_is_enough(photos: Path, tmp_path: Path) -> None:
    out = built(photos, tmp_path / "out")

    def flip(rows: np.ndarray) -> np.ndarray:
        rows[7, 1, 3, 4] ^= 1
        return rows

    rewrite(out, "images", flip)
    report = check(out, photos)
    assert list(failed(report)) == ["pixels of webp, tensor"]
    assert (report.worst[0].row, report.worst[0].file) == (7, str(photos / "bee" / "2.webp"))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda labels: (labels + 1) % 4, "labels are shifted by +1, round 4 classes"),
        (lambda labels: labels + 1, "labels are shifted by +1"),
        (lambda labels: np.array([2, 1, 0, 3])[labels], "class order is permuted: 0 is stored as 2, 2 is stored as 0"),
        (lambda labels: np.roll(labels, 1), "labels are those of the row before"),
        (lambda labels: labels * 0, "all labels are the same"),
    ],
)
def test_wrong_labels_are_caught_and_named(
    photos: Path, tmp_path: Path, change: Callable[[np.ndarray], np.ndarray], name: str
) -> None:
    out = built(photos, tmp_path / "out")
    rewrite(out, "targets", change)
    found = failed(check(out, photos, rows=1))
    assert list(found) == ["labels"]
    assert found["labels"].endswith(name)


def test_one_wrong_label_is_caught_however_few_rows_are_decoded(photos: Path, tmp_path: Path) -> None:
    out = built(photos, tmp_path / "out")

    def change(labels: np.ndarray) -> np.ndarray:
        labels[13] = 0
        return labels

    rewrite(out, "targets", change)
    text = failed(check(out, photos, rows=1))["labels"]
    assert text.startswith("1 of 20 labels are wrong; the first: row 13 (cat/3.jpg) is 0, not 2")


def test_classes_in_another_order_are_caught_and_named(photos: Path, tmp_path: Path) -> None:
    out = built(photos, tmp_path / "out")
    manifest = out / "dataset.json"
    body = json.loads(manifest.read_text())
    body["splits"]["train"]["classes"] = ["ant", "cat", "bee", "dog"]
    manifest.write_text(resealed(body))
    found = failed(check(out, photos, rows=1))
    assert found == {"classes": "2 of 4 classes are at another index: cat, bee class order is permuted"}


def test_a_source_that_changed_is_caught(tmp_path: Path) -> None:
    source = make_photos(tmp_path / "photos")
    out = built(source, tmp_path / "out")
    (source / "ant" / "0.jpg").rename(source / "ant" / "9.jpg")
    photo(np.random.default_rng(99)).save(source / "bee" / "1.png")
    found = failed(check(out, source))
    assert "1 of none in the source" in found["rows"]
    assert "pixels of png, tensor" in found
    (source / "bee" / "1.png").write_bytes(b"no image")
    unread = check(out, source)
    assert "bee/1.png: not an image in any format that mmload reads" in failed(unread)["reading"]
    assert str(tmp_path) not in parity.table(unread)
    (source / "bee" / "1.png").write_bytes((source / "bee" / "4.png").read_bytes()[:300])
    assert "bee/1.png: Pillow cannot read it (" in failed(check(out, source))["reading"]


def test_shapes_that_the_recipe_does_not_give_are_caught(photos: Path, tmp_path: Path) -> None:
    out = built(photos, tmp_path / "out")
    manifest = out / "dataset.json"
    body = json.loads(manifest.read_text())
    body["recipe"]["transforms"] = list(square(SIZE + 4))
    manifest.write_text(resealed(body))
    assert "stored as [3, 24, 24], the recipe gives [3, 28, 28]" in failed(check(out, photos))["shapes"]
