"""The ``mmload bench`` command."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mmload.bench.options import BenchOptions
from mmload.builder.recipe import option
from mmload.cli.options import on_a_disk, takes
from mmload.cli.terminal import check_target, doing, fail, interruptible, show, write_result
from mmload.errors import UsageError

if TYPE_CHECKING:
    from mmload.bench.record import Record


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
        on_a_disk(self.dataset)
        on_a_disk(self.source)
        if self.build and self.source is None:
            raise UsageError("--build reads the photographs themselves: give --source ROOT")
        for name, path in {"--json": self.json_file, "--plot": self.plot}.items():  # before minutes of measuring
            check_target(name, path, self.dataset, self.source)


@takes(BenchArguments)
def bench(options: BenchArguments) -> None:
    """Measure a dataset against other loaders, on the same work.

    It says what the bottleneck is, and where the limit of the machine is.
    """
    began = time.monotonic()  # of the bench's seconds: the imports are part of them
    from mmload.bench.report import check_plot, draw, table
    from mmload.store.manifest import read

    if options.plot is not None:
        check_plot(options.plot)
    expected = f"(about {options.seconds:.0f} s in all{'' if options.full else '; --full takes ten minutes'})"
    contents = read(options.dataset).contents if options.record else ""
    with interruptible("nothing was changed"):
        from mmload.bench.run import run_on_dataset

        record = run_on_dataset(
            options.dataset,
            options.source,
            options,
            progress=lambda text: doing(f"{text} {expected}"),
            began=began,
        )
    written = []  # first: what took minutes to measure is not lost to a full stdout
    if options.json_file is not None:
        write_result(options.json_file, json.dumps(record.as_json(), indent=1) + "\n")
        written.append(f"record: {options.json_file}")
    if options.plot is not None:
        draw(record, options.plot)
        written.append(f"chart: {options.plot}")
    if options.record:
        _keep(options.dataset, record, contents)  # the contents that were measured: no other dataset gets it
        written.append(f"recorded in the card of {options.dataset}")
    show(*table(record).split("\n"), *written)
    contenders = [row for row in record.rows if row.contends]
    if not any(row.rate for row in contenders):
        reasons = "; ".join(dict.fromkeys(row.failure or "there was no time" for row in contenders))
        fail(f"no loader could be measured: {reasons or 'none can run'}", 1)


def _keep(dataset: Path, record: Record, contents: str) -> None:
    """Writes the record to the dataset's card, without the raw data of each turn."""
    from mmload.builder.dataset_change import write_card

    body = record.as_json()
    results = [
        {key: value for key, value in row.items() if key not in ("samples", "training")} for row in body["results"]
    ]
    card = {**body, "date": datetime.now(UTC).isoformat(timespec="seconds"), "results": results}
    write_card(dataset, "bench", card, contents)
