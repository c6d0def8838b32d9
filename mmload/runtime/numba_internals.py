"""The private interfaces of numba and llvmlite that compile kernels; no other module but the intrinsics uses any.

numba compiles a kernel and what it calls to LLVM's code; here an entry that Python calls is added to it, and what
numba's runtime would do, so that the object file needs nothing of numba. ``tests/runtime/test_numba_internals.py``
fails on a release that changes one of the interfaces, and ``pyproject.toml`` bounds the versions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import CellType, CodeType, FunctionType
from typing import Any

from llvmlite import binding, ir
from numba import from_dtype, njit, types
from numba.core import cgutils, compiler, compiler_lock, config, dispatcher, sigutils
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numba.np import arrayobj

from mmload.runtime import numba_intrinsics
from mmload.runtime.declarations import (
    CallBy,
    CallC,
    External,
    Intrinsic,
    Part,
    RecordArray,
    Signature,
    TupleType,
    Type,
)
from mmload.runtime.machine_code import ENTRY, NATIVE

_arrayobj: Any = arrayobj  # numba is only partially typed
_cgutils: Any = cgutils
_compiler: Any = compiler
_config: Any = config
_dispatcher: Any = dispatcher
_lock: Any = compiler_lock
_sigutils: Any = sigutils
_types: Any = types

_BYTE, _INT, _LONG = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_POINTER = _BYTE.as_pointer()

_HEADER_BYTES = 64
"""Bytes before an array's memory: numba's count of references, and where the memory begins."""

_KINDS = {"bool": "b", "int": "i", "uint": "u", "float": "f"}


class _Compiler(_dispatcher._FunctionCompiler):  # type: ignore[misc]  # numba is only partially typed
    """Compiles a function to LLVM's code, without numba's wrappers, and does not load it."""

    def _customize_flags(self, flags: Any) -> Any:
        flags.no_cpython_wrapper = flags.no_cfunc_wrapper = flags.no_compile = True
        return flags


def compile_object(function: Callable[..., Any], signature: Signature | str, nogil: bool) -> bytes:
    """Compiles a kernel.

    Args:
        function: the plain function.
        signature: what it takes and returns.
        nogil: whether it releases the interpreter lock.

    Returns:
        An object file with the functions :data:`~mmload.runtime.machine_code.ENTRY` and ``NATIVE``.
    """
    made: Any = njit(nogil=True)(_resolved(function))
    own = _Compiler(made.py_func, made.targetdescr, made.targetoptions, made.locals, _compiler.Compiler)
    types_of = _numba_signature(signature)
    with _lock.global_compiler_lock:
        compiled = own.compile(types_of.args, types_of.return_type)
        _Entry(compiled, function.__name__, nogil).add()
        return _emit(compiled.library, compiled.fndesc.llvm_func_name)


def _emit(library: Any, native: str) -> bytes:
    """Links and optimizes a library as numba does, and returns its object file."""
    for linked in dict.fromkeys(library._linking_libraries):
        library._final_module.link_in(linked._get_module_for_linking(), preserve=True)
    library._optimize_final_module()
    module, codegen = library._final_module, library._codegen
    module.get_function(native).name = NATIVE
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name not in (ENTRY, NATIVE):
            value.linkage = "internal"
    machine = binding.Target.from_triple(module.triple).create_target_machine(
        codegen._get_host_cpu_name(), codegen._tm_features, int(_config.OPT), reloc="pic", codemodel="default"
    )
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, binding.create_pass_builder(machine, binding.create_pipeline_tuning_options()))
    module.verify()
    code: bytes = machine.emit_object(module)
    return code


def _numba_signature(signature: Signature | str) -> Any:
    if isinstance(signature, str):
        arguments, result = _sigutils.normalize_signature(signature)
        return result(*arguments)
    return _numba_type(signature.result)(*map(_numba_type, signature.arguments))


def _numba_type(kind: Type) -> Any:
    if isinstance(kind, TupleType):
        return _types.BaseTuple.from_types([_numba_type(field) for field in kind.fields], kind.kind)
    if isinstance(kind, RecordArray):
        return _types.Array(from_dtype(kind.dtype), kind.ndim, "C")
    [found], _ = _sigutils.normalize_signature(f"({kind},)") if kind != "void" else ([_types.void], None)
    return found


def _resolved(function: Callable[..., Any]) -> FunctionType:
    """Returns a function that calls numba's functions where the given one calls those that stand for them."""
    plain: Any = function
    names = _names(plain.__code__)
    known = plain.__globals__ | {name: _resolve(plain.__globals__[name]) for name in names & plain.__globals__.keys()}
    cells = tuple(CellType(_resolve(cell.cell_contents)) for cell in plain.__closure__ or ())
    made = FunctionType(plain.__code__, known, plain.__name__, plain.__defaults__, cells)
    made.__module__, made.__qualname__ = plain.__module__, plain.__qualname__
    return made


def _names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _resolve(value: Any) -> Any:
    if isinstance(value, Part):
        return _part(value.function, **value.options)
    if isinstance(value, Intrinsic):
        return getattr(numba_intrinsics, value.name)
    if isinstance(value, External):
        arguments, result = _sigutils.normalize_signature(value.signature)
        return _types.ExternalFunction(value.name, result(*arguments))
    if isinstance(value, CallC):
        return _call_c(value)
    return _call_by(value) if isinstance(value, CallBy) else value


_parts: dict[Callable[..., Any], Any] = {}


def _part(function: Callable[..., Any], **options: Any) -> Any:
    made = _parts.get(function)
    if made is None:
        made = _parts[function] = njit(nogil=True, **options)(_resolved(function))
    return made


@cache
def _call_by(call: CallBy) -> Any:
    """Makes an intrinsic ``call(address, arguments)`` that calls a kernel of one of the signatures."""
    known = [_numba_signature(signature).args for signature in call.signatures]

    def _call(context: Any, address: Any, arguments: Any) -> Any:
        declared = tuple(_types.unliteral(kind) for kind in arguments.types)
        if declared not in known:
            raise TypingError(f"no function of these is called with {declared}")

        def code(target: Any, builder: Any, signature: Any, values: Any) -> Any:
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


@cache
def _call_c(call: CallC) -> Any:
    """Makes an intrinsic ``call(address, arguments)`` that calls a C function of this signature."""
    takes, returns = _sigutils.normalize_signature(call.signature)

    def _call(context: Any, address: Any, arguments: Any) -> Any:
        def code(target: Any, builder: Any, signature: Any, values: Any) -> Any:
            kind = ir.FunctionType(target.get_value_type(returns), [target.get_value_type(one) for one in takes])
            passed = _cgutils.unpack_tuple(builder, values[1], len(takes))
            return builder.call(builder.inttoptr(values[0], kind.as_pointer()), passed)

        return returns(types.uintp, _types.Tuple(takes)), code

    return intrinsic(_call)


class _Entry:
    """Function of Python's stable interface that takes objects, calls a kernel and returns an object.

    It is a ``METH_FASTCALL`` function whose first argument is ``numpy.ndarray``. What an array has is read from where
    numpy's public structures have it. Arguments of other types are a TypeError, as in numba.

    Args:
        compiled: numba's result.
        name: name of the kernel, for errors.
        nogil: whether it releases the interpreter lock.
    """

    def __init__(self, compiled: Any, name: str, nogil: bool) -> None:
        self._compiled, self._name, self._nogil = compiled, name, nogil
        self._target, self._signature = compiled.target_context, compiled.signature
        self._module = compiled.library.create_ir_module(f"entry.{name}")

    def add(self) -> None:
        """Adds the function to the library, and the functions of numba's runtime that it needs."""
        self._define_runtime()
        kind = ir.FunctionType(_POINTER, (_POINTER, _POINTER.as_pointer(), _LONG))
        function = ir.Function(self._module, kind, ENTRY)
        self._builder = builder = ir.IRBuilder(function.append_basic_block())
        self._array_class, objects, count = function.args
        kinds, result = self._signature.args, self._signature.return_type
        with builder.if_then(builder.icmp_signed("!=", count, ir.Constant(_LONG, len(kinds))), likely=False):
            self._raise("PyExc_TypeError", f"{self._name} takes {len(kinds)} arguments")
        values = []
        for place, kind in enumerate(kinds):
            item = builder.load(builder.gep(objects, [ir.Constant(_LONG, place)]))
            values.append(self._unboxed(kind, item, f"argument {place + 1}"))
        convention, described = self._target.call_conv, self._compiled.fndesc
        kind = convention.get_function_type(described.restype, described.argtypes)
        native = _cgutils.get_or_insert_function(self._module, kind, described.llvm_func_name)
        state = self._call("PyEval_SaveThread", _POINTER) if self._nogil else None
        status, value = convention.call_function(builder, native, described.restype, described.argtypes, values)
        if state is not None:
            self._call("PyEval_RestoreThread", ir.VoidType(), state)
        with _cgutils.if_unlikely(builder, status.is_error):
            self._raise_status(status)
        builder.ret(self._boxed(result, value))
        self._compiled.library.add_ir_module(self._module)

    def _unboxed(self, kind: Any, item: Any, place: str) -> Any:
        """Returns numba's value of an object."""
        if isinstance(kind, _types.Array):
            return self._unboxed_array(kind, item, place)
        if isinstance(kind, _types.BaseTuple):
            fields = []
            for number, field in enumerate(kind.types):
                one = self._call("PyTuple_GetItem", _POINTER, item, ir.Constant(_LONG, number))
                self._return_if(_cgutils.is_null(self._builder, one))
                fields.append(self._unboxed(field, one, f"field {number + 1} of {place}"))
            return self._target.make_tuple(self._builder, kind, fields)
        return self._unboxed_number(kind, item)

    def _unboxed_number(self, kind: Any, item: Any) -> Any:
        builder, into = self._builder, self._target.get_value_type(kind)
        if isinstance(kind, _types.Boolean):
            truth = self._call("PyObject_IsTrue", _INT, item)
            self._return_if(builder.icmp_signed("<", truth, ir.Constant(_INT, 0)))
            return builder.trunc(truth, into)
        if isinstance(kind, _types.Float):
            number = self._call("PyFloat_AsDouble", ir.DoubleType(), item)
            self._return_if_failed(builder.fcmp_ordered("==", number, ir.Constant(ir.DoubleType(), -1.0)))
            return number if into == number.type else builder.fptrunc(number, into)
        name = "PyLong_AsLongLong" if kind.signed else "PyLong_AsUnsignedLongLongMask"
        number = self._call(name, _LONG, item)
        self._return_if_failed(builder.icmp_signed("==", number, ir.Constant(_LONG, -1)))
        return number if into == number.type else builder.trunc(number, into)

    def _unboxed_array(self, kind: Any, item: Any, place: str) -> Any:
        builder, record = self._builder, isinstance(kind.dtype, _types.Record)
        size = self._target.get_abi_sizeof(self._target.get_data_type(kind.dtype))
        letter = "V" if record else next(v for k, v in _KINDS.items() if kind.dtype.name.startswith(k))
        flags = 0x100 | (0x1 if kind.layout == "C" else 0) | (0x400 if kind.mutable else 0)  # aligned, C, writable
        expected = (_INT, kind.ndim), (_BYTE, ord(letter)), (_LONG, size), (_INT, flags)
        constants = [ir.Constant(*each) for each in expected]
        fits = builder.call(self._is_array, [item, self._array_class, *constants])
        with builder.if_then(builder.not_(fits), likely=False):
            self._raise("PyExc_TypeError", f"{self._name}: {place} is no {kind}")
        array = self._target.make_array(kind)(self._target, builder)
        sides, steps = (
            [builder.load(builder.gep(numbers, [ir.Constant(_LONG, axis)])) for axis in range(kind.ndim)]
            for numbers in (builder.bitcast(_field(builder, item, at, _POINTER), _LONG.as_pointer()) for at in (32, 40))
        )
        data = builder.bitcast(_field(builder, item, 16, _POINTER), self._target.get_data_type(kind.dtype).as_pointer())
        _arrayobj.populate_array(array, data, sides, steps, ir.Constant(_LONG, size), None)
        return array._getvalue()

    def _boxed(self, kind: Any, value: Any) -> Any:
        """Returns a new object of numba's value."""
        builder = self._builder
        if isinstance(kind, _types.UniTuple):
            made = self._call("PyTuple_New", _POINTER, ir.Constant(_LONG, kind.count))
            for number, each in enumerate(_cgutils.unpack_tuple(builder, value, kind.count)):
                place = ir.Constant(_LONG, number)
                self._call("PyTuple_SetItem", _INT, made, place, self._boxed(kind.dtype, each))
            return made
        if isinstance(kind, _types.Boolean):
            return self._call("PyBool_FromLong", _POINTER, builder.zext(value, _LONG))
        if isinstance(kind, _types.Float):
            return self._call("PyFloat_FromDouble", _POINTER, value)
        if isinstance(kind, _types.Integer):
            return self._call("PyLong_FromLongLong", _POINTER, value)
        none = self._global("_Py_NoneStruct", _BYTE)
        self._call("Py_IncRef", ir.VoidType(), none)
        return none

    def _call(self, name: str, result: Any, *arguments: Any) -> Any:
        """Calls a function of Python's stable interface."""
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return self._builder.call(_cgutils.get_or_insert_function(self._module, kind, name), arguments)

    def _global(self, name: str, kind: Any) -> Any:
        known = self._module.globals
        return known[name] if name in known else ir.GlobalVariable(self._module, kind, name)

    def _return_if(self, failed: Any) -> None:
        with self._builder.if_then(failed, likely=False):
            self._builder.ret(ir.Constant(_POINTER, None))

    def _return_if_failed(self, maybe: Any) -> None:
        """Returns if a number that can stand for an error does."""
        with self._builder.if_then(maybe, likely=False):
            self._return_if(_cgutils.is_not_null(self._builder, self._call("PyErr_Occurred", _POINTER)))

    def _raise(self, error: str, message: str) -> None:
        text = _cgutils.global_constant(
            self._module, f"message.{len(self._module.globals)}", _cgutils.make_bytearray(message.encode() + b"\0")
        )
        kind = self._builder.load(self._global(error, _POINTER))
        self._call("PyErr_SetString", ir.VoidType(), kind, self._builder.bitcast(text, _POINTER))
        self._builder.ret(ir.Constant(_POINTER, None))

    def _raise_status(self, status: Any) -> None:
        """Raises SystemError of the exception that numba has pickled."""
        builder = self._builder
        first = [ir.Constant(_INT, 0)]
        pickled = builder.load(builder.gep(status.excinfoptr, [*first, ir.Constant(_INT, 0)]))
        size = builder.zext(builder.load(builder.gep(status.excinfoptr, [*first, ir.Constant(_INT, 1)])), _LONG)
        content = self._call("PyBytes_FromStringAndSize", _POINTER, pickled, size)
        self._call("PyErr_SetObject", ir.VoidType(), builder.load(self._global("PyExc_SystemError", _POINTER)), content)
        builder.ret(ir.Constant(_POINTER, None))

    def _define_runtime(self) -> None:
        """Defines what compiled code takes from numba's runtime, and what entries call."""
        for name in ("NRT_MemInfo_alloc_aligned", "NRT_MemInfo_alloc_safe_aligned"):
            kind = ir.FunctionType(_POINTER, (_LONG, _INT))
            builder = ir.IRBuilder(ir.Function(self._module, kind, name).append_basic_block())
            size, align = builder.function.args
            align = builder.zext(align, _LONG)
            room = builder.add(builder.add(size, align), ir.Constant(_LONG, _HEADER_BYTES))
            allocate = _cgutils.get_or_insert_function(self._module, ir.FunctionType(_POINTER, [_LONG]), "malloc")
            memory = builder.call(allocate, [room])
            with builder.if_then(_cgutils.is_null(builder, memory), likely=False):
                builder.ret(memory)
            end = builder.add(builder.ptrtoint(memory, _LONG), ir.Constant(_LONG, _HEADER_BYTES))
            begin = builder.and_(builder.sub(builder.add(end, align), ir.Constant(_LONG, 1)), builder.neg(align))
            numbers = builder.bitcast(memory, _LONG.as_pointer())
            for place, value in ((0, ir.Constant(_LONG, 1)), (3, begin), (4, size)):
                builder.store(value, builder.gep(numbers, [ir.Constant(_LONG, place)]))
            builder.ret(memory)
        kind = ir.FunctionType(ir.VoidType(), [_POINTER])
        builder = ir.IRBuilder(ir.Function(self._module, kind, "NRT_MemInfo_call_dtor").append_basic_block())
        builder.call(_cgutils.get_or_insert_function(self._module, kind, "free"), builder.function.args)
        builder.ret_void()
        _define_reshape(self._module)
        self._is_array = _define_is_array(self._module)


def _field(builder: Any, item: Any, offset: int, kind: Any) -> Any:
    """Returns a field of a structure."""
    return builder.load(builder.bitcast(builder.gep(item, [ir.Constant(_LONG, offset)]), kind.as_pointer()))


def _define_reshape(module: Any) -> None:
    """Defines numba's function that finds the strides of a reshaped array, for contiguous ones: it types no others."""
    numbers = _LONG.as_pointer()
    kind = ir.FunctionType(_INT, (_LONG, numbers, numbers, _LONG, numbers, numbers, _LONG, _INT))
    function = ir.Function(module, kind, "numba_attempt_nocopy_reshape")
    builder = ir.IRBuilder(function.append_basic_block())
    *_, count, sides, strides, size, _ = function.args
    step = _cgutils.alloca_once_value(builder, size)
    with _cgutils.for_range(builder, count) as loop:
        axis = builder.sub(builder.sub(count, loop.index), ir.Constant(_LONG, 1))
        stride = builder.load(step)
        builder.store(stride, builder.gep(strides, [axis]))
        builder.store(builder.mul(stride, builder.load(builder.gep(sides, [axis]))), step)
    builder.ret(ir.Constant(_INT, 1))


def _define_is_array(module: Any) -> Any:
    """Defines a function that compares an object with the type of an array.

    ``PyArrayObject`` has after its head the memory at 16, the number of dimensions at 24, their lengths at 32, strides
    at 40, the description at 56 and flags at 64; a description has its kind at 24, the byte order at 26 and the size at
    40.
    """
    truth = ir.IntType(1)
    kind = ir.FunctionType(truth, (_POINTER, _POINTER, _INT, _BYTE, _LONG, _INT))
    function = ir.Function(module, kind, "mmload_is_array")
    function.linkage = "internal"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block())
    item, class_, ndim, letter, size, flags = function.args
    own = _field(builder, item, 8, _POINTER)
    with builder.if_then(builder.icmp_unsigned("!=", own, class_), likely=False):
        subtype = _cgutils.get_or_insert_function(
            module, ir.FunctionType(_INT, (_POINTER, _POINTER)), "PyType_IsSubtype"
        )
        with builder.if_then(_cgutils.is_null(builder, builder.call(subtype, (own, class_)))):
            builder.ret(truth(0))
    described = _field(builder, item, 56, _POINTER)
    checks = (
        builder.icmp_signed("==", _field(builder, item, 24, _INT), ndim),
        builder.icmp_signed("==", _field(builder, described, 24, _BYTE), letter),
        builder.icmp_signed("!=", _field(builder, described, 26, _BYTE), _BYTE(ord(">"))),
        builder.icmp_signed("==", _field(builder, described, 40, _LONG), size),
        builder.icmp_signed("==", builder.and_(_field(builder, item, 64, _INT), flags), flags),
    )
    fits = checks[0]
    for check in checks[1:]:
        fits = builder.and_(fits, check)
    builder.ret(fits)
    return function
