"""Carries out a plan: reads each pixel once, writes the final size, dtype and memory format.

It takes a :class:`~mmload.render.plan.Plan` and images, and writes into memory that the caller owns. Compiled kernels
render uint8 images: on a CPU some samples or a batch with the same bits, on an NVIDIA GPU a batch. Torch's operations
render anything else, a batch at a time, and subtract and multiply in float32 as the kernels do. It never draws random
numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmload.errors import counted
from mmload.render import antialiased_resize as antialias
from mmload.render import cpu_kernels as kernels
from mmload.render.cpu_kernels import Bytes, Flags, Floats, Numbers
from mmload.render.device_constants import constant
from mmload.render.erased_regions import Corner, corners_of, punch_batch, punch_row
from mmload.render.plan import LUMA_WEIGHTS, PADDING_MODES, Padding, Plan, Resampling, refuse_levels
from mmload.render.scratch_memory import scratch
from mmload.render.torch_resample import resized, resized_batch
from mmload.render.torch_sampling import Window, chunks, picked, windows
from mmload.runtime.lazy_property import lazy_property
from mmload.runtime.memory_pool import past_caches
from mmload.runtime.numba_compile import LINE

CHUNK_ELEMENTS = 200_000
"""Elements that are rendered as float32 before they are converted to another dtype: what stays in cache."""

RESIZED_BYTES = 700_000
"""Bytes of resized windows that are held before they are colored: what stays in cache."""

_MOST_CHANNELS = 16
"""More channels than these the GPU's kernel does not take: it has code for each of them."""

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)

Factors = tuple[Floats, Floats]
"""Shift and scale, float32 [C] each: a value becomes (x - shift) * scale."""


class Frames(NamedTuple):
    """What the kernels cut out for each sample, as numpy arrays [B]: see :func:`mmload.render.cpu_kernels.crop`."""

    tops: Numbers
    lefts: Numbers
    mirrors: Bytes
    grays: Flags

    def of(self, some: slice) -> Frames:
        """Those of some samples."""
        return Frames(self.tops[some], self.lefts[some], self.mirrors[some], self.grays[some])

    @classmethod
    def still(cls, count: int) -> Frames:
        """Those that leave images as they are."""
        starts, nothing = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.uint8)
        return cls(starts, starts, nothing, nothing.view(np.bool_))


class Rendering:
    """A plan ready to be carried out.

    Samples may be rendered from any number of threads: working memory belongs to the thread.

    Args:
        plan: what happens to each sample.
        dtype: of the output; float32 arithmetic whatever it is.
    """

    def __init__(self, plan: Plan, dtype: torch.dtype) -> None:
        self.plan = plan
        self.dtype = dtype
        _refuse(plan, dtype)
        self._shift, self._scale = _color_map(plan, dtype)

    def render_batch(self, images: Tensor, out: Tensor, places: Tensor | None = None) -> None:
        """Renders all samples.

        Args:
            images: [N, C, H, W].
            out: [B, C, h, w].
            places: int64 [B], which of the images each sample is; None: they are the samples.
        """
        on_gpu = gpu_crop(images.device) if self._only_crops(images.dtype, out.dtype) else None
        if on_gpu is not None:
            on_gpu(images.contiguous(), places, self.plan, self._shift, self._scale, out)
            self._punch(out)
        elif images.dtype == torch.uint8 and images.device.type == "cpu":
            self.render_rows(0, images.contiguous(), torch.arange(len(out)) if places is None else places, out)
        else:
            self.by_operations(images if places is None else images[places], out)

    def by_operations(self, images: Tensor, out: Tensor) -> None:
        """The same of ``images`` [B, C, H, W] by torch's operations, for all that no kernel does."""
        self._paint(self._moved(images), out)
        self._punch(out)

    def render_rows(self, first: int, images: Tensor, places: Tensor, out: Tensor) -> None:
        """Renders samples on a CPU.

        Args:
            first: the first of them; the others follow it.
            images: contiguous uint8 [N, C, H, W].
            places: int64 [b], which of the images each sample is.
            out: [b, C, h, w].

        Raises:
            IndexError: if there is no such image, or sample.
            ValueError: if the images or the output have another shape than the plan.
        """
        if images.shape[1:] != self.plan.source or out.shape != (len(places), *self.plan.shape[1:]):
            raise ValueError(f"images {tuple(images.shape)} into {tuple(out.shape)} are not what was planned")
        if images.dtype != torch.uint8 or not images.is_contiguous():
            raise ValueError(f"images are {images.dtype} of strides {images.stride()}, expected contiguous uint8")
        if places.dtype != torch.int64 or out.dtype != self.dtype:
            raise ValueError(f"places are {places.dtype} and the output {out.dtype}, which is not what was planned")
        at = np.ascontiguousarray(places.numpy())
        if len(at) and (at.min() < 0 or at.max() >= len(images)):
            raise IndexError(f"images {int(at.min())} to {int(at.max())} are wanted, there are {len(images)}")
        if first < 0 or first + len(at) > self.plan.count:
            raise IndexError(f"samples {first} to {first + len(at) - 1} are wanted, there are {self.plan.count}")
        some = slice(first, first + len(at))
        if self.plan.resampling is None:
            self._crop(images.numpy(), at, self._frames.of(some), out)
        else:
            self._resize(first, images, at, self.plan.resampling, out)
        for hole, corners in zip(self.plan.holes, self._corners, strict=True):
            for k, image in zip(range(first, first + len(at)), out, strict=True):
                punch_row(k, hole, corners[k], image)

    def _only_crops(self, source: torch.dtype, dtype: torch.dtype) -> bool:
        """Whether a batch is what the GPU's kernel takes: uint8, and not resized."""
        whole = dtype == torch.uint8 and self._scale is None
        crops = source == torch.uint8 and self.plan.resampling is None
        return crops and self.plan.source[0] <= _MOST_CHANNELS and (whole or dtype in _FLOATS)

    def _punch(self, out: Tensor) -> None:
        for hole in self.plan.holes:
            punch_batch(hole, out)

    def _resize(self, first: int, images: Tensor, at: Numbers, how: Resampling, out: Tensor) -> None:
        """Renders samples by way of a resize of their windows, a few at a time, so that these stay in cache."""
        shape = self.plan.source[0], how.height, how.width
        for some in chunks(len(at), shape, RESIZED_BYTES):
            full = scratch("resized", (some.stop - some.start, *shape), torch.uint8)
            window = slice(first + some.start, first + some.stop)
            if how.mode == "bilinear" and how.antialias and self._inside:
                antialias.resize(images.numpy(), at[some], np.ascontiguousarray(self._sources[:, window]), full.numpy())
            else:
                for place, one, target in zip(at[some], self._windows[window], full, strict=True):
                    target.copy_(resized(images[place], one, how, self.plan.padding))
            self._crop(full.numpy(), np.arange(len(full)), self._frames.of(window), out[some])

    def _crop(self, images: Bytes, places: Numbers, frames: Frames, out: Tensor) -> None:
        """Cuts frames out of images and colors them, by way of their levels where some become gray."""
        streamed = self._streams(out)
        if self.plan.gray is None or self.plan.source[0] != 3:
            self._cut(images, places, frames, self._factors, out, streamed)
            return
        for some in chunks(len(out), out.shape[1:], CHUNK_ELEMENTS):
            levels = scratch("levels", out[some].shape, torch.uint8)
            self._cut(images, places[some], frames.of(some), self._no_factors, levels)
            kernels.gray(levels.numpy(), frames.grays[some])
            still = Frames.still(len(levels))
            self._cut(levels.numpy(), np.arange(len(levels)), still, self._factors, out[some], streamed)

    def _streams(self, out: Tensor) -> bool:
        """Whether a batch is written past the caches: it, and each sample, is too large to be found there again."""
        count, channels, height, width = self.plan.shape
        values = height * width if out.is_contiguous() else width * channels  # of what a kernel writes at once
        aligned = values * out.itemsize % LINE == 0 and out.data_ptr() % LINE == 0
        return aligned and past_caches(count, channels * height * width * out.itemsize)

    def _cut(
        self,
        images: Bytes,
        places: Numbers,
        frames: Frames,
        factors: Factors,
        out: Tensor,
        streamed: bool = False,
    ) -> None:
        """Cuts frames out of images and scales them, straight into the output where a kernel can write it."""
        lines = out.permute(0, 2, 3, 1)
        where = images, places, frames.tops, frames.lefts, frames.mirrors
        if out.dtype in (torch.float32, torch.uint8) and out.is_contiguous():
            kernels.crop(*where, self._fill, self._mode, *factors, streamed, out.numpy())
        elif out.dtype == torch.float32 and lines.is_contiguous():
            kernels.crop_interleaved(*where, self._fill, self._mode, *factors, streamed, lines.flatten(2).numpy())
        else:
            dtype = torch.uint8 if out.dtype == torch.uint8 else torch.float32
            for some in chunks(len(out), out.shape[1:], CHUNK_ELEMENTS):
                work = scratch("pixels", out[some].shape, dtype)
                self._cut(images, places[some], frames.of(some), factors, work)
                out[some].copy_(work)

    def _moved(self, images: Tensor) -> Tensor:
        """The images [B, C, h, w] cropped, resized and mirrored, in their own dtype."""
        how = self.plan.resampling
        if how is None:
            return picked(images, self.plan)
        if how.mode == "bilinear" and self.plan.device.type != "cpu":
            return resized_batch(images, self.plan, how)
        if not len(images):
            return images.new_empty(self.plan.shape)
        return torch.stack([self._moved_one(*one) for one in zip(images, self._windows, strict=True)])

    def _moved_one(self, image: Tensor, window: Window) -> Tensor:
        """One image on a device, or of floats, by way of a resize."""
        how = self.plan.resampling
        if how is None:
            raise RuntimeError("nothing is resized")
        full = resized(image, window, how, self.plan.padding)
        top, left = window.part_top, window.part_left
        part = full[:, top : top + self.plan.height, left : left + self.plan.width]
        return part.flip(window.flips) if window.flips else part

    def _paint(self, pixels: Tensor, out: Tensor) -> None:
        """Colors and converts [B, C, h, w] into ``out``."""
        if self._scale is None and self.plan.gray is None:
            out.copy_(pixels)
            return
        direct = self.plan.gray is None and out.dtype == torch.float32
        work = out if direct else torch.empty(pixels.shape, dtype=torch.float32, device=out.device)
        work.copy_(pixels)
        if self.plan.gray is not None and work.shape[1] == 3:
            work.copy_(torch.where(self.plan.gray.view(-1, 1, 1, 1), self._luma(work), work))
        if self._shift is not None:
            work.sub_(self._shift)
        if self._scale is not None:
            work.mul_(self._scale)
        if not direct:
            out.copy_(work)

    def _luma(self, pixels: Tensor) -> Tensor:
        """The luma [B, 1, h, w] of [B, 3, h, w], in whole levels if the images were uint8."""
        red, green, blue = (plane * weight for plane, weight in zip(pixels.unbind(1), LUMA_WEIGHTS, strict=True))
        luma = red + green + blue
        return (luma.floor_() if self.plan.peak > 1 else luma).unsqueeze(1)

    @lazy_property
    def _frames(self) -> Frames:
        plan, how = self.plan, self.plan.resampling
        mirrors = np.zeros(plan.count, dtype=np.uint8)
        for flip, bit in ((plan.flip_x, kernels.FLIPPED_X), (plan.flip_y, kernels.FLIPPED_Y)):
            if flip is not None:
                mirrors += flip.numpy() * np.uint8(bit)
        top, left = (plan.top, plan.left) if how is None else (how.top, how.left)
        grays = np.zeros(plan.count, dtype=np.bool_) if plan.gray is None else plan.gray.numpy()
        return Frames(self._starts(top), self._starts(left), mirrors, grays)

    def _starts(self, values: Tensor | None) -> Numbers:
        if values is None:
            return np.zeros(self.plan.count, dtype=np.int64)
        return np.ascontiguousarray(values.numpy())

    @lazy_property
    def _sources(self) -> Numbers:
        """The source windows, int64 [4, B]: tops, lefts, rows, columns."""
        plan = self.plan
        sizes = (plan.of_batch(plan.rows).numpy(), plan.of_batch(plan.cols).numpy())
        return np.stack((self._starts(plan.top), self._starts(plan.left), *sizes))

    @lazy_property
    def _inside(self) -> bool:
        """Whether all source windows lie in the images, and have pixels."""
        _, height, width = self.plan.source
        tops, lefts, rows, cols = self._sources
        least = min(tops.min(initial=0), lefts.min(initial=0), rows.min(initial=1) - 1, cols.min(initial=1) - 1)
        return bool(least >= 0 and (tops + rows <= height).all() and (lefts + cols <= width).all())

    @lazy_property
    def _mode(self) -> int:
        return PADDING_MODES.index((self.plan.padding or Padding()).mode)

    @lazy_property
    def _fill(self) -> Bytes:
        return _filled((self.plan.padding or Padding()).fill, self.plan.source[0])

    @lazy_property
    def _factors(self) -> Factors:
        """The color map as the kernels take it."""
        shift, scale = self._no_factors
        return (
            shift if self._shift is None else self._shift.view(-1).numpy(),
            scale if self._scale is None else self._scale.view(-1).numpy(),
        )

    @lazy_property
    def _no_factors(self) -> Factors:
        channels = self.plan.source[0]
        return np.zeros(channels, dtype=np.float32), np.ones(channels, dtype=np.float32)

    @lazy_property
    def _windows(self) -> list[Window]:
        return windows(self.plan)

    @lazy_property
    def _corners(self) -> list[list[Corner]]:
        return [corners_of(hole) for hole in self.plan.holes]


def _refuse(plan: Plan, dtype: torch.dtype) -> None:
    """Refuses what the dtype cannot hold, and images without pixels, of which the kernels would read one anyway.

    Raises:
        ValueError: if there are no pixels, floats would be cut to uint8, or a fill or a hole's value is no level of
            uint8 images.
    """
    if min(plan.source) < 1:
        raise ValueError(f"images have the shape {plan.source}, expected [C, H, W] with a pixel at least")
    if plan.peak > 1 and plan.padding is not None:
        refuse_levels("fill", plan.padding.fill)
    if plan.padding is not None and len(plan.padding.fill) not in (1, plan.source[0]):
        raise ValueError(
            f"fill has {counted(len(plan.padding.fill), 'number')} and the images {counted(plan.source[0], 'channel')}"
        )
    if dtype != torch.uint8:
        return
    if plan.peak == 1 or plan.shift is not None:
        raise ValueError("floats cannot be rendered as torch.uint8: give a floating dtype")
    for hole in plan.holes:
        refuse_levels("value", hole.value)


@cache
def gpu_crop(device: torch.device) -> Callable[..., None] | None:
    """:func:`mmload.render.gpu_kernels.crop` for a device, None where it does not run.

    It is tried once, on one image: Triton comes with torch's CUDA builds for Linux, and needs a C compiler on the
    machine to make what launches its kernels. A warning says what it lacks.
    """
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    from mmload.render.gpu_kernels import crop

    try:
        image = torch.zeros((1, 1, 16, 16), dtype=torch.uint8, device=device)
        crop(image, None, Plan.of(1, (1, 16, 16), 255.0, device), None, None, torch.empty_like(image))
    except Exception as error:  # the compiler's, the cache's, the driver's: Triton lets all of them through
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(f"{device} renders by torch's operations, which is slower, as Triton fails: {why}", stacklevel=2)
        return None
    return crop


@lru_cache(maxsize=64)
def _filled(fill: tuple[float, ...], channels: int) -> Bytes:
    """The constant outside as the kernels take it, shared by all who ask for the same."""
    return constant(fill, torch.uint8, torch.device("cpu")).expand(channels).contiguous().numpy()


def _color_map(plan: Plan, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """Shift and scale as [C, 1, 1], either None where it would change nothing."""
    if plan.shift is not None and plan.scale is not None:
        return plan.shift.view(-1, 1, 1), plan.scale.view(-1, 1, 1)
    if plan.peak == 1.0 or not dtype.is_floating_point:
        return None, None
    scale = torch.full((plan.source[0], 1, 1), 1.0 / plan.peak, device=plan.device)
    return None, scale
