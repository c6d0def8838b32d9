"""Rows for benchmarks/bench_look: cut at random out of photographs, or the photographs again and again."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from mmload.cli.demo import GRAINS, photo

Pixels = npt.NDArray[np.uint8]

LONG = "a class with a long name, as WordNet has them, and <i>signs</i> of HTML & more "
COPIES = 100  # one row in so many is a copy of the one before, encoded again
_LARGEST = 400  # pixels of a photograph's side


class Rows:
    """A map-style dataset of (image [side, side, 3], class).

    Args:
        rows: how many.
        side: of a row, in pixels.
        classes: with long names.
        photos: a folder of JPEGs; empty: 64 pictures are made up.
        repeated: variable-size images in turn, so that nearly all pairs of rows are alike or none; else random crops.
    """

    def __init__(self, rows: int, side: int, classes: int, photos: str, repeated: bool) -> None:
        self.rows, self.side, self.repeated = rows, side, repeated
        self.pictures = pictures(photos)
        self.classes = [f"{LONG}{number}" for number in range(classes)]

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> tuple[Pixels, int]:
        source = row - 1 if row % COPIES == COPIES - 1 else row
        pixels = self._pixels(source)
        return (pixels if source == row else encoded(pixels)), source % len(self.classes)

    def _pixels(self, row: int) -> Pixels:
        if self.repeated:
            picture = self.pictures[row % len(self.pictures)]
            return np.asarray(picture.resize((self.side, self.side), Image.Resampling.BILINEAR))
        draw = np.random.default_rng(row)
        picture = self.pictures[draw.integers(len(self.pictures))]
        share = draw.uniform(0.2, 0.9)
        width, height = picture.width * share, picture.height * share
        left, top = draw.uniform(0, picture.width - width), draw.uniform(0, picture.height - height)
        cut = picture.resize((self.side, self.side), Image.Resampling.BILINEAR, (left, top, left + width, top + height))
        return np.asarray(cut)


@cache
def pictures(photos: str) -> list[Image.Image]:
    """The photographs that rows are cut out of."""
    if not photos:
        made = [photo(sorted(GRAINS)[number % len(GRAINS)], np.random.default_rng(number)) for number in range(64)]
        return [Image.fromarray(pixels) for pixels in made]
    found = []
    for path in sorted(Path(photos).rglob("*.[jJ][pP]*[gG]")):
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        image.thumbnail((_LARGEST, _LARGEST))
        found.append(image)
    return found


def encoded(pixels: Pixels) -> Pixels:
    """The pixels as a JPEG of quality 60 shows them."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=60)
    return np.asarray(Image.open(file))
