"""The ``mmload bench`` command."""

from __future__ import annotations

import shutil
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmload.cli import bench_options as options
from mmload.cli.bench_options import JsonFile
from mmload.cli.interrupt import fail, interruptible
from mmload.cli.options import DecodingThreads, Version, on_a_disk
from mmload.cli.terminal import check_target, show, status_line
from mmload.cli.waiting import report
from mmload.errors import MmloadError, UsageError, bytes_text, counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from mmload.bench import BenchOptions, Record

_RAW = ("samples", "beside_turns", "training")


def bench(
    dataset: options.Dataset = None,
    source: options.Source = None,
    compare: options.Compare = None,
    split: options.Split = None,
    version: Version = None,
    augment: options.Augment = "crop",
    recipe: options.Recipe = None,
    crop: options.Crop = None,
    padding: options.Padding = 0,
    size: options.Size = None,
    batch_size: options.BatchSize = 64,
    epochs: options.Epochs = None,
    images: options.Images = None,
    workers: options.Workers = "0,2,4",
    threads: options.Threads = None,
    device: options.Device = None,
    cold: options.Cold = False,
    beside: options.Beside = None,
    train: options.Train = None,
    time_budget: options.TimeBudget = None,
    quick: options.Quick = False,
    json_file: options.JsonFile = None,
    plot: options.Plot = None,
    keep: options.KeepRecord = False,
) -> None:
    """Measure the stored dataset against stock and other loaders, like for like, and say where the limit is.

    Building is measured by: mmload bench build --help
    """
    if compare is not None:
        _compare(compare, unused=(dataset, source, json_file, plot))
        return
    if dataset is None and source is None:
        raise UsageError("bench needs a DATASET and its --source ROOT, or --source ROOT alone; see mmload bench --help")
    if dataset is not None and size is not None:
        raise UsageError(f"--size is {size}, and {dataset} has its size already; leave one of them out")
    if keep and dataset is None:
        raise UsageError("--record saves the results in a dataset, and none is given; name one, or write --json FILE")
    _check_outputs(json_file, plot, dataset, source)
    began = time.monotonic()  # of the time budget: the imports are part of it
    from mmload.bench import BenchOptions, table
    from mmload.bench.options import check_count
    from mmload.store.manifest import read

    check_count("--size", size)
    options = BenchOptions(
        split=split,
        version=version,
        augment=augment,
        recipe=recipe,
        crop=crop,
        padding=padding,
        batch_size=batch_size,
        images=images,
        epochs=epochs,
        workers=_numbers(workers),
        threads=threads,
        device=device,
        cold=cold,
        beside=beside,
        train=train,
        time_budget=time_budget,
        quick=quick,
    )
    report(_length_of(options))
    contents = read(dataset).contents if keep and dataset is not None else ""  # so that no other dataset gets it
    with interruptible("nothing was changed"), status_line() as progress:
        record = _measure(dataset, source, size, options, progress, began)
    written = _write(record, json_file, plot)  # first: what took minutes to measure is not lost to a full stdout
    if keep and dataset is not None:
        _keep(dataset, record, contents)
        written.append(f"recorded in the card of {dataset}")
    show(*table(record).split("\n"), *written)
    if not any(row.rate for row in record.contenders):
        fail(_all_failed(record), 1)


def _length_of(options: BenchOptions) -> str:
    """Formats the expected duration of a bench."""
    plan = options.plan()
    beside = ", alone and beside other threads" if plan.beside else ""
    shorter = "" if options.quick else "; --quick takes 60 s, --time-budget SECONDS as long as you say"
    return f"measuring for about {plan.budget:g} s, {counted(plan.epochs, 'epoch')} of each loader{beside}{shorter}"


def _measure(
    dataset: Path | None,
    source: Path | None,
    size: int | None,
    options: BenchOptions,
    progress: Callable[[str], None],
    began: float,
) -> Record:
    from mmload.bench import run_on_dataset, run_on_sample

    if dataset is not None:
        return run_on_dataset(dataset, source, options, progress=progress, began=began)
    if source is None:
        raise UsageError("bench needs --source ROOT if no DATASET is given")
    return run_on_sample(source, options, side=size, progress=progress, began=began)


def _all_failed(record: Record) -> str:
    first, *more = dict.fromkeys(row.failure or "it was not run" for row in record.contenders)
    count = len(more)
    others = f"; {count} more reason{'s are' if count > 1 else ' is'} in the table" if more else ""
    return f"none of {len(record.contenders)} loaders could be measured: {first}{others}"


def _compare(files: tuple[Path, Path], unused: tuple[Path | None, ...]) -> None:
    if any(each is not None for each in unused):
        raise UsageError("--compare shows two records and measures nothing; leave the other arguments out")
    from mmload.bench import read_record
    from mmload.bench.report import compare

    records = [read_record(file) for file in files]
    show(*compare(records[0], records[1], (str(files[0]), str(files[1]))).split("\n"))


def _write(record: Record, json_file: Path | None, plot: Path | None) -> list[str]:
    """Writes the requested files; returns the lines that name them."""
    from mmload.bench import write_record

    lines = []
    if json_file is not None:
        write_record(record, json_file)
        lines.append(f"record: {json_file}")
    if plot is not None:
        from mmload.bench.report import draw

        draw(record, plot)
        lines.append(f"chart: {plot}")
    return lines


def _keep(dataset: Path, record: Record, contents: str) -> None:
    """Writes the record to the dataset's card, without the raw data of each turn."""
    from mmload.store.manifest import write_card

    body = record.as_json()
    results = [{key: value for key, value in row.items() if key not in _RAW} for row in body["results"]]
    date = datetime.now(UTC).isoformat(timespec="seconds")
    write_card(dataset, "bench", {**body, "date": date, "results": results}, contents)


def _check_outputs(json_file: Path | None, plot: Path | None, *inputs: Path | None) -> None:
    """Checks the files of results before minutes of measuring."""
    for name, path in (("--json", json_file), ("--plot", plot)):
        check_target(name, path, *inputs)
    if plot is not None:
        from mmload.bench.report import check_plot

        check_plot(plot)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [-1]
    if min(numbers) < 0:
        raise UsageError(f"--workers is {text!r}; give integers, as in 0,2,4")
    return tuple(numbers)


MOST_LINKS = 1_000_000
"""Links to photographs that ``bench build`` makes, one an image."""

_ROOM = 1.25  # times the pixels of all rows: labels, links and file systems need some, too


def bench_build(
    source: Annotated[Path, typer.Option(help="A folder of class folders of images.", callback=on_a_disk)],
    size: Annotated[int, typer.Option(help="Pixels of the square rows.")] = 256,
    images: Annotated[int, typer.Option(help="Least number of images per round; fewer are repeated.")] = 1200,
    rounds: Annotated[int, typer.Option(help="Measured rounds, after one to warm up.")] = 5,
    threads: DecodingThreads = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Also Ray Data, and mmload's build as Ray tasks, on this machine.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Measure building: a bare decode loop, the tensordict tutorial's loop, FFCV's writer where it is, and mmload."""
    check_target("--json", json_file, source)
    from mmload.bench.options import check_count
    from mmload.runtime.resources import check_threads

    check_count("--size", size)
    check_count("--images", images, MOST_LINKS)
    check_count("--rounds", rounds)
    check_threads(threads)
    _check_room(size, images)
    from mmload.bench.building import measure_builds

    with interruptible("nothing was changed"), status_line() as progress:
        record = measure_builds(
            source, size=size, images=images, rounds=rounds, threads=threads, on_ray=ray, progress=progress
        )
    written = []
    if json_file is not None:
        from mmload.bench.record import write_json

        write_json(record.as_json(), json_file)
        written = [f"record: {json_file}"]
    show(*record.table().split("\n"), *written)


def _check_room(size: int, images: int) -> None:
    """Checks that the rows fit where temporary files go; a full disk would kill the tutorial's loop."""
    place = Path(tempfile.gettempdir())
    need, free = int(_ROOM * images * 3 * size * size), shutil.disk_usage(place).free
    if need > free:
        raise MmloadError(
            f"{counted(images, 'image')} of {size} x {size} take {bytes_text(need)} of temporary files, "
            f"{bytes_text(free)} are free in {place}; set TMPDIR to a place with more, or lower --images or --size"
        )
