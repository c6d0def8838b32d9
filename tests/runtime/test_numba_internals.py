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
from llvmlite import binding
from numba import njit, types
from numba.core.callconv import CPUCallConv
from numba.core.codegen import CPUCodeLibrary
from numba.core.cpu import CPUContext
from numba.core.sigutils import normalize_signature
from numba.extending import intrinsic
from packaging.requirements import Requirement

import mmload

PACKAGE = Path(mmload.__file__).parent
INTERNALS = [PACKAGE / "runtime" / name for name in ("numba_internals.py", "numba_intrinsics.py")]
LINKER = PACKAGE / "runtime" / "machine_code.py"
VECTOR_CODE = PACKAGE / "runtime" / "vector_code.py"

FUNCTIONS = {
    "cgutils.alloca_once_value": ["builder", "value", "name", "zfill"],
    "cgutils.do_boundscheck": ["context", "builder", "ind", "dimlen", "axis"],
    "cgutils.for_range": ["builder", "count", "start", "intp"],
    "cgutils.for_range_slice": ["builder", "start", "stop", "step", "intp", "inc"],
    "cgutils.get_or_insert_function": ["module", "fnty", "name"],
    "cgutils.global_constant": ["builder_or_module", "name", "value", "linkage"],
    "cgutils.if_unlikely": ["builder", "pred"],
    "cgutils.is_not_null": ["builder", "val"],
    "cgutils.is_null": ["builder", "val"],
    "cgutils.make_bytearray": ["buf"],
    "cgutils.unpack_tuple": ["builder", "tup", "count"],
    "compiler.Compiler": None,
    "compiler_lock.global_compiler_lock": None,
    "dispatcher._FunctionCompiler": ["py_func", "targetdescr", "targetoptions", "locals", "pipeline_class"],
    "errors.TypingError": None,
    "sigutils.normalize_signature": ["sig"],
    "types.BaseTuple.from_types": ["tys", "pyclass"],
    "types.unliteral": ["lit_type"],
}
SETTINGS = {"config.OPT"}


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
    used: set[str] = set()
    for text in (file.read_text() for file in INTERNALS):
        for module, names in re.findall(r"^\s*from numba\.core(?:\.(\w+))? import (.+)", text, re.MULTILINE):
            for name in names.split(", "):
                uses = re.findall(rf"(?<![\w.])_?{'lock' if name == 'compiler_lock' else name}\.(\w+)", text)
                used |= {f"{module}.{name}"} if module else {f"{name}.{use}" for use in uses}
        used |= {f"types.{use}" for use in re.findall(r"_types\.([\w.]*[a-z]\w*)\(", text)}
    public = {f"types.{name}" for name in ("Tuple", "Array", "ExternalFunction")}
    assert used - public == FUNCTIONS.keys() | SETTINGS


def test_no_other_module_uses_a_private_interface() -> None:
    private = re.compile(r"^\s*(from|import) (numba\.core|numba\.extending|numba\.np|llvmlite\.|llvmlite import)", re.M)
    users = [file for file in PACKAGE.rglob("*.py") if private.search(file.read_text())]
    assert sorted(users) == sorted([*INTERNALS, LINKER, VECTOR_CODE])
    for file, public in ((LINKER, "binding"), (VECTOR_CODE, "ir")):
        [line] = re.findall(r"^\s*from llvmlite.*", file.read_text(), re.M)
        assert line.strip() == f"from llvmlite import {public}", "which is public"


def test_code_generation_has_what_intrinsics_and_entries_use() -> None:
    missing: list[str] = []

    def check(thing: object, *names: str) -> None:
        missing.extend(f"{type(thing).__name__}.{name}" for name in names if not hasattr(thing, name))

    @intrinsic
    def probe(context: Any, array: Any) -> Any:
        def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            check(target, "enable_boundscheck", "get_abi_sizeof", "get_data_type", "get_dummy_value", "call_conv")
            check(target, "get_value_type", "make_tuple")
            made = target.make_array(array)(target, builder, arguments[0])
            check(made, "meminfo", "data", "nitems", "strides", "shape", "_getvalue")
            check(target.codegen(), "_tm_features", "_get_host_cpu_name")
            return target.get_dummy_value()

        return types.void(array), code

    made: Any = njit(lambda array: probe(array))
    made.compile("void(uint8[::1])")
    check(made, "py_func", "targetdescr", "targetoptions", "locals")
    library = made.overloads[normalize_signature("void(uint8[::1])")[0]].library
    check(library, "_linking_libraries", "_final_module", "_codegen", "create_ir_module", "add_ir_module")
    assert missing == []
    expected = {
        CPUContext.make_array: ["self", "typ"],
        CPUContext.get_data_type: ["self", "ty"],
        CPUContext.get_abi_sizeof: ["self", "ty"],
        CPUCallConv.get_function_type: ["self", "restype", "argtypes"],
        CPUCallConv.call_function: ["self", "builder", "callee", "resty", "argtys", "args", "attrs"],
        CPUCallConv.return_status_propagate: ["self", "builder", "status"],
        CPUCodeLibrary._get_module_for_linking: ["self"],
        CPUCodeLibrary._optimize_final_module: ["self"],
    }
    assert {function: list(inspect.signature(function).parameters) for function in expected} == expected


def test_the_linker_has_what_machine_code_uses() -> None:
    used = re.findall(r"_llvm\(\)\.(\w+)|llvm\.(\w+)", LINKER.read_text())
    assert {name for pair in used for name in pair if name and not hasattr(binding, name)} == set()
