"""The private interfaces of numba that mmload uses: each is there, takes what it is given, and is listed here."""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from numba import njit, types
from numba.core.caching import FunctionCache
from numba.core.callconv import CPUCallConv
from numba.core.cpu import CPUContext
from numba.core.sigutils import normalize_signature
from numba.extending import intrinsic
from packaging.requirements import Requirement

import mmload

PACKAGE = Path(mmload.__file__).parent

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


def test_numba_has_an_upper_bound_that_the_installed_version_satisfies() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    bounds = next(need for need in map(Requirement, project["dependencies"]) if need.name == "numba").specifier
    assert {bound.operator for bound in bounds} == {">=", "<"}
    assert version("numba") in bounds


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_called_takes_the_same_arguments(name: str) -> None:
    found, names = looked_up(name), FUNCTIONS[name]
    assert names is None or list(inspect.signature(found).parameters) == names


def test_settings_are_there() -> None:
    for name in SETTINGS:
        looked_up(name)


def test_everything_that_is_used_is_listed_here() -> None:
    used = set()
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        for module, names in re.findall(r"^\s*from numba\.core(?:\.(\w+))? import (.+)", text, re.MULTILINE):
            for name in names.split(", "):
                uses = re.findall(rf"(?<![\w.])_?{name}\.(\w+)", text)
                used |= {f"{module}.{name}"} if module else {f"{name}.{use}" for use in uses}
        assert not re.search(r"^\s*import numba\.|numba\.core\.\w+\.", text, re.MULTILINE)
    assert used == (FUNCTIONS.keys() - REPLACED - {"types.unliteral"}) | SETTINGS


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
    assert made._impl.filename_base.startswith("test_numba_interfaces.")
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
