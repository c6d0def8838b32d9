"""What a bench says of its numbers: record, verdict, chart, two records side by side; samples and cold files."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmload.bench.machine import files_below, make_cold, resident_bytes
from mmload.bench.options import BenchOptions
from mmload.bench.record import Record, Row, read_record, write_json
from mmload.bench.report import COLORS, INK, _title, check_plot, compare, draw, number, rates, table, trained
from mmload.bench.task import task_of
from mmload.bench.train import SMALL, check_model
from mmload.bench.verdict import verdict
from mmload.errors import MmloadError, UsageError
from mmload.store.dataset import Dataset


def row(name: str, group: str, rate: float, spread: float = 0.05, **more: object) -> Row:
    """A row of three epochs around a rate."""
    epochs = [rate * (1 - spread), rate, rate * (1 + spread)]
    return Row(name=name, group=group, images_per_second=rate, epochs=epochs, **more)  # type: ignore[arg-type]


STOCK = row("DataLoader + torchvision, 2 workers", "stock", 690, cpu_seconds_per_1000=2.8)
OWN = row(
    "mmload.Loader, memory, 2 threads", "mmload", 14_000, of_ceiling=0.35, ceiling="fill_ of the output, 2 threads"
)
FILL = row("fill_ of the output, 2 threads", "ceiling", 40_000)
BROKEN = Row(name="FFCV raw, 2 threads", group="peer", differs="center crop", failure="ffcv is not installed")
CACHED = Row(name="one cached batch: no loading at all", group="cached", trained_per_second=2400.0, waited=0.0)


def record(*rows: Row, text: str = "It is so.") -> Record:
    """A record of rows."""
    settings = {"cache": "warm", "device": "cpu", "batch_size": 64}
    return Record(settings=settings, machine={"cores": 2}, versions={"torch": "2"}, rows=list(rows), verdict=text)


@pytest.fixture
def whole() -> Record:
    """One with a row of every kind."""
    return record(STOCK, BROKEN, OWN, FILL)


# The verdict


def said(*rows: Row, device: str = "cpu") -> str:
    return verdict(rows, cores=2, device=device)


def test_without_training_it_compares_the_best_of_both_and_says_what_it_cannot_know() -> None:
    text = said(replace(STOCK, name="slower", images_per_second=300.0), STOCK, BROKEN, OWN, FILL)
    assert "(DataLoader + torchvision, 2 workers) delivers 690 images/s" in text
    assert "14,000, 20.3 times as many (35% of fill_ of the output, 2 threads)" in text
    assert "decoding and transforming there is the bottleneck, with 1.9 of 2 cores busy" in text
    assert "--train MODEL" in text


def test_a_loader_that_leaves_cores_idle_is_not_said_to_be_short_of_them() -> None:
    text = said(replace(STOCK, cpu_seconds_per_1000=0.5), OWN)
    assert "busy" not in text
    assert "decoding" not in text


def test_verdict_of_a_starved_model_names_loading() -> None:
    stock = replace(STOCK, trained_per_second=680.0, waited=0.71)
    text = said(stock, replace(OWN, trained_per_second=2350.0, waited=0.02), CACHED)
    assert "Your loader delivers 690 images/s, with 1.9 of 2 cores busy, and the model takes 2,400" in text
    assert "loading is the bottleneck, the step waits for data 71% of its time" in text
    assert "with mmload, which delivers 14,000, training runs at 2,350 instead of 680." in text
    still = said(stock, replace(OWN, trained_per_second=1350.0, waited=0.4), CACHED)
    assert "and still waits 40% of its time" in still


def test_verdict_of_a_slow_model_names_the_model() -> None:
    stock = replace(STOCK, trained_per_second=55.0, waited=0.03)
    cached = replace(CACHED, trained_per_second=57.0)
    text = said(stock, replace(OWN, trained_per_second=56.5, waited=0.0), cached)
    assert "the model is the bottleneck, it waits for data only 3% of its time" in text
    assert "loading is the bottleneck" not in text
    assert text.endswith("a faster loader would gain about that much.")
    slowed, own = replace(stock, trained_per_second=40.0), replace(OWN, trained_per_second=56.5)
    assert "they share the cores, though: with mmload" in said(slowed, own, cached)
    assert "share the cores" not in said(slowed, own, cached, device="cuda")
    assert "share the cores" not in said(slowed, own, replace(cached, trained_per_second=20.0))


def test_the_verdict_on_a_model_ends_with_the_time_of_a_step() -> None:
    stock = replace(STOCK, trained_per_second=680.0, waited=0.75, step_seconds=0.1)
    own = replace(OWN, trained_per_second=12_000.0, waited=0.25, step_seconds=0.0048)
    text = said(stock, own, replace(CACHED, step_seconds=0.0032))
    assert text.endswith(
        "A step takes 3.2 ms with random tensors in memory, 4.8 ms with mmload, 1.2 ms of it waiting, and 100 ms with "
        "the stock loader, 75 ms of it waiting."
    )
    assert "A step takes" not in said(stock, own, CACHED)


def test_no_gain_is_not_made_one() -> None:
    assert "fewer. There is nothing to gain here." in said(STOCK, row("mmload.Loader", "mmload", 500))
    assert "no difference beyond the spread" in said(STOCK, row("mmload.Loader", "mmload", 700))


def test_what_was_not_measured_is_not_judged() -> None:
    absent = Row(name="DataLoader", group="stock", failure="no source was given")
    assert "No stock loader was measured to compare it with (no source was given)" in said(absent, OWN)
    failed = Row(name="mmload.Loader", group="mmload", failure="its process died")
    assert said(STOCK, failed) == "Nothing can be said: mmload was not measured (its process died)."


# Table, record, comparison, chart


@pytest.mark.parametrize(
    ("rate", "text"), [(7.25, "7.2"), (690.4, "690"), (12_345, "12,345"), (154_685, "155k"), (34e6, "34M")]
)
def test_numbers_are_short(rate: float, text: str) -> None:
    assert number(rate) == text


def test_the_table_has_80_columns_and_every_row(whole: Record) -> None:
    more = [replace(each, trained_per_second=2000.0, waited=0.1, training=[{}]) for each in whole.rows if each.rate]
    for shown in (whole, replace(whole, rows=[*more, BROKEN]), record(OWN, BROKEN)):
        lines = table(shown).splitlines()
        assert max(map(len, lines)) <= 80
        for each in shown.rows:
            assert any(line.startswith(each.name) for line in lines)
    steps = trained(record(replace(OWN, trained_per_second=2000.0, step_seconds=0.032, waited=0.1, training=[{}])))
    assert steps[0].split() == ["trained/s", "ms/step", "waits"]
    assert steps[1].split()[-3:] == ["2,000", "32.0", "10%"]
    assert rates(whole)[1].split()[-4:] == ["690", "656..724", "1.0x", "-"]
    assert rates(whole)[3].split()[-4:] == ["14,000", "13,300..14,700", "20.3x", "35%"]
    assert "not measured: FFCV raw, 2 threads: ffcv is not installed" in table(whole)


def test_only_what_was_measured_has_a_footnote(whole: Record) -> None:
    assert "*" not in table(whole)
    peer = row("DALI", "peer", 700, differs="its own resize")
    text = table(record(STOCK, BROKEN, peer, replace(peer, name="late", images_per_second=None, training=[{}])))
    assert "\nDALI* " in text
    assert "\nlate* " in text
    assert "\n* DALI: its own resize" in text
    assert "FFCV raw, 2 threads*" not in text
    assert "center crop" not in text


def test_report_failures_with_one_reason_are_listed_once() -> None:
    text = table(record(STOCK, BROKEN, replace(BROKEN, name="FFCV JPEG"), replace(OWN, failure="it died")))
    assert "not measured: FFCV raw, 2 threads; FFCV JPEG: ffcv is not installed" in text
    assert "failed later: mmload.Loader, memory, 2 threads: it died" in text


def test_columns_of_great_ratios_stay_apart() -> None:
    fast = row("mmload.Loader", "mmload", 690 * 1065.1)
    assert rates(record(STOCK, fast))[2].split()[-3:] == ["698k..772k", "1,065x", "-"]


def test_a_record_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (99, limits[1]))
    try:
        with pytest.raises(MmloadError, match="cannot write the record"):
            write_json({"notes": "x" * 999}, tmp_path / "a.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


def test_a_record_comes_back_from_its_file(whole: Record, tmp_path: Path) -> None:
    write_json(whole.as_json(), tmp_path / "a.json")
    assert read_record(tmp_path / "a.json") == whole


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "cannot read the record"),
        ("{", "is not JSON"),
        ("[]", "is not a record of mmload bench"),
        ('{"format": "mmload bench", "version": 9}', "record version 9, this mmload reads version 1"),
        ('{"format": "mmload bench", "version": 1}', "is a damaged record"),
    ],
)
def test_a_file_that_is_no_record_is_named(tmp_path: Path, text: str | None, expected: str) -> None:
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=expected):
        read_record(path)


def test_a_record_with_words_for_numbers_is_damaged(whole: Record, tmp_path: Path) -> None:
    body = whole.as_json()
    body["results"][0]["epochs"] = ["many"]
    (tmp_path / "a.json").write_text(json.dumps(body))
    with pytest.raises(UsageError, match="damaged record"):
        read_record(tmp_path / "a.json")


def test_two_records_stand_side_by_side(whole: Record) -> None:
    faster = replace(OWN, images_per_second=21_000.0, epochs=[20_000.0, 21_000.0, 22_000.0])
    other = replace(whole, rows=[STOCK, faster, row("new", "peer", 5)], machine={"cores": 16}, verdict="Other.")
    text = compare(whole, other, ("old.json", "new.json"))
    lines = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    assert max(map(len, text.splitlines())) <= 80
    assert lines[STOCK.name][-2:] == ["1.00x", "overlaps"]
    assert lines[OWN.name][-2:] == ["1.50x", "apart"]
    assert lines["new"][-2:] == ["-", "5.0"]
    assert "FFCV" not in text
    assert "machine, cores: 2 in a, 16 in b" in text
    assert "settings," not in text
    assert "b: Other." in text
    assert "settings, machine and versions are the same" in compare(whole, whole)


def test_a_file_that_is_too_long_for_a_record_is_not_read_to_its_end(tmp_path: Path) -> None:
    endless = tmp_path / "record.json"
    with open(endless, "wb") as file:
        file.truncate(2**40)  # a hole: to read all of it would take memory for it
    with pytest.raises(UsageError, match=r"record\.json \(it has .* bytes, at most 16,777,216 are read\)"):
        read_record(endless)


def test_a_chart_names_its_dataset_and_no_label_touches_its_edge(whole: Record, tmp_path: Path) -> None:
    named = replace(whole, settings=whole.settings | {"dataset": "holiday-256", "layout": "rows of 3 x 256 x 256"})
    assert _title(named) == "Loading speed: holiday-256, rows of 3 x 256 x 256"
    assert _title(replace(whole, settings={})) == "Loading speed"
    longest = {row.name: f"{row.name:w<38}" for row in named.rows}  # characters: the width of the table, too
    rows = [replace(row, name=longest[row.name], ceiling=longest.get(row.ceiling, "")) for row in named.rows]
    draw(replace(named, rows=rows), tmp_path / "a.png")
    drawn = np.asarray(Image.open(tmp_path / "a.png").convert("RGBA"))[..., 3]
    for edge in (drawn[0], drawn[-1], drawn[:, 0], drawn[:, -1]):
        assert not edge.any()


def test_a_chart_is_a_picture_with_every_colour_and_no_background(whole: Record, tmp_path: Path) -> None:
    if find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")
    draw(whole, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as file:
        assert file.format == "PNG"
        picture = file.convert("RGBA")
    assert 1000 <= picture.width <= 2000
    assert 200 <= picture.height <= 2000
    assert picture.getpixel((0, 0))[3] == 0
    found = {pixel[:3] for _, pixel in picture.getcolors(1 << 24) if pixel[3] > 100}
    for color in (COLORS["mmload"], COLORS["stock"], COLORS["ceiling"], INK):
        assert any(all(abs(a - b) <= 3 for a, b in zip(rgb(color), pixel, strict=True)) for pixel in found), color


def test_chart_draws_no_line_for_a_limit_that_a_row_passes(whole: Record, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    heights = []
    for of_ceiling in (0.9, 1.2):
        limited = [replace(row, of_ceiling=of_ceiling if row.ceiling else None) for row in whole.rows]
        draw(replace(whole, rows=limited), tmp_path / "a.png")
        picture = np.asarray(Image.open(tmp_path / "a.png").convert("RGBA")).astype(int)
        red = (np.abs(picture[..., :3] - rgb(COLORS["ceiling"])) <= 3).all(2) & (picture[..., 3] > 100)
        heights.append(red.sum(0).max() / picture.shape[0])
    assert heights[0] > 0.2, "a dashed line from top to bottom"
    assert heights[1] < 0.1, "the label alone"


@pytest.mark.parametrize("color", [INK, COLORS["mmload"], COLORS["peer"], COLORS["ceiling"], COLORS["stock"]])
def test_a_charts_colours_stand_out_from_light_and_from_dark(color: str) -> None:
    for background in ("#ffffff", "#0d1117"):
        bright, dark = sorted((luminance(color), luminance(background)), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 3


def rgb(color: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(color[1:]))


def luminance(color: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in rgb(color))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_chart_that_cannot_be_is_refused_before_anything_is_measured(
    whole: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec("matplotlib") is not None:
        with pytest.raises(UsageError, match=r"ends in \.png"):
            check_plot(Path("a.pdf"))
        with pytest.raises(MmloadError, match="nothing to draw"):
            draw(record(BROKEN), tmp_path / "a.png")
        with pytest.raises(MmloadError, match="cannot write the chart"):
            draw(whole, tmp_path / "no" / "a.png")
    monkeypatch.setattr("mmload.bench.report.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install '\.\[plot\]'"):
        check_plot(Path("a.png"))


# BenchOptions, models


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"augment": "zoom"}, "--augment is 'zoom'; use one of crop, resized-crop, none"),
        ({"epochs": 0}, "--epochs is 0"),
        ({"batch_size": -1}, "--batch-size is -1"),
        ({"threads": 0}, "threads is 0"),
        ({"padding": -1}, "--padding is -1"),
        ({"workers": ""}, "--workers is"),
        ({"time_budget": 0.0}, "--time-budget is 0"),
        ({"time_budget": float("nan")}, "--time-budget is nan"),
        ({"device": "tpu"}, "--device is 'tpu'; use one of cpu, cuda"),
    ],
)
def test_bench_options_that_cannot_be_meant_are_refused(wrong: dict[str, object], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        BenchOptions(**wrong)  # type: ignore[arg-type]


def test_quick_asks_for_less_and_what_is_given_stays() -> None:
    usual, quick = BenchOptions(), BenchOptions(quick=True)
    assert (usual.plan().epochs, usual.epoch_images()) == (3, 2000)
    assert (quick.plan().epochs, quick.plan().budget < usual.plan().budget, quick.epoch_images()) == (1, True, 500)
    given_ = BenchOptions(quick=True, epochs=4, images=7, time_budget=9.0)
    assert (given_.plan().epochs, given_.epoch_images(), given_.plan().budget) == (4, 7, 9.0)


def test_a_model_that_does_not_exist_or_does_not_fit_is_refused(dataset: Dataset) -> None:
    task = task_of(BenchOptions(images=1, crop=24, device="cpu"), dataset.path, None)
    check_model("resnet18", task)
    check_model(SMALL, task)
    with pytest.raises(
        UsageError, match="'resnet19', which torchvision has not; use a model such as resnet18.*, or small"
    ):
        check_model("resnet19", task)
    with pytest.raises(UsageError, match=r"alexnet does not take images of \[3, 24, 24\]"):
        check_model("alexnet", task)


# Cold files


def test_evicted_files_have_no_page_in_memory_or_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a", "deep/b"):
        (tmp_path / name).write_bytes(b"x" * 300_001)
    (tmp_path / "empty").touch()
    (tmp_path / "deep" / "link").symlink_to(tmp_path / "a")
    files = files_below([tmp_path])
    assert sorted(path.name for path in files) == ["a", "b", "empty"]
    coldness = make_cold(files)
    assert (coldness.files, coldness.bytes) == (3, 600_002)
    assert coldness.proven == (coldness.reason == "")
    if not coldness.proven:
        pytest.skip(coldness.reason)
    assert sum(resident_bytes(path) for path in files) == 0
    (tmp_path / "a").read_bytes()
    assert resident_bytes(tmp_path / "a") >= 300_001
    assert resident_bytes(tmp_path / "a", 5000) == 8192
    assert resident_bytes(tmp_path / "deep" / "b") == 0


def test_files_that_live_in_memory_are_never_called_cold() -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir():
        pytest.skip("there is no /dev/shm")
    path = memory / "mmload-test-cold"
    try:
        path.write_bytes(b"x" * 100_000)
        coldness = make_cold([path])
    finally:
        path.unlink(missing_ok=True)
    assert not coldness.proven
    assert "stay in the page cache" in coldness.reason


def test_a_system_that_cannot_tell_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"x")
    monkeypatch.delattr("os.posix_fadvise", raising=False)
    coldness = make_cold([tmp_path / "a"])
    assert not coldness.proven
    assert "no posix_fadvise" in coldness.reason
