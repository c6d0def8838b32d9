"""A small source of every kind, written from NumPy's generators: pictures are PNGs, so that no decoder decides.

Frozen builds are made of them: after a change here, tests/net has to be frozen anew.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from coco_sets import CocoSet, example
from devkit import Devkit, thing
from PIL import Image
from yolo_sets import YoloSet


def pixels(channels: int, height: int, width: int, draw: np.random.Generator) -> np.ndarray:
    """Returns an image that changes slowly but for its noise: uint8 [C, H, W]."""
    slopes, noise = draw.integers(1, 6, (2, channels, 1, 1)), draw.integers(0, 24, (channels, height, width))
    across, down = np.arange(width), np.arange(height)[:, None]
    levels = slopes[0] * across + slopes[1] * down + noise + draw.integers(0, 200, (channels, 1, 1))
    return (255 - np.abs(levels % 510 - 255)).astype(np.uint8)


def save_picture(path: Path, height: int, width: int, channels: int = 3, **options: Any) -> None:
    """Writes a picture whose pixels follow from its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    levels = pixels(channels, height, width, np.random.default_rng([*path.name.encode()]))
    Image.fromarray(levels[0] if channels == 1 else levels.transpose(1, 2, 0)).save(path, **options)


def rotated_boxes(root: Path) -> Path:
    """Writes a dataset in YOLO's layout whose labels are the four corners of boxes."""
    kit, draw = YoloSet(root), np.random.default_rng(5)
    for number in range(6):
        lines = []
        for _ in range(number % 4):
            middle, turn = draw.uniform(0.35, 0.65, 2), draw.uniform(0, 3)
            arms = np.array([[-0.2, -0.1], [0.2, -0.1], [0.2, 0.1], [-0.2, 0.1]])
            turned = arms @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
            corners = (middle + turned).round(4).reshape(-1).tolist()
            lines.append(" ".join(map(str, [number % 2, *corners])))
        kit.image("x" * (number + 1), *lines, size=(28 + 3 * number, 44 - 2 * number))
    return root


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


def tars(root: Path) -> Path:
    """Writes tars of pictures with labels in WebDataset's layout."""
    save_picture(root / "0.png", 30, 40)
    for split, count in (("train", 2), ("val", 1)):
        with tarfile.open(root / f"set-{split}-0.tar", "w") as tar:
            for number in range(count):
                tar.add(root / "0.png", f"{number}.png")
                label = tarfile.TarInfo(f"{number}.cls")
                label.size = 1
                tar.addfile(label, io.BytesIO(b"1"))
    return root
