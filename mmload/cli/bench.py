"""The ``mmload bench`` command."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmload.bench.options import BenchOptions, check_count
from mmload.builder.options import option
from mmload.cli.interrupt import fail, interruptible, report
from mmload.cli.options import DecodingThreads, dataset_on_a_disk, on_a_disk, takes
from mmload.cli.terminal import check_different, check_target, show, status_line
from mmload.errors import UsageError, counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from mmload.bench.record import Record

_RAW = ("samples", "beside_turns", "training")


@dataclass(frozen=True, kw_only=True)
class BenchArguments(BenchOptions):
    """What the command takes beside the options of a bench: what is measured, and where results go."""

    dataset: Path | None = option("A built dataset; write ./build for one called build.", flag="")
    source: Path | None = option("The folder it was built from. Without DATASET: estimate the gain of a build of it.")
    size: int | None = option("Without DATASET: pixels of the stored square; 256 for image folders.")
    compare: tuple[Path, Path] | None = option(
        "Show two records side by side; measures nothing.", metavar="A.json B.json"
    )
    json_file: Path | None = option("Write the record here, too.", flag="--json")
    plot: Path | None = option("Draw a chart; needs matplotlib.", metavar="FILE.png")
    record: bool = option("Record the results in the dataset's card.", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        dataset_on_a_disk(self.dataset)
        on_a_disk(self.source)
        outputs = {"--json": self.json_file, "--plot": self.plot}
        if self.compare is not None:
            if any(each is not None for each in (self.dataset, self.source, *outputs.values())):
                raise UsageError("--compare shows two records and measures nothing; leave the other arguments out")
            return
        if self.dataset is None and self.source is None:
            raise UsageError(
                "bench needs a DATASET and its --source ROOT, or --source ROOT alone; see mmload bench --help"
            )
        if self.dataset is not None and self.size is not None:
            raise UsageError(f"--size is {self.size}, and {self.dataset} has its size already; leave one of them out")
        check_count("--size", self.size)
        if self.record and self.dataset is None:
            raise UsageError(
                "--record saves the results in a dataset, and none is given; name one, or write --json FILE"
            )
        for name, path in outputs.items():  # before minutes of measuring
            check_target(name, path, self.dataset, self.source)
        check_different(outputs)


@takes(BenchArguments)
def bench(options: BenchArguments) -> None:
    """Measure the stored dataset against stock and other loaders, like for like, and say where the limit is.

    Building is measured by: mmload bench build --help
    """
    if options.compare is not None:
        _compare(*options.compare)
        return
    began = time.monotonic()  # of the time budget: the imports are part of it
    from mmload.bench.record import write_json
    from mmload.bench.report import check_plot, draw, table
    from mmload.store.manifest import read

    if options.plot is not None:
        check_plot(options.plot)
    report(_length_of(options))
    contents = read(options.dataset).contents if options.record and options.dataset is not None else ""
    with interruptible("nothing was changed"), status_line() as progress:
        record = _measure(options, progress, began)
    written = []  # first: what took minutes to measure is not lost to a full stdout
    if options.json_file is not None:
        write_json(record.as_json(), options.json_file)
        written.append(f"record: {options.json_file}")
    if options.plot is not None:
        draw(record, options.plot)
        written.append(f"chart: {options.plot}")
    if options.record and options.dataset is not None:
        _keep(options.dataset, record, contents)  # the contents that were measured: no other dataset gets it
        written.append(f"recorded in the card of {options.dataset}")
    show(*table(record).split("\n"), *written)
    if not any(row.rate for row in record.contenders):
        fail(_all_failed(record), 1)


def _length_of(options: BenchOptions) -> str:
    """Formats the expected duration of a bench."""
    plan = options.plan()
    beside = ", alone and beside other threads" if plan.beside else ""
    shorter = "" if options.quick else "; --quick takes 60 s, --time-budget SECONDS as long as you say"
    return f"measuring for about {plan.budget:g} s, {counted(plan.epochs, 'epoch')} of each loader{beside}{shorter}"


def _measure(options: BenchArguments, progress: Callable[[str], None], began: float) -> Record:
    from mmload.bench.run import run_on_dataset, run_on_sample

    if options.dataset is not None:
        return run_on_dataset(options.dataset, options.source, options, progress=progress, began=began)
    return run_on_sample(options.source or "", options, side=options.size, progress=progress, began=began)


def _all_failed(record: Record) -> str:
    first, *more = dict.fromkeys(row.failure or "it was not run" for row in record.contenders)
    count = len(more)
    others = f"; {count} more reason{'s are' if count > 1 else ' is'} in the table" if more else ""
    return f"none of {len(record.contenders)} loaders could be measured: {first}{others}"


def _compare(first: Path, second: Path) -> None:
    from mmload.bench.record import read_record
    from mmload.bench.report import compare

    show(*compare(read_record(first), read_record(second), (str(first), str(second))).split("\n"))


def _keep(dataset: Path, record: Record, contents: str) -> None:
    """Writes the record to the dataset's card, without the raw data of each turn."""
    from mmload.builder.version_commit import write_card

    body = record.as_json()
    results = [{key: value for key, value in row.items() if key not in _RAW} for row in body["results"]]
    date = datetime.now(UTC).isoformat(timespec="seconds")
    write_card(dataset, "bench", {**body, "date": date, "results": results}, contents)


def bench_build(
    source: Annotated[Path, typer.Option(help="A folder of class folders of images.", callback=on_a_disk)],
    size: Annotated[int, typer.Option(help="Pixels of the square rows.")] = 256,
    images: Annotated[int, typer.Option(help="Least number of images per round; fewer are repeated.")] = 1200,
    rounds: Annotated[int, typer.Option(help="Measured rounds, after one to warm up.")] = 5,
    threads: DecodingThreads = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Also Ray Data, and mmload's build as Ray tasks, on this machine.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the record here, too.")] = None,
) -> None:
    """Measure building: a bare decode loop, the tensordict tutorial's loop, FFCV's writer where it is, and mmload."""
    check_target("--json", json_file, source)
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
