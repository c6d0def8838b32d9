"""``mmload info``: the page, the JSON, what checks recorded, a million rows, damaged and unfinished datasets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from building import changed_manifest
from conftest import complaint, mmload, ran

from mmload.builder.dataset_change import write_card
from mmload.parity import ParityReport, Verdict
from mmload.store.dataset import Dataset
from mmload.store.manifest import read


def test_the_facts_are_those_of_the_manifest(dataset: Dataset) -> None:
    body = json.loads(mmload("info", dataset.path, "--json").stdout)
    train = body["splits"]["train"]
    assert (body["rows"], train["rows"], train["shards"]) == (18, 18, 4)
    assert body["bytes"] == train["bytes"] == 18 * (3 * 32 * 32 + 8)
    assert train["fields"]["images"] == {"dtype": "uint8", "shape": [3, 32, 32], "row_bytes": 3072}
    assert train["classes"] == [{"name": name, "rows": 6} for name in ("ant", "bee", "cat")]
    assert train["skipped"] == {"count": 0, "first": [], "file": None}
    assert body["recipe"]["source"] == {"kind": "imagefolder"}
    assert body["checks"] == {"verify": None, "parity": None, "bench": None}


def test_the_page_has_80_columns_and_says_it_all(copy: Path) -> None:
    names = [f"class {number} with a long name, &c. " + "x" * number for number in range(60)]

    def change(body: Any) -> None:
        split = body["splits"]["train"]
        split["classes"], split["class_counts"] = names, [18, *[0] * 59]

    changed_manifest(copy, change)
    done = mmload("info", copy)
    lines = done.stdout.splitlines()
    assert lines[0].endswith("copy: 18 rows in 1 split, 0.1 MiB")
    assert max(len(line) for line in lines[1:]) <= 80
    said = " ".join(done.stdout.split())
    for words in (
        "source imagefolder; fingerprint",
        "transforms Resize(size=32), CenterCrop(size=32)",
        "0 to 18 rows per class: class 0 with a long name, &c. 18,",
        "... (54 more; all with --json)",
        "verify not recorded",
    ):
        assert words in said


def test_what_checks_recorded_is_shown(copy: Path) -> None:
    contents = read(copy).contents
    assert mmload("verify", copy, "--record").stdout.splitlines()[0] == f"recorded in the card of {copy}"
    verdicts = [Verdict(part="train", name=name, state="pass", text="") for name in "abc"]
    write_card(copy, "parity", ParityReport(settings={}, verdicts=tuple(verdicts)).as_json(), contents)
    write_card(copy, "bench", {"date": "2026-01-02T03:04", "verdict": "mmload is limited by memory."}, contents)
    said = mmload("info", copy).stdout
    assert ": whole\n" in said
    assert ": all 3 checks hold\n" in said
    assert "  bench      2026-01-02: mmload is limited by memory.\n" in said
    failing = Verdict(part="train", name="d", state="fail", text="")
    write_card(copy, "parity", ParityReport(settings={}, verdicts=(*verdicts, failing)).as_json(), contents)
    assert ": 1 of 4 checks fail\n" in mmload("info", copy).stdout


def test_verify_records_faults_and_that_the_source_was_compared(folder: Path, copy: Path) -> None:
    ran("verify", copy, "--source", folder, "--record")
    assert ": whole, and equal to its source\n" in mmload("info", copy).stdout
    damaged = copy / "train" / "000000" / "images.memmap"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    assert mmload("verify", copy, "--record").returncode == 1
    assert read(copy).card["verify"]["faults"] == 1
    assert ": 1 faults\n" not in mmload("info", copy).stdout
    assert ": 1 fault\n" in mmload("info", copy).stdout


@pytest.mark.parametrize("card", [{"verify": 3, "parity": {"verdicts": 7}, "bench": {}}, {"parity": {"verdicts": [1]}}])
def test_a_card_may_hold_anything(copy: Path, card: Any) -> None:
    changed_manifest(copy, lambda body: body.update(card=card))
    ran("info", copy)


def test_info_of_a_dataset_without_one_of_its_files_is_one_line(copy: Path) -> None:
    (copy / "train" / "000001" / "images.memmap").unlink()
    assert "is missing; run: mmload verify" in complaint(mmload("info", copy, "--json"), 1)
