"""Small datasets in COCO's layout: noisy pictures, boxes, polygons, crowds as run lengths, and keypoints."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.errors import SampleError
from mmload.sources import find_splits
from mmload.sources.decode import Decoder

KEYPOINTS = ["nose", "left_eye", "right_eye"]
CATEGORIES = [
    {"id": 3, "name": "car"},
    {"id": 1, "name": "person", "keypoints": KEYPOINTS, "skeleton": [[1, 2], [1, 3]]},
    {"id": 90, "name": "toothbrush"},
]


def noise(height, width, seed):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def uncompressed(mask):
    """Returns the run lengths of a mask, bool [H, W], by a plain loop."""
    counts, value, run = [], 0, 0
    for pixel in mask.T.reshape(-1).tolist():
        if pixel == value:
            run += 1
        else:
            counts.append(run)
            value, run = pixel, 1
    return {"size": list(mask.shape), "counts": [*counts, run]}


class CocoSet:
    """A dataset that a test fills; images are noise."""

    def __init__(self, root: Path, split: str = "train2017", prefix: str = "instances") -> None:
        self.root, self.split = root, split
        self.file = root / "annotations" / f"{prefix}_{split}.json"
        self.body = {"images": [], "annotations": [], "categories": CATEGORIES}
        (root / split).mkdir(parents=True)
        self.file.parent.mkdir(exist_ok=True)

    def image(self, number, height=30, width=40, write=True):
        name = f"{number:06d}.png"
        self.body["images"].append({"id": number, "file_name": name, "height": height, "width": width})
        if write:
            Image.fromarray(noise(height, width, number)).save(self.root / self.split / name)

    def object(self, image, box, category=1, **more):
        annotation = {"id": 100 + len(self.body["annotations"]), "image_id": image, "category_id": category}
        self.body["annotations"].append(annotation | {"bbox": box, "area": box[2] * box[3], "iscrowd": 0} | more)

    def write(self):
        self.file.write_text(json.dumps(self.body))
        return self.root

    def splits(self, **options):
        self.write()
        return find_splits("coco", self.root, Decoder(), options)


def example(root, split="train2017", prefix="instances", seed=0, images=6):
    """Returns a set of several images: random objects with polygons, keypoints and a crowd; one image is empty."""
    made, random = CocoSet(root, split, prefix), np.random.default_rng(seed)
    for number in range(1, images + 1):
        height, width = random.integers(24, 60, 2).tolist()
        made.image(number, height, width)
        for _ in range(0 if number == 2 else int(random.integers(1, 5))):
            x, y = random.uniform(0, width - 12), random.uniform(0, height - 12)
            w, h = random.uniform(6, width - x), random.uniform(6, height - y)
            corners = random.uniform(0, 1, (int(random.integers(3, 8)), 2)) * [w, h] + [x, y]
            polygons = [[round(side, 2) for side in corners.reshape(-1).tolist()]]
            if random.random() < 0.3:
                polygons.append([x, y, x + w / 2, y, x, y + h / 2])
            flags = random.integers(0, 3, (3, 1))
            points = np.concatenate([random.uniform(0, 1, (3, 2)) * [w, h] + [x, y], flags], 1) * (flags > 0)
            made.object(
                number,
                [x, y, w, h],
                int(random.choice([1, 3, 90])),
                segmentation=polygons,
                keypoints=points.round(1).reshape(-1).tolist(),
                num_keypoints=int((flags > 0).sum()),
            )
        if number == 1:
            mask = random.random((height, width)) < 0.3
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            box = [columns[0], rows[0], columns[-1] + 1 - columns[0], rows[-1] + 1 - rows[0]]
            made.object(
                number, list(map(int, box)), 3, iscrowd=1, area=int(mask.sum()), segmentation=uncompressed(mask)
            )
    return made


def coco_dataset(root, task="instances", size=64, **options):
    """Builds train and val of :func:`example`, images letterboxed; size None: images of their own sizes."""
    prefix = "person_keypoints" if task == "keypoints" else "instances"
    for seed, split in enumerate(("train2017", "val2017")):
        example(root / "coco", split, prefix, seed).write()
    layout = {}
    if size is None:
        from mmload.builder.recipe import VariableLayout

        layout = {"variable_layout": VariableLayout(encode="raw")}
    transforms = () if size is None else ({"step": "Letterbox", "size": size},)
    recipe = BuildRecipe(
        kind="coco", root=root / "coco", out=root / "built", options={"task": task, **options}, transforms=transforms,
        **layout,
    )  # fmt: skip
    return build(recipe).out


def arrays(sample):
    return {name: np.asarray(values) for name, values in sample.fields.items()}


def fault(made, **options):
    (train,) = made.splits(**options).values()
    with pytest.raises(SampleError) as caught:
        train.read(0)
    assert "\n" not in str(caught.value)
    return str(caught.value)
