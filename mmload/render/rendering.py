"""Rendering of a plan: it reads each pixel once and writes the final size, dtype and memory format.

It takes a :class:`~mmload.render.plan.Plan` and images, and writes into memory that the caller owns. Compiled kernels
render uint8 images: on a CPU some samples or a batch (:mod:`mmload.render.cpu_rendering`), on an NVIDIA GPU a batch
(:mod:`mmload.render.gpu_kernels`). Torch's operations render anything else (:mod:`mmload.render.torch_rendering`).
Nothing here draws random numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from torch import Tensor

from mmload.errors import counted
from mmload.render.cpu_rendering import CpuRendering
from mmload.render.plan import Plan
from mmload.render.plan_parts import check_levels
from mmload.render.torch_rendering import end_by_torch, finish_by_torch, moved_by_torch, work_for

T = TypeVar("T")

_MOST_CHANNELS = 16
"""Upper bound on the channels of images that the GPU's kernel renders: it has code for each channel."""

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Rendering:
    """Plan that is ready to be rendered to a dtype; the arithmetic is that of float32.

    Samples may be rendered from any number of threads, as working memory belongs to the thread; those of a plan that
    mixes them in order, by one thread.

    Attributes:
        on_cpu: renders some of the samples, if the images are uint8 on a CPU.
    """

    def __init__(self, plan: Plan, dtype: torch.dtype) -> None:
        _check(plan, dtype)
        self.plan = plan
        self.dtype = dtype
        self._shift, self._scale = _color_map(plan, dtype)
        self.on_cpu = CpuRendering(plan, dtype, self._shift, self._scale)

    def render_batch(self, images: Tensor, out: Tensor, indices: Tensor | None = None) -> None:
        """Renders all samples of images [N, C, H, W] into ``out`` [B, C, h, w], by indices int64 [B] if given."""
        crop = gpu_crop(images.device) if self._fits_gpu_kernel(images.dtype, out.dtype) else None
        if crop is not None:
            self._by_gpu_kernel(crop, images.contiguous(), indices, out)
        elif images.dtype == torch.uint8 and images.device.type == "cpu":
            self.on_cpu.render_rows(
                0, images.contiguous(), torch.arange(len(out), device="cpu") if indices is None else indices, out
            )
        else:
            self.by_operations(images if indices is None else images[indices], out)

    def by_operations(self, images: Tensor, out: Tensor) -> None:
        """Renders all samples, ``images`` [B, C, H, W], by torch's operations, where no kernel does."""
        moved = moved_by_torch(self.plan, images)
        finish_by_torch(self.plan, self.plan.complete_program(), self._shift, self._scale, moved, out)

    def render_images(self, images: Sequence[Tensor], device: torch.device) -> Tensor:
        """Renders variable-size images, uint8 [C, h, w] on ``device``, by torch's operations; the plan is on the CPU.

        Returns:
            [B, C, h, w].
        """
        levels, plan = moved_by_torch(self.plan, images), copied_to(self.plan, device)
        out = torch.empty(self.plan.shape, dtype=self.dtype, device=device)
        rendering = Rendering(plan, self.dtype)
        finish_by_torch(plan, plan.complete_program(), rendering._shift, rendering._scale, levels, out)
        return out

    def _fits_gpu_kernel(self, source: torch.dtype, dtype: torch.dtype) -> bool:
        """Returns whether the GPU's kernel renders a batch: images are uint8 and not resized."""
        gives_levels = dtype == torch.uint8 and self._scale is None
        crops = source == torch.uint8 and self.plan.resampling is None
        return crops and self.plan.source[0] <= _MOST_CHANNELS and (gives_levels or dtype in _FLOATS)

    def _by_gpu_kernel(self, crop: Callable[..., None], images: Tensor, indices: Tensor | None, out: Tensor) -> None:
        """Renders all samples in one pass; by way of the levels where a program changes them."""
        plan = self.plan
        if plan.program is not None:
            levels = torch.empty(plan.shape, dtype=torch.uint8, device=out.device)
            crop(images, indices, plan, None, None, levels)
            finish_by_torch(plan, plan.program, self._shift, self._scale, levels, out)
            return
        work = work_for(plan, out, images.dtype)
        crop(images, indices, plan, self._shift, self._scale, work)
        end_by_torch(plan, work, out)


def _check(plan: Plan, dtype: torch.dtype) -> None:
    """Checks that the dtype can hold the output, and that images have pixels: the kernels would read one anyway.

    Raises:
        ValueError: if there are no pixels, floats would be cut to uint8, or a fill or a hole's value is no level of
            uint8 images.
    """
    if min(plan.source[:1] if plan.sizes is not None else plan.source) < 1:
        raise ValueError(f"images have the shape {plan.source}, expected [C, H, W] with a pixel at least")
    placed = None if plan.resampling is None else plan.resampling.placement
    for fill in [around.fill for around in (plan.canvas, plan.padding, placed) if around is not None]:
        if plan.peak > 1:
            check_levels("fill", fill)
        if len(fill) not in (1, plan.source[0]):
            raise ValueError(
                f"fill has {counted(len(fill), 'number')} and the images {counted(plan.source[0], 'channel')}"
            )
    if plan.is_variable_size:
        raise ValueError("the images are variable-size: put a Resize((height, width)) before other steps")
    if dtype != torch.uint8:
        return
    if plan.peak == 1 or plan.shift is not None or plan.blends:
        raise ValueError("floats cannot be rendered as torch.uint8: give a floating dtype")
    for hole in plan.holes:
        check_levels("value", hole.value)


@cache
def gpu_crop(device: torch.device) -> Callable[..., None] | None:
    """Returns :func:`mmload.render.gpu_kernels.crop` for a device, or None if it does not run there.

    It is tried once, on one image: Triton comes with torch's CUDA builds for Linux, and needs a C compiler on the
    machine to make the code that launches its kernels. A warning reports why it fails.
    """
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    from mmload.render.gpu_kernels import crop

    try:
        image = torch.zeros((1, 1, 16, 16), dtype=torch.uint8, device=device)
        crop(image, None, Plan.unchanged(1, (1, 16, 16), 255.0, device), None, None, torch.empty_like(image))
    except Exception as error:  # the compiler's, the cache's, the driver's: Triton lets all of them through
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(f"{device} renders by torch's operations, which is slower, as Triton fails: {why}", stacklevel=2)
        return None
    return crop


def _color_map(plan: Plan, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """Returns shift and scale, float32 [C] each, either None if it would change nothing."""
    if plan.shift is not None and plan.scale is not None:
        return plan.shift, plan.scale
    if plan.peak == 1.0 or not dtype.is_floating_point:
        return None, None
    scale = torch.full((plan.source[0],), 1.0 / plan.peak, dtype=torch.float32, device=plan.device)
    return None, scale


def copied_to(value: T, device: torch.device) -> T:
    """Returns a copy of a description whose few and small tensors are on ``device``, and its device attributes, too.

    The calling thread may wait for the copies: this is for a loader's threads. What is no dataclass, tuple or tensor is
    returned as it is.
    """
    copied: Any = value
    if isinstance(value, Tensor):
        copied = value.to(device, non_blocking=True)
    elif isinstance(value, torch.device):
        copied = device
    elif isinstance(value, tuple):
        parts = [copied_to(one, device) for one in value]
        copied = value._make(parts) if hasattr(value, "_make") else tuple(parts)
    elif is_dataclass(value) and not isinstance(value, type):
        copied = replace(value, **{one.name: copied_to(getattr(value, one.name), device) for one in fields(value)})
    return copied  # type: ignore[no-any-return]  # of the same type
