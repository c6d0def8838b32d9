"""Folders of tiny pictures by their names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

ODD_NAMES = (
    "line\nend.png",
    "tab\there.png",
    "# comment.png",
    " edges .png",
    "<b onclick=x>&amp;.png",
    "back\\nslash.png",
    "\udcff.png",
)
"""Names that a list, a page or a terminal takes for something else if they are not escaped."""


def picture(path: Path, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, format="PNG")


def folder_of(root: Path, *names: str) -> Path:
    for seed, name in enumerate(names):
        picture(root / name, seed)
    return root


def smooth_jpegs(root: Path, classes: Sequence[str], sizes: Sequence[tuple[int, int]]) -> Path:
    """An ImageFolder of photographs 0.jpg, 1.jpg, ... that change slowly; red grows from left to right.

    Args:
        root: the folder.
        classes: of each photograph.
        sizes: width and height of each.
    """
    rng = np.random.default_rng(0)
    for number, (name, size) in enumerate(zip(classes, sizes, strict=True)):
        (root / name).mkdir(parents=True, exist_ok=True)
        few = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        few[..., 0] = [0, 80, 170, 255]
        Image.fromarray(few).resize(size, Image.Resampling.BICUBIC).save(root / name / f"{number}.jpg", quality=95)
    return root
