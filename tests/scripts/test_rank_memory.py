"""scripts/rank_memory: ranks that are killed, and a tiny run of its other parts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from conftest import script

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system cannot share memory"),
]


def test_ranks_that_are_killed_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")  # main sets it
    with script("rank_memory") as module:
        monkeypatch.setattr(module, "KILLED_ROWS", 40)
        words = ["kills", "--ranks", "2", "--rounds", "1", "--place", str(tmp_path), "--json", str(tmp_path / "out")]
        module.main(words)
    found = json.loads((tmp_path / "out").read_text())["kills"]
    assert found == {"rounds": 1, "wrong": 0, "found": 1, "holders": [], "names": []}


def test_memory_and_rates_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with script("rank_memory") as module:
        words = ["memory", "rate", "limit", "--ranks", "2", "--share", "0.002", "--turns", "1", "--rate-rows", "70"]
        module.main([*words, "--limit", "100", "--place", str(tmp_path), "--json", str(tmp_path / "out")])
    record = json.loads((tmp_path / "out").read_text())
    one, each = record["memory"]["one copy"], record["memory"]["private copies"]
    assert one["wrong"] == each["wrong"] == 0
    taken = {name: (part["pss"] - part["pss_before"]) / part["bytes"] for name, part in record["memory"].items()}
    assert taken["private copies"] - taken["one copy"] > 0.8  # two copies, not one, over what any epoch takes
    assert record["rate"]["ratio"] > 0
    assert not record["limit"] or record["limit"]["memory"] == {"bytes": one["bytes"], "killed": 0, "wrong": 0}
