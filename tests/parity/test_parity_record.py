"""Results of checks are recorded side by side and after a kill, and the manifest is always whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mmload.builder.dataset_change import write_card
from mmload.errors import StoreError
from mmload.store.dataset import Dataset
from mmload.store.manifest import read

RESULT = {"settings": {"dataset": "x"}}


def test_a_dataset_that_was_replaced_meanwhile_or_is_none_gets_no_report(copy: Path, tmp_path: Path) -> None:
    before = (copy / "dataset.json").read_bytes()
    with pytest.raises(StoreError, match="changed during the check"):
        write_card(copy, "parity", RESULT, "of another")
    assert (copy / "dataset.json").read_bytes() == before
    with pytest.raises(StoreError, match="No such file or directory.*, so the report was not saved"):
        write_card(tmp_path / "nowhere", "parity", RESULT, "")


def test_what_a_kill_left_of_a_record_is_removed_by_the_next(copy: Path) -> None:
    left = [copy / f"dataset.json.{'0123456789abcdef'}.partial", copy / "dataset.json.partial"]
    for path in left:
        path.write_text("{")
    other = copy / "dataset.json.mine.partial"
    other.touch()
    write_card(copy, "parity", RESULT, read(copy).contents)
    assert not any(path.exists() for path in left)
    assert other.exists()
    assert read(copy).card["parity"] == RESULT


def test_parity_record_of_many_at_once_leaves_a_valid_manifest(dataset: Dataset, copy: Path) -> None:
    contents = read(copy).contents
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: write_card(copy, "parity", RESULT, contents), range(20)))
    assert [path.name for path in copy.glob("*.partial")] == []
    assert read(copy).splits == dataset.manifest.splits
    assert read(copy).card["parity"] == RESULT
