"""Functions that kernels call and whose code is generated here, by private interfaces of numba.

:mod:`mmload.runtime.intrinsics` says what each of them does, and declares them without numba.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mmload.runtime.intrinsics import (
    HSV_BLOCK,
    LINE,
    LINE_BLOCK,
    MEAN_BITS,
    MEAN_HALF,
    NEAR_WORDS,
    NEIGHBORS,
    TRANSPOSED_COLUMNS,
    TRANSPOSED_ROWS,
)
from mmload.runtime.vector_code import HsvCode, to_bfloat16, to_float16_by_integers, vector_bytes

_cgutils: Any = cgutils  # numba is only partially typed


def _intrinsic(function: Callable[..., Any]) -> Any:
    """Declares a function that generates code; numba is only partially typed."""
    return intrinsic(function)


def _array(target: Any, builder: Any, signature: Any, arguments: Any, place: int) -> Any:
    """Returns the fields of the array that is an argument of an intrinsic."""
    return target.make_array(signature.args[place])(target, builder, arguments[place])


def _check_index(target: Any, builder: Any, index: Any, length: Any) -> None:
    """Generates code that raises IndexError if an index is not below a length; none without bounds checks."""
    if target.enable_boundscheck:
        _cgutils.do_boundscheck(target, builder, index, length)


@_intrinsic
def fma(context: Any, a: Any, b: Any, c: Any) -> Any:
    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), code


@_intrinsic
def pair(context: Any, words: Any, at: Any) -> Any:
    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place = _array(target, builder, signature, arguments, 0), arguments[1]
        _check_index(target, builder, builder.add(place, ir.Constant(place.type, 1)), array.nitems)
        both = builder.bitcast(builder.gep(array.data, [place]), ir.IntType(64).as_pointer())
        return builder.load(both, align=4)

    return types.uint64(words, types.uintp), code


@_intrinsic
def never_inline(context: Any) -> Any:
    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.function.attributes.add("noinline")
        return target.get_dummy_value()

    return types.void(), code


@_intrinsic
def prefetch(context: Any, values: Any, at: Any) -> Any:
    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = _array(target, builder, signature, arguments, 0)
        _check_index(target, builder, arguments[1], array.nitems)
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), _WORD, _WORD, _WORD])
        ask = _cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(ask, [builder.gep(array.data, [arguments[1]]), _WORD(0), _WORD(3), _WORD(1)])
        return target.get_dummy_value()

    return types.void(values, types.uintp), code


@_intrinsic
def borrowed(context: Any, array: Any) -> Any:
    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = _array(target, builder, signature, arguments, 0)
        view.meminfo = ir.Constant(view.meminfo.type, None)
        return view._getvalue()

    return array(array), code


@_intrinsic
def stream(context: Any, source: Any, out: Any, at: Any, count: Any) -> Any:
    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, sink = (_array(target, builder, signature, arguments, place) for place in range(2))
        place, size = arguments[2:]
        element = target.get_data_type(signature.args[0].dtype)
        lanes = LINE // target.get_abi_sizeof(element)
        line_type = ir.VectorType(element, lanes).as_pointer()
        hint = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        step = ir.Constant(size.type, lanes)
        for end, array in ((size, values), (builder.add(place, size), sink)):  # rounded up to cache lines
            lines = builder.udiv(builder.add(end, ir.Constant(end.type, lanes - 1)), step)
            beyond = builder.add(array.nitems, ir.Constant(end.type, 1))
            _check_index(target, builder, builder.mul(lines, step), beyond)
        with _cgutils.for_range_slice(builder, ir.Constant(size.type, 0), size, step) as (i, _):
            line = builder.load(builder.bitcast(builder.gep(values.data, [i]), line_type), align=1)
            address = builder.gep(sink.data, [builder.add(place, i)])
            builder.store(line, builder.bitcast(address, line_type), align=LINE).set_metadata("nontemporal", hint)
        return target.get_dummy_value()

    return types.void(source, out, types.uintp, types.uintp), code


@_intrinsic
def finish_streams(context: Any) -> Any:
    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return target.get_dummy_value()

    return types.void(), code


@_intrinsic
def transpose(context: Any, source: Any, row: Any, column: Any, out: Any, line: Any, place: Any) -> Any:
    half, byte = TRANSPOSED_ROWS // 2, ir.IntType(8)

    def mask(places: Sequence[int]) -> ir.Constant:
        return ir.Constant(ir.VectorType(ir.IntType(32), len(places)), list(places))

    def interleaved(part: int) -> ir.Constant:
        """Returns the mask that interleaves the first or second halves of all lines of two vectors of two lines."""
        firsts = [half * lane + 8 * part + i for lane in range(2) for i in range(8)]
        return mask([place for first in firsts for place in (first, TRANSPOSED_ROWS + first)])

    masks = interleaved(0), interleaved(1)

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def addresses(place: int, size: tuple[int, int]) -> list[Any]:
            """Returns the address of each line of the block in an array, whose corner are the arguments after it."""
            array, (y, x) = _array(target, builder, signature, arguments, place), arguments[place + 1 : place + 3]
            lengths = _cgutils.unpack_tuple(builder, array.shape, 2)
            for start, count, length in zip((y, x), size, lengths, strict=True):
                _check_index(target, builder, builder.add(start, ir.Constant(start.type, count - 1)), length)
            pitch, _ = _cgutils.unpack_tuple(builder, array.strides, 2)
            kind = ir.VectorType(byte, size[1]).as_pointer()
            lines = (builder.mul(builder.add(y, ir.Constant(y.type, i)), pitch) for i in range(size[0]))
            return [builder.bitcast(builder.gep(array.data, [builder.add(line, x)]), kind) for line in lines]

        read = addresses(0, (TRANSPOSED_ROWS, TRANSPOSED_COLUMNS))
        written = addresses(3, (TRANSPOSED_COLUMNS, TRANSPOSED_ROWS))
        lines = [builder.load(address, align=1) for address in read]
        # A vector holds two lines, 16 apart: so all that follows stays within 16 bytes, where shuffles are quickest.
        joined = mask(range(TRANSPOSED_ROWS))
        blocks = [builder.shuffle_vector(lines[i], lines[half + i], joined) for i in range(half)]
        for _ in range(4):  # a perfect shuffle of 16 x 16 bytes, four times, is their transpose
            pairs = [(blocks[i], blocks[half // 2 + i]) for i in range(half // 2)]
            blocks = [builder.shuffle_vector(*two, one) for two in pairs for one in masks]
        for address, block in zip(written, blocks, strict=True):
            builder.store(block, address, align=1)
        return target.get_dummy_value()

    return types.void(source, types.uintp, types.uintp, out, types.uintp, types.uintp), code


_SHORT, _WORD, _FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()


@_intrinsic
def rounded(context: Any, value: Any, out: Any) -> Any:
    convert = {types.int16: _to_float16, types.uint16: to_bfloat16}.get(out.dtype)

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return arguments[0] if convert is None else convert(target, builder, arguments[0])

    return (types.float32 if convert is None else out.dtype)(types.float32, out), code


@_intrinsic
def colored(context: Any, level: Any, less: Any, times: Any, out: Any) -> Any:
    convert = {types.int16: _to_float16, types.uint16: to_bfloat16}.get(out.dtype)

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.uitofp(arguments[0], _FLOAT)
        value = builder.fmul(builder.fsub(value, arguments[1]), arguments[2])
        return value if convert is None else convert(target, builder, value)

    def plain(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return arguments[0]

    taken = types.uint8, types.float32, types.float32, out
    if out.dtype == types.uint8:
        return types.uint8(*taken), plain
    return (types.float32 if convert is None else out.dtype)(*taken), code


def _to_float16(target: Any, builder: Any, value: Any) -> Any:
    """Generates the processor's instruction, which LLVM vectorizes, or else integer operations."""
    if _has_float16(target):
        return builder.bitcast(builder.fptrunc(value, ir.HalfType()), _SHORT)
    return to_float16_by_integers(builder, value)


def _has_float16(target: Any) -> bool:
    """Returns whether the processor converts to float16: ARM's do, and x86 with AVX and F16C, that is since 2013.

    Elsewhere LLVM calls a function of a compiler's library, which a process need not have.
    """
    if platform.machine().lower() in ("arm64", "aarch64"):
        return True
    return {"+avx", "+f16c"} <= set(target.codegen()._tm_features.split(","))


def _vector(target: Any, builder: Any, array: Any, begin: Any, kind: Any, size: int | None = None) -> Any:
    """Returns the address of a vector in a flat array, of which ``size`` elements are used; None: all."""
    _check_index(target, builder, builder.add(begin, ir.Constant(begin.type, (size or kind.count) - 1)), array.nitems)
    return builder.bitcast(builder.gep(array.data, [begin]), kind.as_pointer())


@_intrinsic
def blend_lines(context: Any, memory: Any, first: Any, second: Any, low: Any, out: Any, at: Any) -> Any:
    shorts, wide, bytes_ = (ir.VectorType(kind, LINE_BLOCK) for kind in (_SHORT, _WORD, ir.IntType(8)))
    seven = ir.Constant(shorts, [7] * LINE_BLOCK)

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, sink = (_array(target, builder, signature, arguments, k) for k in (0, 4))

        def levels(begin: Any) -> Any:
            return builder.zext(builder.load(_vector(target, builder, source, begin, bytes_), align=1), shorts)

        def repeated(value: Any, kind: Any) -> Any:
            one = builder.insert_element(kind(ir.Undefined), value, _WORD(0))
            return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_WORD, LINE_BLOCK), [0] * LINE_BLOCK))

        upper, lower = levels(arguments[1]), levels(arguments[2])
        # The upper half of a product of 16 bits is one instruction. From the middle on the weight is counted from the
        # other line, and is negative: 2^2 times as much has 16 bits.
        upper, lower = (builder.shl(one, seven) for one in (upper, lower))
        scaled = builder.shl(arguments[3], _SHORT(2))
        product = builder.mul(
            builder.sext(builder.sub(lower, upper), wide), repeated(builder.sext(scaled, _WORD), wide)
        )
        part = builder.trunc(builder.ashr(product, ir.Constant(wide, [16] * LINE_BLOCK)), shorts)
        is_far = builder.icmp_signed(">=", arguments[3], _SHORT(1 << 13))
        mixed = builder.add(builder.select(is_far, lower, upper), part)
        builder.store(mixed, _vector(target, builder, sink, arguments[5], shorts), align=2)
        return target.get_dummy_value()

    return types.void(memory, types.uintp, types.uintp, types.int16, out, types.uintp), code


def _has_avx512(target: Any) -> bool:
    return vector_bytes(target.codegen()._tm_features.split(",")) == 64


@_intrinsic
def picks_any_pair(context: Any) -> Any:
    return types.boolean(), lambda target, *rest: ir.IntType(1)(int(_has_avx512(target)))


@_intrinsic
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
    near_words: Any,
) -> Any:
    count = 2 * NEIGHBORS
    shorts, words, bytes_ = (
        ir.VectorType(kind, size) for kind, size in ((_SHORT, count), (_WORD, NEIGHBORS), (ir.IntType(8), NEIGHBORS))
    )
    wide, half_level = ir.VectorType(_WORD, count), ir.Constant(words, [MEAN_HALF] * NEIGHBORS)
    masks = [ir.Constant(words, list(range(k, count, 2))) for k in range(2)]

    def called(builder: Any, name: str, result: Any, values: list[Any]) -> Any:
        kind = ir.FunctionType(result, [shorts] * len(values))
        return builder.call(_cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.avx512.{name}"), values)

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        index = arguments[4].type
        source, chosen, shares, written = (_array(target, builder, signature, arguments, k) for k in (0, 2, 3, 5))
        is_x86_64_v4 = _has_avx512(target)
        first = builder.mul(arguments[4], ir.Constant(index, 2))

        def picked(begin: Any) -> Any:
            """Returns the neighbors of a channel whose numbers begin there."""
            near = _vector(target, builder, source, begin, shorts, NEAR_WORDS)
            if is_x86_64_v4:
                near_half = builder.load(near, align=2)
                with builder.if_else(builder.icmp_signed("<=", arguments[8], ir.Constant(index, count))) as (one, two):
                    with one:
                        alone, at_alone = called(builder, "permvar.hi.512", shorts, [near_half, order]), builder.block
                    with two:
                        other = builder.load(builder.gep(near, [_WORD(1)]), align=2)
                        joined, at_joined = (
                            called(builder, "vpermi2var.hi.512", shorts, [near_half, order, other]),
                            builder.block,
                        )
                chosen_ones = builder.phi(shorts)
                chosen_ones.add_incoming(alone, at_alone)
                chosen_ones.add_incoming(joined, at_joined)
                return chosen_ones
            pairs = words(ir.Undefined)
            for k in range(NEIGHBORS):
                pick = builder.zext(builder.extract_element(order, _WORD(2 * k)), index)
                address = builder.gep(source.data, [builder.add(begin, pick)])
                one = builder.load(builder.bitcast(address, _WORD.as_pointer()), align=2)
                pairs = builder.insert_element(pairs, one, _WORD(k))
            return builder.bitcast(pairs, shorts)

        def summed(numbers: Any) -> Any:
            """Returns the sums of weighted pairs. LLVM finds the instruction, but converts weights back and forth."""
            if is_x86_64_v4:
                return called(builder, "pmaddw.d.512", words, [numbers, share])
            products = builder.mul(builder.sext(numbers, wide), builder.sext(share, wide))
            return builder.add(*(builder.shuffle_vector(products, products, mask) for mask in masks))

        order = builder.load(_vector(target, builder, chosen, first, shorts), align=2)
        share = builder.load(_vector(target, builder, shares, first, shorts), align=2)
        (begin, pitch), (place, size) = (_cgutils.unpack_tuple(builder, arguments[k], 2) for k in (1, 6))
        with _cgutils.for_range(builder, arguments[7]) as loop:
            total = summed(picked(builder.add(begin, builder.mul(loop.index, pitch))))
            total = builder.lshr(builder.sub(half_level, total), ir.Constant(words, [MEAN_BITS] * NEIGHBORS))
            sink = _vector(target, builder, written, builder.add(place, builder.mul(loop.index, size)), bytes_)
            builder.store(builder.trunc(total, bytes_), sink, align=1)
        return target.get_dummy_value()

    pair_of: Any = types.UniTuple(types.intp, 2)  # type: ignore[no-untyped-call]  # numba is only partially typed
    return types.void(line, pair_of, picks, weights, types.uintp, out, pair_of, types.intp, types.intp), code


@_intrinsic
def change_hsv_block(context: Any, red: Any, green: Any, blue: Any, at: Any, turn: Any, more: Any, light: Any) -> Any:
    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        planes, index = [_array(target, builder, signature, arguments, k) for k in range(3)], arguments[3].type
        made = HsvCode(builder, vector_bytes(target.codegen()._tm_features.split(",")), platform.machine() == "x86_64")
        for part in range(0, HSV_BLOCK, made.size):
            begin = builder.add(arguments[3], ir.Constant(index, part))
            made.change([_vector(target, builder, plane, begin, made.bytes_) for plane in planes], *arguments[4:])
        return target.get_dummy_value()

    return types.void(red, green, blue, types.uintp, *[types.float32] * 3), code
