"""A transpose of bytes inside of compiled loops, a block at a time, as vectors that LLVM maps to any processor's."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

ACROSS, DOWN = 16, 32
"""Bytes of a line of a block, and its lines."""

_do_boundscheck: Any = cgutils.do_boundscheck
_cgutils: Any = cgutils
_BYTE = ir.IntType(8)
_LINE, _WHOLE = ir.VectorType(_BYTE, ACROSS), ir.VectorType(_BYTE, DOWN)


def _mask(places: list[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places)


def _interleaved(half: int) -> ir.Constant:
    """Of two vectors of two lines each, the first or second halves of all lines, byte by byte in turns."""
    firsts = [ACROSS * lane + 8 * half + i for lane in range(DOWN // ACROSS) for i in range(8)]
    return _mask([place for first in firsts for place in (first, DOWN + first)])


_JOINED, _LOW, _HIGH = _mask(list(range(DOWN))), _interleaved(0), _interleaved(1)


def _transpose(context: Any, source: Any, row: Any, column: Any, out: Any, line: Any, place: Any) -> Any:
    """Generates code that transposes a block."""

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = [target.make_array(signature.args[n])(target, builder, arguments[n]) for n in (0, 3)]
        sizes, corners = ((DOWN, ACROSS), (ACROSS, DOWN)), (arguments[1:3], arguments[4:6])

        def at(n: int, i: int, kind: ir.VectorType) -> Any:
            """The address of line ``i`` of the block in either array."""
            y, x = corners[n]
            pitch, _ = _cgutils.unpack_tuple(builder, arrays[n].strides, 2)
            skipped = builder.add(builder.mul(builder.add(y, ir.Constant(y.type, i)), pitch), x)
            return builder.bitcast(builder.gep(arrays[n].data, [skipped]), kind.as_pointer())

        if target.enable_boundscheck:
            for array, size, corner in zip(arrays, sizes, corners, strict=True):
                lengths = _cgutils.unpack_tuple(builder, array.shape, 2)
                for begun, count, length in zip(corner, size, lengths, strict=True):
                    _do_boundscheck(target, builder, builder.add(begun, ir.Constant(begun.type, count - 1)), length)
        lines = [builder.load(at(0, i, _LINE), align=1) for i in range(DOWN)]
        # A vector holds two lines, 16 apart: so all that follows stays within 16 bytes, where shuffles are quickest.
        blocks = [builder.shuffle_vector(lines[i], lines[ACROSS + i], _JOINED) for i in range(ACROSS)]
        for _ in range(4):  # a perfect shuffle of 16 x 16 bytes, four times, is their transpose
            pairs = [(blocks[i], blocks[ACROSS // 2 + i]) for i in range(ACROSS // 2)]
            blocks = [builder.shuffle_vector(*pair, mask) for pair in pairs for mask in (_LOW, _HIGH)]
        for i, block in enumerate(blocks):
            builder.store(block, at(1, i, _WHOLE), align=1)
        return target.get_dummy_value()

    return types.void(source, types.uintp, types.uintp, out, types.uintp, types.uintp), code


transpose: Any = intrinsic(_transpose)
"""In compiled functions, ``transpose(source, row, column, out, line, place)`` transposes a block of bytes.

``source[row : row + DOWN, column : column + ACROSS]`` goes to ``out[line : line + ACROSS, place : place + DOWN]``; both
are contiguous uint8 in two dimensions, indices are unsigned. A block takes 64 shuffles of vectors. Words of eight bytes
that exchange bytes, pairs and fours by shifts and masks took seven times as long: half of the time of a resize.
"""
