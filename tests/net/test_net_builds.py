"""Files of datasets of every kind of source, byte for byte as they were frozen in builds.json.

Frozen are shards, lists of samples and of origins (without the times of the sources' files), and what a reader gets of
the manifest, by public names. ``.venv/bin/python -m pytest tests/net --freeze`` freezes them again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cifar_files import write_cifar10, write_cifar100
from every_source import (
    coco,
    devkit,
    folders,
    only_boxes,
    only_polygons,
    panoptic,
    polygons,
    pose,
    rotated_boxes,
    table,
    vectors,
)
from net_datasets import JPEG, MIXED, RAW, built
from net_digests import Digests, Frozen, digest_of

import mmload

SQUARE = ({"step": "Resize", "size": 24}, {"step": "CenterCrop", "size": 24})
LETTERBOX = ({"step": "Letterbox", "size": 48},)
SHRINK = ({"step": "Shrink", "size": 24},)


def code(root: Path) -> Path:
    """Returns the folder of net_datasets.py."""
    return Path(__file__).parent


def _samples(kind: str) -> dict[str, Any]:
    return {"dataset": "net_datasets:Samples", "arguments": {"kind": kind}}


Recipe = tuple[str, Callable[[Path], Path], dict[str, Any]]

SINGLE = {"class_map": {"dog": "hound", "cat": "tiger"}, "target_classes": ["tiger", "hound"]}

RECIPES: Mapping[str, Recipe] = {
    "imagefolder": ("imagefolder", folders, {"transforms": SQUARE}),
    "imagefolder, shuffled": ("imagefolder", folders, {"transforms": SQUARE, "shuffle_seed": 3}),
    "imagefolder, held out": (
        "imagefolder",
        folders,
        {"transforms": SQUARE, "options": {"split_folders": ["train"], "val_fraction": 0.25, "seed": 4}},
    ),
    "imagefolder, gray": ("imagefolder", folders, {"transforms": SQUARE, "decode": {"mode": "L"}}),
    "imagefolder, raw": ("imagefolder", folders, {"variable": RAW}),
    "imagefolder, shrunk": ("imagefolder", folders, {"variable": JPEG, "transforms": SHRINK}),
    "imagefolder, mixed": ("imagefolder", folders, {"variable": MIXED, "shuffle_seed": 1}),
    "imagefolder, source": ("imagefolder", folders, {"variable": {"encode": "source"}}),
    "imagefolder, excluded": (
        "imagefolder",
        folders,
        {"transforms": SQUARE, "exclude": {"train": ["train/ant/train01.png", "train/cat/train24.png"]}},
    ),
    "voc detection": ("voc", devkit, {"transforms": LETTERBOX, "options": {"image_set": ["train", "val"]}}),
    "voc classes": ("voc", devkit, {"transforms": LETTERBOX, "options": {"image_set": "train", "classes": "auto"}}),
    "voc classification": ("voc", devkit, {"transforms": SQUARE, "options": {"task": "classification"}}),
    "voc segmentation": ("voc", devkit, {"transforms": SQUARE, "options": {"task": "segmentation"}}),
    "voc segmentation, raw": (
        "voc",
        devkit,
        {"variable": RAW, "options": {"task": "segmentation", "classes": "auto"}},
    ),
    "voc single-label": ("voc", devkit, {"transforms": SQUARE, "options": {"task": "single-label", **SINGLE}}),
    "coco detection": ("coco", coco("instances"), {"transforms": LETTERBOX}),
    "coco detection, no crowds": ("coco", coco("instances"), {"variable": MIXED, "options": {"crowds": False}}),
    "coco instances": ("coco", coco("instances"), {"transforms": LETTERBOX, "options": {"task": "instances"}}),
    "coco instances, raw": ("coco", coco("instances"), {"variable": RAW, "options": {"task": "instances"}}),
    "coco instances, cropped": ("coco", coco("instances"), {"transforms": SQUARE, "options": {"task": "instances"}}),
    "coco keypoints": ("coco", coco("person_keypoints"), {"transforms": LETTERBOX, "options": {"task": "keypoints"}}),
    "coco keypoints, cropped": (
        "coco",
        coco("person_keypoints"),
        {"transforms": SQUARE, "options": {"task": "keypoints"}},
    ),
    "coco panoptic": ("coco", panoptic, {"transforms": LETTERBOX, "options": {"task": "panoptic"}}),
    "coco panoptic, raw": ("coco", panoptic, {"variable": RAW, "options": {"task": "panoptic", "crowds": False}}),
    "yolo boxes": ("yolo", only_boxes, {"transforms": LETTERBOX}),
    "yolo boxes of polygons": ("yolo", polygons, {"variable": RAW}),
    "yolo polygons": ("yolo", only_polygons, {"transforms": LETTERBOX, "options": {"task": "instances"}}),
    "yolo pose": ("yolo", pose, {"transforms": LETTERBOX}),
    "yolo rotated": ("yolo", rotated_boxes, {"transforms": LETTERBOX, "options": {"task": "rotated"}}),
    "yolo rotated, cropped": ("yolo", rotated_boxes, {"transforms": SQUARE, "options": {"task": "rotated"}}),
    "cifar10": ("cifar10", write_cifar10, {}),
    "cifar100": ("cifar100", write_cifar100, {"shuffle_seed": 9}),
    "cifar100, coarse": ("cifar100", write_cifar100, {"options": {"labels": "coarse"}}),
    "list": ("list", table, {"transforms": SQUARE, "options": {"file": "labels.csv"}}),
    "list, classes": (
        "list",
        table,
        {"variable": JPEG, "options": {"file": "labels.csv", "classes": ["dog", "bird", "cat"]}},
    ),
    "list of vectors": ("list", vectors, {"options": {"file": "ids.json", "folder": "data"}}),
    "python boxes": ("python", code, {"options": _samples("boxes")}),
    "python boxes, letterboxed": ("python", code, {"transforms": LETTERBOX, "options": _samples("boxes")}),
    "python masks": ("python", code, {"transforms": SQUARE, "options": _samples("masks")}),
    "python floats": ("python", code, {"options": _samples("floats")}),
    "python soft": ("python", code, {"options": _samples("soft"), "shuffle_seed": 2}),
    "python bare": ("python", code, {"options": _samples("bare")}),
}
"""Name -> kind of the source, a function that writes it, and the rest of the recipe."""


def file_digests(folder: Path) -> Digests:
    """Returns a digest of each file but the manifest, and of what the opened splits say of themselves."""
    beside = ("dataset.json", ".source")
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in beside)
    found = {path.relative_to(folder).as_posix(): digest_of(_content(path)) for path in files}
    for name, split in mmload.open(folder).items():
        facts = len(split), {field: str(spec) for field, spec in split.fields.items()}, list(split.classes)
        statistics = [None if each is None else list(each) for each in (split.mean, split.std)]
        found[name] = digest_of(json.dumps([facts, statistics]).encode())
    return found


def _content(path: Path) -> bytes:
    """Returns a file's bytes; of a list of origins without the revisions, which have the times of files."""
    if not path.name.startswith("origins"):
        return path.read_bytes()
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return json.dumps([{key: value for key, value in line.items() if key != "revision"} for line in lines]).encode()


@pytest.fixture(scope="module")
def frozen(pytestconfig: pytest.Config) -> Iterator[Frozen]:
    found = Frozen(Path(__file__).with_name("builds.json"), pytestconfig)
    yield found
    found.close(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_files_of_a_build_are_the_frozen_ones(name: str, tmp_path: Path, frozen: Frozen) -> None:
    kind, write, recipe = RECIPES[name]
    out = built(tmp_path / "out", kind=kind, root=write(tmp_path / "source"), **{"shard_bytes": 6_000, **recipe})
    frozen.check(name, file_digests(out))
