"""Compiled functions: their code is kept, and a process that cannot keep or read it compiles for itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np
import doubling
values = np.arange(5, dtype=np.float32)
doubling.double(values)
print(values.tolist(), sum(doubling.double.stats.cache_hits.values()))
"""

SOURCE = """
from mmload.compiled import compiled, inlined

@inlined
def twice(value):
    return value + value

@compiled("void(float32[::1])")
def double(values):
    for i in range(values.shape[0]):
        values[i] = twice(values[i])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "doubling.py").write_text(SOURCE)
    return tmp_path


def run(folder: Path, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(folder=str(folder))],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | variables,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("[0.0, 2.0, 4.0, 6.0, 8.0]")
    return done.stdout


def hits(told: str) -> str:
    return "from kept code" if told.endswith(" 1\n") else "compiled"


def test_code_is_kept_for_the_next_process(folder: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    assert hits(run(folder, NUMBA_CACHE_DIR=cache)) == "compiled"
    assert hits(run(folder, NUMBA_CACHE_DIR=cache)) == "from kept code"


def test_damaged_code_is_compiled_anew(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run(folder, NUMBA_CACHE_DIR=str(cache))
    kept = [path for path in cache.rglob("*") if path.suffix in (".nbi", ".nbc")]
    assert kept
    for path in kept:
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        run(folder, NUMBA_CACHE_DIR=str(cache))


def test_nowhere_to_keep_code_is_no_failure(folder: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "file"
    nothing.write_text("")
    assert hits(run(folder, NUMBA_CACHE_DIR=str(nothing))) == "compiled"


def test_a_full_disk_is_no_failure(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("resource")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))"
    program = f"{limit}\n{PROGRAM.format(folder=str(folder))}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[0.0, 2.0, 4.0, 6.0, 8.0]")
