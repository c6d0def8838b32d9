"""Renders uint8 images on a CPU by the compiled kernels: some samples or a batch, with the same bits.

Samples may be rendered from any number of threads, as working memory belongs to the thread; those of a plan that mixes
them in order, by one thread.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmload.render import antialiased_resize as antialias
from mmload.render import cpu_kernels as kernels
from mmload.render.cpu_kernels import ANYWHERE, IN_PLACE, INSIDE, Bytes, Floats, Numbers, Pixels
from mmload.render.cpu_levels import Operations
from mmload.render.cpu_mixing import CpuMixing, Windows
from mmload.render.device_constants import constant
from mmload.render.erased_regions import Holes
from mmload.render.framing import PADDING_MODES, Padding, Resampling
from mmload.render.image_lines import ImageLines
from mmload.render.needed_lines import is_by_kernel, needed_lines, shrinks_of
from mmload.render.plan import Plan
from mmload.render.scratch_memory import scratch
from mmload.render.torch_resample import Placed, on_canvas_of, placements, resized
from mmload.render.torch_sampling import Window, chunks, windows
from mmload.runtime.half_precision import BITS
from mmload.runtime.lazy_property import lazy_property
from mmload.runtime.memory_pool import past_caches
from mmload.runtime.numba_compile import LINE

CHUNK_ELEMENTS = 200_000
"""Elements that are rendered as levels or float32 before they are changed or converted: what stays in cache."""

CHANGED_BYTES = 700_000
"""Bytes of levels that are held while operations change them: what stays in cache."""

RESIZED_BYTES = 700_000
"""Bytes of resized windows that are held before they are colored: what stays in cache."""

_DIRECT = {torch.float32, torch.uint8, *BITS}
"""What the kernels write themselves, contiguous and in channels_last; all else is converted from float32."""

ColorMap = tuple[Floats, Floats]
"""Shift and scale, float32 [C] each: a value becomes (x - shift) * scale."""


class Frames(NamedTuple):
    """What the kernels cut out for each sample, as numpy arrays [B]: see :func:`mmload.render.cpu_kernels.crop`."""

    tops: Numbers
    lefts: Numbers
    flips: Bytes

    def of(self, samples: slice) -> Frames:
        """Those of some samples."""
        return Frames(self.tops[samples], self.lefts[samples], self.flips[samples])


class CpuRendering:
    """A plan of uint8 images as numpy arrays, ready for the kernels.

    Args:
        plan: what happens to each sample.
        dtype: of the output.
        shift: float32 [C, 1, 1], of the color map; None: 0.
        scale: float32 [C, 1, 1]; None: 1.
    """

    def __init__(self, plan: Plan, dtype: torch.dtype, shift: Tensor | None, scale: Tensor | None) -> None:
        self._plan, self._dtype, self._shift, self._scale = plan, dtype, shift, scale

    def render_rows(self, first: int, images: Tensor, indices: Tensor, out: Tensor) -> None:
        """Renders samples.

        Args:
            first: the first of them; the others follow it.
            images: contiguous uint8 [N, C, H, W].
            indices: int64 [b], which of the images each sample is.
            out: [b, C, h, w].

        Raises:
            IndexError: if there is no such image, or sample.
            ValueError: if the images or the output have another shape than the plan, or the plan mixes samples and
                those before ``first`` are missing.
        """
        numbers = self._checked(first, images, indices, out)
        samples = slice(first, first + len(numbers))
        if self._plan.resampling is None:
            self._crop(samples, images.numpy(), numbers, out)
        else:
            self._resize(samples, ImageLines.of_batch(images, numbers), self._plan.resampling, out)

    def render_lines(self, first: int, lines: ImageLines, out: Tensor) -> None:
        """Renders samples whose images have a size each.

        Args:
            first: the first of them; the others follow it.
            lines: of the samples' images, at least those of :attr:`needed`.
            out: [b, C, h, w].

        Raises:
            IndexError: if there is no such sample, or its window needs other lines.
            ValueError: if the images have another size than planned, or the output another shape; or the plan mixes
                samples and those before ``first`` are missing.
        """
        if self._plan.sizes is None or self._plan.resampling is None:
            raise ValueError("images of a size each were not planned, or are not resized")
        samples = slice(first, first + len(lines.places))
        self._refuse_output(samples, out)
        sizes, channels = self._plan.sizes[samples].numpy(), self._plan.source[0]
        lines.refuse_missing(self.needed[samples], self.shrinks[samples], sizes, channels)
        self._resize(samples, lines, self._plan.resampling, out)

    @lazy_property
    def needed(self) -> Numbers:
        """The lines of each image that its window needs, int64 [B, 2]: the first and the one after the last."""
        return needed_lines(self._plan)

    @lazy_property
    def shrinks(self) -> Numbers:
        """How many times smaller each image may be, int64 [B]."""
        return shrinks_of(self._plan)

    def _refuse_output(self, samples: slice, out: Tensor) -> None:
        """Refuses memory that is not what was planned."""
        count = samples.stop - samples.start
        if out.shape != (count, *self._plan.shape[1:]) or out.dtype != self._dtype:
            raise ValueError(f"{count} samples into {out.dtype} {tuple(out.shape)} are not what was planned")
        if samples.start < 0 or samples.stop > self._plan.count:
            raise IndexError(f"samples {samples.start} to {samples.stop - 1} are wanted, there are {self._plan.count}")

    def _checked(self, first: int, images: Tensor, indices: Tensor, out: Tensor) -> Numbers:
        """The indices for the kernels, which check nothing and would read and write anywhere."""
        if images.shape[1:] != self._plan.source or self._plan.sizes is not None:
            raise ValueError(f"images {tuple(images.shape)} are not what was planned")
        self._refuse_output(slice(first, first + len(indices)), out)
        if images.dtype != torch.uint8 or not images.is_contiguous():
            raise ValueError(f"images are {images.dtype} of strides {images.stride()}, expected contiguous uint8")
        if indices.dtype != torch.int64:
            raise ValueError(f"indices are {indices.dtype}, expected int64")
        numbers = np.ascontiguousarray(indices.numpy())
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(images)):
            raise IndexError(f"images {int(numbers.min())} to {int(numbers.max())} are wanted, there are {len(images)}")
        return numbers

    def _resize(self, samples: slice, lines: ImageLines, how: Resampling, out: Tensor) -> None:
        """By way of a resize of their windows: each, or where a call cannot do all a few at a time, in cache."""
        shape = self._plan.source[0], how.height, how.width
        by_kernel = is_by_kernel(how)
        pixels = _written(out) if by_kernel and self._mixing is None else None
        if pixels is not None:
            self._resize_and_color(samples, lines, how, self._streams(out), pixels)
            return
        for part in chunks(len(out), shape, RESIZED_BYTES):
            full = scratch("resized", (part.stop - part.start, *shape), torch.uint8)
            here = slice(samples.start + part.start, samples.start + part.stop)
            if by_kernel:
                from mmload.render.resized_windows import resize  # compiled only by those who resize

                resize(lines.memory, lines.places[part], *self._resized(here, how), full.numpy())
            else:
                for k, target in enumerate(full):
                    self._resize_one(here.start + k, lines.image(part.start + k, shape[0]), how, target)
            if self._operations is not None and self._keeps_all(how):
                self._change(self._operations, here, full.numpy(), _numbers(len(full)), IN_PLACE, out[part])
            else:
                self._crop(here, full.numpy(), _numbers(len(full)), out[part])

    def _resize_one(self, k: int, image: Tensor, how: Resampling, target: Tensor) -> None:
        """The window of sample ``k`` by torch, where no kernel resizes."""
        window, padding = self._windows[k], self._plan.padding
        if self._placed is None:
            target.copy_(resized(image, window, how, padding))
        else:
            target.copy_(on_canvas_of(image, window, how, padding, self._placed[k]))

    def _resize_and_color(
        self, samples: slice, lines: ImageLines, how: Resampling, streamed: bool, out: Pixels
    ) -> None:
        """Resizes samples' windows, changes their levels and colors them by one call."""
        from mmload.render.resized_crops import addresses_for, render_into  # compiled only by those who resize

        channels, frames = self._plan.source[0], self._frames.of(samples)
        frames = frames._replace(flips=frames.flips.copy())
        full = scratch("resized", (1, channels, how.height, how.width), torch.uint8)
        keeps_all, inside = self._keeps_all(how), INSIDE if self._frames_are_inside else ANYWHERE
        levels = full if keeps_all else scratch("levels", (1, *self._plan.shape[1:]), torch.uint8)
        changing = self._operations is not None
        operations = self._operations or Operations.none(self._plan.count, channels)
        render_into(out)(
            *(*lines, *self._resized(samples, how), full.numpy()),
            *(*frames, self._fill, self._mode, *self._color_map, *self._holes.of(samples), self._noise()),
            *(streamed, out, *operations.arguments(samples, levels, IN_PLACE if keeps_all else inside, out)),
            addresses_for(out, changing),
        )

    def _resized(self, samples: slice, how: Resampling) -> tuple[Numbers, Numbers, Bytes, int, Bytes, int]:
        """The arguments of a resize of samples, between images and output."""
        windows, placements = self._sources[samples], self._placements[samples]
        ground = self._fill if how.placement is None else _filled(how.placement.fill, self._plan.source[0])
        return windows, placements, self._fill, self._mode, ground, antialias.REACHES[how.mode]

    def _keeps_all(self, how: Resampling) -> bool:
        """Whether nothing is cropped after a resize, so that levels change where they lie."""
        return how.top is None and how.left is None and (how.height, how.width) == self._plan.shape[2:]

    def _crop(self, samples: slice, images: Bytes, indices: Numbers, out: Tensor) -> None:
        """Cuts frames out of images and colors them, by way of their levels where these change."""
        if self._operations is None:
            self._finish(samples.start, images, indices, self._frames.of(samples), out)
        else:
            inside = INSIDE if self._frames_are_inside else ANYWHERE
            self._change(self._operations, samples, images, indices, inside, out)

    def _change(
        self, operations: Operations, samples: slice, images: Bytes, indices: Numbers, origin: int, out: Tensor
    ) -> None:
        """Runs samples' operations on their levels and colors them; flips wait for that, unless a warp needs them."""
        frames = self._frames.of(samples)
        frames = frames._replace(flips=frames.flips.copy())
        pixels = _written(out) if self._mixing is None else None
        if pixels is not None:
            room = scratch("levels", (1, *self._plan.shape[1:]), torch.uint8)
            where = images, indices, *frames, self._fill, self._mode
            colors = *self._color_map, *self._holes.of(samples), self._noise()
            operations.render(samples, (*where, *colors, self._streams(out)), pixels, room, origin)
            return
        for part in chunks(len(out), self._plan.shape[1:], CHANGED_BYTES):
            first, count = samples.start + part.start, part.stop - part.start
            room = scratch("levels", (count, *self._plan.shape[1:]), torch.uint8)
            where = images, indices[part], *frames.of(part), self._fill, self._mode
            colors = *self._no_colors, *Holes.none(count, len(self._fill)), self._noise()
            operations.render(slice(first, first + count), (*where, *colors, False), None, room, origin)
            changed = (images, indices[part]) if origin == IN_PLACE else (room.numpy(), _numbers(count))
            left = Frames(_zeros(count), _zeros(count), frames.flips[part])
            self._finish(first, changed[0], changed[1], left, out[part])

    def _finish(self, first: int, images: Bytes, indices: Numbers, frames: Frames, out: Tensor) -> None:
        """Cuts frames out of images, colors them and, where the plan does, mixes them with the samples before."""
        if self._mixing is None:
            holes = self._holes.of(slice(first, first + len(out)))
            self._cut(images, indices, frames, self._color_map, holes, out, self._streams(out))
        else:
            self._mixing.run(first, Windows(images, indices, *frames, self._fill, self._mode), out)

    def _streams(self, out: Tensor) -> bool:
        """Whether a batch is written past the caches: it, and each sample, is too large to be found there again."""
        count, channels, height, width = self._plan.shape
        values = height * width * (1 if out.is_contiguous() else channels)  # that a kernel writes band by band
        aligned = values * out.itemsize % LINE == 0 and out.data_ptr() % LINE == 0
        return aligned and past_caches(count, channels * height * width * out.itemsize)

    def _cut(
        self,
        images: Bytes,
        indices: Numbers,
        frames: Frames,
        colors: ColorMap,
        holes: Holes,
        out: Tensor,
        streamed: bool = False,
    ) -> None:
        """Cuts frames out of images, colors and erases them, straight into the output where a kernel can write it."""
        pixels = _written(out)
        if pixels is not None:
            where = images, indices, frames.tops, frames.lefts, frames.flips
            erased = *holes, self._noise()
            kernels.crop_into(pixels)(*where, self._fill, self._mode, *colors, *erased, streamed, pixels)
            return
        for part in chunks(len(out), out.shape[1:], CHUNK_ELEMENTS):
            work = scratch("pixels", out[part].shape, torch.uint8 if out.dtype == torch.uint8 else torch.float32)
            self._cut(images, indices[part], frames.of(part), colors, holes.of(part), work)
            out[part].copy_(work)

    def _noise(self) -> Floats:
        """Working memory for a line of noise."""
        return scratch("noise", (self._plan.shape[3] + 1,), torch.float32).numpy()

    @lazy_property
    def _frames(self) -> Frames:
        plan, how = self._plan, self._plan.resampling
        flips = np.zeros(plan.count, dtype=np.uint8)
        for flip, bit in ((plan.flip_x, kernels.FLIPPED_X), (plan.flip_y, kernels.FLIPPED_Y)):
            if flip is not None:
                flips += flip.numpy() * np.uint8(bit)
        top, left = (plan.top, plan.left) if how is None else (how.top, how.left)
        return Frames(self._starts(top), self._starts(left), flips)

    @lazy_property
    def _frames_are_inside(self) -> bool:
        """Whether all frames lie in what they are cut out of."""
        how = self._plan.resampling
        sides = self._plan.source[1:] if how is None else (how.height, how.width)
        starts = self._frames.tops, self._frames.lefts
        return all(
            one.min(initial=0) >= 0 and one.max(initial=0) <= side - size
            for one, side, size in zip(starts, sides, self._plan.shape[2:], strict=True)
        )

    @lazy_property
    def _mixing(self) -> CpuMixing | None:
        mixing = self._plan.mixing
        return None if mixing is None else CpuMixing(self._plan, mixing, self._color_map, self._streams)

    @lazy_property
    def _operations(self) -> Operations | None:
        program = self._plan.whole_program()
        return None if program is None else Operations.of_program(program, self._plan.source[0])

    def _starts(self, values: Tensor | None) -> Numbers:
        if values is None:
            return np.zeros(self._plan.count, dtype=np.int64)
        return np.ascontiguousarray(values.numpy())

    @lazy_property
    def _sources(self) -> Numbers:
        """The source windows, int64 [B, 4]: top, left, rows, columns."""
        plan = self._plan
        sizes = (plan.of_batch(plan.rows).numpy(), plan.of_batch(plan.cols).numpy())
        return np.stack((self._starts(plan.top), self._starts(plan.left), *sizes), 1)

    @lazy_property
    def _placements(self) -> Numbers:
        """What they become, int64 [B, 4]: rows and columns, and where these begin in the output of the resize."""
        how = self._plan.resampling
        placed = None if how is None else how.placement
        if how is None or placed is None:
            size = (0, 0) if how is None else (how.height, how.width)
            return np.tile(np.array([*size, 0, 0], np.int64), (self._plan.count, 1))
        return np.stack([one.numpy() for one in (placed.rows, placed.cols, placed.top, placed.left)], 1)

    @lazy_property
    def _mode(self) -> int:
        return PADDING_MODES.index((self._plan.padding or Padding()).mode)

    @lazy_property
    def _fill(self) -> Bytes:
        return _filled((self._plan.padding or Padding()).fill, self._plan.source[0])

    @lazy_property
    def _color_map(self) -> ColorMap:
        shift, scale = self._no_colors
        return (
            shift if self._shift is None else self._shift.view(-1).numpy(),
            scale if self._scale is None else self._scale.view(-1).numpy(),
        )

    @lazy_property
    def _no_colors(self) -> ColorMap:
        channels = self._plan.source[0]
        return np.zeros(channels, dtype=np.float32), np.ones(channels, dtype=np.float32)

    @lazy_property
    def _windows(self) -> list[Window]:
        return windows(self._plan)

    @lazy_property
    def _placed(self) -> list[Placed] | None:
        return placements(self._plan)

    @lazy_property
    def _holes(self) -> Holes:
        plan = self._plan
        return Holes.of_plan(plan) if plan.holes else Holes.none(plan.count, plan.source[0])


def _written(out: Tensor) -> Pixels | None:
    """The output as a kernel writes it: [B, C, h, w], or [B, h, w * C] of channels_last; None where none does."""
    if out.dtype not in _DIRECT:
        return None
    bits = out.view(BITS[out.dtype]) if out.dtype in BITS else out
    if out.is_contiguous():
        return bits.numpy()
    lines = bits.permute(0, 2, 3, 1)
    return lines.flatten(2).numpy() if lines.is_contiguous() else None


@lru_cache(maxsize=64)
def _zeros(count: int) -> Numbers:
    """As many zeros, shared by all who ask for them."""
    return np.zeros(count, dtype=np.int64)


@lru_cache(maxsize=64)
def _numbers(count: int) -> Numbers:
    """The numbers of as many images, shared by all who ask for them."""
    return np.arange(count)


@lru_cache(maxsize=64)
def _filled(fill: tuple[float, ...], channels: int) -> Bytes:
    """The constant outside as the kernels take it, shared by all who ask for the same."""
    return constant(fill, torch.uint8, torch.device("cpu")).expand(channels).contiguous().numpy()
