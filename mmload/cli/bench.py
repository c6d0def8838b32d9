"""The ``mmload bench`` command."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mmload.bench.options import BenchOptions
from mmload.builder.options import option
from mmload.cli.interrupt import fail, interruptible
from mmload.cli.options import dataset_on_a_disk, on_a_disk, takes
from mmload.cli.status import report, status_line
from mmload.cli.terminal import check_different, check_target, show
from mmload.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mmload.bench.record import Record

_RAW = ("samples", "training")


@dataclass(frozen=True, kw_only=True)
class BenchArguments(BenchOptions):
    """What the command takes beside the options of a bench: what is measured, and where results go."""

    dataset: Path = field(metadata={"help": "A built dataset.", "flag": ""})
    source: Path | None = option("The folder that it was built from; without it, only mmload is measured.")
    json_file: Path | None = option("Write the record here, too.", flag="--json")
    plot: Path | None = option("Draw a chart; needs matplotlib.", metavar="FILE.png")
    record: bool = option("Record the results in the dataset's card.", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        dataset_on_a_disk(self.dataset)
        on_a_disk(self.source)
        if self.build and self.source is None:
            raise UsageError("--build reads the photographs themselves: give --source ROOT")
        outputs = {"--json": self.json_file, "--plot": self.plot}
        for name, path in outputs.items():  # before minutes of measuring
            check_target(name, path, self.dataset, self.source)
        check_different(outputs)


@takes(BenchArguments)
def bench(options: BenchArguments) -> None:
    """Measure the stored dataset against stock and other loaders, like for like, and say where the limit is."""
    began = time.monotonic()  # of the bench's seconds: the imports are part of them
    from mmload.bench.record import write_json
    from mmload.bench.report import check_plot, draw, table
    from mmload.store.manifest import read

    if options.plot is not None:
        check_plot(options.plot)
    longer = "" if options.full else "; --full takes ten minutes"
    report(f"measuring for about {options.plan().seconds:.0f} s{longer}")
    contents = read(options.dataset).contents if options.record else ""
    with interruptible("nothing was changed"), status_line() as progress:
        record = _measure(options, progress, began)
    written = []  # first: what took minutes to measure is not lost to a full stdout
    if options.json_file is not None:
        write_json(record.as_json(), options.json_file)
        written.append(f"record: {options.json_file}")
    if options.plot is not None:
        draw(record, options.plot)
        written.append(f"chart: {options.plot}")
    if options.record:
        _keep(options.dataset, record, contents)  # the contents that were measured: no other dataset gets it
        written.append(f"recorded in the card of {options.dataset}")
    show(*table(record).split("\n"), *written)
    if not any(row.rate for row in record.contenders):
        reasons = list(dict.fromkeys(row.failure or "there was no time" for row in record.contenders)) or [
            "none can run"
        ]
        fail(f"no loader could be measured: {'; '.join(reasons)}", 1)


def _measure(options: BenchArguments, progress: Callable[[str], None], began: float) -> Record:
    from mmload.bench.run import run_on_dataset

    return run_on_dataset(options.dataset, options.source, options, progress=progress, began=began)


def _keep(dataset: Path, record: Record, contents: str) -> None:
    """Writes the record to the dataset's card, without the raw data of each turn."""
    from mmload.builder.version_commit import write_card

    body = record.as_json()
    results = [{key: value for key, value in row.items() if key not in _RAW} for row in body["results"]]
    date = datetime.now(UTC).isoformat(timespec="seconds")
    write_card(dataset, "bench", {**body, "date": date, "results": results}, contents)
