"""Small datasets of every kind for the fuzz of loading: odd sizes, one shard or many, boxes, masks, skipped rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loading_variable import build_variable_stores
from torch import Tensor

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe

Fields = dict[str, Tensor]

ROWS = {
    "rgb": (23, 4), "gray": (17, 100), "four": (9, 1), "detection": (19, 3), "segmentation": (12, 5),
    "soft": (13, 2), "floats": (11, 6), "bare": (15, 7), "many": (200, 64),
}  # fmt: skip
"""Kind -> samples, and rows of a shard. ``bare`` has no images; ``many`` has several blocks of 64 rows."""

SHAPES = {
    "rgb": (3, 11, 14), "gray": (1, 9, 8), "four": (4, 7, 13), "detection": (3, 16, 19), "segmentation": (3, 12, 10),
    "soft": (3, 8, 8), "floats": (3, 9, 7), "bare": None, "many": (1, 3, 4),
}  # fmt: skip
"""Kind -> the shape of an image."""

_SKIPPED = {"detection": (3, 4, 5, 13), "four": (2, 6)}  # samples 3 to 5 of detection are a whole shard


class Samples:
    """A map-style dataset of random samples of one kind; those in ``_SKIPPED`` fail."""

    def __init__(self, kind: str) -> None:
        self.classes = ["ant", "bee", "cat", "dog"]
        self._kind = kind
        self._samples = list(_samples(kind))

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Fields:
        if index in _SKIPPED.get(self._kind, ()):
            raise ValueError("a sample that cannot be read")
        return self._samples[index]


def _samples(kind: str) -> Iterator[Fields]:
    draw = np.random.default_rng(len(kind))
    for number in range(ROWS[kind][0]):
        yield _sample(kind, number, SHAPES[kind], draw)


def _sample(kind: str, number: int, shape: tuple[int, int, int] | None, draw: np.random.Generator) -> Fields:
    fields: Fields = {}
    if shape is not None:
        pixels = draw.integers(0, 256, shape, dtype=np.uint8)
        pixels[:, : shape[1] // 2] //= number % 3 + 1  # not all of the same mean
        fields["images"] = torch.from_numpy(pixels if kind != "floats" else (pixels / 255).astype(np.float32))
    if kind == "soft":
        fields["targets"] = torch.from_numpy(draw.random(5, dtype=np.float32))
    elif kind != "bare":
        fields["targets"] = torch.tensor(int(draw.integers(0, 4)))
    if kind == "detection":
        fields |= _boxes(16, 19, draw)
    if kind in ("segmentation", "detection"):
        fields["masks"] = torch.from_numpy(draw.integers(0, 4, shape[1:], dtype=np.uint8))  # type: ignore[index]  # both have images
    if kind in ("four", "bare"):
        fields["features"] = torch.from_numpy(draw.integers(0, 256, 5, dtype=np.uint8))
    if kind in ("segmentation", "bare"):
        fields["weight"] = torch.tensor(draw.random(), dtype=torch.bfloat16)
        fields["angle"] = torch.from_numpy(draw.random((2, 3)))
        fields["flags"] = torch.from_numpy(draw.random(3) < 0.5)
        fields["half"] = torch.from_numpy(draw.random(2).astype(np.float16))
        fields["short"] = torch.tensor(int(draw.integers(-900, 900)), dtype=torch.int16)
    return fields


def _boxes(height: int, width: int, draw: np.random.Generator) -> Fields:
    """Up to four boxes of a pixel or more with corners on quarters of one, so that their arithmetic is exact."""
    boxes = torch.zeros((int(draw.integers(0, 5)), 4))
    for box in boxes:
        x, y = (draw.integers(0, 4 * side - 4) / 4 for side in (width, height))
        right, low = draw.integers(4 * x + 5, 4 * width + 1) / 4, draw.integers(4 * y + 5, 4 * height + 1) / 4
        box[:] = torch.tensor([x, y, right, low])
    return {"boxes": boxes, "labels": torch.from_numpy(draw.integers(0, 9, len(boxes)))}


def build_stores(root: Path) -> dict[str, Path]:
    """One dataset of each kind under ``root``, by kind; by "whole ENCODING" one of variable-size images."""
    root.mkdir(parents=True, exist_ok=True)
    return {kind: build_store(kind, root / kind) for kind in ROWS} | build_variable_stores(root)


def build_store(kind: str, out: Path) -> Path:
    """A dataset of random samples of one kind."""
    row_bytes = sum(tensor.numel() * tensor.itemsize for tensor in next(_samples(kind)).values())
    options: dict[str, Any] = {"dataset": f"{__name__}:Samples", "arguments": {"kind": kind}}
    recipe = BuildRecipe(
        kind="python",
        root=Path(__file__).parent,
        out=out,
        options=options,
        shard_bytes=row_bytes * ROWS[kind][1],
    )
    build(recipe, threads=1, processes=1, on_error="skip")
    return out
