"""A few rounds of scripts/torture, and that its checks see what they look for."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "torture"


@pytest.fixture(scope="module")
def torture() -> ModuleType:
    loader = SourceFileLoader("torture", str(SCRIPT))
    spec = importlib.util.spec_from_loader("torture", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["torture"] = module
    loader.exec_module(module)
    return module


def test_a_few_rounds() -> None:
    """In a process of its own, as a fork of this one, with torch's threads at work, would hang."""
    command = [sys.executable, SCRIPT, "--rounds", "4", "--images", "60", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    kills = re.search(r"4 rounds, (\d+) kills: every dataset equals", done.stdout)
    assert kills is not None
    assert int(kills[1]) > 0


def test_a_difference_is_seen(torture: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_bytes(b"1")
    new = torture.tree(tmp_path / "out")
    torture.check_equal(tmp_path / "out", new)
    torture.check_whole(tmp_path / "out", None, new)
    (tmp_path / "out" / "a").write_bytes(b"2")
    with pytest.raises(torture.DifferenceError, match="differs from the undisturbed build in a"):
        torture.check_equal(tmp_path / "out", new)
    with pytest.raises(torture.DifferenceError, match="neither the old nor the new"):
        torture.check_whole(tmp_path / "out", None, new)
    with pytest.raises(torture.DifferenceError, match="the old dataset is gone"):
        torture.check_whole(tmp_path / "gone", new, new)
