"""Folders of tiny pictures by their names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def picture(path: Path, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, format="PNG")


def folder_of(root: Path, *names: str) -> Path:
    for seed, name in enumerate(names):
        picture(root / name, seed)
    return root
