"""The report of a parity check: one verdict per property, as a table of text or as JSON data.

Verdicts are judged from the differences of rows from their references, added up per property.

It never prints.
"""

from __future__ import annotations

import math
import platform
import textwrap
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Self

import PIL
import torch
import torchvision
from torch import Tensor

import mmload
from mmload.errors import counted, one_line
from mmload.records import Progress

_WIDTH = 100
_NAME = 42  # maximum columns of a name; the text of a longer name starts below it
_LEAST = 24  # minimum columns of text, however long the names of splits are


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on one property.

    Attributes:
        part: the checked part: a split's name, or "load".
        name: the property.
        state: "pass", "fail", or "note" for information without a judgment.
        text: the findings, with the limit; of a failure, also the row that is the farthest off.
        numbers: the findings as numbers, by name.
    """

    part: str
    name: str
    state: str
    text: str
    numbers: dict[str, float | int] = field(default_factory=dict)

    @classmethod
    def judged(cls, part: str, name: str, holds: bool, text: str, /, **numbers: float | int) -> Self:
        """Returns "pass" or "fail"."""
        return cls(part=part, name=name, state="pass" if holds else "fail", text=text, numbers=numbers)


def unreported(what: str) -> Progress:
    """Returns a callback that ignores progress."""
    return lambda done, total: None


def apart(found: Tensor, right: Tensor) -> Tensor:
    """Returns the absolute differences, float64; infinite for other shapes, and where only one of them is NaN."""
    if found.shape != right.shape:
        return torch.tensor(torch.inf, dtype=torch.float64, device="cpu")
    if torch.equal(found, right):
        return torch.zeros(1, dtype=torch.float64, device="cpu")
    a, b = found.to(torch.float64), right.to(torch.float64)
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs().nan_to_num(nan=torch.inf))


@dataclass
class Tally:
    """Differences of one property from its reference, added up over rows.

    Attributes:
        unit: the unit of a difference, after a space.
        rows: number of rows compared.
        wrong: number of rows that differ by more than their limit.
        greatest: the largest difference; infinite for another shape or number of values.
        limit: the largest limit of a row.
        worst: how far the worst row is beyond its limit, and the row as text.
    """

    unit: str = ""
    rows: int = 0
    wrong: int = 0
    greatest: float = 0.0
    limit: float = 0.0
    worst: tuple[float, str] = (0.0, "")

    def add(self, difference: float, row: str, limit: float = 0.0) -> None:
        """Adds the difference of a row."""
        self.rows += 1
        self.wrong += difference > limit
        self.greatest = max(self.greatest, difference)
        self.limit = max(self.limit, limit)
        self.worst = max(self.worst, (difference - limit, row), key=itemgetter(0))

    def verdict(self, part: str, name: str) -> Verdict:
        """Returns the verdict: a property holds if every row is within its limit."""
        text = rows = counted(self.rows, "row")
        if self.wrong:
            unit = self.unit.removesuffix("s") if self.greatest == 1 else self.unit
            by = f"by up to {self.greatest:.4g}{unit}" if math.isfinite(self.greatest) else "in size or number"
            text = f"{self.wrong:,} of {rows} differ {by}; the worst: {self.worst[1]}"
        else:
            text += f" within {self.greatest:.2g}{self.unit}, limit {self.limit:g}" if self.greatest else " equal"
        numbers = {"rows": self.rows, "wrong": self.wrong, "greatest": self.greatest, "limit": self.limit}
        return Verdict.judged(part, name, not self.wrong, text, **numbers)


@dataclass(frozen=True, kw_only=True)
class ParityReport:
    """The report of a complete check.

    Attributes:
        settings: compared splits and collate, number of rows, and the seed.
        verdicts: verdicts in the order of the checks.
        date: the date of the check in UTC, ISO 8601.
        contents: the :attr:`~mmload.store.manifest.Manifest.contents` of the checked dataset.
    """

    settings: dict[str, Any]
    verdicts: tuple[Verdict, ...]
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    contents: str = ""

    @property
    def passed(self) -> bool:
        """True if no verdict failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Verdict, ...]:
        """The verdicts that failed."""
        return tuple(verdict for verdict in self.verdicts if verdict.state == "fail")

    def as_json(self) -> dict[str, Any]:
        """Returns the report as plain data, with versions; infinite numbers become None, which JSON can hold."""
        return {
            "passed": self.passed,
            "date": self.date,
            "versions": {
                "mmload": mmload.__version__,
                "torch": torch.__version__,
                "torchvision": torchvision.__version__,
                "pillow": PIL.__version__,
                "python": platform.python_version(),
            },
            "settings": self.settings,
            "verdicts": [
                {**vars(verdict), "numbers": {name: _finite(number) for name, number in verdict.numbers.items()}}
                for verdict in self.verdicts
            ],
        }


def table(report: ParityReport) -> str:
    """Formats the verdicts as lines of 100 columns, and a summary as the last line.

    Line ends and control characters in names are escaped.
    """
    part = max((len(one_line(verdict.part)) for verdict in report.verdicts), default=0)
    widths: dict[str, int] = {}
    for verdict in report.verdicts:
        widths[verdict.part] = max(widths.get(verdict.part, 0), min(len(one_line(verdict.name)), _NAME))
    lines = [line for verdict in report.verdicts for line in _lines(verdict, part, widths[verdict.part])]
    judged, failed = sum(verdict.state != "note" for verdict in report.verdicts), len(report.failures)
    lines.append(f"{judged - failed} of {judged} hold" + (f", {failed} FAIL" if failed else ""))
    return "\n".join(lines)


def _lines(verdict: Verdict, part: int, width: int) -> list[str]:
    """Formats one verdict: its text next to its name, or below a long name."""
    name = one_line(verdict.name)
    head = f"{verdict.state:<4}  {one_line(verdict.part):<{part}}  {name:<{width}}  "
    indent = " " * (8 + part + width + 2)
    text = textwrap.wrap(one_line(verdict.text), max(_WIDTH - len(indent), _LEAST), break_on_hyphens=False) or [""]
    first = [head + text.pop(0)] if len(name) <= width else [head.rstrip()]
    return first + [indent + more for more in text]


def _finite(number: float | int) -> float | int | None:
    return number if math.isfinite(number) else None
