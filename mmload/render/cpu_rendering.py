"""Renders uint8 images on a CPU by the compiled kernels: some samples or a batch, with the same bits.

Samples may be rendered from any number of threads, as working memory belongs to the thread; those of a plan that mixes
them in order, by one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from mmload.render import cpu_kernels as kernels
from mmload.render.antialiased_resize import REACHES, is_by_kernel, needed_lines
from mmload.render.cpu_kernels import KERNEL_DTYPES, written
from mmload.render.cpu_ordered import CpuCanvas, CpuMixing, targets
from mmload.render.holes import holes_of
from mmload.render.kernel_arguments import (
    ANYWHERE,
    FLIPPED_X,
    FLIPPED_Y,
    IN_PLACE,
    INSIDE,
    RESIZED,
    WINDOW,
    Arrival,
    Bytes,
    Calls,
    Composed,
    Crops,
    Floats,
    Holes,
    ImageLines,
    Operations,
    Output,
    Paint,
    Pixels,
    Places,
    Records,
    Resizes,
)
from mmload.render.plan import Plan
from mmload.render.plan_parts import PADDING_MODES, Padding, Resampling
from mmload.render.torch_rendering import Placed, on_canvas_of, placements
from mmload.render.torch_sampling import Window, chunks, windows
from mmload.runtime.host_arrays import zeros
from mmload.runtime.intrinsics import LINE
from mmload.runtime.lazy_property import lazy_property
from mmload.runtime.memory_pool import past_caches, scratch

CHANGED_BYTES = 700_000
"""Bytes of levels that operations change before they are colored: they stay in cache."""

RESIZED_BYTES = 700_000
"""Bytes of resized windows before they are colored: they stay in cache."""

ColorMap = tuple[Floats, Floats]
"""Shift and scale, float32 [C] each: a value becomes (x - shift) * scale."""


class CpuRendering:
    """Plan of uint8 images as numpy arrays, ready for the kernels; shift and scale of colors are float32 [C]."""

    def __init__(self, plan: Plan, dtype: torch.dtype, shift: Floats | None, scale: Floats | None) -> None:
        self._plan, self._dtype, self._shift, self._scale = plan, dtype, shift, scale

    def render_rows(self, first: int, images: Tensor, indices: Tensor, out: Tensor) -> None:
        """Renders samples from ``first`` on into ``out`` [b, C, h, w].

        Images are contiguous uint8 [N, C, H, W], of which each sample has one, by indices int64 [b].

        Raises:
            IndexError: if there is no such image, or sample.
            ValueError: if the images or the output have another shape than the plan, or the plan mixes samples and
                those before ``first`` are missing.
        """
        if images.shape[1:] != self._plan.source:
            raise ValueError(f"images {tuple(images.shape)} are not what was planned")
        if images.dtype != torch.uint8 or not images.is_contiguous():
            raise ValueError(f"images are {images.dtype} of strides {images.stride()}, expected contiguous uint8")
        if indices.dtype != torch.int64:
            raise ValueError(f"indices are {indices.dtype}, expected int64")
        self.render_lines(first, ImageLines.of_batch(images, indices.numpy()), out)

    @property
    def waits(self) -> bool:
        """Whether images may arrive while they are rendered, each when it is needed."""
        resampling = self._plan.resampling
        return self._mixing is None and (resampling is None or is_by_kernel(resampling))

    def render_lines(self, first: int, lines: ImageLines, out: Tensor | Pixels) -> None:
        """Renders samples from ``first`` on into ``out`` [b, C, h, w], from the lines of their images.

        The output may be an array in the layout that kernels write: see :func:`~mmload.render.cpu_kernels.written`.

        Of variable-size images, at least the lines of :attr:`needed` are there. Lines arrive meanwhile only if the
        rendering :attr:`waits`; the samples from one on that cannot arrive are not rendered.

        Raises:
            IndexError: if there is no such sample, or its window needs other lines.
            ValueError: if the images have another size than in the plan, or the output another shape; or the plan mixes
                samples and those before ``first`` are missing.
        """
        plan, samples = self._plan, slice(first, first + len(lines.places))
        self._check_output(samples, out)
        if plan.sizes is not None:
            if plan.resampling is None:
                raise ValueError("variable-size images are not resized")
            lines.check_complete(self.needed[samples], plan.sizes[samples], plan.source[0])
            self._resize(samples, lines, plan.resampling, out)
            return
        images, indices = lines.batch(plan.source)
        if plan.resampling is not None:
            self._resize(samples, lines, plan.resampling, out)
            return
        crops = self._crops(samples, images)
        crops.windows["index"] = indices
        origin = INSIDE if self._are_inside else ANYWHERE
        if lines.arrival.address:
            self._store(samples, lines.arrival, crops, origin, out)
        else:
            self._change(samples, crops, origin, out)

    def render_tiles(self, first: int, lines: ImageLines, out: Tensor | Pixels) -> None:
        """Paints tiles from ``first`` on, and finishes the samples of which the last tile is painted.

        At least the lines of :attr:`needed` are there; ``out`` [B, C, h, w] is that of all samples.

        Raises:
            IndexError, ValueError: as :meth:`render_lines` does, or if tiles before ``first`` are missing.
        """
        if self._canvas is None:
            raise ValueError("the images are not composed of tiles")
        self._check_output(slice(0, self._plan.count), out)
        from mmload.render.sample_kernels import calls_for, render_composed

        samples, composed = self._canvas.take(first, lines)
        done = out[samples]
        pixels, full = written(done), composed.levels[:1]
        own = pixels is not None
        if pixels is None:
            pixels = scratch("composed", done.shape, np.float32)
        calls = calls_for(pixels, render_composed, changing=self._operations is not None)
        source, streamed = (composed, lines.arrival), own and self._streams(out)
        self._finish_at_once(render_composed, source, samples, full, streamed, calls, pixels)
        if not own and isinstance(done, Tensor):
            done.copy_(torch.from_numpy(pixels))

    @lazy_property
    def needed(self) -> Places:
        """Lines that each window needs of its image, or each tile: :data:`~mmload.render.kernel_arguments.NEEDED`."""
        return needed_lines(self._plan) if self._plan.canvas is None else self._plan.canvas.needed

    def _check_output(self, samples: slice, out: Tensor | Pixels) -> None:
        """Checks that memory has the shape and dtype of the plan's samples."""
        count, (_, channels, height, width) = samples.stop - samples.start, self._plan.shape
        shapes: list[tuple[int, ...]] = [(count, channels, height, width)]
        is_array = isinstance(out, np.ndarray)
        if is_array:
            shapes.append((count, height, width * channels))
        if out.shape not in shapes or out.dtype != (KERNEL_DTYPES[self._dtype] if is_array else self._dtype):
            raise ValueError(f"{count} samples into {out.dtype} {tuple(out.shape)} are not what was planned")
        if samples.start < 0 or samples.stop > self._plan.count:
            raise IndexError(f"samples {samples.start} to {samples.stop - 1} are wanted, there are {self._plan.count}")

    def _resize(self, samples: slice, lines: ImageLines, resampling: Resampling, out: Tensor | Pixels) -> None:
        """Renders by way of a resize: one sample after the other, or if no kernel can a few at a time, in cache."""
        shape = self._plan.source[0], resampling.height, resampling.width
        by_kernel = is_by_kernel(resampling)
        if by_kernel and self._mixing is None:
            from mmload.render.sample_kernels import calls_for, render_resized

            full = scratch("resized", (1, *shape))
            for part, pixels, is_own in targets(out):
                here = slice(samples.start + part.start, samples.start + part.stop)
                own = lines.part(part)
                source = self._resizes(here, own, resampling), own.arrival
                calls = calls_for(pixels, render_resized, changing=self._operations is not None)
                streamed = is_own and self._streams(out)
                self._finish_at_once(render_resized, source, here, full, streamed, calls, pixels)
            return
        for part in chunks(len(out), shape, RESIZED_BYTES):
            full = scratch("resized", (part.stop - part.start, *shape))
            here = slice(samples.start + part.start, samples.start + part.stop)
            if by_kernel:
                from mmload.render.resized_windows import resize  # compiled only by those who resize

                resize(self._resizes(here, lines.part(part), resampling), full)
            else:
                for k, target in enumerate(torch.from_numpy(full)):
                    image, sample = lines.image(part.start + k, shape[0]), here.start + k
                    window, placed = self._windows[sample], self._placed[sample]
                    target.copy_(on_canvas_of(image, window, resampling, self._plan.padding, placed))
            crops = self._crops(here, full)
            crops.windows["index"] = np.arange(len(full))
            self._change(here, crops, self._origin, out[part])

    def _finish_at_once(
        self,
        kernel: Callable[..., None],
        source: tuple[Resizes | Composed, Arrival],
        samples: slice,
        full: Bytes,
        streamed: bool,
        calls: Calls,
        out: Pixels,
    ) -> None:
        """Makes samples, each in the image ``full``, cuts them out, changes and colors them by one call."""
        from mmload.render.sample_kernels import changes_of, no_operations

        origin = self._origin
        levels = full if origin == IN_PLACE else scratch("levels", (1, *self._plan.shape[1:]))
        operations = self._operations or no_operations(self._plan.count, self._plan.source[0])
        kernel(
            *source,
            self._crops(samples, full),
            self._paint(samples, streamed),
            changes_of(operations, samples, levels, origin),
            calls,
            Output.of_pixels(out),
        )

    def _resizes(self, samples: slice, lines: ImageLines, resampling: Resampling) -> Resizes:
        placed = resampling.placement
        ground = self._fill if placed is None else _levels(placed.fill, self._plan.source[0])
        windows, reach = self._resized_windows[samples], REACHES[resampling.mode]
        return Resizes(*lines[:3], windows, self._fill, self._mode, ground, reach)

    @property
    def _origin(self) -> int:
        """Origin of levels on a canvas or after a resize: they change where they lie unless a crop follows."""
        part = self._plan.resampling or self._plan
        if part.top is None and part.left is None and self._whole_sides == self._plan.shape[2:]:
            return IN_PLACE
        return INSIDE if self._are_inside else ANYWHERE

    @property
    def _whole_sides(self) -> tuple[int, int]:
        """Height and width of the images that windows are cut out of."""
        resampling, (_, height, width) = self._plan.resampling, self._plan.source
        return (height, width) if resampling is None else (resampling.height, resampling.width)

    def _crops(self, samples: slice, images: Bytes) -> Crops:
        """Returns samples' windows in images; their indices are 0, and the windows may be written to."""
        windows = np.frombuffer(bytearray(self._crop_windows[samples].data), WINDOW)  # NumPy's copy gives the lock away
        return Crops(images, windows, self._fill, self._mode)

    def _paint(self, samples: slice, streamed: bool) -> Paint:
        holes = self._holes._replace(sides=self._holes.sides[samples])
        return Paint(*self._color_map, holes, streamed)

    def _change(self, samples: slice, crops: Crops, origin: int, out: Tensor | Pixels) -> None:
        """Runs samples' operations on their levels and colors them; flips wait for that, unless a warp needs them."""
        operations = self._operations
        if self._mixing is not None:
            self._mix(self._mixing, samples, crops, origin, out)
            return
        for part, pixels, is_own in targets(out):
            here = slice(samples.start + part.start, samples.start + part.stop)
            own, paint = crops._replace(windows=crops.windows[part]), self._paint(here, is_own and self._streams(out))
            if operations is None:
                kernels.crop_into(pixels)(own, paint, pixels)
                continue
            from mmload.render.sample_kernels import calls_for, changes_of, render_changed

            changes = changes_of(operations, here, scratch("levels", (1, *self._plan.shape[1:])), origin)
            calls = calls_for(pixels, render_changed, changing=True)
            render_changed(own, paint, changes, calls, Output.of_pixels(pixels))

    def _store(self, samples: slice, arrival: Arrival, crops: Crops, origin: int, out: Tensor | Pixels) -> None:
        """Renders samples as :meth:`_change` does, each when its image has arrived."""
        from mmload.render.sample_kernels import calls_for, changes_of, no_operations, render_stored

        operations = self._operations or no_operations(self._plan.count, self._plan.source[0])
        room = scratch("levels", (1, *self._plan.shape[1:]))
        for part, pixels, is_own in targets(out):
            here = slice(samples.start + part.start, samples.start + part.stop)
            render_stored(
                arrival._replace(first=arrival.first + part.start),
                crops._replace(windows=crops.windows[part]),
                self._paint(here, is_own and self._streams(out)),
                changes_of(operations, here, room, origin),
                calls_for(pixels, render_stored, changing=self._operations is not None),
                Output.of_pixels(pixels),
            )

    def _mix(self, mixing: CpuMixing, samples: slice, crops: Crops, origin: int, out: Tensor | Pixels) -> None:
        """Runs samples' operations on their levels, some samples at a time, and mixes them with the samples before."""
        operations = self._operations
        if operations is None:
            mixing.mix(samples.start, crops, out)
            return
        from mmload.render.sample_kernels import calls_for, changes_of, render_changed

        for part in chunks(len(out), self._plan.shape[1:], CHANGED_BYTES):
            first, count = samples.start + part.start, part.stop - part.start
            room = scratch("levels", (count, *self._plan.shape[1:]))
            here = crops._replace(windows=crops.windows[part])
            changes = changes_of(operations, slice(first, first + count), room, origin)
            calls = calls_for(None, render_changed, changing=True)
            render_changed(here, changes.plain, changes, calls, _NO_OUTPUT)
            if origin != IN_PLACE:
                here = here._replace(images=room)
                here.windows["index"] = np.arange(count)
            here.windows["top"] = here.windows["left"] = 0
            mixing.mix(first, here, out[part])

    def _streams(self, out: Tensor | Pixels) -> bool:
        """Returns whether a batch is written past the caches: it, and each sample, is too large to stay there."""
        count, channels, height, width = self._plan.shape
        if isinstance(out, np.ndarray):
            address, is_interleaved = out.ctypes.data, out.ndim == 3
        else:
            address, is_interleaved = out.data_ptr(), not out.is_contiguous()
        values = height * width * (channels if is_interleaved else 1)  # that a kernel writes band by band
        aligned = values * out.itemsize % LINE == 0 and address % LINE == 0
        return aligned and past_caches(count, channels * height * width * out.itemsize)

    @lazy_property
    def _crop_windows(self) -> Records:
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
    def _are_inside(self) -> bool:
        """Whether all windows lie inside of the images that they are cut out of."""
        starts = (self._crop_windows[name].view(np.uint64) for name in ("top", "left"))  # negative ones become large
        last = (side - size for side, size in zip(self._whole_sides, self._plan.shape[2:], strict=True))
        return all(start.max(initial=0) <= most for start, most in zip(starts, last, strict=True))

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
    def _canvas(self) -> CpuCanvas | None:
        canvas = self._plan.canvas
        return None if canvas is None else CpuCanvas(canvas, _levels(canvas.fill, self._plan.source[0]))

    @lazy_property
    def _mixing(self) -> CpuMixing | None:
        mixing = self._plan.mixing
        return None if mixing is None else CpuMixing(self._plan, mixing, self._color_map, self._streams)

    @lazy_property
    def _operations(self) -> Operations | None:
        program = self._plan.complete_program()
        if program is None:
            return None
        from mmload.render.sample_kernels import operations_of

        return operations_of(program, self._plan.source[0])

    @lazy_property
    def _mode(self) -> int:
        return PADDING_MODES.index((self._plan.padding or Padding()).mode)

    @lazy_property
    def _fill(self) -> Bytes:
        return _levels((self._plan.padding or Padding()).fill, self._plan.source[0])

    @lazy_property
    def _color_map(self) -> ColorMap:
        channels = self._plan.source[0]
        return (
            np.zeros(channels, np.float32) if self._shift is None else self._shift,
            np.ones(channels, np.float32) if self._scale is None else self._scale,
        )

    @lazy_property
    def _windows(self) -> list[Window]:
        return windows(self._plan)

    @lazy_property
    def _placed(self) -> Sequence[Placed | None]:
        return placements(self._plan)

    @lazy_property
    def _holes(self) -> Holes:
        return holes_of(self._plan)


_NO_OUTPUT = Output(0, 0, 0, 0, 0, 0)


@lru_cache(maxsize=64)
def _levels(fill: tuple[float, ...], channels: int) -> Bytes:
    """Returns a fill as the kernels take it, uint8 [C], shared by all who ask for the same."""
    return np.full(channels, fill, np.uint8)
