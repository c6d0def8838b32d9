"""Random plans of windows in and outside of small images, for the tests of every kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from bounds import BOUNDS_CHECK
from hypothesis import strategies as st
from torch import Tensor

from mmload.render.kernel_arguments import PADDING_MODES
from mmload.render.level_operations import GRAY
from mmload.render.plan import Hole, Padding, Plan, Program
from mmload.runtime.random_words import Numbers

FORMATS = (torch.contiguous_format, torch.channels_last)

DTYPES = (torch.uint8, torch.float32, torch.float16, torch.bfloat16, torch.float64)

VARIANTS = tuple((dtype, memory_format) for dtype in DTYPES for memory_format in FORMATS)
"""Outputs that kernels are compiled for: their dtypes and memory formats."""

EXAMPLES = 150

if BOUNDS_CHECK:
    # Most of the time goes into compiling, and each variant is the same source. A wrong index is wrong in all of them,
    # but for whole cache lines, whose number of values the item size decides. Bytes are written by changes of levels.
    VARIANTS, EXAMPLES = ((torch.float32, FORMATS[0]), (torch.float16, FORMATS[1])), 100

HOLES = ("one", "each", "noise")
"""What holes are overwritten by: one value, one per channel, noise."""


@st.composite
def planned(draw: st.DrawFn) -> tuple[Plan, Tensor, Tensor]:
    """A plan of windows in and outside of small images, the images, and which image each sample is."""
    count, channels = draw(st.integers(0, 4)), draw(st.integers(1, 4))
    height, width, rows, cols = (draw(st.integers(1, 40)) for _ in range(4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))

    def numbers(least: int, most: int) -> Numbers:
        return torch.randint(least, most + 1, (count,), generator=generator).numpy()

    margin = draw(st.integers(0, 9))
    fill = tuple(float(draw(st.integers(0, 255))) for _ in range(draw(st.sampled_from([1, channels]))))
    plan = Plan.unchanged(count, (channels, height, width), 255.0)
    plan = replace(
        plan,
        top=numbers(-margin, max(height + margin - rows, -margin)),
        left=numbers(-margin, max(width + margin - cols, -margin)),
        rows=rows,
        cols=cols,
        height=rows,
        width=cols,
        padding=Padding(mode=draw(st.sampled_from(PADDING_MODES)), fill=fill, margin=(margin + rows, margin + cols)),
        flip_x=numbers(0, 1).astype(np.bool_) if draw(st.booleans()) else False,
        flip_y=numbers(0, 1).astype(np.bool_) if draw(st.booleans()) else False,
    )
    if channels == 3 and draw(st.booleans()):
        plan = plan.followed_by(Program.single_operation(GRAY, count, apply_mask=numbers(0, 1).astype(np.bool_)))
    if draw(st.booleans()):
        plan = plan.scaled(*torch.randn((2, channels), generator=generator).numpy())
    images = torch.randint(0, 256, (count + 3, channels, height, width), dtype=torch.uint8, generator=generator)
    return plan, images, torch.from_numpy(numbers(0, count + 2))


def hole_of(plan: Plan, kind: str, generator: torch.Generator) -> Hole:
    """A hole in most samples."""

    def below(limit: Numbers | int) -> Numbers:
        return (torch.rand(plan.count, generator=generator).numpy() * limit).astype(np.int64)

    rows, cols = below(plan.height + 1), below(plan.width + 1)
    values = {"one": (7.0,), "each": tuple(float(3 * c) for c in range(plan.source[0])), "noise": None}
    return Hole(
        top=below(plan.height - rows + 1),
        left=below(plan.width - cols + 1),
        height=rows,
        width=cols,
        value=values[kind],
        noise=torch.randint(-(1 << 62), 1 << 62, (plan.count,), generator=generator).numpy() if kind == "noise" else 0,
    )
