"""benchmarks/bench_field on a few rows: a rate for each order."""

from __future__ import annotations

import pytest
from forked_program import run_script

pytestmark = pytest.mark.slow


def test_an_added_field_is_read_in_order_and_at_random() -> None:
    done = run_script("bench_field", "--rows", "2000", "--width", "16")
    assert done.returncode == 0, done.stderr
    rates = {line.partition(":")[0]: line.split()[-2] for line in done.stdout.splitlines() if line.startswith("numpy")}
    assert set(rates) == {"numpy in order", "numpy at random"}
    loaded = [line for line in done.stdout.splitlines() if line.startswith(("in order", "at random"))]
    assert len(loaded) == 2
    assert all(float(line.split(":")[1].split()[0]) > 0 for line in loaded)
