"""The ``mmload bench`` command."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mmload.cli import bench_options as given
from mmload.cli.interrupt import fail, interruptible
from mmload.cli.terminal import check_target, show, status_line
from mmload.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mmload.bench import Options, Record

_RAW = ("samples", "training")


def bench(
    dataset: given.Dataset = None,
    source: given.Source = None,
    compare: given.Compare = None,
    split: given.Split = None,
    augment: given.Augment = "crop",
    recipe: given.Recipe = None,
    crop: given.Crop = None,
    padding: given.Padding = 0,
    size: given.Size = None,
    batch_size: given.BatchSize = 64,
    epochs: given.Epochs = None,
    images: given.Images = None,
    workers: given.Workers = "0,2,4",
    threads: given.Threads = None,
    device: given.Device = None,
    cold: given.Cold = False,
    train: given.Train = None,
    time_budget: given.TimeBudget = None,
    quick: given.Quick = False,
    json_file: given.JsonFile = None,
    plot: given.Plot = None,
    keep: given.KeepRecord = False,
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
        raise UsageError("--record keeps the results in a dataset, and none is given; name one, or write --json FILE")
    _check_outputs(json_file, plot, dataset, source)
    began = time.monotonic()  # of the time budget: the imports are part of it
    from mmload.bench import Options, table
    from mmload.bench.options import check_count
    from mmload.store.manifest import read

    check_count("--size", size)
    options = Options(
        split=split,
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
        train=train,
        time_budget=time_budget,
        quick=quick,
    )
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


def _measure(
    dataset: Path | None,
    source: Path | None,
    size: int | None,
    options: Options,
    progress: Callable[[str], None],
    began: float,
) -> Record:
    from mmload.bench import run, run_on_sample

    if dataset is not None:
        return run(dataset, source, options, progress=progress, began=began)
    if source is None:
        raise UsageError("bench needs --source ROOT where there is no DATASET")
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
    from mmload.bench.compare import compare

    records = [read_record(file) for file in files]
    show(*compare(records[0], records[1], (str(files[0]), str(files[1]))).split("\n"))


def _write(record: Record, json_file: Path | None, plot: Path | None) -> list[str]:
    """Write what was asked for; lines that name it."""
    from mmload.bench import write_record

    lines = []
    if json_file is not None:
        write_record(record, json_file)
        lines.append(f"record: {json_file}")
    if plot is not None:
        from mmload.bench.chart import draw

        draw(record, plot)
        lines.append(f"chart: {plot}")
    return lines


def _keep(dataset: Path, record: Record, contents: str) -> None:
    """Keep the record in the dataset's card, without the raw data of each turn."""
    from mmload.store.card import write_card

    body = record.as_json()
    results = [{key: value for key, value in row.items() if key not in _RAW} for row in body["results"]]
    date = datetime.now(UTC).isoformat(timespec="seconds")
    write_card(dataset, "bench", {**body, "date": date, "results": results}, contents)


def _check_outputs(json_file: Path | None, plot: Path | None, *inputs: Path | None) -> None:
    """Check the files of results before minutes of measuring."""
    for name, path in (("--json", json_file), ("--plot", plot)):
        check_target(name, path, *inputs)
    if plot is not None:
        from mmload.bench.chart import check_plot

        check_plot(plot)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [-1]
    if min(numbers) < 0:
        raise UsageError(f"--workers is {text!r}; give integers, as in 0,2,4")
    return tuple(numbers)
