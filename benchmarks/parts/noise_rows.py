"""Datasets of noise and generated photographs: their readers do not care what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import mmload


class Noise:
    """A map-style dataset of (image [side, side, 3], class)."""

    def __init__(self, rows: int, side: int) -> None:
        self.rows, self.side = rows, side

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> tuple[npt.NDArray[np.uint8], int]:
        draw = np.random.default_rng(row)
        return draw.integers(0, 256, (self.side, self.side, 3), dtype=np.uint8), row % 1000


def make_dataset(path: Path, rows: int, side: int, **more: Any) -> Path:
    """Builds a dataset of noise; ``more`` are attributes of the recipe."""
    options = {"dataset": "noise_rows:Noise", "arguments": {"rows": rows, "side": side}}
    mmload.build(mmload.BuildRecipe(kind="python", root=Path(__file__).parent, options=options, out=path, **more))
    return path


def write_photographs(folder: Path, count: int) -> Path:
    """Writes JPEGs of 375 x 500 that change slowly but for some grain, in ten classes."""
    from PIL import Image

    for number in range(count):
        draw = np.random.default_rng(number)
        slow = Image.fromarray(draw.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize(
            (500, 375), Image.Resampling.BICUBIC
        )
        grain = draw.integers(0, 24, (375, 500, 1), dtype=np.uint8)
        to = folder / f"{number % 10}" / f"{number:06}.jpg"
        to.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(slow) // 10 * 9 + grain).save(to, quality=90)
    return folder


def build_photographs(photos: Path, out: Path, encode: str | None = None) -> Path:
    """Builds photographs as squares of 256 pixels, or, with ``encode``, of variable size with a short side of 256."""
    from mmload.builder.recipe import VariableLayout

    transforms: list[dict[str, Any]] = [{"step": "Resize", "size": 256}, {"step": "CenterCrop", "size": 256}]
    layout: dict[str, Any] = {}
    if encode:
        transforms, layout = [{"step": "Shrink", "size": 256}], {"variable_layout": VariableLayout(encode=encode)}
    mmload.build(mmload.BuildRecipe(kind="imagefolder", root=photos, out=out, transforms=tuple(transforms), **layout))
    return out
