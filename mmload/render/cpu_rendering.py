"""Renders uint8 images on a CPU by the compiled kernels: some samples or a batch, with the same bits.

Samples may be rendered from any number of threads, as working memory belongs to the thread; those of a plan that mixes
them, or composes them of tiles, in order, by one thread.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from mmload.render.antialiased_resize import REACHES, is_by_kernel, needed_lines
from mmload.render.canvas_kernels import paint as paint_tiles
from mmload.render.cpu_kernels import CROPS, written
from mmload.render.holes import holes_of
from mmload.render.kernel_arguments import (
    BYTES,
    FLIPPED_X,
    FLIPPED_Y,
    NOWHERE,
    RESIZED,
    TILE,
    WINDOW,
    Bytes,
    Calls,
    Composed,
    Crops,
    Floats,
    Holes,
    ImageLines,
    Operations,
    OutputMemory,
    Paint,
    Pixels,
    Places,
    Records,
    Resizes,
)
from mmload.render.level_kernels import run_operations
from mmload.render.mixing_kernels import MIXES
from mmload.render.plan import Plan
from mmload.render.plan_parts import PADDING_MODES, Canvas, Mixing, Padding, Resampling
from mmload.render.resized_windows import resize
from mmload.render.sample_kernels import operations_of, render
from mmload.render.torch_rendering import on_canvas_of, placements
from mmload.render.torch_sampling import windows
from mmload.runtime.host_arrays import zeros
from mmload.runtime.intrinsics import LINE
from mmload.runtime.lazy_property import lazy_property
from mmload.runtime.memory_pool import MemoryPool, past_caches, scratch

_POOL = MemoryPool(spare=4)
"""Memory for the levels of batches that are being rendered, each by calls in order."""


class CpuRendering:
    """Plan of uint8 images as numpy arrays, ready for the kernels; shift and scale of colors are float32 [C]."""

    def __init__(self, plan: Plan, shift: Floats | None, scale: Floats | None) -> None:
        self._plan = plan
        channels = plan.source[0]
        self._shift = np.zeros(channels, np.float32) if shift is None else shift
        self._scale = np.ones(channels, np.float32) if scale is None else scale

    @property
    def waits(self) -> bool:
        """Whether images may arrive while they are rendered, each when it is needed."""
        resampling = self._plan.resampling
        return resampling is None or is_by_kernel(resampling)

    @lazy_property
    def needed(self) -> Places:
        """Lines that each window needs of its image, or each tile: :data:`~mmload.render.kernel_arguments.NEEDED`."""
        return needed_lines(self._plan) if self._plan.canvas is None else self._plan.canvas.needed

    def render_lines(self, first: int, lines: ImageLines, out: Tensor | Pixels) -> None:
        """Renders samples (of canvases: tiles) from ``first`` on into ``out`` [B, C, h, w], the memory of all samples.

        Of variable-size images, at least the lines of :attr:`needed` are there. Lines arrive meanwhile only if the
        rendering :attr:`waits`; the samples from one on that cannot arrive are not rendered. Samples of which the last
        tile is painted are finished. Samples that are mixed are written when the last of the batch is rendered.

        The output may be an array in the layout that kernels write: see :func:`~mmload.render.cpu_kernels.written`.
        """
        pixels = written(out)
        if pixels is None:
            self.render_lines(first, lines, self._floats)
            out[:] = torch.from_numpy(self._floats)
        elif self._plan.mixing is None:
            self._render(first, lines, pixels)
        else:
            self._render_mixed(self._plan.mixing, first, lines, pixels)

    def _render_mixed(self, mixing: Mixing, first: int, lines: ImageLines, out: Pixels) -> None:
        """Renders levels, and mixes them into ``out`` when those of the whole batch are there."""
        own = self._levels.reshape(out.shape)
        self._render(first, lines, own)
        canvas, count = self._plan.canvas, self._plan.count
        if first + len(lines.places) < (count if canvas is None else len(canvas.samples)):
            return
        shares = np.ones(count, np.float32) if mixing.share is None else np.ascontiguousarray(mixing.share)
        boxes = zeros((count, 4), np.int64) if mixing.boxes is None else np.ascontiguousarray(mixing.boxes)
        levels, mixed = (one[:, None] if one.ndim == 3 else one for one in (own, out))
        paint = Paint(self._shift, self._scale, holes_of(self._plan.holes, count, self._plan.source[0]), streams(out))
        MIXES[mixed.dtype](levels, paint, shares, boxes, mixed)

    def _render(self, first: int, lines: ImageLines, out: Pixels) -> None:
        """Renders samples into the memory of all; if they are mixed later, as levels without holes."""
        plan, samples = self._plan, slice(first, first + len(lines.places))
        resizes, composed, indices = _NO_RESIZES, _NO_TILES, np.zeros(1, np.int64)
        resampling, is_made = plan.resampling, True
        if plan.canvas is not None:
            samples, composed = self._composed(plan.canvas, first, lines)
            images = composed.canvases[:1]
        elif resampling is None:
            (images, indices), is_made = lines.batch(plan.source), False
        elif is_by_kernel(resampling):
            resizes = self._resizes(resampling, samples)
            images = scratch("resized", (1, plan.source[0], resampling.height, resampling.width))
        else:
            images, indices = self._resized_by_torch(resampling, samples, lines), np.arange(len(lines.places))
            is_made = False
        shown = np.frombuffer(bytearray(self._windows[samples].data), WINDOW)  # NumPy's copy gives the lock away
        shown["index"] = indices
        crops, operations, pixels = Crops(images, shown, self._fill, self._mode), self._operations, out[samples]
        holes = self._holes._replace(sides=self._holes.sides[samples])
        paint = Paint(self._shift, self._scale, holes, plan.mixing is None and streams(out))
        if operations is None and not is_made and not lines.arrival.address:
            CROPS[pixels.dtype, pixels.ndim](crops, paint, pixels)
            return
        runs = operations is not None
        cuts = runs and not (is_made and self._is_whole)
        levels = scratch("levels", (1, *plan.shape[1:])) if cuts else images
        own = _NO_OPERATIONS if operations is None else operations.part(samples)
        calls = Calls(
            color=CROPS[out.dtype, out.ndim].address,
            cut=CROPS[BYTES].address if cuts else 0,
            run=run_operations.address if runs else 0,
            resize=0 if resizes is _NO_RESIZES else resize.address,
            paint=0 if composed is _NO_TILES else paint_tiles.address,
        )
        render(lines, resizes, composed, crops, paint, own, levels, calls, OutputMemory.of_pixels(pixels))

    def _resized_by_torch(self, resampling: Resampling, samples: slice, lines: ImageLines) -> Bytes:
        """Resizes windows that no kernel does: uint8 [b, C, H, W]."""
        channels = self._plan.source[0]
        full = scratch("resized", (len(lines.places), channels, resampling.height, resampling.width))
        own = zip(torch.from_numpy(full), windows(self._plan)[samples], placements(self._plan)[samples], strict=True)
        for k, (target, window, placed) in enumerate(own):
            image = lines.image(k, channels)
            target.copy_(on_canvas_of(image, window, resampling, self._plan.padding, placed))
        return full

    def _composed(self, canvas: Canvas, first: int, lines: ImageLines) -> tuple[slice, Composed]:
        """Returns the samples whose last tile is among those from ``first`` on, and what these are painted by."""
        stop = first + len(lines.places)
        ends = np.flatnonzero(np.diff(canvas.samples, append=-1)[first:stop]) + 1
        starts = np.concatenate(([0], ends, [stop - first]))
        begin = int(canvas.samples[first]) if stop > first else 0
        done = slice(begin, begin + len(ends))
        shares = np.append(canvas.shares[done], np.float32(np.nan))
        ground = _filled(canvas.fill, self._plan.source[0])
        return done, Composed(canvas.tiles[first:stop], starts, ground, self._canvases, shares)

    def _resizes(self, resampling: Resampling, samples: slice) -> Resizes:
        placed = resampling.placement
        ground = self._fill if placed is None else _filled(placed.fill, self._plan.source[0])
        return Resizes(self._resized_windows[samples], self._fill, self._mode, ground, REACHES[resampling.mode])

    @property
    def _is_whole(self) -> bool:
        """Whether nothing is cropped from a canvas, or after a resize."""
        plan, resampling = self._plan, self._plan.resampling
        if resampling is None:
            return plan.top is None and plan.left is None and plan.source[1:] == plan.shape[2:]
        whole = resampling.height, resampling.width
        return resampling.top is None and resampling.left is None and whole == plan.shape[2:]

    @lazy_property
    def _levels(self) -> Bytes:
        """Levels of samples that are mixed when the batch is complete."""
        return _POOL.array((math.prod(self._plan.shape),))

    @lazy_property
    def _floats(self) -> Floats:
        """The batch as float32, of outputs that no kernel writes: float32 [B, C, h, w]."""
        return _POOL.array(self._plan.shape, np.float32)

    @lazy_property
    def _canvases(self) -> Bytes:
        """Canvases of the sample that is being painted, whose tiles may come by several calls."""
        channels, canvas = self._plan.source[0], self._plan.canvas
        layers = 1 if canvas is None else 1 + int(canvas.tiles["layer"].max(initial=0))
        return _POOL.array((layers, channels, *self._plan.source[1:]))

    @lazy_property
    def _windows(self) -> Records:
        """Windows that the kernels cut out, after a resize if there is one: WINDOW [B], all of image 0."""
        plan, resampling = self._plan, self._plan.resampling
        cut = zeros(plan.count, WINDOW)
        for name in ("top", "left"):
            if (starts := getattr(plan if resampling is None else resampling, name)) is not None:
                cut[name] = starts
        for flip, bit in ((plan.flip_x, FLIPPED_X), (plan.flip_y, FLIPPED_Y)):
            if flip is not None:
                cut["flips"] += flip * np.uint8(bit)
        return cut

    @lazy_property
    def _resized_windows(self) -> Records:
        """Windows that are resized: RESIZED [B]."""
        plan, resampling, resizes = self._plan, self._plan.resampling, zeros(self._plan.count, RESIZED)
        for name, value in (("top", plan.top), ("left", plan.left), ("rows", plan.rows), ("columns", plan.cols)):
            if value is not None:
                resizes[name] = value
        placed = None if resampling is None else resampling.placement
        if placed is not None:
            for name, value in (("high", placed.rows), ("wide", placed.cols), ("down", placed.top)):
                resizes[name] = value
            resizes["right"] = placed.left
        elif resampling is not None:
            resizes["high"], resizes["wide"] = resampling.height, resampling.width
        return resizes

    @lazy_property
    def _operations(self) -> Operations | None:
        program = self._plan.complete_program()
        return None if program is None else operations_of(program, self._plan.source[0])

    @lazy_property
    def _mode(self) -> int:
        return PADDING_MODES.index((self._plan.padding or Padding()).mode)

    @lazy_property
    def _fill(self) -> Bytes:
        return _filled((self._plan.padding or Padding()).fill, self._plan.source[0])

    @lazy_property
    def _holes(self) -> Holes:
        """Holes of samples that are not mixed later."""
        plan = self._plan
        return holes_of(plan.holes if plan.mixing is None else (), plan.count, plan.source[0])


_NO_RESIZES = Resizes(np.empty(0, RESIZED), NOWHERE, 0, NOWHERE, 0)
_NO_CANVAS: Bytes = np.empty((0, 0, 0, 0), np.uint8)
_NO_TILES = Composed(np.empty(0, TILE), np.empty(0, np.int64), NOWHERE, _NO_CANVAS, np.empty(0, np.float32))
_NO_OPERATIONS = Operations(np.empty((0, 0), np.int64), np.empty((0, 0, 0), np.float32), np.empty((0, 0), np.int64))


@lru_cache(maxsize=64)
def _filled(fill: tuple[float, ...], channels: int) -> Bytes:
    """Returns a fill as the kernels take it, uint8 [C], shared by all who ask for the same."""
    return np.full(channels, fill, np.uint8)


def streams(out: Pixels) -> bool:
    """Returns whether a batch is written past the caches: it, and each sample, is too large to stay there."""
    together = math.prod(out.shape[-2:]) * out.itemsize  # that a kernel writes band by band
    is_aligned = together % LINE == 0 and out.ctypes.data % LINE == 0
    return is_aligned and past_caches(len(out), math.prod(out.shape[1:]) * out.itemsize)
