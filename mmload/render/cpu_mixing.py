"""Mixes the samples of a batch on a CPU as they are rendered: each with the one before it, the first with the last.

Cached levels belong to a batch, not to a thread: its samples are rendered in order, and batches may take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmload.render.cpu_kernels import lines_at_once
from mmload.render.holes import holes_in, holes_of
from mmload.render.kernel_arguments import (
    BITS,
    Bytes,
    Crops,
    Floats,
    Mixtures,
    Paint,
    Pixels,
    compiled_for,
    mix_signature,
)
from mmload.render.plan import Plan
from mmload.render.plan_parts import Mixing
from mmload.render.torch_sampling import chunks
from mmload.runtime.memory_pool import MemoryPool, scratch

_POOL = MemoryPool(spare=4)
"""Memory for the levels of batches that are being rendered."""

_CHUNK_ELEMENTS = 200_000
"""Elements that are mixed as float32 before they are converted: they stay in cache."""


class _Batch(NamedTuple):
    """State of a batch until its last sample is rendered.

    Attributes:
        interleaved: whether lines hold all channels, as in channels_last.
        colors: shift and scale of every value of some lines.
        levels: levels of the first sample and of the last two.
        out: [1, C, h, w], where the first sample goes.
    """

    interleaved: bool
    colors: tuple[Floats, Floats]
    levels: Bytes
    out: Tensor


class CpuMixing:
    """Mixing of a plan, with the state of the batch that is being rendered.

    Args:
        plan: describes the batch.
        mixing: the plan's.
        colors: shift and scale, float32 [C] each.
        streams: returns whether a part of the output is written past the caches.
    """

    def __init__(
        self, plan: Plan, mixing: Mixing, colors: tuple[Floats, Floats], streams: Callable[[Tensor], bool]
    ) -> None:
        self._shape, self._colors, self._streams = plan.shape, colors, streams
        ones, empty = torch.ones(plan.count), torch.zeros((plan.count, 4), dtype=torch.int64)
        self._shares = np.ascontiguousarray((ones if mixing.share is None else mixing.share).numpy())
        self._boxes = np.ascontiguousarray((empty if mixing.boxes is None else mixing.boxes).numpy())
        self._holes = holes_of(plan)
        self._batch: _Batch | None = None
        self._next = 0

    def mix(self, first: int, crops: Crops, out: Tensor) -> None:
        """Cuts out, colors, erases and mixes samples; the batch's first one after its last.

        Args:
            first: the first of the samples.
            crops: windows of these samples.
            out: [b, C, h, w], any dtype and memory format.

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
        batch = self._batch = self._begun(out) if first == 0 or self._batch is None else self._batch
        for part in _parts(batch, out):
            self._mix(batch, first + part.start, crops._replace(windows=crops.windows[part]), out[part])
        self._next = first + len(out)
        if self._next == self._shape[0]:
            self._mix(batch, 0, crops, batch.out, last=True)
            self._batch, self._next = None, 0

    def _begun(self, out: Tensor) -> _Batch:
        """Returns the state of a batch whose first samples go into ``out``."""
        from mmload.render.mixing_kernels import SLOTS  # compiled only by those who have such steps

        _, channels, height, width = self._shape
        size, interleaved = channels * height * width, _is_interleaved(out)
        across = channels * width if interleaved else width
        lines = lines_at_once(height, across * out.itemsize)
        shift, scale = (
            np.tile(one, lines * width)[None] if interleaved else np.repeat(one[:, None], lines * width, 1)
            for one in self._colors
        )
        levels = _POOL.empty((SLOTS * size,), torch.uint8)
        return _Batch(interleaved, (shift, scale), levels.numpy(), out[:1])

    def _mix(self, batch: _Batch, first: int, crops: Crops, out: Tensor, *, last: bool = False) -> None:
        """Calls the kernel, by way of float32 if it cannot write the output."""
        from mmload.render.mixing_kernels import mix

        lines = _lines(batch, out)
        streamed = lines is not None and self._streams(out)
        target = out if lines is not None else _work(batch, out)
        written = _lines(batch, target) if lines is None else lines
        paint = Paint(*batch.colors, holes_in(self._holes, slice(None), out.shape[3]), streamed)
        mixtures = Mixtures(self._shares, self._boxes, batch.levels, first, last)
        if written is None:
            raise RuntimeError("the working memory cannot be written")
        compiled_for(written, mix, mix_signature)(crops, paint, mixtures, written)
        if lines is None:
            skipped = 1 if first == 0 and not last else 0  # the batch's first sample is not rendered yet
            out[skipped:].copy_(target[skipped:])


def _parts(batch: _Batch, out: Tensor) -> list[slice]:
    """Returns the samples that are mixed by one call."""
    if _lines(batch, out) is None:
        return chunks(len(out), out.shape[1:], _CHUNK_ELEMENTS)
    return [slice(0, len(out))]


def _is_interleaved(out: Tensor) -> bool:
    return not out.is_contiguous() and out.permute(0, 2, 3, 1).is_contiguous()


def _work(batch: _Batch, out: Tensor) -> Tensor:
    """Returns memory that the kernel can write, valid until the next call, for an output that it cannot write."""
    count, channels, height, width = out.shape
    dtype = torch.uint8 if out.dtype == torch.uint8 else torch.float32
    if batch.interleaved:
        return scratch("mixed", (count, height, width, channels), dtype).permute(0, 3, 1, 2)
    return scratch("mixed", (count, channels, height, width), dtype)


def _lines(batch: _Batch, out: Tensor) -> Pixels | None:
    """Returns the output as the kernel writes it, [b, P, h, V]; None if it cannot."""
    if out.dtype not in (torch.float32, torch.uint8, *BITS):
        return None
    bits = out.view(BITS[out.dtype]) if out.dtype in BITS else out
    if not batch.interleaved:
        return bits.numpy() if bits.is_contiguous() else None
    lines = bits.permute(0, 2, 3, 1)
    return lines.flatten(2)[:, None].numpy() if lines.is_contiguous() else None
