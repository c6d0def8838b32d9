"""``mmload bench`` from end to end: every contender that is installed, a few images each."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import Done, mmload
from fake_contenders import SETTINGS, measured

from mmload.bench.options import SECONDS
from mmload.bench.record import Record
from mmload.bench.report import report_text
from mmload.store.dataset import Dataset
from mmload.store.manifest import read

pytestmark = pytest.mark.slow

TINY = ["--size", 24, "--batch-size", 6]


@pytest.fixture(scope="module")
def done(dataset: Dataset, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    """One whole bench, trained and cold, with its record and its chart."""
    out = tmp_path_factory.mktemp("bench")
    copy = shutil.copytree(dataset.path, out / "copy")
    words: list[object] = ["--record", "--cold", "--build", "--train", "squeezenet1_1", "--json", out / "a.json"]
    if find_spec("matplotlib") is not None:
        words += ["--plot", out / "a.png"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmload.bench.measure.LONGEST_TURN", 0.5)
        patch.setitem(SECONDS, False, 30.0)
        return mmload("bench", copy, "--source", folder, *TINY, *words), out


def test_variable_bench_measures_every_installed_loader(done: tuple[Done, Path]) -> None:
    command, out = done
    assert command.returncode == 0, command.stderr
    assert all(line.startswith("mmload: ") for line in command.stderr.splitlines())  # each tenth second
    record = json.loads((out / "a.json").read_text())
    assert record["settings"]["augment"] == "crop"
    assert {"python", "torch", "torchvision", "mmload"} <= set(record["versions"])
    assert record["machine"]["cores"] >= 1
    assert all(min(rates) > 0 and len(rates) == 3 for rates in record["building"].values())
    results = record["results"]
    assert {result["group"] for result in results} >= {"stock", "mmload", "ceiling", "cached"}
    assert [result for result in results if result["failure"]] == []
    for result in results:
        if result["group"] != "cached" and result["samples"]:  # on a busy machine there is no time for some
            assert len(result["epochs"]) == len(result["samples"]) >= 1
            assert result["images_per_second"] > 0
            assert result["cpu_seconds_per_1000"] >= 0
    trained = [result for result in results if result["training"]]
    assert {result["group"] for result in trained} >= {"stock", "mmload", "cached"}
    assert all(0 <= result["waited"] <= 1 for result in trained)
    assert all(turn["steps"] >= 1 for result in trained for turn in result["training"])
    own = next(result for result in results if result["name"].startswith("mmload.Loader, disk"))
    assert own["of_ceiling"] > 0
    assert own["ceiling"] in [result["name"] for result in results]


def test_its_table_begins_with_a_verdict_on_the_model(done: tuple[Done, Path]) -> None:
    command, out = done
    lines = command.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines if not line.startswith(("record: ", "chart: ")))
    assert lines[0].startswith(("Your loader delivers", "The stock loader"))
    assert "ms/step" in command.stdout
    assert "torchvision's pass" in command.stdout
    assert f"record: {out / 'a.json'}" in lines


def test_cold_is_said_only_where_it_was_proven(done: tuple[Done, Path]) -> None:
    command, out = done
    rows = [row for row in json.loads((out / "a.json").read_text())["results"] if row["cold"] is not None]
    assert {row["group"] for row in rows} >= {"stock", "mmload"}
    text, proven = " ".join(command.stdout.split()), all(row["cold"] for row in rows)
    assert ("mincore found no page of them in memory" if proven else "NOT cold") in text
    assert proven or "cold: before every epoch" not in text


def test_its_chart_is_drawn(done: tuple[Done, Path]) -> None:
    pytest.importorskip("matplotlib")
    assert (done[1] / "a.png").read_bytes().startswith(b"\x89PNG")
    assert f"chart: {done[1] / 'a.png'}" in done[0].stdout


def test_variable_bench_is_recorded_in_the_dataset_card(done: tuple[Done, Path]) -> None:
    command, copy = done[0], done[1] / "copy"
    assert command.stdout.endswith(f"recorded in the card of {copy}\n")
    kept = read(copy).card["bench"]
    assert kept["verdict"] in " ".join(command.stdout.split())
    assert all("samples" not in row for row in kept["results"])
    assert f"  bench      {kept['date'][:10]}: " in mmload("info", copy).stdout


def test_a_name_forges_no_line() -> None:
    row = replace(measured("x\nFORGED\x1b[31m", 1.0), differs="1\nFORGED")
    settings = SETTINGS | {"layout": "\nFORGED", "cache": "\nFORGED"}
    text = report_text(Record(settings=settings, machine={}, versions={}, rows=[row]))
    assert text.count("\\nFORGED") == 5
    assert not [line for line in text.splitlines() if line.strip().startswith("FORGED")]
    assert "\x1b" not in text


def test_a_record_is_written_before_anything_is_shown(done: tuple[Done, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*lines: str) -> None:
        raise OSError(28, "No space left on device")

    record = Record(settings=SETTINGS, machine={}, versions={}, rows=[])
    monkeypatch.setattr("mmload.bench.run.run_on_dataset", lambda *_, **__: record)
    monkeypatch.setattr("mmload.cli.bench.show", full)
    assert mmload("bench", "nowhere", "--json", done[1] / "again.json").returncode == 1
    assert json.loads((done[1] / "again.json").read_text()) == record.as_json()
