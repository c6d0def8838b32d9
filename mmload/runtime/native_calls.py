"""Compiled functions that call each other by address: neither is compiled anew into the other.

A numba function that calls another is compiled together with it, each time for several seconds if that one is large. An
address is an argument at run time, so it costs nothing to compile, and the machine code stays valid in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils, sigutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

_types: Any = types  # numba is only partially typed
_cgutils: Any = cgutils
_sigutils: Any = sigutils


def address_of(function: Callable[..., Any], signature: str) -> np.uintp:
    """Where the machine code of a compiled function for a signature is; valid as long as the function."""
    compiled: Any = function
    arguments, _ = _sigutils.normalize_signature(signature)
    made = compiled.overloads[arguments]
    return np.uintp(made.library.get_pointer_to_function(made.fndesc.llvm_func_name))


def call_by(*signatures: str) -> Any:
    """In compiled functions, ``call(address, arguments)`` of what this gives calls a function of one of the signatures.

    Of that whose types are exactly those of the tuple of arguments: a function of another one must not be there.
    """
    known = [_sigutils.normalize_signature(signature)[0] for signature in signatures]

    def _call(context: Any, address: Any, arguments: Any) -> Any:
        declared = tuple(_types.unliteral(kind) for kind in arguments.types)
        if declared not in known:
            raise TypingError(f"no function of these is called with {declared}")

        def code(target: Any, builder: Any, given: Any, values: Any) -> Any:
            convention = target.call_conv
            kind = convention.get_function_type(types.void, declared).as_pointer()
            passed = _cgutils.unpack_tuple(builder, values[1], len(declared))
            callee = builder.inttoptr(values[0], kind)
            status, _ = convention.call_function(builder, callee, types.void, declared, passed)
            with _cgutils.if_unlikely(builder, status.is_error):  # as numba's bounds checks have it
                convention.return_status_propagate(builder, status)
            return target.get_dummy_value()

        return types.void(types.uintp, _types.Tuple(declared)), code

    return intrinsic(_call)
