"""Compiles kernels to object files of plain C functions, by public interfaces of numba and llvmlite.

The C function of a kernel takes the address of its record (:mod:`mmload.runtime.kernels`) and returns an integer.
Nothing in it allocates, counts references or raises, so it needs nothing of Python or numba: what it refers to is
checked, and must be in the C library.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numba
from llvmlite import binding
from numba import types

from mmload.errors import UsageError
from mmload.runtime import numba_intrinsics
from mmload.runtime.kernels import ArgumentRecord, Intrinsic, Kernel, Part
from mmload.runtime.machine_code import processor

_numba: Any = numba  # it is only partially typed

_OPTIONS = {"_nrt": False, "error_model": "numpy"}
"""Arrays count no references, so that none can be allocated, and divisions by 0 do not raise."""

_PART_OPTIONS = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Only kernels call parts, so that these need no functions for other callers, which take as long to compile."""

C_LIBRARY = frozenset(
    (
        *("aligned_alloc", "memcpy", "memmove", "memset", "madvise", "mincore", "posix_fadvise", "pread"),
        *("cos", "exp", "fmod", "log", "log1p", "pow", "sin", "sincos", "sqrt", "tan"),
    )
)
"""Functions that kernels may refer to."""

_PASSES = "ipsccp", "dead_arg_elimination", "simplify_cfg", "global_dead_code_eliminate"


def compile_object(kernel: Kernel[Any]) -> bytes:
    """Returns an object file with the C function of a kernel.

    Raises:
        UsageError: if numba is told to check the bounds of all functions, as checks raise errors.
        RuntimeError: if it refers to a function that is not in the C library, as where it may raise an error.
    """
    if _numba.config.BOUNDSCHECK:
        raise UsageError("NUMBA_BOUNDSCHECK is set, with which kernels cannot be compiled; unset it")
    compiled, name = c_function(kernel), kernel.symbol
    module: Any = binding.parse_assembly(compiled.inspect_llvm())
    for value in (*module.functions, *module.global_variables):
        if value.name == compiled.native_name:
            value.name = name
        elif not value.is_declaration:
            value.linkage = "internal"
    machine = _machine()
    passes: Any = binding.create_new_module_pass_manager()
    for each in _PASSES:
        getattr(passes, f"add_{each}_pass")()
    passes.run(module, binding.create_pass_builder(machine, binding.create_pipeline_tuning_options()))
    needed = {one.name for one in module.functions if one.is_declaration and not one.name.startswith("llvm.")}
    if not needed <= C_LIBRARY:
        raise RuntimeError(f"{name} needs {', '.join(sorted(needed - C_LIBRARY))}; kernels allocate and raise nothing")
    module.verify()
    code: bytes = machine.emit_object(module)
    return code


def c_function(kernel: Kernel[Any]) -> Any:
    """Compiles a kernel by ``numba.cfunc``, whose ``address`` this process may call."""
    record = ArgumentRecord(kernel.kinds)
    known = record.known | {"kernel": _compiled(kernel), "array_at": numba_intrinsics.array_at}
    size = len(record.forms)
    views = ", ".join(f"array_at(record, {size}, {dtype})" for dtype in ("int64", "float64"))
    exec(f"def call(record):\n    words, floats = {views}\n    return kernel({record.read})", known)
    result = types.void if kernel.returns == "void" else types.int64
    return _numba.cfunc(result(types.uintp), nopython=True, **_OPTIONS)(known["call"])


def _machine() -> Any:
    """Returns LLVM's target: the processor that numba compiles for."""
    name, features = processor()
    target = binding.Target.from_triple(binding.get_process_triple())
    return target.create_target_machine(name, features, opt=3, reloc="pic")


def _resolved(function: Callable[..., Any]) -> FunctionType:
    """Returns a function that calls numba's functions where the given one calls those that stand for them."""
    plain: Any = function
    known = plain.__globals__
    found = {name: _resolve(known[name]) for name in plain.__code__.co_names if name in known}
    return FunctionType(plain.__code__, known | found, plain.__name__, plain.__defaults__)


def _resolve(value: Any) -> Any:
    if isinstance(value, Part):
        return _compiled(value)
    if isinstance(value, Intrinsic):
        found = getattr(numba_intrinsics, value.name)
        return found(*value.parts) if value.parts else found
    return value


@cache
def _compiled(part: Part) -> Any:
    return _numba.njit(**_PART_OPTIONS, **part.options)(_resolved(part.function))
