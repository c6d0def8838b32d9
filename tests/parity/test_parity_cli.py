"""``mmload parity`` as a command: its lines, files, exit codes, and what it keeps in the card."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from building import changed_manifest
from conftest import complaint, mmload

import mmload as package
from mmload import parity as checks
from mmload.builder.verify import verify
from mmload.errors import SourceError, one_line
from mmload.parity.report import ParityReport, Verdict, table
from mmload.remote.opening import open as open_dataset


def test_a_right_dataset(folder: Path, copy: Path, tmp_path: Path) -> None:
    written = tmp_path / "report.json"
    done = mmload("parity", copy, "--source", folder, "--json", written, "--seed", 4, "--rows", "all")
    assert done.returncode == 0, done.stderr
    for words in ("pass  train  rows", "18 labels equal", " hold\n"):
        assert words in done.stdout
    body = json.loads(written.read_text())
    assert (body["passed"], body["settings"]["seed"], body["settings"]["rows"]) == (True, 4, "all")
    assert set(body["versions"]) == {"mmload", "torch", "torchvision", "pillow", "python"}
    assert "parity" not in open_dataset(copy).manifest.card


def test_a_wrong_dataset_ends_with_1_and_is_recorded_all_the_same(folder: Path, copy: Path) -> None:
    file = copy / "train" / "000000" / "images.memmap"
    np.fromfile(file, dtype=np.uint8).reshape(-1, 3, 32, 32)[:, ::-1].tofile(file)
    done = mmload("parity", copy, "--source", folder, "--record")
    assert done.returncode == 1
    assert "fail  train  pixels of png  5 of 18 rows differ by up to " in done.stdout
    assert "FAIL" in done.stdout
    assert "is not what Pillow and torchvision make of" in done.stderr
    assert open_dataset(copy).manifest.card["parity"]["passed"] is False


def test_record_keeps_everything_else(folder: Path, copy: Path) -> None:
    words = ("parity", copy, "--source", folder, "--record")
    manifest = copy / "dataset.json"
    changed_manifest(copy, lambda body: body["card"].update(notes={"train": ["a note"]}))
    before = json.loads(manifest.read_text())
    assert mmload(*words).returncode == 0
    text = manifest.read_text()
    after = json.loads(text)
    kept = after["card"].pop("parity")
    assert after.pop("crc32") != before.pop("crc32")
    assert after == before
    assert (kept["passed"], kept["date"][:2], kept["versions"]["mmload"]) == (True, "20", package.__version__)
    assert (kept["settings"]["rows"], len(kept["verdicts"])) == (256, 10)
    assert str(folder) not in text
    assert not verify(copy)
    mmload(*words)
    assert len(manifest.read_text()) == pytest.approx(len(text), abs=40)


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        *((["--rows", rows], 2, "give an integer from 1, or all") for rows in ("0", "-3", "some", "1.5", "²")),
        *((["--threads", threads], 2, f"threads is {threads}") for threads in (0, 5000)),
        *((["--seed", seed], 2, f"--seed is '{seed}'") for seed in (-1, 2**63)),
        (["--json", "no/a.json"], 2, "does not exist; make it first"),
        (["--json", "."], 2, "a folder"),
        (["--source", "gone"], 1, "no such folder"),
    ],
    ids=str,
)
def test_parity_command_that_cannot_be_meant_is_one_line(
    words: list[object], code: int, expected: str, folder: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy.parent)
    assert expected in complaint(mmload("parity", copy, "--source", folder, *words), code)


def ignored(done: int, total: int) -> None:
    """Progress that nobody looks at."""


def test_a_source_of_something_else_is_named_before_rows_are_compared(folder: Path, copy: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    for file in sorted(other.rglob("*.*")):
        file.rename(file.with_name(f"other-{file.name}"))
    with pytest.raises(SourceError, match=r"is not what .*copy was built from: split 'train' has no .*"):
        checks.run(copy, other, threads=1, progress=lambda what: pytest.fail(what) if "rows" in what else ignored)


def report_of(*verdicts: tuple[str, str, str, str]) -> ParityReport:
    """A report of verdicts: state, part, name and text."""
    names = ("state", "part", "name", "text")
    made = [Verdict(**dict(zip(names, verdict, strict=True))) for verdict in verdicts]  # type: ignore[arg-type]  # any
    return ParityReport(settings={}, verdicts=tuple(made))


def test_a_table_of_all_states() -> None:
    report = report_of(
        ("pass", "train", "rows", "fine"), ("fail", "load", "draws of x", "odd"), ("note", "load", "y", "said")
    )
    assert not report.passed
    assert table(report).splitlines() == [
        "pass  train  rows  fine",
        "fail  load   draws of x  odd",
        "note  load   y           said",
        "1 of 2 hold, 1 FAIL",
    ]


def test_a_table_of_odd_names_and_long_texts_forges_no_line_and_keeps_to_100_columns() -> None:
    odd = "x\nFORGED\x1b"
    shown = table(report_of(("fail", odd, odd, odd))).splitlines()
    assert shown[:-1] == [f"fail  {one_line(odd)}  {one_line(odd)}  {one_line(odd)}"]
    report = report_of(("pass", "train", "rows", "a word " * 40), ("fail", "load", "n" * 70, "odd"))
    shown = table(report).splitlines()
    assert max(map(len, shown)) <= 100
    assert shown[0].startswith("pass  train  rows  a word")
    assert "n" * 70 in shown[4]
    assert shown[5].strip() == "odd"


def test_what_is_infinite_is_none_in_json() -> None:
    verdict = Verdict(part="x", name="y", state="fail", text="", numbers={"greatest": float("inf"), "rows": 2})
    body = ParityReport(settings={}, verdicts=(verdict,)).as_json()
    assert json.loads(json.dumps(body, allow_nan=False))["verdicts"][0]["numbers"] == {"greatest": None, "rows": 2}
