"""The result of a bench as plain data: a :class:`Record` with one row per contender, stored as JSON.

It is created from measurements or read from a file. Never measures and never prints.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

from mmload.bench.ceilings import COPY, DISK, FILL, PINNED
from mmload.bench.contender_server import CEILINGS
from mmload.bench.measure import Measurement
from mmload.bench.task import Task
from mmload.bench.train import BesideSample
from mmload.errors import MmloadError, UsageError
from mmload.runtime.durable_files import write_atomically
from mmload.runtime.regular_files import read_regular

FORMAT = "mmload bench"
VERSION = 1

PASSED = 1.005
"""Shares of a ceiling above this, which do not round to 100%, prove that its measurement was disturbed."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender or ceiling.

    Attributes:
        name: the name in the table.
        group: "stock", "peer", "mmload", "ceiling" or "cached".
        differs: deviations from the task, "" if there are none.
        failure: why it was not measured, or not completely; "" if nothing failed.
        images_per_second: the median over the epochs; for a ceiling, the highest; None if it was not measured.
        epochs: images per second of each measured epoch.
        ceiling: the ceiling that limits it; "" for ceilings, and if none was measured.
        of_ceiling: its rate as a share of that ceiling's rate.
        cpu_seconds_per_1000: processor seconds of its process tree per 1,000 images.
        peak_bytes: peak memory of its process tree.
        beside: images per second of each turn beside a thread that does something else in the same process, by the
            thread's name in :data:`~mmload.bench.train.NEIGHBORS`.
        neighbors_keep: the share of its speed alone that this thread keeps, in the same turns.
        trained_per_second: images per second in training, the median.
        step_seconds: seconds per training step, with its wait for data; the median.
        waited: the share of training time spent waiting for data, the median.
        cold: whether the eviction from the page cache was verified before every epoch; None: the cache was to be warm.
        samples: the raw data of each measured turn: images, seconds, first batch, processor seconds, epochs.
        beside_turns: the raw data of each turn beside another thread.
        training: the raw data of each turn of training.

    Raises:
        ValueError: if it has a rate and no epochs.
    """

    name: str
    group: str
    differs: str = ""
    failure: str = ""
    images_per_second: float | None = None
    epochs: list[float] = field(default_factory=list)
    ceiling: str = ""
    of_ceiling: float | None = None
    cpu_seconds_per_1000: float | None = None
    peak_bytes: int | None = None
    beside: dict[str, list[float]] = field(default_factory=dict)
    neighbors_keep: dict[str, list[float]] = field(default_factory=dict)
    trained_per_second: float | None = None
    step_seconds: float | None = None
    waited: float | None = None
    cold: bool | None = None
    samples: list[dict[str, Any]] = field(default_factory=list)
    beside_turns: list[dict[str, Any]] = field(default_factory=list)
    training: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.rate and not self.epochs:
            raise ValueError(f"the row {self.name!r} has a rate and no epochs")

    @property
    def rate(self) -> float:
        """Images per second; 0 if it was not measured."""
        return self.images_per_second or 0.0

    @property
    def passes_limit(self) -> bool:
        """True if it is faster than its ceiling: something disturbed the measurement of the ceiling."""
        return self.of_ceiling is not None and self.of_ceiling > PASSED


@dataclass(frozen=True, kw_only=True)
class Record:
    """The results, the machine and the settings of a bench.

    Attributes:
        settings: the task of every contender, and how it was measured.
        machine: facts of the machine.
        versions: versions of the packages involved.
        rows: each contender's and ceiling's, in the order of the table.
        notes: context for the numbers: whether the cache was cold, the cost of a build.
        verdict: one or two sentences that identify the bottleneck.
    """

    settings: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    verdict: str = ""

    @property
    def contenders(self) -> list[Row]:
        """The rows of loaders, without the ceilings of the machine."""
        return [row for row in self.rows if row.group not in CEILINGS]

    def as_json(self) -> dict[str, Any]:
        """Returns the record as JSON-compatible data."""
        body = {name.name: getattr(self, name.name) for name in fields(self) if name.name != "rows"}
        return {"format": FORMAT, "version": VERSION, **body, "results": [asdict(row) for row in self.rows]}


def best(rows: Sequence[Row], group: str) -> Row | None:
    """Returns the fastest row of a group; None if none was measured."""
    return max((row for row in rows if row.group == group and row.rate), key=lambda row: row.rate, default=None)


_MOST = 2**24
"""Upper bound on the bytes of a record: a larger file is no record."""


def read_record(path: str | Path) -> Record:
    """Reads a record from its file.

    Raises:
        UsageError: if the file does not exist, or has another format.
    """
    try:
        body = json.loads(read_regular(path, most=_MOST).decode())
    except OSError as error:
        raise UsageError(f"cannot read the record {path} ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a record of mmload bench: it is not JSON ({error})") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise UsageError(f"{path} is not a record of mmload bench; write one with --json")
    if body.get("version") != VERSION:
        raise UsageError(f"{path} is of record version {body.get('version')!r}, this mmload reads version {VERSION}")
    try:
        return msgspec.convert({**body, "rows": body.get("results")}, Record)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} is a damaged record ({error}); run the bench again") from error


def write_json(body: Mapping[str, Any], path: Path) -> None:
    """Writes plain data to a JSON file.

    Raises:
        MmloadError: if it cannot be written.
    """
    try:
        write_atomically(path.resolve(), json.dumps(body, indent=1) + "\n")
    except OSError as error:
        raise MmloadError(f"cannot write the record {path} ({error.strerror})") from error


def rows_of(task: Task, measurements: Sequence[Measurement], ceilings: Mapping[str, str], cold: bool) -> list[Row]:
    """Converts measurements to rows; ``ceilings`` has the row name of each ceiling by its short name."""
    rates = {result.name: result.rate for result in measurements}
    tops = {short: rates[name] for short, name in ceilings.items() if rates.get(name)}
    return [_row(task, result, tops, ceilings, cold) for result in measurements]


def _row(task: Task, result: Measurement, tops: Mapping[str, float], names: Mapping[str, str], cold: bool) -> Row:
    contends = result.entry.group not in CEILINGS
    short = limit_of(task, result, tops, cold) if contends else ""
    return Row(
        name=result.name,
        group=result.entry.group,
        differs=result.entry.differs,
        failure=result.failure,
        images_per_second=result.rate or None,
        epochs=result.rates,
        ceiling=names[short] if short else "",
        of_ceiling=result.rate / tops[short] if short and result.samples else None,
        cpu_seconds_per_1000=result.cpu,
        peak_bytes=result.memory,
        beside=_by_neighbor(result, lambda sample: sample.rate),
        neighbors_keep=_by_neighbor(result, lambda sample: sample.keeps),
        trained_per_second=result.train_rate,
        step_seconds=result.step_seconds,
        waited=result.waited,
        cold=all(each.proven for each in result.coldness) if cold and result.coldness else None,
        samples=[asdict(sample) for sample in result.samples],
        beside_turns=[asdict(sample) for sample in result.beside],
        training=[asdict(sample) for sample in result.training],
    )


def _by_neighbor(result: Measurement, value: Callable[[BesideSample], float]) -> dict[str, list[float]]:
    """Returns a value of each turn beside a neighbor, by the neighbor's name."""
    values: dict[str, list[float]] = {}
    for sample in result.beside:
        values.setdefault(sample.neighbor, []).append(value(sample))
    return values


def limit_of(task: Task, result: Measurement, tops: Mapping[str, float], cold: bool) -> str:
    """Returns the lowest of the ceilings that apply to all images of a contender; "" if there is none."""
    passes = [FILL]
    if task.device == "cuda" and result.entry.ceiling != "device":
        passes.append(PINNED)
    if task.device == "cpu" and task.augment == "none":
        passes.append(COPY)
    if cold and result.entry.group == "mmload":
        passes.append(DISK)
    return min((short for short in passes if short in tops), key=lambda short: tops[short], default="")
