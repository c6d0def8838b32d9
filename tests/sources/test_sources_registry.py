"""The list of sources: options, third parties, and each recipe in configs/ built from a small source of its kind."""

from __future__ import annotations

import dataclasses
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cifar_files import write_cifar10, write_cifar100
from every_source import folders, save_picture, tars, vectors
from PIL import Image

import mmload
import mmload.sources
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, load
from mmload.errors import RecipeError, SourceError
from mmload.records import Sample
from mmload.sources import SOURCES, find_splits, make_source, register
from mmload.sources.decode import Decoder

CONFIGS = Path(__file__).parents[2] / "configs"


class CountingSource:
    """A third party's source: as many rows as it is told, each its own number."""

    def __init__(self, root: Path, decoder: Decoder, *, rows: int = 3) -> None:
        self.rows = rows

    def splits(self) -> dict[str, CountingSource]:
        return {"train": self}

    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.rows

    def id(self, index: int) -> str:
        return f"row {index}"

    def revision(self, index: int) -> str:
        return ""

    def read(self, index: int) -> Sample:
        return Sample(self.id(index), {"features": torch.tensor([float(index)])})


def test_a_registered_source_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmload.sources, "SOURCES", dict(SOURCES))
    register("counting")(CountingSource)
    recipe = BuildRecipe(kind="counting", root=tmp_path / "source", out=tmp_path / "out", options={"rows": 5})
    build(recipe)
    assert mmload.open(tmp_path / "out")["train"][:].features.flatten().tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="already"):
        register("imagefolder")(CountingSource)


def test_splits_have_plain_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountingSource, "splits", lambda source: {"../x": source})
    monkeypatch.setattr(mmload.sources, "SOURCES", {"counting": CountingSource})
    with pytest.raises(SourceError, match=r"'\.\./x' is no name of a split"):
        find_splits("counting", tmp_path, Decoder(), {})


def test_an_entry_point_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints(
        [
            EntryPoint("counting", f"{__name__}:CountingSource", "mmload.sources"),
            EntryPoint("broken", "no_such_module:x", "mmload.sources"),
        ]
    )
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: points.select(group=group))
    assert len(find_splits("counting", tmp_path, Decoder(), {})["train"]) == 3
    with pytest.raises(RecipeError, match="broken of no_such_module:x cannot be loaded"):
        make_source("broken", tmp_path, Decoder(), {})
    with pytest.raises(RecipeError, match="unknown source kind 'other'; use one of broken, .*counting"):
        make_source("other", tmp_path, Decoder(), {})


@pytest.mark.parametrize(("kind", "option"), [("voc", "one_based"), ("coco", "crowds"), ("imagefolder", "allow_empty")])
def test_make_source_with_a_switch_that_is_no_bool_is_refused(tmp_path: Path, kind: str, option: str) -> None:
    with pytest.raises(RecipeError, match=f"{option} is 'no'; use true or false"):
        make_source(kind, tmp_path, Decoder(), {option: "no"})


def test_unknown_options_are_named_with_the_known() -> None:
    for kind in SOURCES:
        with pytest.raises(RecipeError, match=rf"source {kind}: .*its options are \w+"):
            make_source(kind, Path("."), Decoder(), {"no_such_option": 1})


def voc(root: Path) -> None:
    box = "<bndbox><xmin>1</xmin><ymin>16</ymin><xmax>20</xmax><ymax>30</ymax></bndbox>"
    xml = f"<annotation><object><name>car</name>{box}</object></annotation>"
    for year in ("2007", "2012"):
        home = root / "VOCdevkit" / f"VOC{year}"
        for kind in ("Annotations", "SegmentationClass", "ImageSets/Main", "ImageSets/Segmentation"):
            (home / kind).mkdir(parents=True)
        for name in ("train", "val", "test", "trainval"):
            save_picture(home / "JPEGImages" / f"{year}{name}.jpg", 30, 40)
            (home / "Annotations" / f"{year}{name}.xml").write_text(xml)
            mask = Image.fromarray(np.full((30, 40), 7, np.uint8))
            mask.save(home / "SegmentationClass" / f"{year}{name}.png")
            for kind in ("Main", "Segmentation"):
                (home / "ImageSets" / kind / f"{name}.txt").write_text(f"{year}{name}\n")


def cifar(root: Path) -> None:
    write_cifar10(root)
    write_cifar100(root)


def table(root: Path) -> None:
    for i in range(8):
        save_picture(root / f"{i}.png", 30, 40)
    (root / "labels.csv").write_text("path,label\n" + "".join(f"{i}.png,{'xy'[i % 2]}\n" for i in range(8)))


def nothing(root: Path) -> None:
    pass


EXPECTED: dict[str, tuple[Any, dict[str, int], dict[str, tuple[int, ...]]]] = {
    "imagefolder_256": (folders, {"train": 16, "val": 6}, {"images": (3, 256, 256), "targets": ()}),
    "voc_detection_letterbox_416": (
        voc,
        {"train": 2, "test": 1},
        {"images": (3, 416, 416), "boxes": (1, 4), "labels": (1,), "difficult": (1,), "counts": ()},
    ),
    "voc_classification_224": (
        voc,
        {"train": 1, "val": 1, "test": 1},
        {"images": (3, 224, 224), "targets": (20,), "ignored": (20,)},
    ),
    "voc_segmentation_512": (
        voc,
        {"train": 1, "val": 1, "test": 1},
        {"images": (3, 512, 512), "masks": (512, 512)},
    ),
    "voc_to_cifar10": (voc, {"trainval": 1}, {"images": (3, 32, 32), "targets": ()}),
    "cifar10": (cifar, {"train": 45, "test": 12}, {"images": (3, 32, 32), "targets": ()}),
    "cifar100": (cifar, {"train": 9, "test": 9}, {"images": (3, 32, 32), "targets": ()}),
    "list_224": (table, {"train": 6, "val": 2}, {"images": (3, 224, 224), "targets": ()}),
    "idlist": (vectors, {"train": 5, "validation": 2}, {"features": (2, 5), "targets": (2,)}),
    "webdataset_256": (tars, {"train": 2, "val": 1}, {"images": (3, 256, 256), "targets": ()}),
    "python": (nothing, {"train": 100}, {"images": (3, 64, 64), "targets": ()}),
}


def built(tmp_path: Path, name: str) -> mmload.store.dataset.Dataset:
    root = tmp_path / "root"
    root.mkdir()
    EXPECTED[name][0](root)
    build(dataclasses.replace(load(CONFIGS / f"{name}.toml"), root=root, out=tmp_path / "out"))
    return mmload.open(tmp_path / "out")


@pytest.mark.parametrize("name", EXPECTED)
def test_each_recipe_builds(tmp_path: Path, name: str) -> None:
    dataset = built(tmp_path, name)
    _, rows, fields = EXPECTED[name]
    assert {split: len(dataset[split]) for split in dataset} == rows
    assert {field: spec.shape for field, spec in next(iter(dataset.values())).fields.items()} == fields


def test_every_source_recipe_is_tested() -> None:
    own = {path.stem for path in CONFIGS.glob("*.toml") if tomllib.loads(path.read_text())["source"]["kind"] in SOURCES}
    assert own == set(EXPECTED)


def test_boxes_follow_the_letterbox(tmp_path: Path) -> None:
    """A 40 x 30 image on 416: scale 10.4, 52 rows of border above. The box is x 0 to 20, y 15 to 30."""
    row = built(tmp_path, "voc_detection_letterbox_416")["train"][0]
    torch.testing.assert_close(row.boxes, torch.tensor([[0.0, 52 + 156.0, 208.0, 52 + 312.0]]))
    assert row.labels.tolist() == [6]


def test_masks_follow_the_letterbox(tmp_path: Path) -> None:
    mask = built(tmp_path, "voc_segmentation_512")["train"][0].masks
    assert mask[:64].unique().tolist() == [255]
    assert mask[64:448].unique().tolist() == [7]


def test_voc_to_cifar10_speaks_cifar10(tmp_path: Path) -> None:
    split = built(tmp_path, "voc_to_cifar10")["trainval"]
    assert split.classes[int(split[0].targets)] == "automobile"
    assert split.classes == ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
