"""The benchmark of variable-size images, on four tiny ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from building import make_pictures
from conftest import script


def test_a_row_for_each_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_pictures(tmp_path / "photos", classes=1, each=8)  # every other one is a JPEG
    words = [str(tmp_path / "photos" / "class0"), "--rows", "6", "--size", "24", "--rounds", "1", "--threads", "1"]
    more = ["--layouts", "squares", "whole, jpeg", "--tiers", "memory", "--steps", "val"]
    monkeypatch.setattr("sys.argv", ["bench_variable", *words, *more])
    with script("bench_variable") as module:
        module.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["layout", "squares", "whole,", "to"]
    assert int(lines[1].split()[3].replace(",", "")) == 24 * 24 * 3
    assert all(float(line.split()[-1].replace(",", "")) > 0 for line in lines[1:3])
