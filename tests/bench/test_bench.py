"""What a bench says of its numbers: verdict, table, record, chart; its options, and cold files."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_contenders import SETTINGS
from PIL import Image

from mmload.bench.contender_server import BesideSample, LoadSample, TrainSample
from mmload.bench.machine import files_below, make_cold, resident_bytes
from mmload.bench.options import BenchOptions
from mmload.bench.record import Record, Row
from mmload.bench.report import COLORS, INK, WIDTH, check_plot, draw, number, report_text, verdict
from mmload.bench.task import task_of
from mmload.bench.train import SMALL, check_model
from mmload.errors import MmloadError, UsageError
from mmload.store.dataset import Dataset


def row(name: str, group: str, rate: float, spread: float = 0.05, cpu: float = 0.1, **more: object) -> Row:
    """A row of three turns around a rate, and of processor seconds per 1,000 images."""
    images = [round(1000 * rate * share) for share in (1 - spread, 1, 1 + spread)]
    samples = [LoadSample(images=one, seconds=1000, cpu=cpu * one / 1000, complete=True) for one in images]
    return Row(name=name, group=group, samples=samples, **more)  # type: ignore[arg-type]


STOCK = row("DataLoader + torchvision, 2 workers", "stock", 690, cpu=2.8)
OWN = row(
    "mmload.Loader, memory, 2 threads", "mmload", 14_000, of_ceiling=0.35, ceiling="fill_ of the output, 2 threads"
)
FILL = row("fill_ of the output, 2 threads", "ceiling", 40_000)
BROKEN = Row(name="FFCV raw, 2 threads", group="peer", differs="center crop", failure="its process died")


def trained_row(row: Row, rate: float, waits: float, of_model: float = 0.0) -> Row:
    """The row with a turn of training."""
    turn = TrainSample(images=64_000, seconds=64_000 / rate, waited=waits * 64_000 / rate, steps=1000)
    return replace(row, training=[turn], of_model=of_model)


CACHED = trained_row(Row(name="one cached batch: no loading at all", group="cached"), 2400.0, 0.0)


def record(*rows: Row, text: str = "It is so.") -> Record:
    """A record of rows."""
    return Record(settings=SETTINGS, machine={"cores": 2}, versions={"torch": "2"}, rows=list(rows), verdict=text)


@pytest.fixture
def whole() -> Record:
    """One with a row of every kind."""
    return record(STOCK, BROKEN, OWN, FILL)


# The verdict


SLOWER = row("slower", "stock", 300.0)
STARVED = (trained_row(STOCK, 680.0, 0.71), trained_row(OWN, 2350.0, 0.02), CACHED)
SLOW_MODEL = (trained_row(STOCK, 55.0, 0.03), trained_row(OWN, 56.5, 0.0), trained_row(CACHED, 57.0, 0.0))
SLOWED = (trained_row(STOCK, 40.0, 0.03), *SLOW_MODEL[1:])
FASTER = row("too fast", "mmload", 50_000.0, 0.0, of_ceiling=1.25, ceiling=OWN.ceiling)
TOO_FAST = (trained_row(STOCK, 680.0, 0.71, 0.3), trained_row(OWN, 9600.0, 0.02, 4.0), CACHED)
BEYOND = (trained_row(STOCK, 1380.0, 0.1, 0.6), trained_row(OWN, 2350.0, 0.02, 0.98), CACHED)  # its fastest had 725


@pytest.mark.parametrize(
    ("rows", "said", "not_said"),
    [
        (  # without training it compares the best of both, and says what it cannot know
            (SLOWER, STOCK, BROKEN, OWN, FILL),
            [
                "(DataLoader + torchvision, 2 workers) delivers 690 images/s",
                "14,000, 20.3 times as many (35% of fill_ of the output, 2 threads)",
                "decoding and transforming there is the bottleneck, with 1.9 of 2 cores busy",
                "--train MODEL",
            ],
            [],
        ),
        ((row(STOCK.name, "stock", 690, cpu=0.5), OWN), [], ["busy", "decoding"]),  # cores are idle
        (
            STARVED,
            [
                "Your loader delivers 690 images/s, with 1.9 of 2 cores busy, and the model takes 2,400",
                "loading is the bottleneck, the step waits for data 71% of its time",
                "with mmload, which delivers 14,000, training runs at 2,350 instead of 680.",
                "A step takes 26.7 ms with a batch in memory, 27.2 ms with mmload (0.5 of waiting), "
                "94.1 ms with the stock loader (66.8 of waiting).",
            ],
            [],
        ),
        ((STARVED[0], trained_row(OWN, 1350.0, 0.4), CACHED), ["and still waits 40% of its time"], []),
        (
            SLOW_MODEL,
            ["the model is the bottleneck, it waits for data only 3% of its time; a faster loader gains nothing."],
            ["loading is the bottleneck"],
        ),
        (SLOWED, ["they share the cores, though: with mmload"], []),
        ((*SLOWED[:2], trained_row(CACHED, 20.0, 0.0)), [], ["share the cores"]),
        ((STOCK, FASTER, OWN, FILL), ["(mmload.Loader, memory, 2 threads) 14,000"], []),
        (  # what is faster than possible is used only if there is nothing else
            (STOCK, FASTER, FILL),
            [
                "(too fast) 50,000, 72.5 times as many (more than its limit, so other programs disturbed",
                "idle machine",
            ],
            [],
        ),
        (  # training that was faster than without loading is not
            TOO_FAST,
            [
                "20.3 times as many",
                "Of training with mmload nothing can be said",
                "A step takes 26.7 ms with a batch in memory, 94.1 ms with the stock loader",
            ],
            ["bottleneck, it waits", "9,600"],
        ),
        (BEYOND, ["27.2 ms with mmload", "Of training with the stock loader nothing can be said"], []),
        ((STOCK, OWN, CACHED), ["Of training with mmload and the stock loader nothing"], []),
        ((STOCK, row("mmload.Loader", "mmload", 500)), ["fewer. There is nothing to gain here."], []),
        ((STOCK, row("mmload.Loader", "mmload", 700)), ["no difference beyond the spread"], []),
        (
            (STOCK, Row(name="mmload.Loader", group="mmload", failure="its process died")),
            ["Nothing can be said: mmload was not measured (its process died)."],
            ["690"],
        ),
    ],
)
def test_verdict_names_the_bottleneck_and_only_what_was_measured(
    rows: tuple[Row, ...], said: list[str], not_said: list[str]
) -> None:
    text = verdict(rows, cores=2, device="cpu")
    assert [words for words in said if words not in text] == []
    assert [words for words in not_said if words in text] == []


def test_verdict_depends_on_the_device_and_on_what_is_missing() -> None:
    assert "share the cores" not in verdict(SLOWED, cores=2, device="cuda")
    text = verdict([OWN], cores=2, device="cpu", missing="give --source ROOT")
    assert "No stock loader was measured to compare it with (give --source ROOT)" in text


# Table, record, comparison, chart


@pytest.mark.parametrize(
    ("rate", "text"), [(7.25, "7.2"), (690.4, "690"), (12_345, "12,345"), (154_685, "155k"), (34e6, "34M")]
)
def test_numbers_are_short(rate: float, text: str) -> None:
    assert number(rate) == text


BESIDE = BesideSample(images=123_456, seconds=1.0, pieces=1, alone=1.0)
ALL = (
    trained_row(STOCK, 680.0, 0.71),
    trained_row(OWN, 2000.0, 0.1, 0.83),
    BROKEN,
    row("DALI", "peer", 700, differs="its own resize"),
    row(
        "w" * 99,
        "mmload",
        690 * 1065.1,
        9.0,
        of_ceiling=126.3,
        ceiling=FILL.name,
        beside=[BESIDE],
    ),
    FILL,
)
BUILDING = {"torchvision's pass": [90.0, 100.0, 120.0], "mmload build": [300.0]}
TABLE = """\
It is so.

loader                                images/s     ±   gain   of limit  beside
DataLoader + torchvision, 2 workers        690    5%   1.0x          -       -
mmload.Loader, memory, 2 threads        14,000    5%  20.3x        35%       -
DALI*                                      700    5%   1.0x          -       -
wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww      735k  900%      -  disturbed    123k
fill_ of the output, 2 threads          42,000    5%      -          -       -

training                             images/s  of no loading  ms/step  waits
DataLoader + torchvision, 2 workers       680              -     94.1    71%
mmload.Loader, memory, 2 threads        2,000            83%     32.0    10%

building            images/s    ±
torchvision's pass       100  15%
mmload build             300    -

rows, crop, batches of 64, warm page cache
gain: times the fastest stock loader
of limit: the share of fill_ of the output, 2 threads
beside: images/s while a thread of the same process runs pure Python, as a
  training loop does
waits: the share of a step in which no batch was ready; in the rest the model
  shares the cores with the loader
* DALI: its own resize
failed: FFCV raw, 2 threads: its process died
"""
WITHOUT_STOCK = """\
It is so.

loader                            images/s   ±  gain  of limit  beside
mmload.Loader, memory, 2 threads    14,000  5%     -       35%       -

rows, crop, batches of 64, warm page cache
gain: times the fastest stock loader
of limit: the share of fill_ of the output, 2 threads
failed: FFCV raw, 2 threads: its process died
"""
NOTHING = """\
It is so.

rows, crop, batches of 64, warm page cache
gain: times the fastest stock loader
failed: FFCV raw, 2 threads: its process died
"""


@pytest.mark.parametrize(
    ("rows", "building", "text"),
    [(ALL, BUILDING, TABLE), ((OWN, BROKEN), {}, WITHOUT_STOCK), ((BROKEN,), {}, NOTHING)],
    ids=["all", "without a stock loader", "nothing measured"],
)
def test_the_table_has_the_verdict_and_what_was_measured(
    rows: tuple[Row, ...], building: dict[str, list[float]], text: str
) -> None:
    shown = report_text(replace(record(*rows), building=building))
    assert shown.rstrip("\n") == text.rstrip("\n")
    assert max(map(len, shown.splitlines())) <= WIDTH


def test_a_record_is_plain_data(whole: Record) -> None:
    body = json.loads(json.dumps(whole.as_json()))
    assert (body["format"], body["verdict"]) == ("mmload bench", "It is so.")
    assert [result["name"] for result in body["results"]] == [each.name for each in whole.rows]


def test_a_chart_is_a_picture_with_every_color_and_no_label_at_its_edge(whole: Record, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    named = replace(whole, settings=whole.settings | {"dataset": "holiday-256", "layout": "rows of 3 x 256 x 256"})
    longest = {row.name: f"{row.name:w<38}" for row in named.rows}  # characters: the width of the table, too
    rows = [replace(row, name=longest[row.name], ceiling=longest.get(row.ceiling, "")) for row in named.rows]
    draw(replace(named, rows=rows), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as file:
        assert file.format == "PNG"
        picture = np.asarray(file.convert("RGBA")).astype(int)
    assert all(200 <= side <= 2000 for side in picture.shape[:2])
    drawn = picture[..., 3]
    assert not np.concatenate([drawn[0], drawn[-1], drawn[:, 0], drawn[:, -1]]).any()
    for color in (COLORS["mmload"], COLORS["stock"], COLORS["ceiling"], INK):
        wanted = tuple(bytes.fromhex(color[1:]))
        assert (np.abs(picture[drawn > 100, :3] - wanted) <= 3).all(1).any(), color


def test_a_chart_that_cannot_be_drawn_is_an_error(
    whole: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(MmloadError, match="cannot write"):
        draw(whole, tmp_path / "no" / "a.png")
    monkeypatch.setattr("mmload.bench.report.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install '\.\[plot\]'"):
        check_plot()


# BenchOptions, models


@pytest.mark.parametrize(("size", "crop", "padding"), [(None, 32, 4), (24, 24, 0)])
def test_rows_of_few_pixels_are_cropped_from_padded_rows_unless_a_size_is_given(
    dataset: Dataset, size: int | None, crop: int, padding: int
) -> None:
    options = BenchOptions(size=size)
    task = task_of(options, dataset.path, None)
    assert (task.crop, task.padding) == (crop, padding)
    assert [replace(options, full=full).seconds for full in (False, True)] == [60, 600]


def test_a_model_that_does_not_exist_or_does_not_fit_is_refused(dataset: Dataset) -> None:
    task = task_of(BenchOptions(size=24), dataset.path, None)
    for model in ("resnet18", SMALL):
        check_model(model, task)
    for model, message in (
        ("resnet19", "'resnet19', which torchvision has not; use a model such as resnet18.*, or small"),
        ("alexnet", r"alexnet does not take images of \[3, 24, 24\]"),
    ):
        with pytest.raises(UsageError, match=message):
            check_model(model, task)


# Cold files


def test_evicted_files_have_no_page_in_memory_or_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a", "deep/b"):
        (tmp_path / name).write_bytes(b"x" * 300_001)
    (tmp_path / "empty").touch()
    (tmp_path / "deep" / "link").symlink_to(tmp_path / "a")
    files = files_below([tmp_path])
    assert sorted(path.name for path in files) == ["a", "b", "empty"]
    if reason := make_cold(files):
        pytest.skip(reason)
    assert sum(resident_bytes(path) for path in files) == 0
    (tmp_path / "a").read_bytes()
    assert resident_bytes(tmp_path / "a") >= 300_001
    assert resident_bytes(tmp_path / "deep" / "b") == 0


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
def test_files_that_live_in_memory_or_of_an_unknown_system_are_never_called_cold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(b"x" * 100_000)
        assert "stay in the page cache" in make_cold([Path(file.name)])
        monkeypatch.delattr("os.posix_fadvise", raising=False)
        assert "no posix_fadvise" in make_cold([Path(file.name)])
