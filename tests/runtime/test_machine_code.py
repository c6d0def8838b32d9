"""Machine code of the package: chosen by the processor, equal in every bit to what is compiled for it, independent."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from llvmlite import binding

from mmload.errors import UsageError
from mmload.runtime import kernel_compiler, machine_code
from mmload.runtime.machine_code import LEVELS, PACKAGE, levels
from mmload.runtime.resources import cpu_fact

TESTS = Path(__file__).parents[1]
SCRIPT = PACKAGE.parent / "scripts" / "machine_code"

EVERY_KERNEL = (
    "augment/test_hsv.py",
    "render/test_canvas_kernels.py",
    "render/test_cpu_kernels.py",
    "render/test_level_kernels.py",
    "render/test_resized_windows.py",
    "builder/test_row_statistics.py",
    "loader/test_drawn_orders.py",
    "loader/test_jpeg_strips.py",
    "runtime/test_random_words.py",
)
"""Tests that compare the bits of kernels with those of torch, numpy or libjpeg."""


V4, V3 = (set(LEVELS[level].split()) for level in ("x86-64-v4", "x86-64-v3"))


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("MMLOAD_MACHINE_CODE", *machine_code._SETTINGS):
        monkeypatch.delenv(name, raising=False)

    def levels_of(features: set[str], machine: str = "x86_64") -> tuple[str, ...]:
        monkeypatch.setattr(machine_code, "cpu_fact", lambda name: " ".join(features))
        monkeypatch.setattr(platform, "machine", lambda: machine)
        return machine_code.levels.__wrapped__()

    return levels_of


def test_the_best_kind_that_a_processor_is_of_is_taken_first(processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert processor(V4) == ("x86-64-v4", "x86-64-v3")
    assert processor(V3) == ("x86-64-v3",)
    assert processor(V3 - {"fma"}) == ()
    assert processor(set(), "aarch64") == ("aarch64",)
    assert processor(set(), "arm64") == (), "as macOS names it"
    assert processor(set(), "riscv64") == ()
    monkeypatch.setenv("MMLOAD_MACHINE_CODE", "x86-64-v3")
    assert processor(V4) == ("x86-64-v3",)
    monkeypatch.setenv("MMLOAD_MACHINE_CODE", "own")
    assert processor(V4) == ()


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="what Linux says of x86")
def test_features_of_this_processor_are_those_that_llvm_finds() -> None:
    found = {name for name, is_there in binding.get_host_cpu_features().items() if is_there}
    assert {machine_code._FLAGS.get(name, name) for name in cpu_fact("flags").split()} & V4 == found & V4


@pytest.mark.parametrize(
    ("wanted", "features", "message"),
    [
        ("x86-64-v9", V4, "is 'x86-64-v9'; use own, x86-64-v3, x86-64-v4 on this processor"),
        ("x86-64-v4", V3, "is 'x86-64-v4'; use own, x86-64-v3 on this processor"),
    ],
)
def test_kind_of_machine_code_that_is_unknown_or_not_the_processors_is_refused(
    processor: Any, monkeypatch: pytest.MonkeyPatch, wanted: str, features: set[str], message: str
) -> None:
    monkeypatch.setenv("MMLOAD_MACHINE_CODE", wanted)
    with pytest.raises(UsageError, match=f"MMLOAD_MACHINE_CODE {message}"):
        processor(features)


def test_cache_of_machine_code_that_others_can_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    folder = machine_code.cache_folder.__wrapped__()
    assert folder == tmp_path / "mmload"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    assert machine_code.cache_folder.__wrapped__() is None


def test_user_without_a_home_has_no_cache_of_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").write_text("")  # no folder can be made in it
    monkeypatch.setattr(machine_code, "PACKAGE", tmp_path / "package")
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert machine_code.cache_folder.__wrapped__() is None


LIBRARIES = sorted((PACKAGE / "machine_code").glob("*.so"))


@pytest.mark.skipif(not LIBRARIES, reason="scripts/machine_code has not been run")
def test_machine_code_needs_the_c_library_alone() -> None:
    for library in LIBRARIES:
        found = subprocess.run(["nm", "--dynamic", "-u", library], capture_output=True, text=True, check=True)
        assert set(re.findall(r"U (\w+)", found.stdout)) <= kernel_compiler.C_LIBRARY, library


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
