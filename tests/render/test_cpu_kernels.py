"""The compiled kernels against torch's operations on whole batches, mixed by a formula: the same bits."""

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
from mmload.render.kernel_arguments import PADDING_MODES
from mmload.render.level_operations import FLIP_X, GRAY, INVERT
from mmload.render.plan import NO_PROGRAM, Mixing, Padding, Plan, Program, chain
from mmload.render.rendering import ImageLines, Rendering, written
from mmload.runtime.host_memory import MemoryPool


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, Tensor, Tensor]:
    """A random plan with holes, an operation and mixing, the images, and which image each sample is."""
    plan, images, places = draw(planned())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    operation, kind = draw(st.sampled_from([None, INVERT, FLIP_X])), draw(st.sampled_from(MIXED))
    if operation is not None:
        on = torch.rand(plan.count, generator=generator) < 0.5
        program = Program.single_operation(operation, plan.count, apply_mask=on.numpy())
        before = [plan.program] if plan.program.slots else []
        plan = replace(plan, program=chain([*before, program]))  # colors may have been added, which come after it
    for hole in draw(st.lists(st.sampled_from(HOLES), max_size=2)):
        plan = plan.with_hole(hole_of(plan, hole, generator))
    if kind == "alone":
        return plan, images, places
    share = torch.rand(plan.count, generator=generator)
    share[torch.rand(plan.count, generator=generator) < 0.3] = 1.0
    corners = [torch.randint(0, side + 1, (plan.count, 2), generator=generator) for side in (plan.width, plan.height)]
    (x1, x2), (y1, y2) = (one.sort(1).values.unbind(1) for one in corners)
    mixing = Mixing(
        share=share.numpy() if kind != "pasted" else None,
        boxes=torch.stack((x1, y1, x2, y2), 1).numpy() if kind != "blended" else None,
    )
    if plan.holes and mixing.share is None and plan.shift is None:  # holes would stay uint8, and nothing may follow
        return plan, images, places
    return plan.mixed(mixing), images, places


MIXED = ("alone", "alone", "blended", "pasted", "either")
"""How samples are mixed with others."""


def by_formula(plan: Plan, images: Tensor, dtype: torch.dtype) -> Tensor:
    """The batch rendered without mixing by torch's operations, and then mixed as whole."""
    mixing = plan.mixing
    work = torch.float32 if mixing is not None and dtype.is_floating_point else dtype
    rendered = torch.empty(plan.shape, dtype=work)
    Rendering(replace(plan, mixing=None), work).by_operations(images, rendered)
    if mixing is None:
        return rendered
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
@given(plans(), st.sampled_from(VARIANTS), st.integers(0, 4))
@settings(max_examples=2 * EXAMPLES)
def test_kernels_give_the_bits_of_torchs_operations_and_formula(
    case: tuple[Plan, Tensor, Tensor], variant: tuple[torch.dtype, torch.memory_format], cut: int
) -> None:
    (plan, images, places), (dtype, memory_format) = case, variant
    if not fits(plan, dtype):
        dtype = torch.float32
    if dtype == torch.uint8:
        plan = replace(plan, shift=None, scale=None)
    expected = by_formula(plan, images[places], dtype)
    rendering, stop = Rendering(plan, dtype), min(cut, plan.count)
    out = torch.empty(plan.shape, dtype=dtype, memory_format=memory_format)
    for first, last in [(0, stop), (stop, plan.count)][:: 1 if plan.mixing else -1]:
        rendering.render_lines(first, ImageLines.of_batch(images, places[first:last].numpy()), out)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    if dtype != torch.float64:  # there torch's operations blend what float32 gave in float64
        rendering.by_operations(images[places], out)
        torch.testing.assert_close(out, expected, rtol=0, atol=0)


def past_caches(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, dtype: torch.dtype, memory_format: torch.memory_format
) -> Tensor:
    """Memory for a batch, which kernels write past the caches from now on if its parts are whole cache lines."""
    monkeypatch.setattr(made, "past_caches", lambda count, sample: True)
    out = MemoryPool(spare=1).empty(plan.shape, dtype, memory_format).fill_(99)
    together = plan.height * plan.width * (1 if memory_format == torch.contiguous_format else 3)
    if dtype != torch.float64:
        assert made.streams(written(out)) is (together * out.itemsize % 64 == 0)
    return out


@pytest.mark.parametrize(("dtype", "memory_format"), VARIANTS)
@pytest.mark.parametrize("mode", PADDING_MODES)
@pytest.mark.parametrize("size", [(100, 48), (70, 320), (16, 16), (3, 64), (50, 44)])
@pytest.mark.parametrize("gray", [False, True], ids=["plain", "gray and erased"])
def test_what_is_written_past_the_caches_has_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    memory_format: torch.memory_format,
    mode: str,
    size: tuple[int, int],
    gray: bool,
) -> None:
    height, width = size
    count, generator = 5, torch.Generator().manual_seed(height)
    images = torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator)
    plan = replace(
        Plan.unchanged(count, (3, height, width), 255.0),
        top=torch.randint(-9, 10, (count,), generator=generator).numpy(),
        left=torch.randint(-9, 10, (count,), generator=generator).numpy(),
        padding=Padding(mode=mode, fill=(7.0, 8.0, 9.0), margin=(9, 9)),
        flip_x=np.arange(count) % 2 == 0,
        flip_y=np.arange(count) % 3 == 0,
        program=Program.single_operation(GRAY, count, apply_mask=np.arange(count) == 1) if gray else NO_PROGRAM,
    )
    for kind in HOLES[: 3 if dtype.is_floating_point else 2] if gray else ():
        plan = plan.with_hole(hole_of(plan, kind, generator))
    out = past_caches(monkeypatch, plan, dtype, memory_format)
    Rendering(plan, dtype).render_batch(images, out)
    assert torch.equal(out, by_formula(plan, images, dtype))


def test_only_large_batches_of_large_samples_are_written_past_the_caches() -> None:
    def streams(count: int, side: int, first: int = 0) -> bool:
        memory = MemoryPool(spare=1).array(((count + 1) * 3 * side**2,), np.float32)
        return made.streams(memory[first : first + count * 3 * side**2].reshape(count, 3, side, side))

    assert streams(64, 224)
    assert streams(16, 224)
    assert not streams(1, 224)
    assert not streams(4096, 32)
    assert not streams(64, 225)
    assert not streams(64, 224, first=1)


def mixed_plan(count: int, height: int, width: int) -> tuple[Plan, Tensor]:
    """A plan that crops, flips, blends and pastes, and its images."""
    generator = torch.Generator().manual_seed(height)
    images = torch.randint(0, 256, (count, 3, height + 5, width + 5), dtype=torch.uint8, generator=generator)
    plan = Plan.unchanged(count, (3, height + 5, width + 5), 255.0)
    starts = torch.randint(0, 6, (2, count), generator=generator).numpy()
    plan = plan.cropped(starts[0], starts[1], height, width).flipped(FLIP_X, np.arange(count) % 2 == 0)
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
    out, rendering = past_caches(monkeypatch, plan, torch.float32, memory_format), Rendering(plan, torch.float32)
    for first, last in ((0, 2), (2, 5)):
        rendering.render_lines(first, ImageLines.of_batch(images, np.arange(first, last)), out)
    assert torch.equal(out, by_formula(plan, images, torch.float32))


def test_batches_take_turns_in_a_thread() -> None:
    cases = [mixed_plan(4, 9, 12), mixed_plan(4, 12, 9)]
    turns = [(Rendering(plan, torch.float32), images, torch.empty(plan.shape)) for plan, images in cases]
    for k in range(4):
        for rendering, images, out in turns:
            rendering.render_lines(k, ImageLines.of_batch(images, np.array([k])), out)
    for (plan, images), (_, _, out) in zip(cases, turns, strict=True):
        assert torch.equal(out, by_formula(plan, images, torch.float32))


def test_a_blend_cannot_be_rendered_to_uint8() -> None:
    plan, _ = mixed_plan(2, 4, 4)
    with pytest.raises(ValueError, match=r"cannot be rendered as torch\.uint8"):
        Rendering(plan, torch.uint8)
