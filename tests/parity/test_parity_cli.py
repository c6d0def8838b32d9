"""``mmload parity`` as a command: its lines, files, exit codes, and what it keeps in the card."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from building import resealed
from conftest import make_folder
from typer.testing import CliRunner, Result

import mmload
from mmload import parity as checks
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.builder.verify import verify
from mmload.cli.parity import parity
from mmload.errors import SourceError, StoreError, UsageError, one_line
from mmload.parity.report import ParityReport, Verdict, table
from mmload.remote.opening import open as open_dataset


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "photos", per_class=3)


@pytest.fixture
def out(source: Path, tmp_path: Path) -> Path:
    recipe = BuildRecipe(kind="imagefolder", root=source, out=tmp_path / "out", transforms=square(32))
    build(recipe, threads=1)
    return tmp_path / "out"


def command(*words: object) -> Result:
    app = typer.Typer()
    app.command()(parity)
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_right_dataset(source: Path, out: Path, tmp_path: Path) -> None:
    written = tmp_path / "report.json"
    result = command(out, "--source", source, "--json", written, "--seed", 4, "--rows", "all")
    assert result.exit_code == 0, result.output
    assert "pass  train  rows" in result.output
    assert "9 labels equal" in result.output
    assert " hold\n" in result.output
    body = json.loads(written.read_text())
    assert body["passed"] is True
    assert body["settings"]["seed"] == 4
    assert body["settings"]["rows"] == "all"
    assert set(body["versions"]) == {"mmload", "torch", "torchvision", "pillow", "python"}
    assert "parity" not in open_dataset(out).manifest.card


def test_a_wrong_dataset_ends_with_1_and_is_recorded_all_the_same(source: Path, out: Path) -> None:
    file = out / "train" / "000000" / "images.memmap"
    np.fromfile(file, dtype=np.uint8).reshape(9, 3, 32, 32)[:, ::-1].tofile(file)
    result = command(out, "--source", source, "--record")
    assert result.exit_code == 1
    assert "fail  train  pixels of png  9 of 9 rows differ by up to " in result.output
    assert "FAIL" in result.output
    assert "is not what Pillow and torchvision make of" in result.stderr
    assert open_dataset(out).manifest.card["parity"]["passed"] is False


def test_record_keeps_everything_else(source: Path, out: Path) -> None:
    manifest = out / "dataset.json"
    before = json.loads(manifest.read_text())
    before["card"]["notes"] = {"train": ["a note"]}
    manifest.write_text(resealed(before))
    assert command(out, "--source", source, "--record").exit_code == 0
    after = json.loads(manifest.read_text())
    kept = after["card"].pop("parity")
    assert after.pop("crc32") != before.pop("crc32")
    assert after == before
    assert kept["passed"] is True
    assert kept["date"].startswith("20")
    assert kept["versions"]["mmload"] == mmload.__version__
    assert kept["settings"]["rows"] == 256
    assert len(kept["verdicts"]) == 10
    assert str(source) not in manifest.read_text()
    assert not verify(out)
    assert [path.name for path in out.glob("*.partial")] == []
    first = len(manifest.read_text())
    command(out, "--source", source, "--record")
    assert len(manifest.read_text()) == pytest.approx(first, abs=40)


def test_parity_command_invalid_arguments_raise(source: Path, out: Path, tmp_path: Path) -> None:
    for rows in ("0", "-3", "some", "1.5", "²"):
        result = command(out, "--source", source, f"--rows={rows}")
        assert isinstance(result.exception, UsageError)
        assert "give an integer from 1, or all" in str(result.exception)
    assert isinstance(command(tmp_path / "nowhere", "--source", source).exception, StoreError)
    for words in (("--threads", 0), ("--threads", 5000)):
        result = command(out, "--source", source, *words)
        assert isinstance(result.exception, UsageError), words
    for words in (("--seed=-1",), ("--seed", 2**63)):
        assert command(out, "--source", source, *words).exit_code == 2, words


def test_a_source_of_something_else_is_named_before_rows_are_compared(
    source: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["mmload.parity.store"]
    monkeypatch.setattr(module, "_compare_row", lambda *words, **more: pytest.fail("rows were compared"))
    other = tmp_path / "other"
    for file in sorted(source.rglob("*.*")):
        renamed = other / file.relative_to(source).with_name(f"other-{file.name}")
        renamed.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, renamed)
    with pytest.raises(SourceError, match=r"is not what .*out was built from: split 'train' has no .*"):
        checks.run(out, other, threads=1)
    gone = command(out, "--source", tmp_path / "gone")
    assert "no such folder" in str(gone.exception)


def test_parity_command_unwritable_file_raises_before_the_work(source: Path, out: Path, tmp_path: Path) -> None:
    for file, told in ((tmp_path / "no" / "a.json", "does not exist; make it first"), (tmp_path, "a folder")):
        result = command(out, "--source", source, "--rows", "2", "--json", file)
        assert isinstance(result.exception, UsageError)
        assert told in str(result.exception)
        assert result.output == ""  # told before the work


def test_record_of_no_dataset(tmp_path: Path) -> None:
    report = ParityReport(settings={"dataset": "x"}, verdicts=())
    with pytest.raises(StoreError, match="no such dataset"):
        checks.record(tmp_path / "nowhere", report)


def test_a_table_of_all_states() -> None:
    lines = [
        Verdict(part="train", name="rows", state="pass", text="fine"),
        Verdict(part="load", name="draws of x", state="fail", text="odd"),
        Verdict(part="load", name="y", state="note", text="said"),
    ]
    report = ParityReport(settings={}, verdicts=tuple(lines))
    assert not report.passed
    assert table(report).splitlines() == [
        "pass  train  rows  fine",
        "fail  load   draws of x  odd",
        "note  load   y           said",
        "1 of 2 hold, 1 FAIL",
    ]


def test_a_name_in_a_table_forges_no_line() -> None:
    odd = "x\nFORGED\x1b"
    lines = [Verdict(part=odd, name=odd, state="fail", text=odd)]
    shown = table(ParityReport(settings={}, verdicts=tuple(lines))).splitlines()
    assert shown[:-1] == [f"fail  {one_line(odd)}  {one_line(odd)}  {one_line(odd)}"]


def test_a_table_of_long_texts_keeps_to_100_columns() -> None:
    words = "a word " * 40
    lines = [
        Verdict(part="train", name="rows", state="pass", text=words),
        Verdict(part="load", name="n" * 70, state="fail", text="odd"),
    ]
    shown = table(ParityReport(settings={}, verdicts=tuple(lines))).splitlines()
    assert max(map(len, shown)) <= 100
    assert shown[0].startswith("pass  train  rows  a word")
    assert "n" * 70 in shown[4]
    assert shown[5].strip() == "odd"


def test_what_is_infinite_is_none_in_json() -> None:
    verdict = Verdict(part="x", name="y", state="fail", text="", numbers={"greatest": float("inf"), "rows": 2})
    body = ParityReport(settings={}, verdicts=(verdict,)).as_json()
    assert json.loads(json.dumps(body, allow_nan=False))["verdicts"][0]["numbers"] == {"greatest": None, "rows": 2}
