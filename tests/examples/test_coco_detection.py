"""torchvision's detection recipe on a dataset in COCO's layout, and COCO's metric."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import change_scripts
import numpy as np
import pytest
import torch
import torchvision
from coco_sets import coco_dataset
from devkit import Devkit, thing
from PIL import Image, ImageDraw
from torch import Tensor, nn

import mmload
from mmload.augment import Letterbox
from mmload.batch import Batch
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, VariableLayout
from mmload.export.coco import to_coco

NAME = "coco_detection"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("pycocotools")
    monkeypatch.syspath_prepend(change_scripts.CLIENTS.parent)
    return import_module(NAME)


def test_coco_detection_the_annotations_themselves_have_an_ap_of_1(example: Any, tmp_path: Path) -> None:
    split = mmload.open(coco_dataset(tmp_path, "detection", size=None))["train"]
    truth: list[Any] = []
    found: list[Any] = []
    for _, targets in mmload.Loader(split, batch_size=2, collate=mmload.Collate(Letterbox(96)), returns="torchvision"):
        for target in targets:
            single = example.without_crowds(target)
            found += example.found_in(len(truth), {**single, "scores": torch.ones(len(single["labels"]))})
            truth.append(example.truth_of(len(truth), target))
    assert any(each["iscrowd"] for image in truth for each in image)
    assert example.average_precision(truth, found) == pytest.approx(1.0)
    assert example.average_precision(truth, found[::2]) < 0.8
    assert example.average_precision(truth, []) == 0


class Oracle(nn.Module):
    """Model that finds the boxes, labels and scores that are given image by image."""

    def __init__(self, found: list[dict[str, Tensor]]) -> None:
        super().__init__()
        self.found = iter(found)

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        return [next(self.found) for _ in images]


def test_coco_detection_evaluates_images_of_their_own_size(example: Any, tmp_path: Path) -> None:
    split = mmload.open(coco_dataset(tmp_path, "detection", size=None))["train"]
    _, unchanged, _ = example.collates_of("faster_rcnn", 48)
    loader = mmload.Loader(split, batch_size=2, collate=unchanged, returns="torchvision")
    pairs = [pair for images, targets in loader for pair in zip(images, targets, strict=True)]
    assert len({image.shape for image, _ in pairs}) > 1
    assert all(target["boxes"].canvas_size == image.shape[1:] for image, target in pairs)
    singles = [example.without_crowds(target) for _, target in pairs]
    found = [{**single, "scores": torch.ones(len(single["labels"]))} for single in singles]
    assert example.evaluate(Oracle(found), loader) == pytest.approx(1.0)
    halves = [{**each, "boxes": torch.as_tensor(each["boxes"]) / 2} for each in found]
    assert example.evaluate(Oracle(halves), loader) < 0.2


@pytest.mark.parametrize("augment", ["faster_rcnn", "lsj"])
def test_coco_detection_models_see_images_as_they_come(example: Any, augment: str) -> None:
    size = 160
    train, unchanged, longest = example.collates_of(augment, size)
    model = torchvision.models.get_model("fasterrcnn_mobilenet_v3_large_fpn", weights=None, weights_backbone=None)
    example.keep_sizes(model, size, longest)
    rows = [
        Batch(
            images=torch.full((3, height, width), 200, dtype=torch.uint8),
            boxes=torch.tensor([[0.0, 0, width / 2, height / 2]]),
            labels=torch.tensor([0]),
            counts=torch.tensor(1),
            seeds=torch.tensor(seed),
            batch_size=[],
        )
        for seed, (height, width) in enumerate([(160, 213), (240, 160), (300, 900), (80, 100)])
    ]
    in_training = [(160, 213), (240, 160), (88, 266), (160, 200)] if augment == "faster_rcnn" else [(160, 160)] * 4
    evaluated = [(160, 213), (240, 160), (88, 266), (160, 200)] if augment == "faster_rcnn" else None
    for collate, expected in ((train, in_training), (unchanged, evaluated)):
        images, targets = collate(rows).to_torchvision()
        shapes = [tuple(image.shape[1:]) for image in images]
        assert shapes == (expected or [(120, 160), (160, 106), (53, 160), (128, 160)])
        model.train(collate is train)
        seen, seen_targets = model.transform(images, targets)
        assert seen.image_sizes == shapes
        for target, after in zip(targets, seen_targets, strict=True):
            assert torch.equal(torch.as_tensor(target["boxes"]), torch.as_tensor(after["boxes"]))


def disks(devkit: Devkit) -> None:
    """Fills a devkit with pictures of one red disk each on a gray ground, 30 to train with and 15 to validate."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 30), ("val", 15)):
        names = [f"{split}{number}" for number in range(count)]
        for name in names:
            (x, y), side = rng.integers(20, 80, 2).tolist(), int(rng.integers(90, 140))
            devkit.add(name, thing("disk", (x + 1, y + 1, x + side, y + side)))
            ground = rng.integers(90, 160, (230, 240, 1), dtype=np.uint8).repeat(3, 2)
            image = Image.fromarray(ground)
            ImageDraw.Draw(image).ellipse((x, y, x + side - 1, y + side - 1), fill=(220, 30, 20))
            image.save(devkit.home / "JPEGImages" / f"{name}.jpg")
        devkit.list(split, *names)


@pytest.mark.slow
def test_coco_detection_learns_disks(example: Any, tmp_path: Path, devkit: Devkit) -> None:
    disks(devkit)
    sizes: dict[str, Any] = {"variable_layout": VariableLayout(), "transforms": ({"step": "Shrink", "size": 240},)}
    voc: dict[str, Any] = {"kind": "voc", "root": devkit.root, "options": {"classes": ["disk"]}}
    build(BuildRecipe(**voc, out=tmp_path / "voc", **sizes))
    to_coco(mmload.open(tmp_path / "voc"), tmp_path / "coco")
    build(BuildRecipe(kind="coco", root=tmp_path / "coco", out=tmp_path / "built", **sizes))
    words = ["--model", "ssdlite320_mobilenet_v3_large", "--size", "200", "--batch-size", "5", "--lr", "0.02"]
    losses, precision = example.main([str(tmp_path / "built"), *words, "--epochs", "2"])
    assert len(losses) == 12
    assert all(torch.tensor(losses).isfinite())
    assert sum(losses[-5:]) < 0.85 * sum(losses[:5])
    assert 0 < precision < 1
