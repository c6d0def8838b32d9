"""Datasets of noise: their readers do not care what is in them."""

from __future__ import annotations

from pathlib import Path

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


def make_dataset(path: Path, rows: int, side: int) -> Path:
    """Builds a dataset of noise by public names alone, so that other versions of mmload can do it, too."""
    options = {"dataset": "noise_rows:Noise", "arguments": {"rows": rows, "side": side}}
    mmload.build(mmload.BuildRecipe(kind="python", root=Path(__file__).parent, options=options, out=path))
    return path
