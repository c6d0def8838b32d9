"""Datasets built from a devkit of VOC."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from devkit import Devkit, thing

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square


def voc_dataset(root: Path, task: str) -> Path:
    """Two images in train and in val, 64 x 64, each with a dog, a difficult cat, and a mask of 15."""
    devkit = Devkit(root / "kit")
    mask = np.full((6, 8), 15, np.uint8)
    for name in ("a", "bb", "ccc", "dddd"):
        devkit.add(name, thing("dog"), thing("cat", (2, 2, 8, 6), difficult=1), mask=mask)
    for kind in ("Main", "Segmentation"):
        devkit.list("train", "a", "bb", kind=kind)
        devkit.list("val", "ccc", "dddd", kind=kind)
    options = {"task": task, "image_set": ["train", "val"]}
    recipe = BuildRecipe(kind="voc", root=root / "kit", out=root / "built", options=options, transforms=square(64))
    return build(recipe).out
