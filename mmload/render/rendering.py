"""Rendering of a plan: it reads each pixel once and writes the final size, dtype and memory format.

It takes a :class:`~mmload.render.plan.Plan` and images, and writes into memory that the caller owns. Compiled kernels
render uint8 images on a CPU, some samples or a batch (:mod:`mmload.render.cpu_rendering`). Torch's operations render
anything else, on the images' device, to which the plan is copied (:mod:`mmload.render.torch_rendering`). Nothing here
draws random numbers.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmload.render.changed_images import changed_images, complete_images
from mmload.render.cpu_rendering import CpuRendering
from mmload.render.kernel_arguments import Floats, ImageLines, Pixels, Places
from mmload.render.plan import Plan
from mmload.render.plan_copies import Copy, copied
from mmload.render.plan_parts import check_fill, check_levels
from mmload.render.torch_rendering import finish_by_torch, resized_batch, resized_one_by_one
from mmload.render.torch_sampling import picked


class Rendering:
    """Plan that is ready to be rendered to a dtype; the arithmetic is that of float32.

    Samples may be rendered from any number of threads, as working memory belongs to the thread; those of a plan that
    mixes or composes them in order, by one thread.

    Attributes:
        on_cpu: renders samples by the compiled kernels, if the images are uint8 on a CPU.
    """

    def __init__(self, plan: Plan, dtype: torch.dtype) -> None:
        _check(plan, dtype)
        self.plan = plan
        self.dtype = dtype
        self._colors = _color_map(plan, dtype)
        self._copy: Copy | None = None  # on a device, after copy_to
        self.on_cpu = CpuRendering(plan, *self._colors)

    @property
    def needed(self) -> Places:
        """Lines that are needed of variable-size images: :data:`~mmload.render.kernel_arguments.NEEDED` [B]."""
        if self.plan.first_program is None or self.plan.sizes is None:
            return self.on_cpu.needed
        return complete_images(self.plan.sizes)

    @property
    def waits(self) -> bool:
        """Whether images may arrive while they are rendered, each when it is needed."""
        return self.plan.first_program is None and self.on_cpu.waits

    def render_lines(self, first: int, lines: ImageLines, out: Tensor | Pixels) -> None:
        """Renders samples (of canvases: tiles) from ``first`` on from wherever their lines are, on a CPU.

        Of variable-size images, the lines are at least those :attr:`needed`. ``out`` is [B, C, h, w], the memory of all
        samples.
        """
        if self.plan.first_program is not None:
            lines = changed_images(self.plan.first_program, first, lines, self.plan.source[0])
        self.on_cpu.render_lines(first, lines, out)

    def render_batch(self, images: Tensor, out: Tensor) -> None:
        """Renders all samples of images [B, C, H, W] into ``out`` [B, C, h, w]."""
        if images.dtype == torch.uint8 and images.device.type == "cpu" and self._copy is None:
            self.render_lines(0, ImageLines.of_batch(images.contiguous(), np.arange(len(out))), out)
        else:
            self.by_operations(images, out)

    def rendered(self, images: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
        """Renders all samples of images [B, C, H, W] into new memory on their device: [B, C, h, w]."""
        out = torch.empty(self.plan.shape, dtype=self.dtype, device=images.device, memory_format=memory_format)
        self.render_batch(images, out)
        return out

    def by_operations(self, images: Tensor, out: Tensor) -> None:
        """Renders all samples, ``images`` [B, C, H, W], by torch's operations on their device.

        Windows are resized at once on a device, or by a plan that was copied; else one by one, as torchvision does it.
        """
        plan, program, shift, scale = (self._copy or self._copied(images.device)).description
        if plan.resampling is None:
            moved = picked(images, plan)
        elif self._copy is not None or images.device.type != "cpu":
            moved = resized_batch(images, plan, plan.resampling)
        else:
            moved = resized_one_by_one(self.plan, images)
        finish_by_torch(plan, program, shift, scale, moved, out)

    def copy_to(self, device: torch.device) -> list[Tensor]:
        """Copies what torch's operations need to a device, ahead of them; returns the copies."""
        self._copy = self._copied(device)
        return self._copy.tensors

    def _copied(self, device: torch.device) -> Copy:
        return copied((self.plan, self.plan.complete_program(), *self._colors), device)


def _check(plan: Plan, dtype: torch.dtype) -> None:
    """Checks that the dtype can hold the output.

    Raises:
        ValueError: if floats would be cut to uint8, or a fill or a hole's value is no level of uint8 images.
    """
    placed = None if plan.resampling is None else plan.resampling.placement
    for fill in [around.fill for around in (plan.canvas, plan.padding, placed) if around is not None]:
        check_fill(fill, plan.source[0], plan.peak)
    if plan.is_variable_size:
        raise ValueError("the images are variable-size: put a Resize((height, width)) before other steps")
    if dtype != torch.uint8:
        return
    if plan.peak == 1 or plan.shift is not None or plan.blends:
        raise ValueError("floats cannot be rendered as torch.uint8: give a floating dtype")
    for hole in plan.holes:
        check_levels("value", hole.value)


def _color_map(plan: Plan, dtype: torch.dtype) -> tuple[Floats | None, Floats | None]:
    """Returns shift and scale, float32 [C] each, either None if it would change nothing."""
    if plan.shift is not None and plan.scale is not None:
        return plan.shift, plan.scale
    if plan.peak == 1.0 or not dtype.is_floating_point:
        return None, None
    return None, np.full(plan.source[0], 1.0 / plan.peak, np.float32)
