"""Parity of right stores: they pass from every kind of source, and what differs on purpose is said."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cifar_files import write_cifar10
from devkit import Devkit, thing
from parity_stores import SIZE, built, check, failed, make_photos, passes, rewrite
from PIL import Image
from torchvision.transforms.v2 import functional as F

from mmload.augment import CenterCrop, Views
from mmload.augment.collate import Collate
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.errors import UsageError
from mmload.interop.torchvision import torchvision_equivalent
from mmload.remote.opening import open as open_dataset


def test_a_right_store_passes(photos: Path, tmp_path: Path) -> None:
    report = passes(built(photos, tmp_path / "out"), photos, collate=None)
    names = [verdict.name for verdict in report.verdicts]
    assert names[:6] == ["rows", "classes", "labels", "pixels of jpeg", "pixels of png", "pixels of webp"]
    assert [verdict.numbers["greatest"] for verdict in report.verdicts[3:6]] == [0, 0, 0]


@pytest.mark.parametrize(("interpolation", "greatest", "mean"), [("bilinear", 2, 0.1), ("bicubic", 16, 0.5)])
def test_stored_pixels_are_near_those_of_torchvision_on_pillow_images(
    photos: Path, tmp_path: Path, interpolation: str, greatest: int, mean: float
) -> None:
    """torchvision resizes Pillow images by Pillow's kernel, which rounds otherwise; mmload has the tensors' pixels."""
    steps = ({"step": "Resize", "size": 24, "interpolation": interpolation}, {"step": "CenterCrop", "size": 24})
    out = build(BuildRecipe(kind="imagefolder", root=photos, out=tmp_path / "out", transforms=steps), threads=1).out
    dataset = open_dataset(out)
    pillow = torchvision_equivalent(dataset.manifest.recipe)
    for row, image in enumerate(dataset["train"][:].images):
        with Image.open(photos / dataset["train"].source(row).id) as file:
            apart = (image.int() - F.pil_to_tensor(pillow(file)).int()).abs()
        assert apart.max() <= greatest
        assert apart.float().mean() <= mean


@pytest.mark.parametrize("default", ["bfloat16", "meta"])
def test_parity_under_other_defaults_of_torch_holds(photos: Path, tmp_path: Path, default: str) -> None:
    out = built(photos, tmp_path / "out")
    expected = check(out, photos, collate=None, seed=3).verdicts
    try:
        torch.set_default_device("meta" if default == "meta" else None)
        torch.set_default_dtype(torch.bfloat16 if default == "bfloat16" else torch.float32)
        assert check(out, photos, collate=None, seed=3).verdicts == expected
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def test_the_collates_of_views_are_checked_once_each(photos: Path, tmp_path: Path) -> None:
    small = Collate(CenterCrop(9))
    report = passes(built(photos, tmp_path / "out"), photos, rows=3, collate=Views(Collate(), small, small))
    names = {verdict.name.split(",")[0] for verdict in report.verdicts if verdict.name.startswith("view")}
    assert names == {"view 0", "view 1"}


@pytest.mark.parametrize(
    "options",
    [{"shuffle_seed": 3}, {"shard_bytes": 4 * (3 * SIZE * SIZE + 8)}, {"options": {"val_fraction": 0.2}}],
)
def test_other_orders_shards_and_splits_pass(photos: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    report = passes(built(photos, tmp_path / "out", **options), photos, rows=3)
    splits = {"train", "val"} if "options" in options else {"train"}
    assert {verdict.part for verdict in report.verdicts} == splits | {"load"}


def test_parity_store_invalid_arguments_raise(photos: Path, tmp_path: Path) -> None:
    out = built(photos, tmp_path / "out")
    for options, message in (({"rows": 0}, "rows is 0"), ({"split": "val"}, "no split 'val'")):
        with pytest.raises(UsageError, match=message):
            check(out, photos, **options)


def test_split_folders_and_skipped_samples(tmp_path: Path) -> None:
    for name in ("train", "val"):
        make_photos(tmp_path / "photos" / name)
    (tmp_path / "photos" / "val" / "ant" / "1.png").write_bytes(b"broken")
    recipe = BuildRecipe(kind="imagefolder", root=tmp_path / "photos", out=tmp_path / "out", transforms=square(SIZE))
    build(recipe, on_error="skip", threads=1)
    report = passes(recipe.out, tmp_path / "photos", split="val", rows=2)
    assert "4 classes, in torchvision's order" in [verdict.text for verdict in report.verdicts]


def test_what_differs_on_purpose_is_said(tmp_path: Path) -> None:
    source = make_photos(tmp_path / "photos")
    pixels = np.random.default_rng(0).integers(0, 256, (60, 70, 4), dtype=np.uint8)
    Image.fromarray(pixels).save(source / "ant" / "7.png")
    Image.fromarray(pixels[..., 0].astype(np.uint16) * 200).save(source / "ant" / "8.png")
    Image.fromarray(pixels[..., 0]).save(source / "ant" / "9.jpg")
    report = passes(built(source, tmp_path / "out"), source)
    said = " ".join(verdict.text for verdict in report.verdicts if verdict.name == "by design")
    assert re.search("16 bits are scaled.* transparency is laid over the background", said)
    kinds = {verdict.name for verdict in report.verdicts}
    assert {f"pixels of {kind}" for kind in ("png alpha", "png 16-bit", "jpeg gray")} <= kinds


def test_csv_lists(photos: Path, tmp_path: Path) -> None:
    lines = ["path,label"] + [f"{file.relative_to(photos)},{file.parent.name}" for file in sorted(photos.rglob("*.*"))]
    root = Path(shutil.copytree(photos, tmp_path / "listed"))
    (root / "labels.csv").write_text("\n".join(lines) + "\n")

    options = {"options": {"file": "labels.csv"}, "transforms": square(SIZE)}
    build(BuildRecipe(kind="list", root=root, out=tmp_path / "out", **options), threads=1)
    passes(tmp_path / "out", root)
    rewrite(tmp_path / "out", "targets", lambda labels: labels[::-1])
    assert list(failed(check(tmp_path / "out", root))) == ["labels", "targets"]


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
    report = check(tmp_path / "out", tmp_path, collate=None, trust=True)
    assert [verdict.name for verdict in report.failures] == ["features"], "they are new at every call"
    root = tmp_path / "listed"
    (root / "ids").mkdir(parents=True)
    for name in ("a", "b"):
        torch.save(torch.randn(3, 4), root / "ids" / f"{name}.pt")
    (root / "ids.json").write_text('{"partition": {"train": ["a", "b"]}, "labels": {"a": 0, "b": 1}}')
    options = {"file": "ids.json", "folder": "ids"}
    build(BuildRecipe(kind="list", root=root, out=tmp_path / "pt", options=options), threads=1)
    states = {verdict.name: verdict.state for verdict in passes(tmp_path / "pt", root).verdicts}
    assert states == {**dict.fromkeys(("rows", "classes", "labels", "features", "targets"), "pass"), "images": "note"}


def test_every_kind_of_source_passes(devkit: Devkit, tmp_path: Path) -> None:
    for name in ("a", "bb"):
        devkit.add(name, thing("cat", (1, 2, 8, 6)), mask=np.tile(np.array([0, 15, 255, 15], np.uint8), (6, 2)))
    for more in ({}, {"kind": "Segmentation"}):
        devkit.list("train", "a", "bb", **more)
    letterbox = ({"step": "Letterbox", "size": 64},)
    sources = {
        "cifar10": ("cifar10", write_cifar10(tmp_path / "batches"), {}, ()),
        "boxes": ("voc", devkit.root, {"task": "detection", "classes": "auto"}, letterbox),
        "masks": ("voc", devkit.root, {"task": "segmentation"}, letterbox),
    }
    for name, (kind, root, options, steps) in sources.items():
        build(BuildRecipe(kind=kind, root=root, out=tmp_path / name, options=options, transforms=steps), threads=2)
        found = {verdict.name for verdict in passes(tmp_path / name, root, rows=6).verdicts}
        assert {"boxes", "masks"} & found == {name} - {"cifar10"}
    for name, change in (("boxes", lambda rows: rows + np.float32(0.01)), ("masks", lambda rows: np.roll(rows, 1, 2))):
        rewrite(tmp_path / name, name, change)
        assert name in failed(check(tmp_path / name, devkit.root))
