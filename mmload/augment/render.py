"""Carries out a plan: reads each pixel once, writes the final size, dtype and memory format.

Comes in: a :class:`~mmload.augment.plan.Plan` and images, one row at a time or all at once. Goes out: the pixels, into
memory that the caller owns. Both ways give the same bits on a CPU: every value goes through the same separate
subtraction and multiplication, whose bits do not depend on its place in a batch. Draws nothing.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from mmload.augment.holes import Corner, corners_of, punch_batch, punch_row
from mmload.augment.plan import Plan, Resampling
from mmload.augment.resample import PACKED_FACTORS, kept, resized, resized_batch, resized_packed, unpacked
from mmload.augment.sampling import Window, chunks, cut, pieces, windows
from mmload.augment.scratch import scratch

ROWWISE_ELEMENTS = 16_384
"""Output elements per sample from which a sample of its own pays for the overhead of its calls, on a CPU."""

CHUNK_ELEMENTS = 400_000
"""Output elements that a batch of tiny images is painted in at a time, on a CPU: what stays in cache."""

_LUMA = (0.2989, 0.587, 0.114)
"""The luma weights of ``torchvision.transforms.v2.functional.rgb_to_grayscale``."""


class Rendering:
    """A plan ready to be carried out.

    Rows may be rendered from any number of threads: working memory belongs to the thread.

    Args:
        plan: what happens to each sample.
        dtype: of the output; float32 arithmetic whatever it is.
    """

    def __init__(self, plan: Plan, dtype: torch.dtype) -> None:
        self.plan = plan
        self.dtype = dtype
        self._shift, self._scale = _colour_map(plan, dtype)

    @property
    def rowwise(self) -> bool:
        """Whether one sample at a time, finished while it is in cache, is faster than the batch as a whole."""
        channels, *_ = self.plan.source
        large = channels * self.plan.height * self.plan.width >= ROWWISE_ELEMENTS
        return self.plan.device.type == "cpu" and (large or self.plan.resampling is not None)

    def row(self, k: int, image: Tensor, out: Tensor) -> None:
        """Renders sample ``k``: ``image`` [C, H, W] into ``out`` [C, h, w]."""
        window = self._windows[k]
        view = cut(image, window, self.plan.padding)
        how = self.plan.resampling
        if how is not None and self._packs(view, out, k):
            self._paint_packed(view, how, window, out)
        else:
            self._paint(self._placed(view, window), out, self._greys[k])
        for hole, corners in zip(self.plan.holes, self._corners, strict=True):
            punch_row(k, hole, corners[k], out)

    def whole(self, images: Tensor, out: Tensor) -> None:
        """Renders all samples: ``images`` [B, C, H, W] into ``out`` [B, C, h, w]."""
        how = self.plan.resampling
        if self.rowwise or (how is not None and how.mode != "bilinear"):
            for k, (image, target) in enumerate(zip(images, out, strict=True)):
                self.row(k, image, target)
            return
        parts = pieces(images, self.plan) if how is None else [(slice(None), resized_batch(images, self.plan, how))]
        for some, pixels in parts:
            self._paint_chunks(pixels, out[some], None if self.plan.grey is None else self.plan.grey[some])
        for hole in self.plan.holes:
            punch_batch(hole, out)

    def _paint_chunks(self, pixels: Tensor, out: Tensor, grey: Tensor | None) -> None:
        """Paints samples, on a CPU some at a time, so that their floats stay in cache from one pass to the next."""
        most = CHUNK_ELEMENTS if self.plan.device.type == "cpu" else out.numel()
        for some in chunks(len(out), out.shape[1:], most):
            self._paint(pixels[some], out[some], None if grey is None else grey[some])

    def _placed(self, view: Tensor, window: Window) -> Tensor:
        """A cut window resized and flipped."""
        if self.plan.resampling is not None:
            view = resized(view, window, self.plan.resampling, (self.plan.height, self.plan.width))
        return view.flip(window.flips) if window.flips else view

    def _paint(self, pixels: Tensor, out: Tensor, grey: Tensor | bool | None) -> None:
        """Colours and converts [..., C, h, w] into ``out``."""
        plain = grey is None or grey is False
        if self._scale is None and plain:
            out.copy_(pixels)
        elif plain and out.dtype == torch.float32 and out.is_contiguous():
            # Straight in the output: with two threads as fast as working memory in cache, and fewer calls.
            out.copy_(pixels)
            _map(out, self._shift, self._scale, out)
        elif out.dim() == 3 and not out.is_contiguous() and out.permute(1, 2, 0).is_contiguous():
            self._paint_interleaved(pixels, out.permute(1, 2, 0), grey)
        else:
            work = scratch("floats", pixels.shape, torch.float32, out.device)
            work.copy_(pixels)
            self._grey(work, grey)
            _map(work, self._shift, self._scale, out)

    def _paint_interleaved(self, pixels: Tensor, out: Tensor, grey: Tensor | bool | None) -> None:
        """The same for [h, w, C] memory, as rows of w * C values: broadcasting over a last dimension of C is slow."""
        height, width, channels = out.shape
        work = scratch("floats", out.shape, torch.float32, out.device)
        planes = work.permute(2, 0, 1)
        planes.copy_(pixels)
        self._grey(planes, grey)
        shift, scale = self._interleaved
        line = height, width * channels
        _map(work.view(line), shift, scale, out.view(line))

    def _paint_packed(self, view: Tensor, how: Resampling, window: Window, out: Tensor) -> None:
        """Resizes, flips and paints a window of three channels, a plane at a time.

        A masked byte is its channel's value times 256 or 65536; the colour map takes that factor off again, which is
        exact, so the bits are those of the other ways.
        """
        packed = kept(resized_packed(view, how), window, (self.plan.height, self.plan.width))
        if window.flips:
            packed = packed.flip(window.flips)
        _map(unpacked(packed, out), *self._packed_map, out)

    def _packs(self, view: Tensor, out: Tensor, k: int) -> bool:
        """Whether the packed way can be gone: a smooth resize of uint8 RGB to contiguous float32, not grey."""
        return (
            self._packable
            and not self._greys[k]
            and view.dtype == torch.uint8
            and out.dtype == torch.float32
            and out.is_contiguous()
        )

    def _grey(self, work: Tensor, grey: Tensor | bool | None) -> None:
        """Replaces the channels of [..., 3, h, w] by their luma where ``grey`` says so, in whole levels if uint8."""
        if grey is None or grey is False or work.shape[-3] == 1:
            return
        red, green, blue = work.unbind(-3)
        luma = red * _LUMA[0] + green * _LUMA[1] + blue * _LUMA[2]
        luma = (luma.floor_() if self.plan.peak > 1 else luma).unsqueeze(-3)
        work.copy_(luma if grey is True else torch.where(grey.view(-1, 1, 1, 1), luma, work))

    @cached_property
    def _interleaved(self) -> tuple[Tensor | None, Tensor | None]:
        """The colour map repeated for each pixel of a line."""
        width = self.plan.width
        shift = None if self._shift is None else self._shift.flatten().repeat(width)
        return shift, None if self._scale is None else self._scale.flatten().repeat(width)

    @cached_property
    def _packable(self) -> bool:
        plan, how = self.plan, self.plan.resampling
        smooth = how is not None and how.mode == "bilinear"
        return smooth and self._scale is not None and plan.device.type == "cpu" and plan.source[0] == 3

    @cached_property
    def _packed_map(self) -> tuple[Tensor | None, Tensor | None]:
        """The colour map of packed bytes."""
        factors = torch.tensor(PACKED_FACTORS, dtype=torch.float32).view(3, 1, 1)
        shift = None if self._shift is None else self._shift * factors
        return shift, None if self._scale is None else self._scale / factors

    @cached_property
    def _windows(self) -> list[Window]:
        return windows(self.plan)

    @cached_property
    def _corners(self) -> list[list[Corner]]:
        return [corners_of(hole) for hole in self.plan.holes]

    @cached_property
    def _greys(self) -> list[bool]:
        grey = self.plan.grey
        greys: list[bool] = [False] * self.plan.count if grey is None else grey.tolist()
        return greys


def _colour_map(plan: Plan, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """Shift and scale as [C, 1, 1], either None where it would change nothing."""
    if plan.shift is not None and plan.scale is not None:
        return plan.shift.view(-1, 1, 1), plan.scale.view(-1, 1, 1)
    if plan.peak == 1.0 or not dtype.is_floating_point:
        return None, None
    scale = torch.full((plan.source[0], 1, 1), 1.0 / plan.peak, device=plan.device)
    return None, scale


def _map(work: Tensor, shift: Tensor | None, scale: Tensor | None, out: Tensor) -> None:
    """(work - shift) * scale into ``out``, in place where dtypes allow; two roundings, whatever the position."""
    if shift is not None:
        work.sub_(shift)
    if scale is None:
        out.copy_(work)
    elif out.dtype == work.dtype:
        torch.mul(work, scale, out=out)
    else:
        out.copy_(work.mul_(scale))
