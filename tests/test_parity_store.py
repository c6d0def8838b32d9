"""Parity of the store: a right one passes, and every wrong one is caught and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from mmload import parity, transforms
from mmload.build import build
from mmload.collate import Collate
from mmload.dataset import open as open_dataset
from mmload.decode import Decoder
from mmload.errors import SourceError, UsageError
from mmload.parity.page import amplified, page
from mmload.recipe import BuildRecipe, square

SIZE = 24


def photo(rng: np.random.Generator) -> Image.Image:
    """Something with edges, colour and grain, of any size from 60 to 100."""
    height, width = (int(side) for side in rng.integers(60, 100, 2))
    image = Image.new("RGB", (width, height), tuple(int(v) for v in rng.integers(0, 256, 3)))
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        x, y = int(rng.integers(0, width)), int(rng.integers(0, height))
        colour = tuple(int(v) for v in rng.integers(0, 256, 3))
        draw.ellipse([x - 15, y - 10, x + 15, y + 10], fill=colour)
    grain = rng.integers(-30, 31, (height, width, 3))
    return Image.fromarray((np.asarray(image).astype(np.int64) + grain).clip(0, 255).astype(np.uint8))


def make_photos(root: Path) -> Path:
    """Four classes of five: JPEG, PNG and WebP."""
    rng = np.random.default_rng(5)
    for name in ("ant", "bee", "cat", "dog"):
        (root / name).mkdir(parents=True)
        for number, ending in enumerate(("jpg", "png", "webp", "jpg", "png")):
            photo(rng).save(root / name / f"{number}.{ending}", quality=92)
    return root


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("parity") / "photos")


def built(source: Path, out: Path, **options: object) -> Path:
    recipe = BuildRecipe(kind="imagefolder", root=source, out=out, transforms=square(SIZE), **options)  # type: ignore[arg-type]  # its own fields
    build(recipe, threads=1, processes=1)
    return out


def check(out: Path, source: Path, **options: object) -> parity.Report:
    """The store side; a collate without steps leaves next to nothing to the load side."""
    return parity.run(out, source, draws=500, threads=2, **{"collate": Collate(), **options})  # type: ignore[arg-type]


def failed(report: parity.Report) -> dict[str, str]:
    """Name -> text and diagnosis of what failed."""
    return {verdict.name: f"{verdict.text} {verdict.diagnosis}" for verdict in report.failures}


def rewrite(out: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Other bytes in a field's file; shards are one here."""
    spec = open_dataset(out)["train"].fields[name]
    rows = np.memmap(out / "train" / "000000" / f"{name}.memmap", dtype=spec.dtype, mode="r+").reshape(-1, *spec.shape)
    rows[:] = change(np.array(rows))


def test_a_right_store_passes(photos: Path, tmp_path: Path) -> None:
    report = check(built(photos, tmp_path / "out"), photos, collate=None)
    assert report.passed, parity.table(report)
    names = [verdict.name for verdict in report.verdicts]
    assert names[:3] == ["rows", "classes", "labels"]
    for kind in ("jpeg", "png", "webp"):
        exact = report.verdicts[names.index(f"pixels of {kind}, tensor")]
        near = report.verdicts[names.index(f"pixels of {kind}, Pillow")]
        assert exact.numbers["greatest"] == 0
        assert near.numbers["greatest"] <= 2
        assert near.numbers["share_over_1"] <= 0.01


@pytest.mark.parametrize("options", [{"shuffle_seed": 3}, {"shard_bytes": 4 * (3 * SIZE * SIZE + 8)}])
def test_other_orders_and_shards_pass(photos: Path, tmp_path: Path, options: dict[str, int]) -> None:
    report = check(built(photos, tmp_path / "out", **options), photos, rows=3)
    assert report.passed, parity.table(report)


def test_bicubic_has_its_own_limits(tmp_path: Path) -> None:
    """Pure noise, where torchvision's and Pillow's bicubic kernels are farthest apart: 15 levels from Pillow 13 on."""
    (tmp_path / "photos" / "a").mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (281, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "photos" / "a" / "0.png")
    steps = ({"step": "Resize", "size": 32, "interpolation": "bicubic"},)
    recipe = BuildRecipe(kind="imagefolder", root=tmp_path / "photos", out=tmp_path / "out", transforms=steps)
    build(recipe, threads=1)
    found = {verdict.name: verdict for verdict in check(tmp_path / "out", tmp_path / "photos").verdicts}
    assert found["pixels of png, tensor"].state == "pass"
    assert found["pixels of png, Pillow"].state == "pass", found["pixels of png, Pillow"].text
    assert "limits: 16 levels" in found["pixels of png, Pillow"].text


def resized(monkeypatch: pytest.MonkeyPatch, mode: InterpolationMode, antialias: bool) -> None:
    def wrong(images: Tensor, size: tuple[int, int], interpolation: InterpolationMode) -> Tensor:
        pixels: Tensor = F.resize_image(images, list(size), interpolation=mode, antialias=antialias)
        return pixels

    monkeypatch.setattr(transforms, "_resize_pixels", wrong)


RESAMPLING = [
    (InterpolationMode.BILINEAR, False, "bilinear resampling without antialiasing"),
    (InterpolationMode.NEAREST, True, "nearest-neighbour resampling"),
    (InterpolationMode.NEAREST_EXACT, True, "nearest-neighbour resampling"),
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


def test_pillows_own_resize_is_told_from_torchvisions(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pillows(images: Tensor, size: tuple[int, int], interpolation: InterpolationMode) -> Tensor:
        pixels: Tensor = F.pil_to_tensor(F.resize(F.to_pil_image(images), list(size), interpolation=interpolation))
        return pixels

    monkeypatch.setattr(transforms, "_resize_pixels", pillows)
    found = failed(check(built(photos, tmp_path / "out"), photos))
    assert "looks like Pillow's own resize" in found["pixels of jpeg, tensor"]
    assert not [name for name in found if name.endswith("Pillow")]


def test_swapped_channels_are_caught_and_named(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = Decoder.__call__
    monkeypatch.setattr(Decoder, "__call__", lambda self, data: decode(self, data).flip(0))
    report = check(built(photos, tmp_path / "out"), photos)
    assert "channels swapped (BGR)" in failed(report)["pixels of jpeg, tensor"]
    assert "channels swapped (BGR)" in failed(report)["pixels of png, Pillow"]


def test_two_faults_are_both_named(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resized(monkeypatch, InterpolationMode.NEAREST, True)
    out = built(photos, tmp_path / "out")
    rewrite(out, "images", lambda rows: rows[:, ::-1])
    assert (
        "nearest-neighbour resampling, and channels swapped (BGR)"
        in failed(check(out, photos))["pixels of png, tensor"]
    )


def test_a_crop_that_is_off_by_one_is_caught_and_named(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    middle = transforms._middle
    monkeypatch.setattr(transforms, "_middle", lambda have, want: middle(have, want) + (have > want))
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
    manifest.write_text(json.dumps(body))
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
    manifest.write_text(json.dumps(body))
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
    assert "bee/1.png: not an image in any format that Pillow reads" in failed(unread)["reading"]
    assert str(tmp_path) not in parity.table(unread)
    (source / "bee" / "1.png").write_bytes((source / "bee" / "4.png").read_bytes()[:300])
    assert "bee/1.png: Pillow cannot read it (" in failed(check(out, source))["reading"]


def test_shapes_that_the_recipe_does_not_give_are_caught(photos: Path, tmp_path: Path) -> None:
    out = built(photos, tmp_path / "out")
    manifest = out / "dataset.json"
    body = json.loads(manifest.read_text())
    body["recipe"]["transforms"] = list(square(SIZE + 4))
    manifest.write_text(json.dumps(body))
    assert "stored as [3, 24, 24], the recipe gives [3, 28, 28]" in failed(check(out, photos))["shapes"]


def test_wrong_arguments_are_told(photos: Path, tmp_path: Path) -> None:
    out = built(photos, tmp_path / "out")
    with pytest.raises(UsageError, match="rows is 0"):
        check(out, photos, rows=0)
    with pytest.raises(UsageError, match="no split 'val'"):
        check(out, photos, split="val")
    with pytest.raises(SourceError):
        check(out, tmp_path / "nowhere")


def test_splits_and_held_out_images(photos: Path, tmp_path: Path) -> None:
    out = built(photos, tmp_path / "out", options={"val_fraction": 0.2})
    report = check(out, photos)
    assert report.passed, parity.table(report)
    assert {verdict.part for verdict in report.verdicts} == {"train", "val", "load"}


def test_split_folders(tmp_path: Path) -> None:
    for name in ("train", "val"):
        make_photos(tmp_path / "photos" / name)
    report = check(built(tmp_path / "photos", tmp_path / "out"), tmp_path / "photos", split="val", rows=2)
    assert report.passed, parity.table(report)
    assert "4 classes, in torchvision's order" in [verdict.text for verdict in report.verdicts]


def test_skipped_samples_are_no_difference(tmp_path: Path) -> None:
    source = make_photos(tmp_path / "photos")
    (source / "ant" / "1.png").write_bytes(b"broken")
    recipe = BuildRecipe(kind="imagefolder", root=source, out=tmp_path / "out", transforms=square(SIZE))
    build(recipe, on_error="skip", threads=1)
    report = check(tmp_path / "out", source)
    assert report.passed, parity.table(report)


def test_what_differs_on_purpose_is_said(tmp_path: Path) -> None:
    source = make_photos(tmp_path / "photos")
    pixels = np.random.default_rng(0).integers(0, 256, (60, 70, 4), dtype=np.uint8)
    Image.fromarray(pixels).save(source / "ant" / "7.png")
    Image.fromarray(pixels[..., 0].astype(np.uint16) * 200).save(source / "ant" / "8.png")
    Image.fromarray(pixels[..., 0]).save(source / "ant" / "9.jpg")
    report = check(built(source, tmp_path / "out"), source)
    assert report.passed, parity.table(report)
    notes = [verdict.text for verdict in report.verdicts if verdict.name == "by design"]
    assert len(notes) == 2
    assert "16 bits are scaled" in notes[0]
    assert "transparency is laid over the background" in notes[1]
    kinds = {verdict.name for verdict in report.verdicts}
    assert {f"pixels of {kind}, tensor" for kind in ("png alpha", "png 16-bit", "jpeg gray")} <= kinds


def test_csv_manifests(photos: Path, tmp_path: Path) -> None:
    lines = ["path,label"] + [f"{file.relative_to(photos)},{file.parent.name}" for file in sorted(photos.rglob("*.*"))]
    listed = tmp_path / "labels.csv"
    listed.write_text("\n".join(lines) + "\n")
    (tmp_path / "ant").symlink_to(photos / "ant")
    for name in ("bee", "cat", "dog"):
        (tmp_path / name).symlink_to(photos / name)
    recipe = BuildRecipe(
        kind="manifest", root=tmp_path, out=tmp_path / "out", options={"file": "labels.csv"}, transforms=square(SIZE)
    )
    build(recipe, threads=1)
    report = check(tmp_path / "out", tmp_path)
    assert report.passed, parity.table(report)
    rewrite(tmp_path / "out", "targets", lambda labels: labels[::-1])
    assert list(failed(check(tmp_path / "out", tmp_path))) == ["labels", "targets"]


def test_tensors_and_python_datasets(tmp_path: Path) -> None:
    (tmp_path / "my_rows.py").write_text(
        """
import torch

def train():
    g = torch.Generator().manual_seed(0)
    shape = (4, 20, 22)
    images = [torch.randint(0, 256, shape, dtype=torch.uint8, generator=g) for _ in range(5)]
    return [{"images": one, "features": torch.randn(3), "targets": k} for k, one in enumerate(images)]
"""
    )
    python = BuildRecipe(kind="python", root=tmp_path, out=tmp_path / "out", options={"dataset": "my_rows:train"})
    build(python, threads=1)
    report = check(tmp_path / "out", tmp_path, collate=None)
    assert [verdict.name for verdict in report.failures] == ["features"], "they are new at every call"
    (tmp_path / "ids").mkdir()
    for name in ("a", "b"):
        torch.save(torch.randn(3, 4), tmp_path / "ids" / f"{name}.pt")
    (tmp_path / "ids.json").write_text('{"partition": {"train": ["a", "b"]}, "labels": {"a": 0, "b": 1}}')
    options = {"file": "ids.json", "folder": "ids"}
    build(BuildRecipe(kind="manifest", root=tmp_path, out=tmp_path / "pt", options=options), threads=1)
    report = check(tmp_path / "pt", tmp_path)
    assert report.passed, parity.table(report)
    states = {verdict.name: verdict.state for verdict in report.verdicts}
    assert states == {**dict.fromkeys(("rows", "classes", "labels", "features", "targets"), "pass"), "images": "note"}


def test_real_photographs_of_every_kind(real_data: Path, tmp_path: Path) -> None:
    sources = {
        "imagefolder": (real_data / "hymenoptera", {}, square(48)),
        "cifar10": (real_data / "cifar10_short", {}, ()),
        "voc": (
            real_data / "raccoon_voc",
            {"task": "detection", "classes": "auto"},
            ({"step": "Letterbox", "size": 64},),
        ),
    }
    for kind, (root, options, steps) in sources.items():
        recipe = BuildRecipe(kind=kind, root=root, out=tmp_path / kind, options=options, transforms=steps)
        build(recipe, threads=2)
        report = check(tmp_path / kind, root, rows=6)
        assert report.passed, parity.table(report)
    recipe = BuildRecipe(
        kind="voc",
        root=real_data / "labelme_voc_mini",
        out=tmp_path / "masks",
        options={"task": "segmentation"},
        transforms=({"step": "Letterbox", "size": 64},),
    )
    build(recipe, threads=2)
    report = check(tmp_path / "masks", real_data / "labelme_voc_mini")
    assert report.passed, parity.table(report)
    assert "masks" in [verdict.name for verdict in report.verdicts]
    rewrite(tmp_path / "masks", "masks", lambda rows: np.roll(rows, 1, axis=2))
    assert "masks" in failed(check(tmp_path / "masks", real_data / "labelme_voc_mini"))


def test_the_difference_is_amplified_around_gray() -> None:
    right = torch.full((3, 4, 4), 100, dtype=torch.uint8)
    stored = right.clone()
    stored[0, 0, 0], stored[1, 1, 1] = 102, 99
    difference, factor = amplified(stored, right)
    assert factor == 63
    assert difference[0, 0, 0] == 128 + 126
    assert difference[1, 1, 1] == 128 - 63
    assert (difference == 128).sum() == 46


def test_the_page_is_whole_and_escaped(tmp_path: Path) -> None:
    source = tmp_path / "photos"
    (source / "a<b>&").mkdir(parents=True)
    photo(np.random.default_rng(0)).save(source / "a<b>&" / "x.png")
    report = check(built(source, tmp_path / "out"), source)
    text = page(report)
    assert "a&lt;b&gt;&amp;/x.png" in text
    assert "<b>&" not in text
    assert text.count("data:image/png;base64,") == 3
    assert "everything holds" in text
