"""The compiled kernels against torch's operations on whole batches: the same bits, wherever windows lie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import EXAMPLES, HOLES, VARIANTS, hole_of, planned
from torch import Tensor

from mmload.render import rendering as made
from mmload.render.kernel_arguments import PADDING_MODES, ImageLines, written
from mmload.render.level_program import INVERT, Program
from mmload.render.plan import Padding, Plan
from mmload.render.rendering import Rendering
from mmload.runtime.host_memory import MemoryPool


@pytest.mark.slow  # it compiles a dozen variants
@given(
    case=planned(),
    inverted=st.booleans(),
    holes=st.lists(st.sampled_from(HOLES), max_size=2),
    variant=st.sampled_from(VARIANTS),
)
@settings(max_examples=EXAMPLES)
def test_kernels_give_the_bits_of_torchs_operations(
    case: tuple[Plan, Tensor, Tensor],
    inverted: bool,
    holes: list[str],
    variant: tuple[torch.dtype, torch.memory_format],
) -> None:
    (plan, images, places), (dtype, memory_format) = case, variant
    generator = torch.Generator().manual_seed(plan.width)
    if dtype == torch.uint8:
        plan, holes = replace(plan, shift=None, scale=None), [kind for kind in holes if kind != "noise"]
    if inverted:
        on = torch.rand(plan.count, generator=generator) < 0.5
        plan = plan.followed_by(Program.single_operation(INVERT, plan.count, apply_mask=on.numpy()))
    for kind in holes:
        plan = plan.with_hole(hole_of(plan, kind, generator))
    rendering = Rendering(plan, dtype)
    expected = torch.empty(plan.shape, dtype=dtype)
    rendering.by_operations(images[places], expected)
    out = torch.empty(plan.shape, dtype=dtype, memory_format=memory_format)
    half = plan.count // 2
    for samples in (slice(half, plan.count), slice(0, half)):
        rendering.render_lines(samples.start, ImageLines.of_batch(images, places[samples].numpy()), out)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)


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
        gray=np.arange(count) == 1 if gray else None,
    )
    for kind in HOLES[: 3 if dtype.is_floating_point else 2] if gray else ():
        plan = plan.with_hole(hole_of(plan, kind, generator))
    pool = MemoryPool(spare=1)
    out = pool.empty(plan.shape, dtype, memory_format).fill_(99)
    monkeypatch.setattr(made, "past_caches", lambda count, sample: True)
    rendering = Rendering(plan, dtype)
    together = height * width * (1 if memory_format == torch.contiguous_format else 3)
    if out.dtype != torch.float64:
        assert made.streams(written(out)) is (together * out.itemsize % 64 == 0)
    rendering.render_batch(images, out)
    expected = torch.empty_like(out)
    rendering.by_operations(images, expected)
    assert torch.equal(out, expected)


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
