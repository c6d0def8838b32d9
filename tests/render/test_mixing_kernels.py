"""Samples that are mixed against torch's formula on the rendered batch: the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import EXAMPLES, FORMATS, HOLES, VARIANTS, hole_of, planned
from torch import Tensor

from mmload.render import rendering as made
from mmload.render.kernel_arguments import ImageLines, written
from mmload.render.level_program import FLIP_X, Program
from mmload.render.plan import Mixing, Plan
from mmload.render.rendering import Rendering
from mmload.runtime.host_memory import MemoryPool


@st.composite
def mixed_plans(draw: st.DrawFn) -> tuple[Plan, Tensor, Tensor]:
    """A random plan with holes, a program and mixing, the images, and which image each sample is."""
    plan, images, places = draw(planned())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        on = torch.rand(plan.count, generator=generator) < 0.5
        plan = plan.followed_by(Program.single_operation(FLIP_X, plan.count, apply_mask=on.numpy()))
    for kind in draw(st.lists(st.sampled_from(HOLES), max_size=2)):
        plan = plan.with_hole(hole_of(plan, kind, generator))
    share = torch.rand(plan.count, generator=generator)
    share[torch.rand(plan.count, generator=generator) < 0.3] = 1.0
    corners = [torch.randint(0, side + 1, (plan.count, 2), generator=generator) for side in (plan.width, plan.height)]
    (x1, x2), (y1, y2) = (one.sort(1).values.unbind(1) for one in corners)
    kinds = draw(st.sampled_from(["blended", "pasted", "either"]))
    mixing = Mixing(
        share=share.numpy() if kinds != "pasted" else None,
        boxes=torch.stack((x1, y1, x2, y2), 1).numpy() if kinds != "blended" else None,
    )
    return plan.mixed(mixing), images, places


def by_formula(plan: Plan, images: Tensor, dtype: torch.dtype) -> Tensor:
    """The batch rendered without mixing, and then mixed as whole."""
    mixing, work = plan.mixing, torch.float32 if dtype.is_floating_point else dtype
    assert mixing is not None
    rendered = torch.empty(plan.shape, dtype=work)
    Rendering(replace(plan, mixing=None), work).by_operations(images, rendered)
    others, out = rendered.roll(1, 0), rendered
    if mixing.share is not None:
        own = torch.from_numpy(mixing.share).view(-1, 1, 1, 1)
        out = rendered * own + others * (1 - own)
    if mixing.boxes is not None:
        out = out.clone()
        for k, (x1, y1, x2, y2) in enumerate(mixing.boxes.tolist()):
            out[k, :, y1:y2, x1:x2] = others[k, :, y1:y2, x1:x2]
    return out.to(dtype)


def fits(plan: Plan, dtype: torch.dtype) -> bool:
    """Whether a plan can be rendered to uint8."""
    noisy = any(hole.value is None for hole in plan.holes)
    return dtype != torch.uint8 or not (plan.blends or noisy)


@pytest.mark.slow  # it compiles a dozen variants
@given(mixed_plans(), st.sampled_from(VARIANTS), st.integers(0, 4))
@settings(max_examples=EXAMPLES)
def test_samples_mixed_in_the_pass_have_the_bits_of_torchs_formula(
    case: tuple[Plan, Tensor, Tensor], variant: tuple[torch.dtype, torch.memory_format], cut: int
) -> None:
    (plan, images, places), (dtype, memory_format) = case, variant
    if not fits(plan, dtype):
        dtype = torch.float32
    if dtype == torch.uint8:
        plan = replace(plan, shift=None, scale=None)
    expected = by_formula(plan, images[places], dtype)
    rendering = Rendering(plan, dtype)
    out = torch.empty(plan.shape, dtype=dtype, memory_format=memory_format)
    for first, last in ((0, min(cut, plan.count)), (min(cut, plan.count), plan.count)):
        rendering.render_lines(first, ImageLines.of_batch(images, places[first:last].numpy()), out)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    if dtype != torch.float64:  # there torch's operations blend what float32 gave in float64
        rendering.by_operations(images[places], out)
        torch.testing.assert_close(out, expected, rtol=0, atol=0)


def mixed_plan(count: int, height: int, width: int) -> tuple[Plan, Tensor]:
    """A plan that crops, flips, blends and pastes, and its images."""
    generator = torch.Generator().manual_seed(height)
    images = torch.randint(0, 256, (count, 3, height + 5, width + 5), dtype=torch.uint8, generator=generator)
    plan = Plan.unchanged(count, (3, height + 5, width + 5), 255.0)
    starts = torch.randint(0, 6, (2, count), generator=generator).numpy()
    plan = plan.cropped(starts[0], starts[1], height, width).flipped(x=np.arange(count) % 2 == 0)
    plan = plan.with_hole(hole_of(plan, "each", generator)) if height % 2 else plan
    box = np.array([width // 4, height // 3, width // 2, height - 1])
    share = np.array([1.0, 0.3, 0.9], np.float32)[np.arange(count) % 3]
    return plan.mixed(Mixing(share=share, boxes=box * (np.arange(count)[:, None] % 2))), images


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("size", [(100, 48), (71, 320), (16, 16), (3, 64)])
def test_what_is_mixed_past_the_caches_has_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, memory_format: torch.memory_format, size: tuple[int, int]
) -> None:
    plan, images = mixed_plan(5, *size)
    out = MemoryPool(spare=1).empty(plan.shape, torch.float32, memory_format).fill_(99)
    monkeypatch.setattr(made, "past_caches", lambda count, sample: True)
    rendering = Rendering(plan, torch.float32)
    written_at_once = size[0] * size[1] if memory_format == torch.contiguous_format else 3 * size[1]
    assert made.streams(written(out)) is (written_at_once * 4 % 64 == 0)
    for first, last in ((0, 2), (2, 5)):
        rendering.render_lines(first, ImageLines.of_batch(images, np.arange(first, last)), out)
    assert torch.equal(out, by_formula(plan, images, torch.float32))


def test_batches_take_turns_in_a_thread() -> None:
    (one, images), (other, more) = mixed_plan(4, 9, 12), mixed_plan(4, 12, 9)
    first, second = Rendering(one, torch.float32), Rendering(other, torch.float32)
    out, there = torch.empty(one.shape), torch.empty(other.shape)
    for k in range(4):
        first.render_lines(k, ImageLines.of_batch(images, np.array([k])), out)
        second.render_lines(k, ImageLines.of_batch(more, np.array([k])), there)
    assert torch.equal(out, by_formula(one, images, torch.float32))
    assert torch.equal(there, by_formula(other, more, torch.float32))


def test_a_blend_cannot_be_rendered_to_uint8() -> None:
    plan, _ = mixed_plan(2, 4, 4)
    with pytest.raises(ValueError, match=r"cannot be rendered as torch\.uint8"):
        Rendering(plan, torch.uint8)
