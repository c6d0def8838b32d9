"""The result of a bench as plain data: a :class:`Record` with one row per contender, stored as JSON.

It is created from measurements. Never measures and never prints.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import median
from typing import Any

from mmload.bench.ceilings import CACHED, DISK, PINNED
from mmload.bench.contender_server import CEILINGS, TrainSample
from mmload.bench.measure import Measurement
from mmload.errors import MmloadError
from mmload.runtime.durable_files import write_atomically

FORMAT = "mmload bench"
VERSION = 2

PASSED = 1.005
"""Shares of a ceiling above this, which do not round to 100%, prove that a measurement was disturbed."""

PASSED_TRAINING = 1.1
"""Shares of the rate of training without any loading above this prove it, too: turns differ by up to a tenth."""

PASSED_LOADER = 1.5
"""Shares of the rate of a loader alone above this prove it as well: in a minute, a slow loader has one short turn."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender or ceiling.

    Attributes:
        name: the name in the table.
        group: "stock", "peer", "mmload", "ceiling" or "cached".
        differs: deviations from the task, "" if there are none.
        failure: why it was not measured, or not completely; "" if nothing failed.
        images_per_second: the median over the epochs; for a ceiling, the highest; None if it was not measured.
        epochs: images per second of each measured turn.
        ceiling: the ceiling that limits it; "" for ceilings, and if none was measured.
        of_ceiling: its rate as a share of that ceiling's rate.
        cpu_seconds_per_1000: processor seconds of its process tree per 1,000 images.
        beside: images per second of each turn beside a thread of pure Python in the same process.
        neighbor_keeps: the share of its speed alone that this thread keeps, in the same turns.
        trained_per_second: images per second in training, the median; without any loading, the highest.
        of_model: the former as a share of the rate of training without any loading.
        step_seconds: seconds per training step, with its wait for data; the median.
        waited: the share of training time spent waiting for data, the median.
        cold: whether the eviction from the page cache was verified before every turn; None: the cache was to be warm.
        samples: the raw data of each measured turn: images, seconds, processor seconds, whether it ended an epoch.
        training: the raw data of each turn of training.
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
    beside: list[float] = field(default_factory=list)
    neighbor_keeps: list[float] = field(default_factory=list)
    trained_per_second: float | None = None
    of_model: float | None = None
    step_seconds: float | None = None
    waited: float | None = None
    cold: bool | None = None
    samples: list[dict[str, Any]] = field(default_factory=list)
    training: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Images per second; 0 if it was not measured."""
        return self.images_per_second or 0.0

    @property
    def disturbed(self) -> bool:
        """True if it is faster than its ceiling: other programs disturbed one of the two, most likely the ceiling."""
        return self.of_ceiling is not None and self.of_ceiling > PASSED

    @property
    def training_disturbed(self) -> bool:
        """True if training was faster than without any loading, or than its loader ever was: one was disturbed."""
        if self.of_model is None:
            return False
        fastest = max(self.epochs, default=0.0)
        return self.of_model > PASSED_TRAINING or (self.trained_per_second or 0.0) > PASSED_LOADER * fastest


@dataclass(frozen=True, kw_only=True)
class Record:
    """The results, the machine and the settings of a bench.

    Attributes:
        settings: the task of every contender, and how it was measured.
        machine: facts of the machine.
        versions: versions of the packages involved.
        rows: each contender's and ceiling's, in the order of the table.
        notes: context for the numbers: whether the cache was cold, what disturbed them.
        verdict: one or two sentences that identify the bottleneck.
        building: way to build -> images per second of each round; empty if it was not measured.
    """

    settings: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    verdict: str = ""
    building: dict[str, list[float]] = field(default_factory=dict)

    @property
    def contenders(self) -> list[Row]:
        """The rows of loaders, without the ceilings of the machine."""
        return [row for row in self.rows if row.group not in CEILINGS]

    def as_json(self) -> dict[str, Any]:
        """Returns the record as JSON-compatible data."""
        body = {name.name: getattr(self, name.name) for name in fields(self) if name.name != "rows"}
        return {"format": FORMAT, "version": VERSION, **body, "results": [asdict(row) for row in self.rows]}


def best(rows: Sequence[Row], group: str) -> Row | None:
    """Returns the fastest row of a group, a disturbed one if there is no other; None if none was measured."""
    found = (row for row in rows if row.group == group and row.rate)
    return max(found, key=lambda row: (not row.disturbed, row.rate), default=None)


def write_json(body: Mapping[str, Any], path: Path) -> None:
    """Writes plain data to a JSON file.

    Raises:
        MmloadError: if it cannot be written.
    """
    try:
        write_atomically(path.resolve(), json.dumps(body, indent=1) + "\n")
    except OSError as error:
        raise MmloadError(f"cannot write the record {path} ({error.strerror})") from error


def rows_of(measurements: Sequence[Measurement], ceilings: Mapping[str, str], cold: bool) -> list[Row]:
    """Converts measurements to rows; ``ceilings`` has the row name of each ceiling by its short name."""
    rates = {result.name: result.rate for result in measurements}
    tops = {short: rates[name] for short, name in ceilings.items() if rates.get(name)}
    unloaded = next((result.training for result in measurements if result.entry.group == CACHED), [])
    model = max((sample.rate for sample in unloaded), default=None)
    rows = [_row(result, tops, ceilings, cold) for result in measurements]
    return [_trained(row, result.training, model) for row, result in zip(rows, measurements, strict=True)]


def _row(result: Measurement, tops: Mapping[str, float], names: Mapping[str, str], cold: bool) -> Row:
    short = _limit_of(result, tops) if result.contends else ""
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
        beside=[sample.rate for sample in result.beside],
        neighbor_keeps=[sample.keeps for sample in result.beside],
        cold=not any(result.warm) if cold and result.warm else None,
        samples=[asdict(sample) for sample in result.samples],
    )


def _trained(row: Row, turns: Sequence[TrainSample], model: float | None) -> Row:
    """Returns a row with its turns of training; ``model`` is the highest rate without any loading."""
    if not turns:
        return row
    rate = median(turn.rate for turn in turns)
    return replace(
        row,
        trained_per_second=model if row.group == CACHED else rate,
        of_model=rate / model if model and row.group != CACHED else None,
        step_seconds=median(turn.seconds / turn.steps for turn in turns),
        waited=median(turn.share for turn in turns),
        training=[asdict(turn) for turn in turns],
    )


def _limit_of(result: Measurement, tops: Mapping[str, float]) -> str:
    """Returns the lowest of the ceilings that all images of a contender have to pass; "" if there is none."""
    spared = {PINNED: result.entry.on_device, DISK: result.entry.group != "mmload"}
    return min((short for short in tops if not spared.get(short)), key=lambda short: tops[short], default="")
