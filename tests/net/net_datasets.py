"""Sources of the net, made of NumPy's generators, and the datasets of its batches.

Most are PNG pixels or arrays, so that no decoder decides about them. Each dataset is built by :func:`built`, the only
call of a build here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from coco_sets import example
from every_source import pixels, rotated_boxes

import mmload
from mmload.builder.recipe import VariableLayout

SIDE = 40

SHAPES: Mapping[str, tuple[int, tuple[int, int, int] | None]] = {
    "rgb": (13, (3, SIDE, SIDE)),
    "other rgb": (7, (3, SIDE, SIDE)),
    "gray": (7, (1, 24, 30)),
    "four": (6, (4, 21, 18)),
    "boxes": (9, (3, SIDE, 48)),
    "masks": (8, (3, 32, 36)),
    "soft": (6, (3, 16, 16)),
    "floats": (5, (3, 9, 7)),
    "bare": (9, None),
    "many": (300, (1, 3, 4)),
    "sizes": (11, (3, 0, 0)),
    "gray sizes": (5, (1, 0, 0)),
}
"""Kind -> samples, and the shape of an image; sides of 0: each image has others."""

Fields = dict[str, Any]


class Samples:
    """A map-style dataset of generated samples of one kind."""

    classes = ("ant", "bee", "cat")

    def __init__(self, kind: str) -> None:
        self.kind, (self.rows, self.shape) = kind, SHAPES[kind]

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> Fields:
        draw = np.random.default_rng([row, *self.kind.encode()])
        fields: Fields = {}
        if self.shape is not None:
            sides = draw.integers(20, 64, 2).tolist() if not self.shape[1] else self.shape[1:]
            fields["images"] = torch.from_numpy(pixels(self.shape[0], *sides, draw))
        if self.kind == "floats":
            fields["images"] = fields["images"].to(torch.float32) / 256
        if self.kind == "soft":
            fields["targets"] = torch.from_numpy(draw.integers(0, 64, 3).astype(np.float32) / 64)
        elif self.kind != "boxes":
            fields["targets"] = torch.tensor(int(draw.integers(0, 3)))
        if self.kind == "boxes":
            fields |= _boxes(draw, *self.shape[1:])  # type: ignore[misc]  # they have images
        if self.kind == "masks":
            fields["masks"] = torch.from_numpy(draw.choice(np.array([0, 1, 2, 255], np.uint8), self.shape[1:]))  # type: ignore[index]  # the same
        if self.kind in ("masks", "bare"):
            fields |= _further_fields(draw)
        return fields


def _boxes(draw: np.random.Generator, height: int, width: int) -> Fields:
    """Returns up to four boxes on quarters of a pixel, their labels, and a mask."""
    low = draw.integers(0, 4 * np.array([width, height]) - 24, (int(draw.integers(0, 5)), 2))
    high = low + draw.integers(16, np.maximum(17, 4 * np.array([width, height]) - low + 1))
    boxes = np.concatenate([low, np.minimum(high, 4 * np.array([width, height]))], 1) / 4
    return {
        "boxes": torch.from_numpy(boxes.astype(np.float32)),
        "labels": torch.from_numpy(draw.integers(0, 3, len(boxes))),
        "masks": torch.from_numpy(draw.integers(0, 4, (height, width), dtype=np.uint8)),
    }


def _further_fields(draw: np.random.Generator) -> Fields:
    """Returns one field of each other dtype."""
    return {
        "features": torch.from_numpy(draw.integers(0, 256, 5, dtype=np.uint8)),
        "weight": torch.tensor(float(draw.integers(0, 99)), dtype=torch.bfloat16),
        "angle": torch.from_numpy(draw.random((2, 3))),
        "flags": torch.from_numpy(draw.random(3) < 0.5),
        "half": torch.from_numpy(draw.random(2).astype(np.float16)),
        "short": torch.tensor(int(draw.integers(-900, 900)), dtype=torch.int16),
    }


def built(out: Path, *, kind: str, root: Path, variable: Mapping[str, Any] | None = None, **recipe: Any) -> Path:
    """Builds a dataset in this thread, in small shards; ``variable``: how variable-size images are stored."""
    layout = {} if variable is None else {"variable_layout": VariableLayout(**variable)}
    made = mmload.BuildRecipe(kind=kind, root=root, out=out, **{"shard_bytes": 20_000, **layout, **recipe})
    mmload.build(made, threads=1, processes=1)
    return out


RAW, JPEG, MIXED = {"encode": "raw"}, {"encode": "jpeg"}, {"encode": "mixed", "raw_share": 0.5}


def _samples(kind: str, variable: Mapping[str, Any] | None = None) -> Callable[[Path], Path]:
    options = {"dataset": "net_datasets:Samples", "arguments": {"kind": kind}}
    return lambda out: built(out, kind="python", root=Path(__file__).parent, options=options, variable=variable)


def _coco(task: str, variable: Mapping[str, Any] | None = None) -> Callable[[Path], Path]:
    prefix = "person_keypoints" if task == "keypoints" else "instances"

    def make(out: Path) -> Path:
        root = example(out.with_suffix(".source"), prefix=prefix).write()
        return built(out, kind="coco", root=root, options={"task": task}, variable=variable, **_size(variable))

    return make


def _rotated(variable: Mapping[str, Any] | None = None) -> Callable[[Path], Path]:
    def make(out: Path) -> Path:
        root = rotated_boxes(out.with_suffix(".source"))
        return built(out, kind="yolo", root=root, options={"task": "rotated"}, variable=variable, **_size(variable))

    return make


def _size(variable: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"transforms": () if variable else ({"step": "Letterbox", "size": 48},)}


DATASETS: Mapping[str, Callable[[Path], Path]] = {
    **{kind: _samples(kind) for kind, (_, shape) in SHAPES.items() if shape is None or shape[1]},
    "raw sizes": _samples("sizes", RAW),
    "jpeg sizes": _samples("sizes", JPEG),
    "mixed sizes": _samples("sizes", MIXED),
    "gray sizes": _samples("gray sizes", JPEG),
    "instances": _coco("instances"),
    "keypoints": _coco("keypoints"),
    "rotated": _rotated(),
    "instances of sizes": _coco("instances", RAW),
    "keypoints of sizes": _coco("keypoints", MIXED),
    "rotated of sizes": _rotated(RAW),
}
"""Name -> a function that builds the dataset in a folder."""
