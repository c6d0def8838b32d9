"""Composes the samples of a batch on a CPU of tiles, which come in order, some at a time.

Levels of a sample whose tiles are not all painted belong to the batch, not to a thread: its tiles are painted in order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from mmload.render.kernel_arguments import Bytes, Composed, ImageLines
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
        self._levels = _POOL.empty((layers, len(ground), canvas.height, canvas.width), torch.uint8).numpy()
        self._next = 0

    def take(self, first: int, lines: ImageLines) -> tuple[slice, Composed]:
        """Takes tiles from ``first`` on, to be painted; returns the samples whose last tile is among them.

        Args:
            first: the first tile.
            lines: lines of the tiles' images.

        Raises:
            IndexError: if a tile needs other lines.
            ValueError: if images have another size than in the plan, or tiles before them are missing. The first may
                come again, and begins the batch anew.
        """
        canvas, stop = self._canvas, first + len(lines.places)
        lines.check_complete(canvas.needed[first:stop], canvas.sizes[first:stop], len(self._ground))
        if first not in (0, self._next):
            raise ValueError(f"tile {first} is painted where {self._next} is next: paint a batch's tiles in order")
        self._next = 0 if stop == len(canvas.samples) else stop
        ends = np.flatnonzero(np.diff(canvas.samples, append=-1)[first:stop]) + 1
        starts = np.concatenate((np.zeros(1, np.int64), ends))
        begin = int(canvas.samples[first]) if stop > first else 0
        done = slice(begin, begin + len(ends))
        tiles, shares = canvas.tiles[first:stop], canvas.shares[done]
        return done, Composed(lines, tiles, starts, self._ground, self._levels, shares)

    def paint(self, first: int, lines: ImageLines) -> Iterator[tuple[int, Bytes]]:
        """Paints tiles from ``first`` on and yields each sample whose last tile is painted.

        Args:
            first: the first tile.
            lines: lines of the tiles' images.

        Yields:
            The sample's number and its levels, uint8 [1, C, H, W], valid until the next.

        Raises:
            IndexError, ValueError: as :meth:`take` does.
        """
        from mmload.render.canvas_kernels import blend, paint  # compiled only by those who have such steps

        done, parts = self.take(first, lines)
        stops = [*parts.starts[1:].tolist(), len(parts.tiles)]
        at = 0
        for k, stop in enumerate(stops):
            paint(lines.memory, lines.places[at:stop], parts.tiles[at:stop], parts.ground, parts.levels)
            at = stop
            if k < len(parts.shares):
                if not np.isnan(parts.shares[k]):
                    blend(parts.levels, parts.shares[k])
                yield done.start + k, parts.levels[:1]
