"""Small datasets in YOLO's layout, which a test fills."""

from __future__ import annotations

from pathlib import Path

from coco_sets import noise
from PIL import Image

from mmload.sources import find_splits
from mmload.sources.decode import Decoder


class YoloSet:
    """A dataset with ``images/train`` and ``labels/train``; images are noise of 40 x 20."""

    def __init__(self, root: Path, more: str = "") -> None:
        self.root = root
        for folder in ("images/train", "labels/train"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        self.describe(f"path: .\ntrain: images/train\nnames:\n  0: cat\n  1: dog # a comment\n{more}")

    def describe(self, text: str) -> None:
        (self.root / "data.yaml").write_text(text)

    def image(self, name: str, *lines: str, split: str = "train", size: tuple[int, int] = (20, 40)) -> None:
        Image.fromarray(noise(*size, len(name))).save(self.root / "images" / split / f"{name}.png")
        if lines:
            (self.root / "labels" / split / f"{name}.txt").write_text("\n".join(lines))

    def splits(self, **options):
        return find_splits("yolo", self.root, Decoder(), options)
