"""Rounds float32 to float16 and bfloat16 inside compiled loops: once, to nearest even, with the bits that torch gives.

numpy has no bfloat16, and numba no float16 on CPUs. Compiled loops therefore see an array of either as its bits, viewed
as :data:`BITS` says.
"""

from __future__ import annotations

import platform
from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

BITS = {torch.float16: torch.int16, torch.bfloat16: torch.uint16}
"""The dtype as which compiled loops see each: :func:`rounded` takes int16 for float16, uint16 for bfloat16."""

_SHORT, _WORD, _FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()


def _rounded(context: Any, value: Any, out: Any) -> Any:
    """Generates code for a float32 as an element of ``out``."""
    rounds = {types.int16: _float16, types.uint16: _bfloat16}.get(out.dtype)

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return arguments[0] if rounds is None else rounds(target, builder, arguments[0])

    return (types.float32 if rounds is None else out.dtype)(types.float32, out), code


rounded: Any = intrinsic(_rounded)
"""In compiled functions, ``out[i] = rounded(value, out)`` stores a float32 into an array of either dtype, or any other.

A crop takes 0.85 of the CPU time of a float32 one to float16 and as long to bfloat16: half as many bytes are written,
which pays for the conversion. A table of the 256 levels of a channel would be as exact, but loads of single values do
not vectorize.
"""


def _bfloat16(target: Any, builder: Any, value: Any) -> Any:
    """The upper half of the bits, rounded by an integer sum, which vectorizes; so NaN may have no payload.

    The instruction of AVX512-BF16 takes subnormal numbers for 0, which torch does not.
    """
    bits = builder.bitcast(value, _WORD)
    odd = builder.and_(builder.lshr(bits, _WORD(16)), _WORD(1))
    carried = builder.add(builder.add(bits, _WORD(0x7FFF)), odd)
    return builder.trunc(builder.lshr(carried, _WORD(16)), _SHORT)


def _float16(target: Any, builder: Any, value: Any) -> Any:
    """By the processor's instruction, which LLVM vectorizes, or else by integers."""
    if _has_float16(target):
        return builder.bitcast(builder.fptrunc(value, ir.HalfType()), _SHORT)
    return _float16_of_integers(builder, value)


def _has_float16(target: Any) -> bool:
    """Whether the processor converts to float16: ARM's do, and x86 with AVX and F16C, that is since 2013.

    Elsewhere LLVM calls a function of a compiler's library, which a process need not have.
    """
    if platform.machine().lower() in ("arm64", "aarch64"):
        return True
    return {"+avx", "+f16c"} <= set(target.codegen()._tm_features.split(","))


def _float16_of_integers(builder: Any, value: Any) -> Any:
    """Without an instruction and without branches, as ``float_to_half_fast3_rtne`` of Fabian Giesen.

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
