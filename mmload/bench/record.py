"""The result of a bench: a :class:`Record` with a :class:`Row` for each contender and ceiling, stored as JSON.

Never measures and never prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import median
from typing import Any

from mmload.bench.ceilings import CACHED, DISK, PINNED
from mmload.bench.contender_server import CEILINGS, BesideSample, LoadSample, TrainSample

FORMAT = "mmload bench"
VERSION = 2

PASSED = 1.005
"""Shares of a ceiling above this, which do not round to 100%, prove that a measurement was disturbed."""

PASSED_TRAINING = 1.1
"""Shares of the rate of training without any loading above this prove it, too: turns differ by up to a tenth."""

PASSED_LOADER = 1.5
"""Shares of the rate of a loader alone above this prove it as well: in a minute, a slow loader has one short turn."""


_FIGURES = ("images_per_second", "of_ceiling", "cpu_seconds_per_1000", "trained_per_second", "of_model", "step_seconds")
"""What is 0 in a row, and null in JSON, where it was not measured."""


@dataclass(kw_only=True)
class Row:
    """One contender or ceiling: its measured turns, and what they say.

    Attributes:
        name: the name in the table.
        group: "stock", "peer", "mmload", "ceiling" or "cached".
        differs: deviations from the task, "" if there are none.
        on_device: whether its images are on the device before an epoch begins.
        failure: why turns are missing; "" if nothing failed.
        warmed: whether no warm-up turn was cut short before it read every image.
        samples: the measured turns.
        beside: the measured turns beside a thread of pure Python in the same process.
        training: the measured turns of training.
        warm: why the files may not have been cold before each sample, "" where it was verified that they were.
        ceiling: the name of the ceiling that limits it; "" for ceilings, and if none was measured.
        of_ceiling: its rate as a share of that ceiling's rate; 0 if one of the two was not measured.
        of_model: its rate of training as a share of that without any loading; 0 if one of the two was not measured.
    """

    name: str
    group: str
    differs: str = ""
    on_device: bool = False
    failure: str = ""
    warmed: bool = True
    samples: list[LoadSample] = field(default_factory=list)
    beside: list[BesideSample] = field(default_factory=list)
    training: list[TrainSample] = field(default_factory=list)
    warm: list[str] = field(default_factory=list)
    ceiling: str = ""
    of_ceiling: float = 0.0
    of_model: float = 0.0

    @property
    def contends(self) -> bool:
        """True for a loader, False for a limit of the machine."""
        return self.group not in CEILINGS

    @property
    def epochs(self) -> list[float]:
        """Images per second of each measured turn."""
        return [sample.rate for sample in self.samples]

    @property
    def rate(self) -> float:
        """Images per second: the median over the turns; for a ceiling, the highest; 0 if it was not measured."""
        return _middle(self.epochs) if self.contends else max(self.epochs, default=0.0)

    @property
    def cpu(self) -> float:
        """Processor seconds of its process tree per 1,000 images, over all turns; 0 without one."""
        images = sum(sample.images for sample in self.samples)
        return 1000 * sum(sample.cpu for sample in self.samples) / max(1, images)

    @property
    def trained(self) -> float:
        """Images per second in training, the median; without any loading, the highest; 0 if it was not trained."""
        rates = [turn.rate for turn in self.training]
        return max(rates, default=0.0) if self.group == CACHED else _middle(rates)

    @property
    def step_seconds(self) -> float:
        """Seconds per training step, with its wait for data; the median."""
        return _middle([turn.seconds / turn.steps for turn in self.training])

    @property
    def waited(self) -> float:
        """The share of training time spent waiting for data, the median."""
        return _middle([turn.share for turn in self.training])

    @property
    def disturbed(self) -> bool:
        """True if it is faster than its ceiling: other programs disturbed one of the two, most likely the ceiling."""
        return self.of_ceiling > PASSED

    @property
    def training_disturbed(self) -> bool:
        """True if training was faster than without any loading, or than its loader ever was: one was disturbed."""
        fastest = PASSED_LOADER * max(self.epochs, default=0.0)
        return self.of_model > PASSED_TRAINING or (self.of_model > 0 and self.trained > fastest)

    def as_json(self) -> dict[str, Any]:
        """Returns the row as JSON-compatible data: None for what was not measured, and ``cold`` of a warm bench."""
        body = {
            "name": self.name,
            "group": self.group,
            "differs": self.differs,
            "failure": self.failure,
            "images_per_second": self.rate,
            "epochs": self.epochs,
            "ceiling": self.ceiling,
            "of_ceiling": self.of_ceiling,
            "cpu_seconds_per_1000": self.cpu,
            "beside": [sample.rate for sample in self.beside],
            "neighbor_keeps": [sample.keeps for sample in self.beside],
            "trained_per_second": self.trained,
            "of_model": self.of_model,
            "step_seconds": self.step_seconds,
            "waited": self.waited if self.training else None,
            "cold": not any(self.warm) if self.warm else None,
            "samples": list(map(asdict, self.samples)),
            "training": list(map(asdict, self.training)),
        }
        return body | {name: None for name in _FIGURES if not body[name]}  # not measured


def _middle(figures: Sequence[float]) -> float:
    """Returns the median; 0 without figures."""
    return median(figures or [0.0])


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

    def as_json(self) -> dict[str, Any]:
        """Returns the record as JSON-compatible data."""
        body = {name.name: getattr(self, name.name) for name in fields(self) if name.name != "rows"}
        return {"format": FORMAT, "version": VERSION, **body, "results": [row.as_json() for row in self.rows]}


def best(rows: Sequence[Row], group: str) -> Row | None:
    """Returns the fastest row of a group, a disturbed one if there is no other; None if none was measured."""
    found = (row for row in rows if row.group == group and row.rate)
    return max(found, key=lambda row: (not row.disturbed, row.rate), default=None)


def set_limits(rows: Sequence[Row], ceilings: Mapping[str, str]) -> None:
    """Compares rows with their ceilings, the names of which are given by short name, and with training alone.

    A row's ceiling is the lowest of those that all of its images have to pass.
    """
    rates = {row.name: row.rate for row in rows}
    unloaded = max((row.trained for row in rows if row.group == CACHED), default=0.0)
    for row in rows:
        spared = {PINNED: row.on_device, DISK: row.group != "mmload"}
        passed = [name for short, name in ceilings.items() if rates.get(name) and not spared.get(short)]
        if row.contends and passed:
            row.ceiling = min(passed, key=lambda name: rates[name])
            row.of_ceiling = row.rate / rates[row.ceiling]
        if unloaded and row.group != CACHED:
            row.of_model = row.trained / unloaded
