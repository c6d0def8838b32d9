"""Reports are recorded side by side and after a kill, and the manifest is always whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mmload.errors import StoreError
from mmload.parity import ParityReport, record
from mmload.store.dataset import Dataset
from mmload.store.manifest import read


def report_of(folder: Path) -> ParityReport:
    return ParityReport(settings={"dataset": "x"}, verdicts=(), contents=read(folder).contents)


def test_a_dataset_that_was_replaced_meanwhile_or_is_none_gets_no_report(copy: Path, tmp_path: Path) -> None:
    before, report = (copy / "dataset.json").read_bytes(), ParityReport(settings={}, verdicts=(), contents="of another")
    with pytest.raises(StoreError, match="changed during the check"):
        record(copy, report)
    assert (copy / "dataset.json").read_bytes() == before
    with pytest.raises(StoreError, match="No such file or directory.*, so the report was not saved"):
        record(tmp_path / "nowhere", report)


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


def test_parity_record_of_many_at_once_leaves_a_valid_manifest(dataset: Dataset, copy: Path) -> None:
    report = report_of(copy)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: record(copy, report), range(20)))
    assert [path.name for path in copy.glob("*.partial")] == []
    assert read(copy).splits == dataset.manifest.splits
    assert read(copy).card["parity"]["settings"] == {"dataset": "x"}
