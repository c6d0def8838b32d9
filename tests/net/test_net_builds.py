"""Files of datasets of every kind of source, byte for byte as they were frozen in builds.json.

Frozen are shards, lists of samples and of origins (without the times of the sources' files), and what a reader gets of
the manifest, by public names. ``.venv/bin/python -m pytest tests/net --freeze`` freezes them again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cifar_files import write_cifar10, write_cifar100
from coco_sets import CocoSet, example
from devkit import Devkit, thing
from net_datasets import JPEG, MIXED, RAW, built, rotated_boxes, save_picture
from net_digests import Digests, Frozen, digest_of
from PIL import Image
from yolo_sets import YoloSet

import mmload

SQUARE = ({"step": "Resize", "size": 24}, {"step": "CenterCrop", "size": 24})
LETTERBOX = ({"step": "Letterbox", "size": 48},)
SHRINK = ({"step": "Shrink", "size": 24},)


def folders(root: Path) -> Path:
    """Writes an ImageFolder of PNGs of several sizes and modes, and one JPEG."""
    for split, each in (("train", 5), ("val", 2)):
        for place, name in enumerate(("ant", "bee", "cat")):
            for row in range(each):
                sides = 26 + 3 * row + place, 44 - 5 * row
                save_picture(root / split / name / f"{split}{place}{row}.png", *sides, channels=(3, 3, 1, 4)[row % 4])
    save_picture(root / "train" / "ant" / "photo.jpg", 40, 56, quality=90)
    return root


def devkit(root: Path) -> Path:
    """Writes a devkit of VOC whose images have one or two objects and a mask."""
    kit, mask = Devkit(root), np.arange(48, dtype=np.uint8).reshape(6, 8) % 5
    mask[0] = 255
    for name, things in {
        "a": [thing("dog")],
        "bb": [thing("cat", (2, 2, 8, 6), difficult=1), thing("dog", (1, 1, 8, 6))],
        "ccc": [thing("cat", (3, 2, 5, 5))],
    }.items():
        kit.add(name, *things, mask=mask)
    for kind in ("Main", "Segmentation"):
        kit.list("train", "a", "bb", kind=kind)
        kit.list("val", "ccc", "a", kind=kind)
    return root


def coco(prefix: str) -> Callable[[Path], Path]:
    """Returns a function that writes train and val in COCO's layout."""

    def write(root: Path) -> Path:
        for seed, split in enumerate(("train2017", "val2017")):
            example(root, split, prefix, seed, images=6 - 3 * seed).write()
        return root

    return write


def panoptic(root: Path) -> Path:
    """Writes one image of three segments, of which one has a number over 65,536."""
    made, numbers = CocoSet(root, prefix="panoptic"), np.zeros((30, 40), np.int64)
    made.image(7)
    numbers[:10], numbers[12:20, 5:15], numbers[20:, 20:] = 70_001, 300, 9
    segments = [
        {"id": number, "category_id": category, "bbox": box, "area": int((numbers == number).sum()), "iscrowd": crowd}
        for number, category, box, crowd in (
            (9, 3, [20, 20, 20, 10], 0),
            (300, 90, [5, 12, 10, 8], 1),
            (70_001, 1, [0, 0, 40, 10], 0),
        )
    ]
    made.body["annotations"] = [{"image_id": 7, "file_name": "000007.png", "segments_info": segments}]
    made.file.with_suffix("").mkdir()
    colors = np.stack([numbers % 256, numbers // 256 % 256, numbers // 65536], 2).astype(np.uint8)
    Image.fromarray(colors).save(made.file.with_suffix("") / "000007.png")
    return made.write()


def polygons(root: Path) -> Path:
    """Writes boxes and polygons in YOLO's layout."""
    kit = YoloSet(root)
    kit.image("a", "0 0.5 0.5 0.5 0.5", "1 0.25 0.5 0.1 0.9")
    kit.image("bb", "1 0.1 0.1 0.9 0.2 0.6 0.8", "0 0.2 0.3 0.7 0.3 0.7 0.9 0.3 0.8")
    kit.image("ccc", size=(31, 23))
    return root


def only_boxes(root: Path) -> Path:
    """Writes boxes in YOLO's layout."""
    kit = YoloSet(root)
    kit.image("a", "0 0.5 0.5 0.5 0.5", "1 0.25 0.5 0.1 0.9")
    kit.image("bb", "1 0.7 0.4 0.3 0.25", size=(31, 23))
    return root


def only_polygons(root: Path) -> Path:
    """Writes polygons in YOLO's layout."""
    kit = YoloSet(root)
    kit.image("a", "1 0.1 0.1 0.9 0.2 0.6 0.8", "0 0.2 0.3 0.7 0.3 0.7 0.9 0.3 0.8")
    kit.image("bb", size=(31, 23))
    return root


def pose(root: Path) -> Path:
    """Writes keypoints in YOLO's layout."""
    kit = YoloSet(root, "kpt_shape: [3, 3]\nflip_idx: [0, 2, 1]\n")
    kit.image("a", "0 0.5 0.5 0.5 0.5 0.4 0.4 2 0.5 0.5 1 0 0 0", "1 0.3 0.5 0.2 0.6 0.3 0.4 2 0.3 0.5 2 0.25 0.7 1")
    kit.image("bb", size=(31, 23))
    return root


def table(root: Path) -> Path:
    """Writes a list of pictures with labels and splits."""
    lines = ["path,label,split"]
    for row in range(9):
        save_picture(root / "pictures" / f"{row}.png", 30 + row, 26)
        lines.append(f"pictures/{row}.png,{('dog', 'cat')[row % 2]},{('train', 'train', 'test')[row % 3]}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root


def vectors(root: Path) -> Path:
    """Writes a list of IDs with tensors of floats, and real numbers as labels."""
    (root / "data").mkdir(parents=True)
    draw, names = np.random.default_rng(3), [f"id-{row}" for row in range(7)]
    for name in names:
        torch.save(torch.from_numpy(draw.random((2, 5), dtype=np.float32)), root / "data" / f"{name}.pt")
    labels = {name: [row / 4, -row] for row, name in enumerate(names)}
    body = {"partition": {"train": names[:5], "validation": names[5:]}, "labels": labels}
    (root / "ids.json").write_text(json.dumps(body))
    return root


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
