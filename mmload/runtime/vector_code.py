"""Machine code that intrinsics put into kernels, made of llvmlite's public interface: half precision, HSV colors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from mmload.runtime.intrinsics import HSV_BITS, HUES

_BYTE, _SHORT, _WORD, _FLOAT = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.FloatType()
_LANE = 16
"""Bytes within which x86 widens and packs."""

_ROUND = 1.5 * 2 ** (23 - HSV_BITS)
"""A float32 that is added and subtracted rounds to ``HSV_BITS``, as OpenCV's tables are rounded."""

_RAISED = 2.0**16
"""Factor by which sectors are too large, as words whose upper halves they are."""


def to_bfloat16(target: Any, builder: Any, value: Any) -> Any:
    """Generates the upper half of the bits, rounded by an integer sum, which vectorizes; so NaN may have no payload.

    The instruction of AVX512-BF16 takes subnormal numbers for 0, which torch does not.
    """
    bits = builder.bitcast(value, _WORD)
    odd = builder.and_(builder.lshr(bits, _WORD(16)), _WORD(1))
    carried = builder.add(builder.add(bits, _WORD(0x7FFF)), odd)
    return builder.trunc(builder.lshr(carried, _WORD(16)), _SHORT)


def to_float16_by_integers(builder: Any, value: Any) -> Any:
    """Generates code without branches, as ``float_to_half_fast3_rtne`` of Fabian Giesen.

    An exponent that float16 has is moved and the rest rounded as above; for a smaller one the sum with a half leaves a
    subnormal number's bits in the lowest bits, rounded; a larger one gives infinity.
    """
    bits = builder.bitcast(value, _WORD)
    size = builder.and_(bits, _WORD(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(size, _WORD(13)), _WORD(1))
    moved = builder.add(size, _WORD((((15 - 127) << 23) + 0xFFF) & 0xFFFFFFFF))
    normal = builder.lshr(builder.add(moved, odd), _WORD(13))
    sum_ = builder.fadd(builder.bitcast(size, _FLOAT), _FLOAT(0.5))
    subnormal = builder.sub(builder.bitcast(sum_, _WORD), _WORD(126 << 23))
    small = builder.icmp_unsigned("<", size, _WORD((127 - 14) << 23))
    finite = builder.select(small, subnormal, normal)
    beyond = builder.icmp_unsigned(">", size, _WORD(255 << 23))
    special = builder.select(beyond, _WORD(0x7E00), _WORD(0x7C00))
    large = builder.icmp_unsigned(">=", size, _WORD((127 + 16) << 23))
    sign = builder.lshr(builder.xor(bits, size), _WORD(16))
    return builder.trunc(builder.or_(builder.select(large, special, finite), sign), _SHORT)


def vector_bytes(features: Sequence[str]) -> int:
    """Returns the bytes of a vector of a processor with these features, such as "+avx2"."""
    return 64 if "+avx512bw" in features else 32 if "+avx2" in features else 16


class HsvCode:
    """Generator of the code that changes hue, saturation and value of the pixels of one vector of bytes.

    A block is computed from its bytes to its bytes in registers, four vectors at each step. A processor looks only some
    64 vector operations ahead, so it waits in the long chain of one vector for each result: loops that LLVM vectorizes
    took 1.5 times as long. A vector's groups are every 16 bytes' first, second, third and last four: instructions that
    widen and pack such groups need no other that moves values between the parts of a vector.

    Args:
        builder: builder of the code.
        size: bytes of a vector, as :func:`vector_bytes` has it.
        is_x86: whether it is code for x86.

    Attributes:
        size: bytes of a vector.
        bytes_: type of a vector of bytes.
    """

    def __init__(self, builder: ir.IRBuilder, size: int, is_x86: bool) -> None:
        self._builder: Any = builder  # llvmlite is only partially typed
        self.size, self.bytes_ = size, ir.VectorType(_BYTE, size)
        self._count, self._packs = size // 4, is_x86 and size > _LANE
        self._shorts = ir.VectorType(_SHORT, size // 2)
        self._words, self._floats = ir.VectorType(_WORD, self._count), ir.VectorType(_FLOAT, self._count)

    def change(self, places: Sequence[Any], turn: Any, stronger: Any, brighter: Any) -> None:
        """Changes pixels in place.

        Args:
            places: addresses of red, green and blue.
            turn: float32, rotation in 180ths of a turn, and a half: from it on hues from -30 to 150 are from 0 to 359.
            stronger: float32, factor of the saturation.
            brighter: float32, factor of the value.
        """
        b = self._builder
        numbers = [self._repeated(one) for one in (turn, stronger, brighter)]
        changed = self._colors(*self._hsv([b.load(place, align=1) for place in places], *numbers))
        for place, values in zip(places, changed, strict=True):
            b.store(values, place, align=1)

    def _hsv(self, planes: Sequence[Any], turn: Any, stronger: Any, brighter: Any) -> tuple[list[Any], ...]:
        """Finds the changed hues, values and saturations: words, words, and floats from 0 to 255.

        A quotient by 0 is infinite, and makes a gray pixel's hue and a black pixel's saturation no number. Comparisons
        take a number in place of that, before it becomes an integer: a gray pixel's hue does not count, and a black
        pixel's colors are 0 times it.
        """
        b = self._builder
        most, reach, sectors = self._sectors(planes)
        value, wide = self._levels(most), self._levels(reach)
        per_value, per_reach = ([b.fdiv(self._number(1), one) for one in each] for each in (value, wide))
        per_value = self._rounded([self._fma(one, 255, _ROUND) for one in per_value], _ROUND)
        per_reach = [self._fma(one, HUES / 6 / _RAISED, _ROUND / _RAISED) for one in per_reach]
        per_reach = self._rounded(per_reach, _ROUND / _RAISED)
        strength = [self._fma(*two, 0.5) for two in zip(wide, per_value, strict=True)]
        hue = [self._fma(*two, turn) for two in zip(sectors, per_reach, strict=True)]
        hue = [self._least(one, self._number(2 * HUES), "fcmp_ordered") for one in hue]
        value = [b.fmul(one, brighter) for one in value]
        strength = [self._called("floor", one) for one in strength]
        hues, high = self._whole(hue), self._whole(value)
        strength = [b.fmul(one, stronger) for one in strength]
        hues = [self._least(one, b.sub(one, self._whole_number(HUES)), "icmp_unsigned") for one in hues]
        high = [self._least(one, self._whole_number(255), "icmp_signed") for one in high]
        strength = [self._least(one, self._number(255), "fcmp_ordered") for one in strength]
        return hues, high, [self._called("floor", one) for one in strength]

    def _colors(self, hues: list[Any], high: list[Any], strength: list[Any]) -> list[Any]:
        """Returns red, green and blue as vectors of bytes."""
        b = self._builder
        share = self._shares([b.sitofp(one, self._floats) for one in hues])
        value = self._scaled([b.sitofp(one, self._floats) for one in high], 1 / 255)
        strength = self._scaled(strength, 1 / 255)
        weak = [b.fmul(*two) for two in zip(strength, share, strict=True)]
        low, between = ([b.fsub(self._number(1), one) for one in each] for each in (strength, weak))
        low, between = ([b.fmul(*two) for two in zip(value, each, strict=True)] for each in (low, between))
        low, between = (self._whole(self._scaled(each, 255)) for each in (low, between))
        return self._placed(*(self._packed(each) for each in (hues, high, low, between)))

    def _sectors(self, planes: Sequence[Any]) -> tuple[Any, Any, list[Any]]:
        """Finds the greatest level, its distance to the least, and hues times that in sixths of a turn, raised."""
        b = self._builder
        red, green, blue = planes
        most = self._extreme(">", self._extreme(">", red, green), blue)
        reach = b.sub(most, self._extreme("<", self._extreme("<", red, green), blue))
        is_red, is_green = b.icmp_unsigned("==", most, red), b.icmp_unsigned("==", most, green)

        def chosen(of_red: Any, of_green: Any, of_blue: Any) -> Any:
            return b.select(is_red, of_red, b.select(is_green, of_green, of_blue))

        more, less = chosen(green, blue, red), chosen(blue, red, green)
        turns = chosen(*(ir.Constant(self.bytes_, [2 * k] * self.size) for k in range(3)))
        sectors = []
        for half in range(2):
            first, second, times, far = (self._half(one, half) for one in (more, less, turns, reach))
            sectors.append(b.add(b.sub(first, second), b.mul(far, times)))
        return most, reach, [self._upper(sectors[group // 2], group % 2) for group in range(4)]

    def _half(self, values: Any, half: int) -> Any:
        """Returns shorts of the first or second eight bytes of each lane."""
        picks = [start + 8 * half + i for start in range(0, self.size, _LANE) for i in range(8)]
        return self._builder.bitcast(self._mixed(values, [each for pick in picks for each in (pick, -1)]), self._shorts)

    def _upper(self, values: Any, half: int) -> Any:
        """Returns the first or second four shorts of each lane as floats, raised."""
        picks = [start + 4 * half + i for start in range(0, self.size // 2, _LANE // 2) for i in range(4)]
        words = self._builder.bitcast(self._mixed(values, [each for pick in picks for each in (-1, pick)]), self._words)
        return self._builder.sitofp(words, self._floats)

    def _levels(self, values: Any) -> list[Any]:
        """Returns the groups of a vector of bytes as floats."""
        groups = []
        for group in range(4):
            picks = [start + 4 * group + i for start in range(0, self.size, _LANE) for i in range(4)]
            words = self._mixed(values, [each for pick in picks for each in (pick, -1, -1, -1)])
            groups.append(self._builder.sitofp(self._builder.bitcast(words, self._words), self._floats))
        return groups

    def _mixed(self, values: Any, picks: Sequence[int]) -> Any:
        """Returns the picked elements of a vector; 0 for -1."""
        size, nothing = len(picks), ir.Constant(values.type, [0] * len(picks))
        mask = ir.Constant(ir.VectorType(_WORD, size), [size + k if pick < 0 else pick for k, pick in enumerate(picks)])
        return self._builder.shuffle_vector(values, nothing, mask)

    def _shares(self, hue: list[Any]) -> list[Any]:
        """Returns how far hues from 0 to 179 are from the middle of their third, from 1 at its ends to 0."""
        thirds = self._scaled(hue, 3 / HUES)
        begins = [self._called("floor", one) for one in thirds]
        parts = [self._builder.fsub(*two) for two in zip(thirds, begins, strict=True)]
        return [self._called("fabs", self._fma(one, -2, 1)) for one in parts]

    def _packed(self, groups: Sequence[Any]) -> Any:
        """Returns groups of words from 0 to 255 as a vector of bytes."""
        if self._packs:
            kind = "avx512.{}.512" if self.size == 64 else "avx2.{}"
            halves = [self._called(kind.format("packssdw"), *groups[k : k + 2], out=self._shorts) for k in (0, 2)]
            return self._called(kind.format("packuswb"), *halves, out=self.bytes_)
        b, count = self._builder, self._count
        small = [b.trunc(one, ir.VectorType(_BYTE, count)) for one in groups]
        kind = ir.VectorType(_WORD, 2 * count)
        first, second = (
            b.shuffle_vector(small[k], small[k + 1], ir.Constant(kind, list(range(2 * count)))) for k in (0, 2)
        )
        picks = [group * count + start + i for start in range(0, count, 4) for group in range(4) for i in range(4)]
        return b.shuffle_vector(first, second, ir.Constant(ir.VectorType(_WORD, self.size), picks))

    def _placed(self, hue: Any, high: Any, low: Any, between: Any) -> list[Any]:
        """Returns red, green and blue: each has the level that the sixth of the circle gives it."""
        select = self._builder.select
        first, second, third, fourth, fifth = (
            self._builder.icmp_unsigned("<", hue, ir.Constant(self.bytes_, [end] * self.size))
            for end in range(HUES // 6, HUES, HUES // 6)
        )
        rising = select(first, high, select(second, between, low))
        red = select(fourth, rising, select(fifth, between, high))
        green = select(first, between, select(third, high, select(fourth, between, low)))
        blue = select(second, low, select(third, between, select(fifth, high, between)))
        return [red, green, blue]

    def _extreme(self, sign: str, first: Any, second: Any) -> Any:
        return self._builder.select(self._builder.icmp_unsigned(sign, first, second), first, second)

    def _least(self, first: Any, second: Any, compare: str) -> Any:
        return self._builder.select(getattr(self._builder, compare)("<", first, second), first, second)

    def _rounded(self, values: list[Any], added: float) -> list[Any]:
        """Subtracts what was added to round."""
        return [self._builder.fsub(one, self._number(added)) for one in values]

    def _scaled(self, values: list[Any], factor: float) -> list[Any]:
        return [self._builder.fmul(one, self._number(factor)) for one in values]

    def _whole(self, values: list[Any]) -> list[Any]:
        return [self._builder.fptosi(one, self._words) for one in values]

    def _fma(self, first: Any, second: Any, third: Any) -> Any:
        values = (self._number(one) if isinstance(one, int | float) else one for one in (first, second, third))
        return self._called("fma", *values)

    def _called(self, name: str, *values: Any, out: Any = None) -> Any:
        """Calls a function of LLVM on vectors: one of x86 if ``out``, the type of the result, is given."""
        full = f"llvm.{name}.v{self._count}f32" if out is None else f"llvm.x86.{name}"
        kind = ir.FunctionType(out or self._floats, [one.type for one in values])
        known = self._builder.module.globals.get(full)
        return self._builder.call(known or ir.Function(self._builder.module, kind, full), values)

    def _number(self, number: float) -> Any:
        return ir.Constant(self._floats, [number] * self._count)

    def _whole_number(self, number: int) -> Any:
        return ir.Constant(self._words, [number] * self._count)

    def _repeated(self, value: Any) -> Any:
        one = self._builder.insert_element(self._floats(ir.Undefined), value, _WORD(0))
        return self._builder.shuffle_vector(one, one, ir.Constant(self._words, [0] * self._count))
