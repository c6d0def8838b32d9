"""Machine code of the package: chosen by the processor, equal in every bit to what is compiled for it, independent."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mmload.errors import UsageError
from mmload.runtime import machine_code
from mmload.runtime.machine_code import LEVELS, PACKAGE, levels, read_code

TESTS = Path(__file__).parents[1]
SCRIPT = PACKAGE.parent / "scripts" / "machine_code"

EVERY_KERNEL = (
    "render/test_canvas_kernels.py",
    "render/test_cpu_kernels.py",
    "render/test_cpu_ordered.py",
    "render/test_level_kernels.py",
    "render/test_resized_windows.py",
    "builder/test_row_statistics.py",
    "loader/test_drawn_orders.py",
    "loader/test_jpeg_strips.py",
    "runtime/test_random_words.py",
)
"""Tests that compare the bits of kernels with those of torch, numpy or libjpeg."""


class Processor:
    """A processor with some features, in place of llvmlite's."""

    def __init__(self, features: str, triple: str) -> None:
        self._features, self._triple = features.split(), triple

    def get_host_cpu_features(self) -> dict[str, bool]:
        return dict.fromkeys(self._features, True)

    def get_process_triple(self) -> str:
        return self._triple


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("MMLOAD_MACHINE_CODE", *machine_code._SETTINGS):
        monkeypatch.delenv(name, raising=False)

    def levels_of(features: str, triple: str = "x86_64-unknown-linux-gnu") -> tuple[str, ...]:
        monkeypatch.setattr(machine_code, "_llvm", lambda: Processor(features, triple))
        return machine_code.levels.__wrapped__()

    return levels_of


def test_the_best_kind_that_a_processor_is_of_is_taken_first(processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert processor(LEVELS["x86-64-v4"]) == ("x86-64-v4", "x86-64-v3")
    assert processor(LEVELS["x86-64-v3"]) == ("x86-64-v3",)
    assert processor(LEVELS["x86-64-v3"].replace("fma", "")) == ()
    assert processor(LEVELS["x86-64-v4"], "x86_64-apple-darwin22") == (), "whose object files are of another kind"
    assert processor("", "aarch64-unknown-linux-gnu") == ("aarch64",)
    assert processor("neon", "aarch64-redhat-linux-gnu") == ("aarch64",)
    assert processor("neon", "arm64-apple-darwin22") == ()
    assert processor("", "riscv64-unknown-linux-gnu") == ()
    monkeypatch.setenv("MMLOAD_MACHINE_CODE", "x86-64-v3")
    assert processor(LEVELS["x86-64-v4"]) == ("x86-64-v3",)
    monkeypatch.setenv("MMLOAD_MACHINE_CODE", "own")
    assert processor(LEVELS["x86-64-v4"]) == ()


def test_unknown_kind_of_machine_code_is_refused(processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMLOAD_MACHINE_CODE", "x86-64-v9")
    with pytest.raises(
        UsageError, match="MMLOAD_MACHINE_CODE is 'x86-64-v9'; use one of aarch64, own, x86-64-v3, x86-64-v4"
    ):
        processor(LEVELS["x86-64-v4"])


def test_kind_of_machine_code_that_the_processor_is_not_of_is_refused(
    processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMLOAD_MACHINE_CODE", "aarch64")
    with pytest.raises(UsageError, match="is aarch64, which this processor is not; use own, x86-64-v3, x86-64-v4"):
        processor(LEVELS["x86-64-v4"])
    monkeypatch.setenv("MMLOAD_MACHINE_CODE", "x86-64-v4")
    with pytest.raises(UsageError, match="is x86-64-v4, which this processor is not"):
        processor(LEVELS["x86-64-v3"])


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_cache_of_machine_code_that_others_can_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    folder = machine_code.cache_folder.__wrapped__()
    assert folder == tmp_path / "mmload"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    assert machine_code.cache_folder.__wrapped__() is None


def test_user_without_a_home_has_no_cache_of_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert machine_code._user_caches() == []


@pytest.mark.skipif(not any((PACKAGE / "machine_code").glob("*/*.o")), reason="scripts/machine_code has not been run")
def test_machine_code_needs_the_c_library_and_pythons_stable_interface_alone(tmp_path: Path) -> None:
    files = sorted((PACKAGE / "machine_code").glob("*/*.o"))
    needed = set()
    for file in files:
        code = read_code(file)
        assert code is not None, file
        (tmp_path / "one.o").write_bytes(code)
        found = subprocess.run(["nm", "-u", tmp_path / "one.o"], capture_output=True, text=True, check=True)
        needed |= set(re.findall(r"U (\w+)", found.stdout))
    python = {name for name in needed if name.startswith(("Py", "_Py"))}
    assert needed - python <= {
        *("malloc", "free", "memcpy", "memmove", "memset"),
        *("cos", "exp", "fmod", "log", "log1p", "pow", "sin", "sincos", "sqrt", "tan"),
        *("close", "creat", "lseek", "madvise", "mincore", "mmap", "open", "posix_fadvise", "pread", "rename", "write"),
    }
    assert python <= {
        *("PyBool_FromLong", "PyBytes_FromStringAndSize", "PyErr_Occurred", "PyErr_SetObject", "PyErr_SetString"),
        *("PyEval_RestoreThread", "PyEval_SaveThread", "PyExc_SystemError", "PyExc_TypeError", "PyFloat_AsDouble"),
        *("PyFloat_FromDouble", "PyLong_AsLongLong", "PyLong_AsUnsignedLongLongMask", "PyLong_FromLongLong"),
        *("PyObject_IsTrue", "PyTuple_GetItem", "PyTuple_New", "PyTuple_SetItem", "PyType_IsSubtype", "Py_IncRef"),
        "_Py_NoneStruct",
    }, "all of these are in the stable ABI of Python 3.11"


@pytest.mark.slow
@pytest.mark.skipif("ALL_LEVELS" not in os.environ, reason="minutes a level; scripts/release sets ALL_LEVELS")
@pytest.mark.skipif(not levels(), reason="no kind of processor of LEVELS fits this one")
@pytest.mark.parametrize("level", [*LEVELS, "own"])
def test_every_kind_of_machine_code_has_the_bits_of_the_references(level: str) -> None:
    """So all of them are equal to what is compiled for this processor, and to each other."""
    if level not in (*levels(), "own"):
        pytest.skip("this processor is not of that kind")
    if level != "own":
        subprocess.run([sys.executable, SCRIPT, level], check=True, capture_output=True)
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow"]
    done = subprocess.run(
        [*words, *(str(TESTS / name) for name in EVERY_KERNEL)],
        capture_output=True,
        text=True,
        env=os.environ | {"MMLOAD_MACHINE_CODE": level},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert ("compiling machine code" in done.stderr) is False or level == "own"
