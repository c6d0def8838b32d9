"""The private interfaces of numba that mmload uses: each is there, takes what it is given, and is listed here.

And calls by address, which are made of them.
"""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit, types
from numba.core.caching import FunctionCache
from numba.core.callconv import CPUCallConv
from numba.core.cpu import CPUContext
from numba.core.errors import TypingError
from numba.core.sigutils import normalize_signature
from numba.extending import intrinsic
from packaging.requirements import Requirement

import mmload
from mmload.runtime.numba_compile import numba_compiled
from mmload.runtime.numba_internals import address_of, call_by

PACKAGE = Path(mmload.__file__).parent
INTERNALS = PACKAGE / "runtime" / "numba_internals.py"

FUNCTIONS = {
    "caching.FunctionCache": ["py_func"],
    "caching.IndexDataCacheFile.flush": ["self"],
    "caching.IndexDataCacheFile.load": ["self", "key"],
    "caching.IndexDataCacheFile.save": ["self", "key", "data"],
    "cgutils.do_boundscheck": ["context", "builder", "ind", "dimlen", "axis"],
    "cgutils.for_range_slice": ["builder", "start", "stop", "step", "intp", "inc"],
    "cgutils.if_unlikely": ["builder", "pred"],
    "cgutils.unpack_tuple": ["builder", "tup", "count"],
    "errors.TypingError": None,
    "serialize.dumps": ["obj"],
    "sigutils.normalize_signature": ["sig"],
    "typeinfer.register_dispatcher": ["disp"],
    "types.BaseTuple.from_types": ["tys", "pyclass"],
    "types.unliteral": ["lit_type"],
}
SETTINGS = {"config.BOUNDSCHECK", "config.DISABLE_JIT", "config.OPT"}
REPLACED = {"caching.IndexDataCacheFile.flush", "caching.IndexDataCacheFile.load", "caching.IndexDataCacheFile.save"}


def looked_up(name: str) -> Any:
    module, *rest = name.split(".")
    found: Any = importlib.import_module(f"numba.core.{module}")
    for each in rest:
        found = getattr(found, each)
    return found


@pytest.mark.parametrize("name", ["llvmlite", "numba"])
def test_a_private_interface_has_an_upper_bound_that_the_installed_version_satisfies(name: str) -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    bounds = next(need for need in map(Requirement, project["dependencies"]) if need.name == name).specifier
    assert {bound.operator for bound in bounds} == {">=", "<"}
    assert version(name) in bounds


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_called_takes_the_same_arguments(name: str) -> None:
    found, names = looked_up(name), FUNCTIONS[name]
    assert names is None or list(inspect.signature(found).parameters) == names


def test_settings_are_there() -> None:
    for name in SETTINGS:
        looked_up(name)


def test_everything_that_is_used_is_listed_here() -> None:
    used, text = set(), INTERNALS.read_text()
    for module, names in re.findall(r"^\s*from numba\.core(?:\.(\w+))? import (.+)", text, re.MULTILINE):
        for name in names.split(", "):
            uses = re.findall(rf"(?<![\w.])_?{name}\.(\w+)", text)
            used |= {f"{module}.{name}"} if module else {f"{name}.{use}" for use in uses}
    used |= {f"types.{use}" for use in re.findall(r"_types\.([\w.]+)\(", text)} - {"types.Tuple"}
    assert used == (FUNCTIONS.keys() - REPLACED) | SETTINGS


def test_no_other_module_uses_a_private_interface() -> None:
    private = re.compile(r"^\s*(from|import) (numba\.core|numba\.extending|llvmlite\.|llvmlite import)", re.MULTILINE)
    users = [file for file in PACKAGE.rglob("*.py") if private.search(file.read_text())]
    assert users == [INTERNALS]


def test_a_compiled_function_has_what_is_read_of_it() -> None:
    def double(value: float) -> float:
        return 2 * value

    made: Any = njit(double)
    made.compile("float32(float32)")
    made.disable_compile()
    assert made.py_func is double
    assert hasattr(made, "_cache")
    compiled = made.overloads[normalize_signature("float32(float32)")[0]]
    assert compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name) > 0


def test_a_cache_has_what_is_read_and_replaced() -> None:
    made: Any = FunctionCache(looked_up)
    assert {"_cache_file", "_impl"} <= vars(made).keys()
    assert Path(made.cache_path).is_absolute()
    assert made._impl.filename_base.startswith("test_numba_internals.")
    assert made._impl.locator.get_source_stamp()


def test_code_generation_has_what_intrinsics_use() -> None:
    missing: list[str] = []

    def check(thing: object, *names: str) -> None:
        missing.extend(f"{type(thing).__name__}.{name}" for name in names if not hasattr(thing, name))

    @intrinsic
    def probe(context: Any, array: Any) -> Any:
        def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            check(target, "enable_boundscheck", "get_abi_sizeof", "get_data_type", "get_dummy_value", "call_conv")
            check(
                target.make_array(array)(target, builder, arguments[0]), "meminfo", "data", "nitems", "strides", "shape"
            )
            check(target.make_array(array)(target, builder, arguments[0]), "_getvalue")
            check(target.codegen(), "_tm_features")
            return target.get_dummy_value()

        return types.void(array), code

    made: Any = njit(lambda array: probe(array))
    made.compile("void(uint8[::1])")
    assert missing == []
    expected = {
        CPUContext.make_array: ["self", "typ"],
        CPUContext.get_data_type: ["self", "ty"],
        CPUContext.get_abi_sizeof: ["self", "ty"],
        CPUCallConv.get_function_type: ["self", "restype", "argtypes"],
        CPUCallConv.call_function: ["self", "builder", "callee", "resty", "argtys", "args", "attrs"],
        CPUCallConv.return_status_propagate: ["self", "builder", "status"],
    }
    assert {function: list(inspect.signature(function).parameters) for function in expected} == expected


ADD = "void(int64[:, ::1], int64)"


@numba_compiled(ADD)
def add(array: np.ndarray, number: int) -> None:
    if number < 0:
        raise ValueError("a negative number")
    for i in range(array.shape[0]):
        for k in range(array.shape[1]):
            array[i, k] += number


call = call_by("void(float32[::1])", ADD)


@numba_compiled("void(int64[:, ::1], int64[::1], uintp)")
def add_to_each(array: np.ndarray, numbers: np.ndarray, address: int) -> None:
    for k in range(len(numbers)):
        call(address, (array[k : k + 1], numbers[k]))


def test_a_function_is_called_with_its_arguments() -> None:
    array = np.zeros((3, 2), np.int64)
    add_to_each(array, np.array([5, 0, 7]), address_of(add, ADD))
    assert array.tolist() == [[5, 5], [0, 0], [7, 7]]


def test_what_it_raises_arrives() -> None:
    array = np.zeros((2, 2), np.int64)
    with pytest.raises(ValueError, match="a negative number"):
        add_to_each(array, np.array([1, -1]), address_of(add, ADD))
    assert array.tolist() == [[1, 1], [0, 0]]


def test_other_types_are_refused_when_the_caller_is_compiled() -> None:
    with pytest.raises(TypingError, match="no function of these"):

        @numba_compiled("void(float64[:, ::1], uintp)")
        def add_floats(array: np.ndarray, address: int) -> None:
            call(address, (array, 1))
