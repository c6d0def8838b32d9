"""Mixes the samples of a batch on a CPU as they are rendered: each with the one before it, the first with the last.

What is kept of a batch belongs to it, not to a thread: its samples are rendered in order, and batches may take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmload.render.cpu_kernels import Bytes, Floats, Numbers, Pixels
from mmload.render.erased_regions import Holes
from mmload.render.plan import Mixing, Plan
from mmload.render.scratch_memory import scratch
from mmload.render.torch_sampling import chunks
from mmload.runtime.half_precision import BITS
from mmload.runtime.memory_pool import MemoryPool

_POOL = MemoryPool(spare=4)
"""What is kept of batches that are being rendered."""

_CHUNK_ELEMENTS = 200_000
"""Elements that are mixed as float32 before they are converted: what stays in cache."""


class Windows(NamedTuple):
    """What the kernel cuts out, its first arguments: see :func:`mmload.render.mixing_kernels.mix`."""

    images: Bytes
    indices: Numbers
    tops: Numbers
    lefts: Numbers
    flips: Bytes
    fill: Bytes
    mode: int

    def of(self, samples: slice) -> Windows:
        """Those of some samples."""
        images, indices, tops, lefts, flips, fill, mode = self
        return Windows(images, indices[samples], tops[samples], lefts[samples], flips[samples], fill, mode)


class _Kept(NamedTuple):
    """What is kept of a batch until its last sample is there.

    Attributes:
        interleaved: whether lines hold all channels, as in channels_last.
        colors: shift and scale of every value of a line.
        levels: of the first sample and of the last two.
        out: [1, C, h, w], where the first sample goes.
    """

    interleaved: bool
    colors: tuple[Floats, Floats]
    levels: Bytes
    out: Tensor


class CpuMixing:
    """The mixing of a plan, and what is kept of the batch that is being rendered.

    Args:
        plan: describes the batch.
        mixing: the plan's.
        colors: shift and scale, float32 [C] each.
        streams: whether a part of the output is written past the caches.
    """

    def __init__(
        self, plan: Plan, mixing: Mixing, colors: tuple[Floats, Floats], streams: Callable[[Tensor], bool]
    ) -> None:
        self._shape, self._colors, self._streams = plan.shape, colors, streams
        ones, empty = torch.ones(plan.count), torch.zeros((plan.count, 4), dtype=torch.int64)
        self._shares = np.ascontiguousarray((ones if mixing.share is None else mixing.share).numpy())
        self._boxes = np.ascontiguousarray((empty if mixing.boxes is None else mixing.boxes).numpy())
        self._holes = Holes.of_plan(plan)
        self._kept: _Kept | None = None
        self._next = 0

    def run(self, first: int, windows: Windows, out: Tensor) -> None:
        """Cuts out, colors, erases and mixes samples; the batch's first one after its last.

        Args:
            first: the first of them.
            windows: of these samples.
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
        kept = self._kept = self._begun(out) if first == 0 or self._kept is None else self._kept
        for part in self._parts(kept, out):
            self._mix(kept, first + part.start, windows.of(part), out[part])
        self._next = first + len(out)
        if self._next == self._shape[0]:
            self._mix(kept, 0, windows, kept.out, last=True)
            self._kept, self._next = None, 0

    def _begun(self, out: Tensor) -> _Kept:
        """Memory for a batch whose first samples go into ``out``."""
        from mmload.render import mixing_kernels as kernels  # compiled only by those who have such steps

        _, channels, height, width = self._shape
        size, interleaved = channels * height * width, _is_interleaved(out)
        across = channels * width if interleaved else width
        lines = kernels.lines_at_once(height, across * out.itemsize)
        repeated = [
            np.tile(one, lines * width)[None] if interleaved else np.repeat(one[:, None], lines * width, 1)
            for one in self._colors
        ]
        levels = _POOL.empty((kernels.SLOTS * size,), torch.uint8)
        return _Kept(interleaved, (repeated[0], repeated[1]), levels.numpy(), out[:1])

    def _parts(self, kept: _Kept, out: Tensor) -> list[slice]:
        """Samples that are mixed by one call."""
        if _lines(kept, out) is None:
            return chunks(len(out), out.shape[1:], _CHUNK_ELEMENTS)
        return [slice(0, len(out))]

    def _mix(self, kept: _Kept, first: int, windows: Windows, out: Tensor, *, last: bool = False) -> None:
        """Calls the kernel, by way of float32 where it cannot write the output."""
        from mmload.render.mixing_kernels import mix_into

        lines = _lines(kept, out)
        streamed = lines is not None and self._streams(out)
        target = out if lines is not None else _work(kept, out)
        written = _lines(kept, target) if lines is None else lines
        mix_into(written)(  # type: ignore[arg-type]  # the work can be written
            *windows,
            *kept.colors,
            first,
            last,
            self._shares,
            self._boxes,
            *self._holes,
            scratch("noise", (out.shape[3] + 1,), torch.float32).numpy(),
            kept.levels,
            streamed,
            written,
        )
        if lines is None:
            skipped = 1 if first == 0 and not last else 0  # the batch's first sample is not there yet
            out[skipped:].copy_(target[skipped:])


def _is_interleaved(out: Tensor) -> bool:
    return not out.is_contiguous() and out.permute(0, 2, 3, 1).is_contiguous()


def _work(kept: _Kept, out: Tensor) -> Tensor:
    """Memory that the kernel can write, valid until the next call, for an output that it cannot."""
    count, channels, height, width = out.shape
    dtype = torch.uint8 if out.dtype == torch.uint8 else torch.float32
    if kept.interleaved:
        return scratch("mixed", (count, height, width, channels), dtype).permute(0, 3, 1, 2)
    return scratch("mixed", (count, channels, height, width), dtype)


def _lines(kept: _Kept, out: Tensor) -> Pixels | None:
    """The output [b, P, h, V] as the kernel writes it; None if it cannot."""
    if out.dtype not in (torch.float32, torch.uint8, *BITS):
        return None
    bits = out.view(BITS[out.dtype]) if out.dtype in BITS else out
    if not kept.interleaved:
        return bits.numpy() if bits.is_contiguous() else None
    lines = bits.permute(0, 2, 3, 1)
    if not lines.is_contiguous():
        return None
    return lines.flatten(2)[:, None].numpy()
