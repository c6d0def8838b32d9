"""Cuts a list of steps into passes over the pixels, and describes each.

It takes steps, their draws and the plan of images that nothing has happened to yet, and returns what one pass renders
and the place of the step after it. It never reads pixels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mmload.augment.draws import Draws
from mmload.augment.step import AfterStep, Step, white
from mmload.render.plan import Plan
from mmload.render.rendering import Rendering


def one_pass(
    steps: nn.ModuleList,
    at: int,
    plan: Plan,
    source: torch.dtype,
    dtype: torch.dtype,
    draws_of: Callable[[int], Draws],
    framed: bool = False,
) -> tuple[Rendering, int]:
    """What one pass renders, and the place of the first step after it.

    Args:
        steps: a collate's.
        at: the place of the pass's first step.
        plan: of the images before it, that changes nothing.
        source: their dtype.
        dtype: the collate's.
        draws_of: gives the draws of the step at a place.
        framed: whether images that have a size each at the first step that needs one, or at the end, get a canvas.
    """
    while at < len(steps):
        step = steps[at]
        if not isinstance(step, Step) or not step.fits(plan):
            break
        if plan.is_ragged and not step.takes_sizes:
            if not framed:
                break
            plan = plan.framed()
            continue
        plan = step.describe(plan, draws_of(at))
        at += 1
    if framed and plan.is_ragged and not (at < len(steps) and _waits_for_its_pass(steps[at])):
        plan = plan.framed()
    if plan.sizes is not None and plan.is_ragged:
        raise ValueError(_of_a_size_each(steps, at))
    return Rendering(plan, _dtype_before(steps, at, plan, source, dtype)), at


def _waits_for_its_pass(step: nn.Module) -> bool:
    """Whether a step could be done to images of a size each, but does not fit into the pass that it stands in."""
    return isinstance(step, Step) and step.takes_sizes


def _of_a_size_each(steps: nn.ModuleList, at: int) -> str:
    """What is wrong where nothing before step ``at`` gives images of a size each one size."""
    made = "RandomResizedCrop, Resize((height, width)), Letterbox, or a crop"
    if at == len(steps):
        return f"the images have a size each, and a batch has one: put {made} among the steps"
    name = type(steps[at]).__name__
    if any(type(step).__name__ == "Resize" for step in list(steps)[:at]):
        return f"{name} needs images of one size, and Resize by one number leaves a size each: put a crop before it"
    if _waits_for_its_pass(steps[at]):
        before = ", ".join(type(step).__name__ for step in list(steps)[:at])
        return f"{name} cannot stand after {before} where images have a size each: put it before them"
    return f"{name} needs images of one size, and these have a size each: put {made} before it"


def rehearse(
    steps: nn.ModuleList,
    at: int,
    images: Rendering,
    dtype: torch.dtype,
    *,
    epoch: int | None,
    has_ids: bool,
    has_boxes: bool,
) -> None:
    """Describes all passes from ``at`` for one sample, which refuses what cannot be done before a pixel is rendered.

    It ends at the first step that is no :class:`~mmload.augment.step.Step`: what such a module makes is not known.

    Args:
        steps: a collate's.
        at: the place of the first step.
        images: the pass that gives its input.
        dtype: the collate's.
        epoch: the batch's; None: it is not known.
        has_ids: whether samples have ids.
        has_boxes: whether samples have boxes.

    Raises:
        ValueError, TypeError: as the step that cannot be done.
    """
    nothing = torch.zeros(1, dtype=torch.int64)
    no_boxes = torch.zeros(1, 0, 4), torch.zeros(1, 0, dtype=torch.bool)

    def draws_of(place: int) -> Draws:
        ids = nothing if has_ids else None
        return Draws(nothing, place, epoch=epoch, ids=ids, boxes=(lambda plan: no_boxes) if has_boxes else None)

    while at < len(steps) and isinstance(steps[at], Step):
        _, channels, height, width = images.plan.shape
        plan = Plan.of(1, (channels, height, width), white(images.dtype), nothing.device)
        images, at = one_pass(steps, at, plan, images.dtype, dtype, draws_of)


def _dtype_before(steps: nn.ModuleList, at: int, plan: Plan, source: torch.dtype, dtype: torch.dtype) -> torch.dtype:
    """What a pass that ends before step ``at`` renders to: uint8 until something needs floats."""
    if plan.shift is not None or plan.blends or source != torch.uint8 or at == len(steps):
        return dtype
    step = steps[at]
    keeps = isinstance(step, Step) or (isinstance(step, AfterStep) and step.takes_uint8)
    return source if keeps else dtype


def rendered(rendering: Rendering, images: Tensor, memory_format: torch.memory_format) -> Tensor:
    """A whole batch into new memory."""
    out = torch.empty(rendering.plan.shape, dtype=rendering.dtype, device=images.device, memory_format=memory_format)
    rendering.render_batch(images, out)
    return out
