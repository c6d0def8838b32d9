"""Pass over pixels on an NVIDIA GPU, compiled by Triton: it picks, crops, pads, mirrors and colors at once.

It reads a window's bytes once and writes each result once, in whole words, into the caller's memory. As on a CPU,
subtraction and multiplication are separate, in float32. It checks nothing: :mod:`mmload.render.rendering` does,
and uses torch's operations where Triton is missing (torch's CUDA builds for Linux bring it) or fails (it needs a C
compiler).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmload.render.plan import Plan
from mmload.render.plan_parts import LUMA_WEIGHTS, PADDING_MODES, Padding
from mmload.runtime.memory_pool import constant

ELEMENTS = 4096
"""Elements that one program writes."""

COLUMNS = 256
"""Upper bound on the columns of a program's tile."""

_INSIDE = -1
"""Mode of windows that do not reach out of their image."""

_CONSTANT, _EDGE, _REFLECT, _SYMMETRIC = (tl.constexpr(number) for number in range(4))  # of PADDING_MODES
_RED, _GREEN, _BLUE = (tl.constexpr(weight) for weight in LUMA_WEIGHTS)


def crop(
    images: Tensor,
    indices: Tensor | None,
    plan: Plan,
    shift: Tensor | None,
    scale: Tensor | None,
    out: Tensor,
) -> None:
    """Renders a plan that resizes nothing.

    Args:
        images: contiguous uint8 [N, C, H, W] on the device, or in host memory that it can read (pinned, registered).
        indices: int64 [B], the image of each sample; None: image k is sample k.
        plan: describes windows, flips and grays; its resampling and its holes are ignored.
        shift: float32, C values; None: 0.
        scale: float32, C values; None: 1.
        out: [B, C, h, w], contiguous or channels_last: floating, or uint8 without shift and scale.
    """
    count, channels, height, width = out.shape
    padding = plan.padding or Padding()
    fill = constant(padding.fill, torch.uint8, out.device).expand(channels).contiguous()
    interleaved = not out.is_contiguous()
    lines, columns = (height, width * channels) if interleaved else (channels * height, width)
    across = min(COLUMNS, triton.next_power_of_2(columns))
    over = max(1, min(ELEMENTS // across, triton.next_power_of_2(lines)))
    grid = count, triton.cdiv(lines, over), triton.cdiv(columns, across)
    # Triton launches on the current device, not on that of its arguments.
    with torch.cuda.device_of(out):  # type: ignore[no-untyped-call]  # torch has none
        _crop[grid](
            images,
            indices,
            plan.top,
            plan.left,
            plan.flip_x,
            plan.flip_y,
            plan.gray if channels == 3 else None,
            fill,
            shift,
            scale,
            out,
            CHANNELS=channels,
            ROWS=images.shape[2],
            COLS=images.shape[3],
            HEIGHT=height,
            WIDTH=width,
            INTERLEAVED=interleaved,
            MODE=_INSIDE if plan.padding is None else PADDING_MODES.index(padding.mode),
            OVER=over,
            ACROSS=across,
            enable_fp_fusion=False,
        )


@triton.jit
def _place(start, position, length, MODE: tl.constexpr):
    """Returns the positions on the image of a window's positions along an axis, and which of them are inside."""
    place = start + position
    inside = (place >= 0) & (place < length) if MODE == _CONSTANT else position >= 0
    if MODE == _EDGE:
        place = tl.minimum(tl.maximum(place, 0), length - 1)
    elif MODE == _REFLECT:
        period = max(2 * length - 2, 1)
        place = place % period
        place = tl.where(place < 0, place + period, place)
        place = tl.minimum(place, period - place)
    elif MODE == _SYMMETRIC:
        place = place % (2 * length)
        place = tl.where(place < 0, place + 2 * length, place)
        place = tl.minimum(place, 2 * length - 1 - place)
    return place, inside


@triton.jit
def _start(starts, k):
    """Returns a sample's number; 0 where there are none."""
    return 0 if starts is None else tl.load(starts + k).to(tl.int32)


@triton.jit
def _mirrored(flips, k, position, length):
    """Returns positions before a sample's flip."""
    if flips is not None:
        position = tl.where(tl.load(flips + k) != 0, length - 1 - position, position)
    return position


@triton.jit
def _of_channel(numbers, channel, CHANNELS: tl.constexpr):
    """Returns each channel's number, from scalars: a pointer per value would shuffle all values between threads."""
    number = tl.load(numbers)
    for one in tl.static_range(1, CHANNELS):
        number = tl.where(channel == one, tl.load(numbers + one), number)
    return number


@triton.jit
def _value(pixels, inside, fill, channel, CHANNELS: tl.constexpr, MODE: tl.constexpr):
    """Returns bytes as float32, and the constant outside of the image."""
    value = tl.load(pixels, mask=inside, other=0)
    if MODE == _CONSTANT:
        value = tl.where(inside, value, _of_channel(fill, channel, CHANNELS))
    return value.to(tl.float32)


@triton.jit
def _crop(
    images,
    indices,
    tops,
    lefts,
    flips_x,
    flips_y,
    grays,
    fill,
    shift,
    scale,
    out,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    MODE: tl.constexpr,
    OVER: tl.constexpr,
    ACROSS: tl.constexpr,
):
    """Renders a tile of one sample, in the order of the output's memory; :func:`crop` describes the arguments."""
    k = tl.program_id(0)
    line = tl.program_id(1) * OVER + tl.arange(0, OVER)[:, None]
    column = tl.program_id(2) * ACROSS + tl.arange(0, ACROSS)[None, :]
    if INTERLEAVED:
        y, x, channel = line, column // CHANNELS, column % CHANNELS
        wanted = (line < HEIGHT) & (column < WIDTH * CHANNELS)
        length = WIDTH * CHANNELS
    else:
        y, x, channel = line % HEIGHT, column, tl.minimum(line // HEIGHT, CHANNELS - 1)
        wanted = (line < CHANNELS * HEIGHT) & (column < WIDTH)
        length = WIDTH
    row, above = _place(_start(tops, k), _mirrored(flips_y, k, y, HEIGHT), ROWS, MODE)
    col, beside = _place(_start(lefts, k), _mirrored(flips_x, k, x, WIDTH), COLS, MODE)
    inside = wanted & above & beside
    place = k if indices is None else tl.load(indices + k)
    image = images + place.to(tl.int64) * (CHANNELS * ROWS * COLS)
    at = row * COLS + col
    value = _value(image + channel * (ROWS * COLS) + at, inside, fill, channel, CHANNELS, MODE)
    if grays is not None:
        gray = tl.load(grays + k) != 0
        red = _value(image + at, inside, fill, 0, CHANNELS, MODE)
        green = _value(image + at + ROWS * COLS, inside, fill, 1, CHANNELS, MODE)
        blue = _value(image + at + 2 * ROWS * COLS, inside, fill, 2, CHANNELS, MODE)
        luma = tl.floor(red * _RED + green * _GREEN + blue * _BLUE)
        value = tl.where(gray, luma, value)
    if shift is not None:
        value -= _of_channel(shift, channel, CHANNELS)
    if scale is not None:
        value *= _of_channel(scale, channel, CHANNELS)
    target = out + k.to(tl.int64) * (CHANNELS * HEIGHT * WIDTH) + line * length + column
    tl.store(target, value.to(out.dtype.element_ty), mask=wanted)
