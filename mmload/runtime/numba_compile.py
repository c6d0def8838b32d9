"""Functions that numba compiles on first import, and whose machine code is cached for later processes.

The cache is beside the source, or in the user's cache folder if that is not writable (``NUMBA_CACHE_DIR`` overrides
both); if neither is writable, each process compiles for itself, which takes some seconds.
:mod:`mmload.runtime.machine_code_cache` handles the files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils, config, typeinfer
from numba.extending import intrinsic

from mmload.runtime.machine_code_cache import cache_of

_config: Any = config  # numba is only partially typed
_do_boundscheck: Any = cgutils.do_boundscheck

F = TypeVar("F", bound=Callable[..., Any])


def numba_compiled(*signatures: str, nogil: bool = True) -> Callable[[F], F]:
    """Compiles a function for the given signatures.

    Args:
        signatures: in numba's notation, such as ``"void(uint8[::1], float32)"``.
        nogil: whether it releases the interpreter lock; functions that take microseconds should keep it, as another
            thread may acquire it before this one gets it back.
    """

    def compile_(function: F) -> F:
        made: Any = njit(nogil=nogil)(function)
        if not _config.DISABLE_JIT:
            with suppress(RuntimeError):  # there is no writable cache folder
                made._cache = cache_of(function)
            with typeinfer.register_dispatcher(made):
                for signature in signatures:
                    made.compile(signature)
                made.disable_compile()
        kept: F = made
        return kept

    return compile_


_variants: dict[tuple[Callable[..., Any], str], Any] = {}
_compiling = threading.Lock()


def variant(function: F, signature: str) -> F:
    """A compiled function for another signature, which is compiled by the first call, once for all threads."""
    with _compiling:
        made = _variants.get((function, signature))
        if made is None:
            plain: Any = getattr(function, "py_func", function)
            made = _variants[function, signature] = numba_compiled(signature)(plain)
    kept: F = made
    return kept


def inlined(function: F) -> F:
    """A function that is inlined into compiled ones."""
    made: Any = njit(nogil=True, inline="always")(function)
    part: F = made
    return part


def called(function: F) -> F:
    """A function that compiled ones call: compiled once for all of them, which saves time for long functions."""
    made: Any = njit(nogil=True)(function)
    part: F = made
    return part


def fused(function: F) -> F:
    """Like ``called``, but a product and a sum may be fused and rounded once: for floats that are exact integers."""
    made: Any = njit(nogil=True, fastmath={"contract"})(function)
    part: F = made
    return part


def divides(function: F) -> F:
    """Like ``called``, but divisors are not checked for 0, as the check prevents vectorization."""
    made: Any = njit(nogil=True, error_model="numpy")(function)
    part: F = made
    return part


def _fma(context: Any, a: Any, b: Any, c: Any) -> Any:
    """Generates code for a * b + c, rounded once."""

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), code


fma: Any = intrinsic(_fma)
"""In compiled functions, ``fma(a, b, c)`` is a * b + c of float32, rounded once, as torch's kernels round it."""


def _pair(context: Any, words: Any, at: Any) -> Any:
    """Generates code for ``words[at]`` and the word after it as one number."""

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = target.make_array(signature.args[0])(target, builder, arguments[0])
        place = arguments[1]
        if target.enable_boundscheck:
            _do_boundscheck(target, builder, builder.add(place, ir.Constant(place.type, 1)), array.nitems)
        both = builder.bitcast(builder.gep(array.data, [place]), ir.IntType(64).as_pointer())
        return builder.load(both, align=4)

    return types.uint64(words, types.uintp), code


pair: Any = intrinsic(_pair)
"""In compiled functions, ``pair(words, at)`` reads two neighbors of a flat uint32 array by one load.

The first is in the lower half. Nothing may lie beyond the array: ``at`` + 1 is inside.
"""


def _kept_apart(context: Any) -> Any:
    """Generates no code, but marks the function that asks for it."""

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.function.attributes.add("noinline")
        return target.get_dummy_value()

    return types.void(), code


kept_apart: Any = intrinsic(_kept_apart)
"""In compiled functions, ``kept_apart()`` says that LLVM must not inline the function into those that call it.

Inside of a large function LLVM no longer sees that loops may be vectorized: a blur took three times as long there.
"""


def _borrowed(context: Any, array: Any) -> Any:
    """Generates code for the same array without a reference to its memory."""

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = target.make_array(array)(target, builder, arguments[0])
        view.meminfo = ir.Constant(view.meminfo.type, None)
        return view._getvalue()

    return array(array), code


borrowed: Any = intrinsic(_borrowed)
"""In compiled functions, ``borrowed(array)`` is the array without counted references: another variable must hold it.

References are counted atomically, and an atomic instruction waits until all streamed values are written. A call that
counts them between two bands of lines took 0.4 us.
"""


LINE = 64
"""Bytes of a cache line."""


def _stream(context: Any, source: Any, out: Any, at: Any, count: Any) -> Any:
    """Generates code that copies the first ``count`` values of ``source`` to ``out`` from index ``at`` on."""

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, sink = (target.make_array(signature.args[n])(target, builder, arguments[n]) for n in range(2))
        place, size = arguments[2:]
        element = target.get_data_type(signature.args[0].dtype)
        lanes = LINE // target.get_abi_sizeof(element)
        whole = ir.VectorType(element, lanes).as_pointer()
        hint = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        step = ir.Constant(size.type, lanes)
        if target.enable_boundscheck:
            _check_ends(target, builder, ((size, values), (builder.add(place, size), sink)), lanes)
        with cgutils.for_range_slice(builder, ir.Constant(size.type, 0), size, step) as (i, _):
            line = builder.load(builder.bitcast(builder.gep(values.data, [i]), whole), align=1)
            there = builder.gep(sink.data, [builder.add(place, i)])
            builder.store(line, builder.bitcast(there, whole), align=LINE).set_metadata("nontemporal", hint)
        return target.get_dummy_value()

    return types.void(source, out, types.uintp, types.uintp), code


def _check_ends(target: Any, builder: Any, ends: Any, lanes: int) -> None:
    """Generates code that raises IndexError if an end, rounded up to whole cache lines, is beyond its array."""
    for end, array in ends:
        lines = builder.udiv(builder.add(end, ir.Constant(end.type, lanes - 1)), ir.Constant(end.type, lanes))
        beyond = builder.add(array.nitems, ir.Constant(end.type, 1))
        _do_boundscheck(target, builder, builder.mul(lines, ir.Constant(end.type, lanes)), beyond)


def _all_streamed(context: Any) -> Any:
    """Generates a fence, after which all streamed values are visible."""

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return target.get_dummy_value()

    return types.void(), code


stream: Any = intrinsic(_stream)
"""In compiled functions, ``stream(source, out, at, count)`` copies with stores that bypass the caches.

A store into a cache first reads the memory that it replaces: half of the traffic, if the output is too large to stay in
the cache. Both arrays are flat and have the same dtype; the values, and the offset ``at``, are whole cache lines. Other
threads see the values after ``all_streamed()``.
"""

all_streamed: Any = intrinsic(_all_streamed)
"""See :data:`stream`."""
