"""scripts/gpu_check without a GPU: it runs, and says what it found."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from conftest import script


@pytest.mark.slow
def test_gpu_check_runs_all_parts_on_a_cpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--device", "cpu", "--quick"])
    with script("gpu_check") as gpu_check:
        assert gpu_check.main() == 0
    *table, record = capsys.readouterr().out.splitlines()
    found = json.loads(record)
    parts = found.keys() - {"device", "torch"}
    assert parts == {"render", "copies", "memory", "training"}
    assert len(table) == sum(len(found[part]) for part in parts)
    assert all(number > 0 for name, number in found["render"].items() if name.endswith("images/s"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_gpu_check_without_a_gpu_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    with script("gpu_check") as gpu_check, pytest.raises(SystemExit, match="2"):
        gpu_check.main()
    assert "no CUDA GPU" in capsys.readouterr().err
