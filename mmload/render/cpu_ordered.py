"""State of batches whose samples are rendered in order on a CPU: composed of tiles, or mixed with the one before.

Levels of a sample whose tiles are not all painted, and of those that others are mixed with, belong to the batch, not to
a thread: its samples are rendered in order, and batches may take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmload.render.cpu_kernels import lines_at_once, written
from mmload.render.holes import holes_of
from mmload.render.kernel_arguments import (
    Bytes,
    Composed,
    Crops,
    Floats,
    ImageLines,
    Mixtures,
    Paint,
    Pixels,
    compiled_for,
    mix_signature,
)
from mmload.render.plan import Plan
from mmload.render.plan_parts import Canvas, Mixing
from mmload.render.torch_sampling import chunks
from mmload.runtime.memory_pool import MemoryPool, scratch

CHUNK_ELEMENTS = 400_000
"""Elements that are rendered as levels or float32 before they are converted: they stay in cache."""

_POOL = MemoryPool(spare=4)
"""Memory for the levels of batches that are being rendered."""


def targets(out: Tensor | Pixels) -> Iterator[tuple[slice, Pixels, bool]]:
    """Yields samples of an output with the memory where kernels write them, and whether that is the output's own.

    All samples come at once; where no kernel can write the output, some at a time, which are copied to it afterwards.
    """
    if isinstance(out, np.ndarray):
        yield slice(0, len(out)), out, True
        return
    own = written(out)
    if own is not None:
        yield slice(0, len(out)), own, True
        return
    for part in chunks(len(out), out.shape[1:], CHUNK_ELEMENTS):
        work = _work_for(out[part])
        for _, pixels, _ in targets(work):
            yield part, pixels, False
        out[part].copy_(work)


def _work_for(out: Tensor) -> Tensor:
    """Returns memory that kernels can write, in the memory format of the output's samples, valid until the next call.

    A sample alone may be written where the output, with gaps between its samples, cannot: both have one layout.
    """
    dtype = np.uint8 if out.dtype == torch.uint8 else np.float32
    if not out[:1].is_contiguous() and out[:1].permute(0, 2, 3, 1).is_contiguous():
        return torch.from_numpy(scratch("pixels", out.permute(0, 2, 3, 1).shape, dtype)).permute(0, 3, 1, 2)
    return torch.from_numpy(scratch("pixels", out.shape, dtype))


class CpuCanvas:
    """Canvases of a plan with a fill, uint8 [C], and the levels of the sample that is being painted."""

    def __init__(self, canvas: Canvas, ground: Bytes) -> None:
        self._canvas, self._ground = canvas, ground
        layers = 1 + int(canvas.tiles["layer"].max(initial=0))
        self._levels = _POOL.array((layers, len(ground), canvas.height, canvas.width))
        self._next = 0

    def take(self, first: int, lines: ImageLines) -> tuple[slice, Composed]:
        """Takes tiles from ``first`` on, to be painted; returns the samples whose last tile is among them.

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
        return done, Composed(*lines[:3], tiles, starts, self._ground, self._levels, shares)


class _Batch(NamedTuple):
    """State of a batch until its last sample is rendered.

    Attributes:
        colors: shift and scale of every value of some lines.
        levels: levels of the first sample and of the last two.
        out: [1, C, h, w], where the first sample goes.
    """

    colors: tuple[Floats, Floats]
    levels: Bytes
    out: Tensor | Pixels


class CpuMixing:
    """Mixing of a plan, each sample with the one before it and the first with the last, as they are rendered.

    Colors are shift and scale, float32 [C] each; ``streams`` says whether a part of the output is written past the
    caches.
    """

    def __init__(
        self, plan: Plan, mixing: Mixing, colors: tuple[Floats, Floats], streams: Callable[[Tensor | Pixels], bool]
    ) -> None:
        self._shape, self._colors, self._streams = plan.shape, colors, streams
        ones, empty = np.ones(plan.count, np.float32), np.zeros((plan.count, 4), np.int64)
        self._shares = np.ascontiguousarray(ones if mixing.share is None else mixing.share)
        self._boxes = np.ascontiguousarray(empty if mixing.boxes is None else mixing.boxes)
        self._holes = holes_of(plan)
        self._batch: _Batch | None = None
        self._next = 0

    def mix(self, first: int, crops: Crops, out: Tensor | Pixels) -> None:
        """Cuts out, colors, erases and mixes samples into ``out`` [b, C, h, w]; the batch's first one after its last.

        Raises:
            ValueError: if samples before them are missing. The first may come again, and begins the batch anew.
        """
        if not len(out):
            return
        if first not in (0, self._next):
            raise ValueError(
                f"sample {first} is rendered where {self._next} is next: the samples of a batch that are mixed are "
                "rendered in order, by one thread"
            )
        for part, pixels, is_own in targets(out):
            if first + part.start == 0 or self._batch is None:
                self._batch = self._begun(pixels, out)
            own, streamed = crops._replace(windows=crops.windows[part]), is_own and self._streams(out)
            self._mix(self._batch, first + part.start, own, pixels, streamed)
        self._next = first + len(out)
        if self._next == self._shape[0] and self._batch is not None:
            batch, self._batch, self._next = self._batch, None, 0
            for _, pixels, is_own in targets(batch.out):
                self._mix(batch, 0, crops, pixels, is_own and self._streams(batch.out), last=True)

    def _begun(self, pixels: Pixels, out: Tensor | Pixels) -> _Batch:
        """Returns the state of a batch whose first samples go into ``out``, by way of ``pixels``."""
        from mmload.render.mixing_kernels import SLOTS  # compiled only by those who have such steps

        _, channels, height, width = self._shape
        interleaved = pixels.ndim == 3
        lines = lines_at_once(height, (channels * width if interleaved else width) * pixels.itemsize)
        shift, scale = (
            np.tile(one, lines * width)[None] if interleaved else np.repeat(one[:, None], lines * width, 1)
            for one in self._colors
        )
        return _Batch((shift, scale), _POOL.array((SLOTS * channels * height * width,)), out[:1])

    def _mix(
        self, batch: _Batch, first: int, crops: Crops, pixels: Pixels, streamed: bool, *, last: bool = False
    ) -> None:
        """Calls the kernel, which writes [b, P, h, V]: planes of lines, or one of interleaved lines."""
        from mmload.render.mixing_kernels import mix

        lines = pixels[:, None] if pixels.ndim == 3 else pixels
        paint = Paint(*batch.colors, self._holes, streamed)
        mixtures = Mixtures(self._shares, self._boxes, batch.levels, first, last)
        compiled_for(lines, mix, mix_signature)(crops, paint, mixtures, lines)
