"""The compiled loops with numba's bounds checks: no test of theirs reads or writes outside of its arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bounds import BOUNDS_CHECK

from mmload.runtime.host_memory import MemoryPool
from mmload.runtime.intrinsics import finish_streams, stream
from mmload.runtime.kernels import called, inlined, numba_compiled

TESTS = Path(__file__).parents[1]
CHECKED = (
    "render/test_cpu_kernels.py",
    "render/test_level_kernels.py",
    "render/test_resized_windows.py",
    "builder/test_row_statistics.py",
    "augment/test_variable_size_images.py",
    "loader/test_jpeg_strips.py",
    "runtime/test_kernel_bounds.py",
)


@pytest.mark.slow
@pytest.mark.skipif(BOUNDS_CHECK, reason="runs with bounds checks itself")
def test_the_kernels_stay_within_their_arrays() -> None:
    """In a process of its own, as numba reads the settings once; the checked code is kept beside the other.

    Most of the time goes into compiling, which takes 27 s without most of LLVM's optimizations and 35 s with them.
    """
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*words, *(str(TESTS / name) for name in CHECKED)],
        capture_output=True,
        text=True,
        env=os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@inlined
def _inlined_past_the_end(values: Any) -> None:
    values[values.shape[0]] = 1.0


@called
def _called_before_the_start(values: Any, at: int) -> None:
    values[np.uintp(at)] = 1.0


@numba_compiled("float32[::1], float32[::1], int64")
def _faulty(values: Any, line: Any, fault: int) -> None:
    if fault == 0:
        _inlined_past_the_end(values)
    elif fault == 1:
        _called_before_the_start(values, -1)
    elif fault == 2:
        stream(line, values, 16, 16)
    elif fault == 3:
        stream(line, values, 0, 32)
    elif fault == 4:
        stream(line, values, 0, 1)
    finish_streams()


@contextmanager
def out_of_bounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Expects that a kernel reports an index; C functions cannot raise, so numba gives it to this hook."""
    found: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(sys, "unraisablehook", lambda report: found.append(report.exc_value))
        yield
    assert [type(each) for each in found] == [IndexError]


@pytest.mark.slow
@pytest.mark.skipif(not BOUNDS_CHECK, reason="needs bounds checks, without which it would write there")
@pytest.mark.parametrize("fault", range(4))
def test_bounds_check_of_a_planted_fault_reports_it(fault: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else none of this checks anything. Streams need memory aligned to a cache line; NumPy aligns by luck."""
    values = MemoryPool().array((16,), np.float32)
    values[:] = 0
    with out_of_bounds(monkeypatch):
        _faulty(values[:15] if fault == 2 else values, values.copy(), fault)
    with out_of_bounds(monkeypatch):
        _faulty(values[:15], values.copy(), 4)  # a whole line is written
    _faulty(values, values.copy(), 5)
