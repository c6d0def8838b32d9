"""Functions that kernels call and whose code is generated here; no other module uses private interfaces of numba.

:mod:`mmload.runtime.intrinsics` says what each of them does, and declares them without numba.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

from mmload.runtime.intrinsics import (
    LINE,
    MEAN_BITS,
    MEAN_HALF,
    NEIGHBORS,
    TRANSPOSED_COLUMNS,
    TRANSPOSED_ROWS,
)
from mmload.runtime.machine_code import processor

_BYTE, _SHORT, _WORD, _LONG, _FLOAT = *map(ir.IntType, (8, 16, 32, 64)), ir.FloatType()


def _array(target: Any, builder: Any, signature: Any, arguments: Any, place: int) -> Any:
    """Returns the fields of the array that is an argument of an intrinsic."""
    return target.make_array(signature.args[place])(target, builder, arguments[place])


@intrinsic
def array_at(context: Any, address: Any, shape: Any, dtype: Any) -> Any:
    kind = types.Array(dtype.dtype, len(shape) if isinstance(shape, types.BaseTuple) else 1, "C")

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _BYTE.as_pointer())
        return arrayobj.np_cfarray(target, builder, kind(types.voidptr, shape), (pointer, arguments[1]))

    return kind(address, shape, dtype), code


def call_c(signature: str) -> Any:
    """Makes an intrinsic ``call(address, arguments)`` that calls a C function of a signature."""
    declared = _c_signature(signature)

    def _call(context: Any, address: Any, arguments: Any) -> Any:
        def code(target: Any, builder: Any, signature: Any, values: Any) -> Any:
            taken = [target.get_value_type(one) for one in declared.args]
            kind = ir.FunctionType(target.get_value_type(declared.return_type), taken)
            passed = cgutils.unpack_tuple(builder, values[1], len(taken))
            return builder.call(builder.inttoptr(values[0], kind.as_pointer()), passed)

        return declared.return_type(types.uintp, types.Tuple(declared.args)), code

    return intrinsic(_call)


def external(name: str, signature: str) -> Any:
    """Makes a function of the C library."""
    return types.ExternalFunction(name, _c_signature(signature))


def _c_signature(text: str) -> Any:
    result, *taken = (getattr(types, name) for name in re.findall(r"\w+", text))
    return result(*taken)


@intrinsic
def fma(context: Any, a: Any, b: Any, c: Any) -> Any:
    made = types.float32(types.float32, types.float32, types.float32)
    return made, lambda target, builder, signature, arguments: builder.fma(*arguments)


@intrinsic
def select(context: Any, condition: Any, first: Any, second: Any) -> Any:
    made = first(types.boolean, first, first)
    return made, lambda target, builder, signature, arguments: builder.select(*arguments)


@intrinsic(prefer_literal=True)
def stack_memory(context: Any, size: Any) -> Any:
    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        memory = cgutils.alloca_once(builder, ir.ArrayType(_BYTE, size.literal_value))
        memory.align = LINE
        return builder.ptrtoint(memory, _LONG)

    return types.uintp(size), code


@intrinsic
def never_inline(context: Any) -> Any:
    return types.void(), lambda target, builder, *_: builder.function.attributes.add("noinline")


@intrinsic
def prefetch(context: Any, values: Any, at: Any) -> Any:
    def act(target: Any, builder: Any, signature: Any, arguments: Any) -> None:
        array = _array(target, builder, signature, arguments, 0)
        line = _vector(target, builder, array, arguments[1], ir.VectorType(_BYTE, 1))
        kind = ir.FunctionType(ir.VoidType(), [line.type, _WORD, _WORD, _WORD])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(ask, [line, _WORD(0), _WORD(3), _WORD(1)])

    return types.void(values, types.uintp), act


@intrinsic
def stream_line(context: Any, source: Any, at: Any, out: Any, place: Any) -> Any:
    def act(target: Any, builder: Any, signature: Any, arguments: Any) -> None:
        values, sink = (_array(target, builder, signature, arguments, k) for k in (0, 2))
        element = target.get_data_type(signature.args[0].dtype)
        kind = ir.VectorType(element, LINE // target.get_abi_sizeof(element))
        line = builder.load(_vector(target, builder, values, arguments[1], kind), align=1)
        store = builder.store(line, _vector(target, builder, sink, arguments[3], kind), align=LINE)
        store.set_metadata("nontemporal", builder.module.add_metadata([_WORD(1)]))

    return types.void(source, types.uintp, out, types.uintp), act


@intrinsic
def finish_streams(context: Any) -> Any:
    def act(target: Any, builder: Any, signature: Any, arguments: Any) -> None:
        builder.fence("seq_cst")

    return types.void(), act


@intrinsic
def transpose(context: Any, source: Any, corner: Any, pitch: Any, out: Any, place: Any, across: Any) -> Any:
    half = TRANSPOSED_ROWS // 2

    def mask(places: Sequence[int]) -> ir.Constant:
        return ir.Constant(ir.VectorType(_WORD, len(places)), list(places))

    def interleaved(part: int) -> ir.Constant:
        """Returns the mask that interleaves the first or second halves of all lines of two vectors of two lines."""
        firsts = [half * lane + 8 * part + i for lane in range(2) for i in range(8)]
        return mask([place for first in firsts for place in (first, TRANSPOSED_ROWS + first)])

    masks = interleaved(0), interleaved(1)

    def act(target: Any, builder: Any, signature: Any, arguments: Any) -> None:
        def lines_of(place: int, rows: int, columns: int) -> list[Any]:
            """Returns the address of each line of the block in an array, whose corner and pitch are after it."""
            array, (begin, step) = (
                _array(target, builder, signature, arguments, place),
                arguments[place + 1 : place + 3],
            )
            begins = (builder.add(begin, builder.mul(step, ir.Constant(step.type, i))) for i in range(rows))
            return [_vector(target, builder, array, one, ir.VectorType(_BYTE, columns)) for one in begins]

        lines = [builder.load(line, align=1) for line in lines_of(0, TRANSPOSED_ROWS, TRANSPOSED_COLUMNS)]
        # A vector holds two lines, 16 apart: so all that follows stays within 16 bytes, where shuffles are quickest.
        joined = mask(range(TRANSPOSED_ROWS))
        blocks = [builder.shuffle_vector(lines[i], lines[half + i], joined) for i in range(half)]
        for _ in range(4):  # a perfect shuffle of 16 x 16 bytes, four times, is their transpose
            pairs = [(blocks[i], blocks[half // 2 + i]) for i in range(half // 2)]
            blocks = [builder.shuffle_vector(*two, one) for two in pairs for one in masks]
        for line, block in zip(lines_of(3, TRANSPOSED_COLUMNS, TRANSPOSED_ROWS), blocks, strict=True):
            builder.store(block, line, align=1)

    return types.void(source, types.uintp, types.uintp, out, types.uintp, types.uintp), act


@intrinsic
def rounded(context: Any, value: Any, out: Any) -> Any:
    made = _rounded_type(out)(types.float32, out)
    return made, lambda target, builder, signature, arguments: _rounded(builder, arguments[0], out.dtype)


@intrinsic
def colored(context: Any, level: Any, less: Any, times: Any, out: Any) -> Any:
    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if out.dtype == types.uint8:
            return arguments[0]
        value = builder.fsub(builder.uitofp(arguments[0], _FLOAT), arguments[1])
        return _rounded(builder, builder.fmul(value, arguments[2]), out.dtype)

    made = types.uint8 if out.dtype == types.uint8 else _rounded_type(out)
    return made(types.uint8, types.float32, types.float32, out), code


def _rounded_type(out: Any) -> Any:
    """Returns the type of what is stored into an array: bits of half precision, or float32."""
    return out.dtype if out.dtype in (types.int16, types.uint16) else types.float32


def _rounded(builder: Any, value: Any, dtype: Any) -> Any:
    """Rounds a float32 to the bits of a dtype.

    To bfloat16 by an integer sum, which vectorizes; so NaN may have no payload. The instruction of AVX512-BF16 takes
    subnormal numbers for 0, which torch does not.
    """
    if dtype == types.int16:
        return builder.bitcast(builder.fptrunc(value, ir.HalfType()), _SHORT)
    if dtype != types.uint16:
        return value
    bits = builder.bitcast(value, _WORD)
    odd = builder.and_(builder.lshr(bits, _WORD(16)), _WORD(1))
    return builder.trunc(builder.lshr(builder.add(builder.add(bits, _WORD(0x7FFF)), odd), _WORD(16)), _SHORT)


def _vector(target: Any, builder: Any, array: Any, begin: Any, kind: Any) -> Any:
    """Returns the address of a vector in a flat array; with bounds checks, an IndexError where it does not fit."""
    if target.enable_boundscheck:
        last = builder.add(begin, ir.Constant(begin.type, kind.count - 1))
        cgutils.do_boundscheck(target, builder, last, array.nitems)
    return builder.bitcast(builder.gep(array.data, [begin]), kind.as_pointer())


def _has_avx512() -> bool:
    return "+avx512bw" in processor()[1].split(",")


@intrinsic
def picks_any_pair(context: Any) -> Any:
    return types.boolean(), lambda target, *rest: ir.IntType(1)(int(_has_avx512()))


@intrinsic
def blend_neighbors(
    context: Any,
    line: Any,
    begins: Any,
    picks: Any,
    weights: Any,
    at: Any,
    out: Any,
    places: Any,
    channels: Any,
) -> Any:
    numbers = 2 * NEIGHBORS
    shorts, words, bytes_ = (
        ir.VectorType(kind, size) for kind, size in ((_SHORT, numbers), (_WORD, NEIGHBORS), (_BYTE, NEIGHBORS))
    )
    wide = ir.VectorType(_WORD, numbers)

    def act(target: Any, builder: Any, signature: Any, arguments: Any) -> None:
        source, chosen, shares, written = (_array(target, builder, signature, arguments, k) for k in (0, 2, 3, 5))
        has_avx512 = _has_avx512()

        def vector(array: Any, begin: Any) -> Any:
            return builder.load(_vector(target, builder, array, begin, shorts), align=2)

        def called(name: str, result: Any, *values: Any) -> Any:
            kind = ir.FunctionType(result, [shorts] * len(values))
            found = cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.avx512.{name}.512")
            return builder.call(found, values)

        def picked(begin: Any) -> Any:
            """Returns the neighbors of a channel whose numbers begin there."""
            if has_avx512:
                near, far = vector(source, begin), vector(source, builder.add(begin, ir.Constant(begin.type, numbers)))
                return called("vpermi2var.hi", shorts, near, order, far)
            pairs = words(ir.Undefined)
            for k in range(NEIGHBORS):
                pick = builder.zext(builder.extract_element(order, _WORD(2 * k)), begin.type)
                pair = _vector(target, builder, source, builder.add(begin, pick), ir.VectorType(_SHORT, 2))
                one = builder.load(builder.bitcast(pair, _WORD.as_pointer()), align=2)
                pairs = builder.insert_element(pairs, one, _WORD(k))
            return builder.bitcast(pairs, shorts)

        def summed(pairs: Any) -> Any:
            """Returns the sums of weighted pairs. LLVM finds the instruction, but converts weights back and forth."""
            if has_avx512:
                return called("pmaddw.d", words, pairs, share)
            products = builder.mul(builder.sext(pairs, wide), builder.sext(share, wide))
            halves = (ir.Constant(words, list(range(k, numbers, 2))) for k in range(2))
            return builder.add(*(builder.shuffle_vector(products, products, half) for half in halves))

        first = builder.mul(arguments[4], ir.Constant(arguments[4].type, 2))
        order, share = vector(chosen, first), vector(shares, first)
        (begin, pitch), (place, size) = (cgutils.unpack_tuple(builder, arguments[k], 2) for k in (1, 6))
        with cgutils.for_range(builder, arguments[7]) as loop:
            total = summed(picked(builder.add(begin, builder.mul(loop.index, pitch))))
            total = builder.sub(ir.Constant(words, [MEAN_HALF] * NEIGHBORS), total)
            levels = builder.trunc(builder.lshr(total, ir.Constant(words, [MEAN_BITS] * NEIGHBORS)), bytes_)
            sink = _vector(target, builder, written, builder.add(place, builder.mul(loop.index, size)), bytes_)
            builder.store(levels, sink, align=1)

    pair_of = types.UniTuple(types.intp, 2)
    return types.void(line, pair_of, picks, weights, types.uintp, out, pair_of, types.intp), act
