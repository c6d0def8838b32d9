"""Rectangles that are overwritten: the compiled loop, and the noise for it and for torch's operations.

Both kinds of noise have the same bits. The kernels that color lines call the loop while these lines are in cache.

Noise is a pure function of a key and a counter: Box and Muller's two numbers of each word, in float32. Logarithm, sine
and cosine are polynomials here, as no two libraries round theirs alike.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.render.kernel_arguments import Holes, Pixels
from mmload.runtime.intrinsics import Arena, carve, rounded
from mmload.runtime.kernels import USED, called, inlined
from mmload.runtime.random_words import GOLDEN, mix_tensor, mix_word, shift_right, signed

if TYPE_CHECKING:
    from torch import Tensor

# Coefficients of Cephes' logf, sinf and cosf, highest power first.
_LOG = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
_SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)

_LN_2 = 0.6931471805599453
_ROOT_HALF = 0x3F3504F3
"""The bits of the root of 1/2: mantissas from there to the root of 2 keep the logarithm's argument around 1."""

_EIGHTH = math.pi / 4 * 2.0**-31
"""Radians of a signed 32-bit integer that stands for an eighth of a turn either way."""

_INCREMENT = np.uint64(GOLDEN)
_ONE, _32, _33 = np.uint64(1), np.uint64(32), np.uint64(33)
_U, _F, _I = np.uintp, np.float32, np.int32


@inlined
def _polynomial_9(x: Any) -> Any:
    """Evaluates the logarithm's polynomial, written out, as loops over constants do not vectorize."""
    p = _F(_LOG[0]) * x + _F(_LOG[1])
    p = p * x + _F(_LOG[2])
    p = p * x + _F(_LOG[3])
    p = p * x + _F(_LOG[4])
    p = p * x + _F(_LOG[5])
    p = p * x + _F(_LOG[6])
    p = p * x + _F(_LOG[7])
    return p * x + _F(_LOG[8])


@called
def normal_line(key: np.uint64, first: np.uint64, half: Any, line: npt.NDArray[np.float32]) -> None:
    """Fills ``line`` with 2 * ``half`` numbers, those of the words ``first`` and after: value i and value i + half.

    Words first, whose 64-bit products take other registers: in one loop both took 2.7 times as long (5.2 ns a number).
    Integers are converted after each operation, as numba widens them otherwise.
    """
    half = _U(half)
    for i in range(half):
        word = mix_word(key + (first + np.uint64(i) + _ONE) * _INCREMENT)
        line[i] = _I(np.uint32(word >> _33)).view(np.float32)
        line[half + i] = _I(np.uint32(word)).view(np.float32)
    for i in range(half):
        upper, lower = _F(line[i]).view(np.int32), _F(line[half + i]).view(np.int32)
        uniform = (_F(upper) + _F(0.5)) * _F(2.0**-31)
        bits = _F(uniform).view(np.int32)
        power = _I(_I(bits - _I(_ROOT_HALF)) >> _I(23))
        x = _I(bits - _I(power << _I(23))).view(np.float32) - _F(1)
        square = x * x
        logarithm = square * x * _polynomial_9(x) - _F(0.5) * square + x + _F(power) * _F(_LN_2)
        radius = math.sqrt(abs(_F(-2) * logarithm))
        angle = _F(_I(lower << _I(2))) * _F(_EIGHTH)
        square = angle * angle
        sine = ((_F(_SINE[0]) * square + _F(_SINE[1])) * square + _F(_SINE[2])) * square * angle + angle
        cosine = (_F(_COSINE[0]) * square + _F(_COSINE[1])) * square + _F(_COSINE[2])
        cosine = cosine * square * square - _F(0.5) * square + _F(1)
        signed = radius if lower >= _I(0) else -radius
        across = _I(lower & _I(1 << 30)) != _I(0)
        line[i] = (sine if across else cosine) * signed
        line[half + i] = (cosine if across else sine) * signed


def normals(key: Tensor, number: Tensor, second: Tensor) -> Tensor:
    """Returns the numbers of :func:`normal_line` by torch's operations: float32.

    Args:
        key: int64, any shape.
        number: int64, which word, counted from 0; broadcast with the key.
        second: bool, whether the word's second value is wanted.
    """
    import torch  # here, as builds do without

    word = mix_tensor(key + (number + 1) * signed(GOLDEN))
    lower = word & 0xFFFFFFFF
    lower = torch.where(lower >= 1 << 31, lower - (1 << 32), lower).to(torch.int32)
    uniform = (shift_right(word, 33).to(torch.float32) + 0.5) * 2.0**-31
    bits = uniform.view(torch.int32)
    power = (bits - _ROOT_HALF) >> 23
    x = (bits - (power << 23)).view(torch.float32) - 1
    square = x * x
    logarithm = square * x * _by_horner(_LOG, x) - 0.5 * square + x + power.to(torch.float32) * _LN_2
    radius = (-2 * logarithm).abs().to(torch.float64).sqrt().to(torch.float32)  # torch's own of float32 errs by a bit
    angle = (lower << 2).to(torch.float32) * _EIGHTH
    square = angle * angle
    sine = _by_horner(_SINE, square) * square * angle + angle
    cosine = _by_horner(_COSINE, square) * square * square - 0.5 * square + 1
    across = (lower & (1 << 30)) != 0
    return torch.where(across ^ second, sine, cosine) * torch.where(lower >= 0, radius, -radius)


def _by_horner(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Evaluates a polynomial, rounded after each product and sum."""
    import torch

    value = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


class LineRange(NamedTuple):
    """Lines of a sample, in the order of the output's memory.

    Attributes:
        plane: first channel of the lines.
        depth: channels that are interleaved in a line.
        begin: first line.
        end: one past the last line.
        across: values of a line.
    """

    plane: Any
    depth: Any
    begin: int
    end: int
    across: int


@inlined
def erased_lines(holes: Holes, sample: int) -> tuple[int, int]:
    """Returns the first line with a hole of a sample and one past the last; (a large number, 0) if it has none."""
    begin, end = 1 << 62, 0
    for n in range(holes.sides.shape[1]):
        hole = holes.sides[sample, n]
        if hole.height > 0:
            begin, end = min(begin, hole.top), max(end, hole.top + hole.height)
    return begin, end


@called
def erase(holes: Holes, sample: int, lines: LineRange, target: Pixels, at: Any, arena: Arena) -> None:
    """Overwrites a sample's holes in some of its lines.

    A line of noise takes the words after those of the hole's lines above it, and of the channels before.

    Args:
        holes: holes of the samples of a call.
        sample: number of the sample among them.
        lines: lines that are in ``target``.
        target: flat; float32, uint8 or the bits of half precision.
        at: index of the first line's first value.
        arena: working memory.
    """
    plane, at, depth = _U(lines.plane), np.int64(at), lines.depth  # uint64 and int64 together make floats
    values, begun = holes.values, arena[USED]
    noise = carve(arena, lines.across + 1, np.float32)
    for n in range(holes.sides.shape[1]):
        hole = holes.sides[sample, n]
        top, left, height, width, key = hole.top, hole.left, hole.height, _U(hole.width), np.uint64(hole.noise)
        half, same = (width + _U(1)) // _U(2), True  # NaN is not the same as itself
        for c in range(_U(depth)):
            same = same and values[n, plane + c] == values[n, plane]
        for y in range(max(top, lines.begin), min(top + height, lines.end)):
            line = _U(at + (y - lines.begin) * lines.across + left * depth)
            if same:
                value = rounded(values[n, plane], target)
                for i in range(width * _U(depth)):
                    target[line + i] = value
                continue
            for c in range(_U(depth)):
                if np.isnan(values[n, plane + c]):
                    words = ((plane + c) * _U(height) + _U(y - top)) * half
                    normal_line(key, np.uint64(words), half, noise)
                    for x in range(width):
                        target[line + x * _U(depth) + c] = rounded(noise[x], target)
                else:
                    value = rounded(values[n, plane + c], target)
                    for x in range(width):
                        target[line + x * _U(depth) + c] = value
    arena[USED] = begun
