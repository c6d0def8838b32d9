"""VOC devkits that a test fills."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from mmload.sources import find_splits
from mmload.sources.decode import Decoder


def thing(name: str, box: tuple[float, ...] | None = (1, 1, 3, 4), difficult: object = 0, extra: str = "") -> str:
    sides = "".join(f"<{s}>{v}</{s}>" for s, v in zip(("xmin", "ymin", "xmax", "ymax"), box or (), strict=False))
    bndbox = f"<bndbox>{sides}</bndbox>" if box else ""
    return f"<object><name>{name}</name><difficult>{difficult}</difficult>{extra}{bndbox}</object>"


class Devkit:
    """A VOCdevkit that a test fills; images are 8 wide and 6 high."""

    def __init__(self, root: Path, year: str = "2007") -> None:
        self.root = root
        self.home = root / "VOCdevkit" / f"VOC{year}"
        for name in ("JPEGImages", "Annotations", "SegmentationClass", "ImageSets/Main", "ImageSets/Segmentation"):
            (self.home / name).mkdir(parents=True)

    def add(self, name: str, *things: str, mask: np.ndarray | None = None, palette: bool = True) -> None:
        pixels = np.random.default_rng(len(name)).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(self.home / "JPEGImages" / f"{name}.jpg")
        self.annotate(name, f"<annotation><size><width>8</width></size>{''.join(things)}</annotation>")
        if mask is not None:
            image = Image.fromarray(mask)
            if palette:
                image.putpalette([i % 256 for i in range(768)])
            image.save(self.home / "SegmentationClass" / f"{name}.png")

    def annotate(self, name: str, xml: str) -> None:
        (self.home / "Annotations" / f"{name}.xml").write_text(xml)

    def list(self, name: str, *images: str, kind: str = "Main") -> None:
        (self.home / "ImageSets" / kind / f"{name}.txt").write_text("".join(f"{image}\n" for image in images))

    def splits(self, **options):
        return find_splits("voc", self.root, Decoder(), options)
