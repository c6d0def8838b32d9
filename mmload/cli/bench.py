"""The ``mmload bench`` command."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmload.bench.options import BenchOptions
from mmload.builder.recipe import option
from mmload.cli.options import on_a_disk, takes
from mmload.cli.terminal import check_target, doing, fail, interruptible, record_result, show, write_result
from mmload.errors import UsageError

if TYPE_CHECKING:
    from mmload.bench.record import Record


@dataclass(frozen=True, kw_only=True)
class BenchArguments(BenchOptions):
    """What the command takes beside the options of a bench: what is measured, and where results go."""

    dataset: Path = field(metadata={"help": "A built dataset.", "flag": ""})
    source: Path | None = option(
        "What it was built from; without it, loaders that read the photographs themselves are left out."
    )
    json_file: Path | None = option("Write the record here, too.", flag="--json")
    plot: Path | None = option("Draw a chart; needs matplotlib.", metavar="FILE.png")
    record: bool = option("Record the results in the dataset's card.", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        on_a_disk(self.dataset)
        on_a_disk(self.source)
        if self.build and self.source is None:
            raise UsageError("--build reads the photographs themselves: give --source ROOT")
        check_target("--json", self.json_file, self.dataset, self.source)  # before minutes of measuring
        check_target("--plot", self.plot, self.dataset, self.source, endings=[".png"])


@takes(BenchArguments)
def bench(options: BenchArguments) -> None:
    """Measure a dataset against other loaders, on the same work.

    It says what the bottleneck is, and where the limit of the machine is.
    """
    began = time.monotonic()  # the imports are part of the bench's seconds
    from mmload.bench.report import check_plot, draw, report_text
    from mmload.store.manifest import read

    if options.plot is not None:
        check_plot()
    expected = f"(about {options.seconds:.0f} s in all{'' if options.full else '; --full takes ten minutes'})"
    contents = read(options.dataset).contents if options.record else ""
    with interruptible("nothing was changed"):
        from mmload.bench.run import run_on_dataset

        record = run_on_dataset(
            options.dataset,
            options.source,
            options,
            progress=lambda text: doing(f"{text} {expected}"),
            spent=time.monotonic() - began,
        )
    contenders = [row for row in record.rows if row.contends]
    is_measured = any(row.rate for row in contenders)
    written = []  # first: what took minutes to measure is not lost to a full stdout
    if options.json_file is not None:
        write_result(options.json_file, json.dumps(record.as_json(), indent=1) + "\n")
        written.append(f"record: {options.json_file}")
    if options.plot is not None and is_measured:
        draw(record, options.plot)
        written.append(f"chart: {options.plot}")
    if options.record:
        written.append(record_result(options.dataset, "bench", _without_turns(record), contents))
    show(*report_text(record).split("\n"), *written)
    if not is_measured:
        reasons = "; ".join(dict.fromkeys(row.failure or "there was no time" for row in contenders))
        fail(f"no loader could be measured: {reasons or 'none can run'}", 1)


def _without_turns(record: Record) -> dict[str, Any]:
    """Returns a record as JSON-compatible data, without the raw data of each turn."""
    body = record.as_json()
    for row in body["results"]:
        del row["samples"], row["training"]
    return body
