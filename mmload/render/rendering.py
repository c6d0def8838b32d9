"""Rendering of a plan: it reads each pixel once and writes the final size, dtype and memory format.

It takes a :class:`~mmload.render.plan.Plan` and images, and writes into memory that the caller owns. Compiled kernels
render uint8 images on a CPU, some samples or a batch (:mod:`mmload.render.cpu_rendering`). Torch's operations render
anything else, on the images' device, to which the plan is copied (:mod:`mmload.render.torch_rendering`). Nothing here
draws random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor

from mmload.errors import counted
from mmload.render.cpu_rendering import CpuRendering
from mmload.render.plan import Plan
from mmload.render.plan_parts import check_levels
from mmload.render.torch_rendering import finish_by_torch, moved_by_torch, resized_batch

T = TypeVar("T")

_ALIGN = 64
"""Bytes to whose multiples tensors are aligned that are copied together."""


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
        shift, scale = _color_map(plan, dtype)
        self._description = plan, shift, scale  # on a device after copy_to
        self.on_cpu = CpuRendering(plan, dtype, shift, scale)

    def render_batch(self, images: Tensor, out: Tensor, indices: Tensor | None = None) -> None:
        """Renders all samples of images [N, C, H, W] into ``out`` [B, C, h, w], by indices int64 [B] if given."""
        if images.dtype == torch.uint8 and images.device.type == "cpu":
            self.on_cpu.render_rows(
                0, images.contiguous(), torch.arange(len(out), device="cpu") if indices is None else indices, out
            )
        else:
            self.by_operations(images if indices is None else images[indices], out)

    def by_operations(self, images: Tensor, out: Tensor, *, at_once: bool = False) -> None:
        """Renders all samples, ``images`` [B, C, H, W], by torch's operations on their device.

        Windows are resized at once on a device or if ``at_once``, otherwise one by one, as torchvision does it.
        """
        plan, shift, scale = copied_to(self._description, images.device)
        if at_once and plan.resampling is not None:
            moved = resized_batch(images, plan, plan.resampling)
        else:
            moved = moved_by_torch(plan, images)
        finish_by_torch(plan, plan.complete_program(), shift, scale, moved, out)

    def copy_to(self, device: torch.device) -> Iterator[Tensor]:
        """Copies what :meth:`by_operations` needs to a device, ahead of it; yields the copies."""
        self._description = copied_to(self._description, device)
        return tensors_in(self._description)


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


def _color_map(plan: Plan, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """Returns shift and scale, float32 [C] each, either None if it would change nothing."""
    if plan.shift is not None and plan.scale is not None:
        return plan.shift, plan.scale
    if plan.peak == 1.0 or not dtype.is_floating_point:
        return None, None
    scale = torch.full((plan.source[0],), 1.0 / plan.peak, dtype=torch.float32, device=plan.device)
    return None, scale


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yields the tensors in a description, which is a dataclass, a tuple or a tensor."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from tensors_in(one)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from tensors_in(getattr(value, each.name))


def copied_to(value: T, device: torch.device) -> T:
    """Returns a description with its tensors on ``device``; all that are elsewhere are copied there by one copy.

    The copy is queued on the caller's stream, and nobody waits for it. What is no dataclass, tuple or tensor is
    returned as it is, but for device attributes.
    """
    moving = [tensor for tensor in tensors_in(value) if tensor.device != device]
    return (
        _replaced(value, device, dict(zip(map(id, moving), _copies(moving, device), strict=True))) if moving else value
    )


def _copies(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copies tensors of a few bytes each to a device, by way of one pinned memory, as each copy takes microseconds."""
    sizes = [-(-tensor.nbytes // _ALIGN) * _ALIGN for tensor in tensors]
    host = torch.empty(sum(sizes), dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")
    starts = list(accumulate(sizes, initial=0))
    for tensor, start in zip(tensors, starts, strict=False):
        _part(host, start, tensor).copy_(tensor)
    there = host.to(device, non_blocking=True)
    return [_part(there, start, tensor) for tensor, start in zip(tensors, starts, strict=False)]


def _part(memory: Tensor, start: int, like: Tensor) -> Tensor:
    """Returns the bytes from ``start`` on as a tensor of the dtype and shape of another."""
    return memory[start : start + like.nbytes].view(like.dtype).view(like.shape)


def _replaced(value: Any, device: torch.device, copies: dict[int, Tensor]) -> Any:
    """Returns a description with its tensors, given by their ids, and devices replaced."""
    if isinstance(value, Tensor):
        return copies.get(id(value), value)
    if isinstance(value, torch.device):
        return device
    if isinstance(value, tuple):
        parts = [_replaced(one, device, copies) for one in value]
        return type(value)._make(parts) if hasattr(value, "_make") else tuple(parts)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{each.name: _replaced(getattr(value, each.name), device, copies) for each in fields(value)}
        )
    return value
