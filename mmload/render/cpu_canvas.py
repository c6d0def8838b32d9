"""Composes the samples of a batch on a CPU of tiles, which come in order, some at a time.

Levels of a sample whose tiles are not all painted belong to the batch, not to a thread: its tiles are painted in order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from mmload.render.kernel_arguments import Bytes, ImageLines
from mmload.render.plan_parts import Canvas
from mmload.runtime.memory_pool import MemoryPool

_POOL = MemoryPool(spare=4)
"""Memory for the levels of batches that are being rendered."""


class CpuCanvas:
    """Canvases of a plan, with the levels of the sample that is being painted.

    Args:
        canvas: the plan's.
        ground: uint8 [C], its fill.
    """

    def __init__(self, canvas: Canvas, ground: Bytes) -> None:
        self._canvas, self._ground = canvas, ground
        layers = 1 + int(canvas.tiles["layer"].max(initial=0))
        shape = layers, len(ground), canvas.height, canvas.width
        self._levels = _POOL.empty(shape, torch.uint8).numpy()
        self._next = 0

    def paint(self, first: int, lines: ImageLines) -> Iterator[tuple[int, Bytes]]:
        """Paints tiles from ``first`` on and yields each sample whose last tile is painted.

        Args:
            first: the first tile.
            lines: lines of the tiles' images.

        Yields:
            The sample's number and its levels, uint8 [1, C, H, W], valid until the next.

        Raises:
            IndexError: if a tile needs other lines.
            ValueError: if images have another size than in the plan, or tiles before them are missing. The first may
                come again, and begins the batch anew.
        """
        from mmload.render.canvas_kernels import blend, paint  # compiled only by those who have such steps

        here = slice(first, first + len(lines.places))
        lines.check_complete(self._canvas.needed[here], self._canvas.sizes[here], len(self._ground))
        if first not in (0, self._next):
            raise ValueError(f"tile {first} is painted where {self._next} is next: paint a batch's tiles in order")
        samples, tiles, shares = self._canvas.samples, self._canvas.tiles, self._canvas.shares
        stop = first + len(lines.places)
        ends = np.searchsorted(samples, samples[first:stop], side="right")
        at = first
        while at < stop:
            after = min(int(ends[at - first]), stop)
            here = slice(at - first, after - first)
            paint(lines.memory, lines.places[here], tiles[at:after], self._ground, self._levels)
            self._next = at = after
            if after == ends[here.start]:
                sample = int(samples[after - 1])
                if not np.isnan(shares[sample]):
                    blend(self._levels, shares[sample])
                yield sample, self._levels[:1]
        self._next = 0 if stop == len(samples) else stop
