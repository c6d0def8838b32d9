"""Reports are recorded side by side, by many at once and by some that are killed, and the manifest is always whole."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import shutil
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from mmload.errors import StoreError
from mmload.parity import ParityReport, record
from mmload.store.dataset import Dataset
from mmload.store.manifest import read


def recorder(folder: Path, name: str, ready: Connection) -> None:
    """A process that records reports until it is killed."""
    contents = read(folder).contents
    ready.send(name)
    for number in itertools.count(1):
        record(folder, ParityReport(settings={"number": number, "by": name * 3000}, verdicts=(), contents=contents))


def report_of(folder: Path) -> ParityReport:
    return ParityReport(settings={"dataset": "x"}, verdicts=(), contents=read(folder).contents)


def test_a_dataset_that_was_replaced_meanwhile_gets_no_report(copy: Path) -> None:
    before = (copy / "dataset.json").read_bytes()
    with pytest.raises(StoreError, match="changed during the check"):
        record(copy, ParityReport(settings={}, verdicts=(), contents="of another"))
    assert (copy / "dataset.json").read_bytes() == before


def test_what_a_kill_left_of_a_record_is_removed_by_the_next(copy: Path) -> None:
    left = [copy / f"dataset.json.{'0123456789abcdef'}.partial", copy / "dataset.json.partial"]
    for path in left:
        path.write_text("{")
    other = copy / "dataset.json.mine.partial"
    other.touch()
    record(copy, report_of(copy))
    assert not any(path.exists() for path in left)
    assert other.exists()
    assert read(copy).card["parity"]["settings"] == {"dataset": "x"}


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_parity_record_concurrent_and_killed_leaves_a_valid_manifest(dataset: Dataset, copy: Path) -> None:
    draw = random.Random(0)
    context: Any = multiprocessing.get_context("forkserver")  # a fork of a server that has imported torch
    recorders: list[BaseProcess] = []

    def start(name: str) -> BaseProcess:
        here, there = context.Pipe()
        process: BaseProcess = context.Process(target=recorder, args=(copy, name, there))
        process.start()
        assert here.recv() == name
        return process

    try:
        recorders = [start("a"), start("b")]
        begun, seen = time.monotonic(), set()
        while (passed := time.monotonic() - begun) < 2 or (passed < 120 and not {"a", "b"} <= seen):
            seen.add(read(copy).card.get("parity", {}).get("settings", {}).get("by", "")[:1])
        assert all(process.is_alive() for process in recorders)
        assert {"a", "b"} <= seen
    finally:
        for process in recorders:
            time.sleep(draw.uniform(0, 0.01))
            process.kill()
            process.join()
    record(copy, report_of(copy))
    assert [path.name for path in copy.glob("*.partial")] == []
    body = json.loads((copy / "dataset.json").read_text(encoding="utf-8"))
    assert body["splits"] == json.loads((dataset.path / "dataset.json").read_text(encoding="utf-8"))["splits"]
    shutil.rmtree(copy)
