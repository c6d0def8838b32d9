"""The benchmark of object storage, on 24 rows."""

from __future__ import annotations

import json
import re

import pytest
from conftest import script

SERVER = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_REGION": "us-east-1",
}


def test_a_line_for_each_comparison(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("obstore", reason="object storage needs obstore")
    words = ["--rows", "24", "--side", "160", "--rounds", "1", "--threads", "1", "--parallel", "2"]
    monkeypatch.setattr("sys.argv", ["bench_objects", *words])
    for name, value in SERVER.items():  # put back afterwards; before the server runs, nobody is asked for credentials
        monkeypatch.setenv(name, value)
    with script("bench_objects") as module:
        module.main()
    lines = dict(re.split(r" (?=[{\[])", line) for line in capsys.readouterr().out.splitlines())
    shares = json.loads(lines.pop("half in cache: fetched of the data, epoch by epoch"))
    assert shares[0] >= 1
    assert len(lines) == 3
    assert all(json.loads(values)["ratio"] > 0 for values in lines.values())
