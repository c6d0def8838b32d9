"""Functions that kernels call and whose code is generated here; no other module uses private interfaces of numba.

:mod:`mmload.runtime.intrinsics` says what each of them does, and declares them without numba.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from llvmlite import binding, ir
from numba import config, types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numba.np import arrayobj

from mmload.runtime.intrinsics import (
    HSV_BITS,
    HSV_BLOCK,
    HUES,
    LINE,
    LINE_BLOCK,
    MEAN_BITS,
    MEAN_HALF,
    NEAR_WORDS,
    NEIGHBORS,
    TRANSPOSED_COLUMNS,
    TRANSPOSED_ROWS,
)

_arrayobj: Any = arrayobj  # numba is only partially typed
_cgutils: Any = cgutils
_config: Any = config
_types: Any = types

_BYTE, _SHORT, _WORD, _LONG, _FLOAT = *map(ir.IntType, (8, 16, 32, 64)), ir.FloatType()


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


def features() -> list[str]:
    """Returns the features of the processor that numba compiles for, such as "+avx2"."""
    text: str = _config.CPU_FEATURES or binding.get_host_cpu_features().flatten()
    return text.split(",")


def arguments_of(kinds: tuple[Any, ...]) -> Any:
    """Makes an intrinsic that returns a kernel's arguments, of these types, from the address of its record."""
    made = _types.Tuple(kinds)

    def _arguments_of(context: Any, record: Any) -> Any:
        def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            words, place = builder.inttoptr(arguments[0], _LONG.as_pointer()), 0

            def next_word() -> Any:
                nonlocal place
                word, place = builder.load(builder.gep(words, [_LONG(place)])), place + 1
                return word

            return _value(target, builder, made, next_word)

        return made(types.uintp), code

    return intrinsic(_arguments_of)


def _value(target: Any, builder: Any, kind: Any, next_word: Callable[[], Any]) -> Any:
    """Returns the value of a type from the next words of a record."""
    if isinstance(kind, _types.BaseTuple):
        return target.make_tuple(builder, kind, [_value(target, builder, each, next_word) for each in kind.types])
    word = next_word()
    if isinstance(kind, _types.Array):
        sides = [next_word() for _ in range(kind.ndim)]
        steps = None if kind.is_c_contig else [next_word() for _ in range(kind.ndim)]
        return _array_at(target, builder, kind, word, sides, steps)
    if isinstance(kind, _types.Float):
        number = builder.bitcast(word, ir.DoubleType())
        return number if kind.bitwidth == 64 else builder.fptrunc(number, _FLOAT)
    into = target.get_value_type(kind)
    return word if into == word.type else builder.trunc(word, into)


def _array_at(target: Any, builder: Any, kind: Any, address: Any, sides: list[Any], steps: list[Any] | None) -> Any:
    """Returns an array at an address; contiguous without steps."""
    array, element = target.make_array(kind)(target, builder), target.get_data_type(kind.dtype)
    size = _LONG(target.get_abi_sizeof(element))
    if steps is None:
        steps = [size]
        for side in reversed(sides[1:]):
            steps.insert(0, builder.mul(steps[0], side))
    data = builder.inttoptr(address, element.as_pointer())
    _arrayobj.populate_array(array, data, sides, steps, size, None)
    return array._getvalue()


def _words(target: Any, builder: Any, kind: Any, value: Any) -> list[Any]:
    """Returns the words of a value in a record."""
    if isinstance(kind, _types.BaseTuple):
        values = _cgutils.unpack_tuple(builder, value, len(kind))
        return [word for each in zip(kind.types, values, strict=True) for word in _words(target, builder, *each)]
    if isinstance(kind, _types.Array):
        array = target.make_array(kind)(target, builder, value)
        return [builder.ptrtoint(array.data, _LONG), *_cgutils.unpack_tuple(builder, array.shape, kind.ndim)]
    if isinstance(kind, _types.Float):
        return [builder.bitcast(target.cast(builder, value, kind, types.float64), _LONG)]
    return [target.cast(builder, value, kind, types.int64)]


@cache
def call_by(declared: tuple[tuple[Any, ...], ...]) -> Any:
    """Makes an intrinsic ``call(address, arguments)`` that calls a kernel that takes one of these tuples of types."""

    def _call(context: Any, address: Any, arguments: Any) -> Any:
        given = tuple(_types.unliteral(kind) for kind in arguments.types)
        if given not in declared:
            raise TypingError(f"no kernel of these is called with {given}")

        def code(target: Any, builder: Any, signature: Any, values: Any) -> Any:
            words = _words(target, builder, signature.args[1], values[1])
            record = _cgutils.alloca_once(builder, ir.ArrayType(_LONG, len(words)))
            for place, word in enumerate(words):
                builder.store(word, builder.gep(record, [_WORD(0), _WORD(place)]))
            kind = ir.FunctionType(_LONG, [_LONG]).as_pointer()
            return builder.call(builder.inttoptr(values[0], kind), [builder.ptrtoint(record, _LONG)])

        return types.int64(types.uintp, _types.Tuple(given)), code

    return intrinsic(_call)


@cache
def call_c(declared: Any) -> Any:
    """Makes an intrinsic ``call(address, arguments)`` that calls a C function of a signature."""

    def _call(context: Any, address: Any, arguments: Any) -> Any:
        def code(target: Any, builder: Any, signature: Any, values: Any) -> Any:
            taken = [target.get_value_type(one) for one in declared.args]
            kind = ir.FunctionType(target.get_value_type(declared.return_type), taken)
            passed = _cgutils.unpack_tuple(builder, values[1], len(taken))
            return builder.call(builder.inttoptr(values[0], kind.as_pointer()), passed)

        return declared.return_type(types.uintp, _types.Tuple(declared.args)), code

    return intrinsic(_call)


@_intrinsic
def array_at(context: Any, address: Any, shape: Any, dtype: Any) -> Any:
    kind = _types.Array(dtype.dtype, len(_sides(shape)), "C")

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _array_at(target, builder, kind, arguments[0], _lengths(target, builder, shape, arguments[1]), None)

    return kind(types.uintp, shape, dtype), code


@_intrinsic
def reshaped(context: Any, array: Any, shape: Any) -> Any:
    kind = _types.Array(array.dtype, len(_sides(shape)), "C")

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = builder.ptrtoint(_array(target, builder, signature, arguments, 0).data, _LONG)
        return _array_at(target, builder, kind, address, _lengths(target, builder, shape, arguments[1]), None)

    return kind(array, shape), code


def _sides(shape: Any) -> tuple[Any, ...]:
    """Returns the types of the lengths of a shape, which is a tuple or a number."""
    return tuple(shape.types) if isinstance(shape, _types.BaseTuple) else (shape,)


def _lengths(target: Any, builder: Any, shape: Any, value: Any) -> list[Any]:
    sides = _sides(shape)
    given = _cgutils.unpack_tuple(builder, value, len(sides)) if isinstance(shape, _types.BaseTuple) else [value]
    return [target.cast(builder, *each, types.intp) for each in zip(given, sides, strict=True)]


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
    if _has_float16():
        return builder.bitcast(builder.fptrunc(value, ir.HalfType()), _SHORT)
    return to_float16_by_integers(builder, value)


def _has_float16() -> bool:
    """Returns whether the processor converts to float16: ARM's do, and x86 with AVX and F16C, that is since 2013.

    Elsewhere LLVM calls a function of a compiler's library, which a process need not have.
    """
    if platform.machine().lower() in ("arm64", "aarch64"):
        return True
    return {"+avx", "+f16c"} <= set(features())


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


def _has_avx512() -> bool:
    return vector_bytes(features()) == 64


@_intrinsic
def picks_any_pair(context: Any) -> Any:
    return types.boolean(), lambda target, *rest: ir.IntType(1)(int(_has_avx512()))


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
        is_x86_64_v4 = _has_avx512()
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
        made = HsvCode(builder, vector_bytes(features()), platform.machine() == "x86_64")
        for part in range(0, HSV_BLOCK, made.size):
            begin = builder.add(arguments[3], ir.Constant(index, part))
            made.change([_vector(target, builder, plane, begin, made.bytes_) for plane in planes], *arguments[4:])
        return target.get_dummy_value()

    return types.void(red, green, blue, types.uintp, *[types.float32] * 3), code


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
