"""Where the lines of images are in memory, as the compiled resize takes them: of one size for all, or of a size each.

Of an image of its own size only some lines may be in memory, those that its window needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

START, FIRST, COUNT, HEIGHT, WIDTH, LAYOUT, SHRINK = range(7)
"""The columns of :attr:`ImageLines.places`."""

PLANES, LINES, PIXELS = range(3)
"""Layouts: [C, H, W], as squares are stored; [H, C, W], as pixels of whole photographs are; [H, W, C], as JPEGs decode.
"""


class ImageLines(NamedTuple):
    """The lines of some images.

    Attributes:
        memory: uint8 [n], contiguous.
        places: int64 [B, 7]: the byte at which an image's lines begin, the number of the first of them, how many they
            are, height and width of the whole image, the layout, and how many times smaller than that the image in
            memory is, whose lines are counted. Of :data:`PLANES` all lines are there, and of the whole size.
    """

    memory: Bytes
    places: Numbers

    @classmethod
    def of_batch(cls, images: Tensor, indices: Numbers) -> ImageLines:
        """All lines of some of ``images``, contiguous uint8 [N, C, H, W]."""
        _, channels, height, width = images.shape
        places = np.empty((len(indices), 7), np.int64)
        places[:, 1:] = 0, height, height, width, PLANES, 1
        np.multiply(indices, channels * height * width, out=places[:, START])
        return cls(images.view(-1).numpy(), places)

    @classmethod
    def of_images(cls, images: Sequence[Tensor]) -> ImageLines:
        """All lines of images of a size each, uint8 [C, h, w], copied together."""
        places = np.empty((len(images), 7), np.int64)
        start = 0
        for k, image in enumerate(images):
            _, height, width = image.shape
            places[k] = start, 0, height, height, width, PLANES, 1
            start += image.numel()
        flat = torch.cat([image.reshape(-1) for image in images]) if len(images) else torch.empty(0, dtype=torch.uint8)
        return cls(flat.numpy(), places)

    def refuse_missing(self, needed: Numbers, shrinks: Numbers, sizes: Numbers, channels: int) -> None:
        """Refuses what kernels, which check nothing, would read beyond.

        Args:
            needed: int64 [B, 2], the first line that is needed of each image, and the one after the last.
            shrinks: int64 [B], how many times smaller each image may be.
            sizes: int64 [B, 2], height and width of each image.
            channels: of all.

        Raises:
            IndexError: if a line is not there.
            ValueError: if an image has another size.
        """
        start, first, count, height, width, layout, shrink = self.places.T
        if (self.places[:, HEIGHT : WIDTH + 1] != sizes).any():
            raise ValueError("the images have other sizes than was planned")
        if ((shrink < 1) | (shrink > shrinks)).any():
            raise ValueError("an image is smaller than its window allows")
        inside = (start >= 0) & (start + count * channels * -(-width // shrink) <= len(self.memory))
        more = np.where(shrink > 1, shrink, 0)
        begin, stop = np.maximum(needed[:, 0] - more, 0), np.minimum(needed[:, 1] + more, height)
        held = (first * shrink <= begin) & (np.minimum((first + count) * shrink, height) >= stop)
        held &= (first >= 0) & (first + count <= -(-height // shrink))
        whole = (layout != PLANES) | ((count == height) & (shrink == 1))
        if not (inside & held & whole).all():
            raise IndexError("a window needs lines of its image that are not in memory")

    def image(self, k: int, channels: int) -> Tensor:
        """The lines of image ``k`` as a view, uint8 [C, lines, W]."""
        start, _, count, _, width, layout, shrink = self.places[k].tolist()
        width = -(-width // shrink)
        flat = torch.from_numpy(self.memory[start : start + count * channels * width])
        if layout == PLANES:
            return flat.view(channels, count, width)
        if layout == LINES:
            return flat.view(count, channels, width).transpose(0, 1)
        return flat.view(count, width, channels).permute(2, 0, 1)
