"""The compiled loops with numba's bounds checks: no test of theirs reads or writes outside of its arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
CHECKED = (
    "render/test_cpu_kernels.py",
    "render/test_mixing_kernels.py",
    "render/test_level_kernels.py",
    "render/test_resized_windows.py",
    "builder/test_row_statistics.py",
    "augment/test_variable_size_images.py",
    "loader/test_jpeg_strips.py",
    "helpers/bounds_fuzz.py",
)


def test_the_kernels_stay_within_their_arrays() -> None:
    """In a process of its own, as numba reads the settings once; the checked code is kept beside the other.

    Most of the time goes into compiling, which takes 27 s without most of LLVM's optimizations and 35 s with them.
    """
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            *(str(TESTS / name) for name in CHECKED),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
