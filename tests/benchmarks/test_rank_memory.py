"""benchmarks/rank_memory: a tiny run of its parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import script

pytestmark = pytest.mark.slow


def test_memory_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with script("rank_memory") as module:
        words = ["memory", "limit", "--tiers", "memory", "--ranks", "2", "--share", "0.02", "--limit", "100"]
        module.main([*words, "--place", str(tmp_path), "--json", str(tmp_path / "out")])
    record = json.loads((tmp_path / "out").read_text())
    for part in record["memory"].values():
        assert part["wrong"] == 0
        assert 0.5 < (part["pss"] - part["pss_of_few"]) / part["bytes"] < 1.5  # one copy, not two
    size = record["memory"]["memory"]["bytes"]
    assert not record["limit"] or record["limit"]["memory"] == {"bytes": size, "killed": 0, "wrong": 0}
