"""The result of a parity check: verdicts, and the rows with the largest differences.

A report consists of plain objects, which are converted to a table as text or to JSON data. It never prints.
"""

from __future__ import annotations

import math
import platform
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import PIL
import torch
import torchvision
from torch import Tensor

import mmload
from mmload.errors import one_line

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
        text: the findings, with the limits.
        diagnosis: the likely cause of a failure as text; empty if unknown.
        numbers: the findings as numbers, by name.
    """

    part: str
    name: str
    state: str
    text: str
    diagnosis: str = ""
    numbers: dict[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WorstRow:
    """A row that differs from its reference, with the pixels of both.

    Attributes:
        split: the split's name.
        row: its index in the split.
        sample: the id of its sample.
        file: the sample's file, or its id if it has no file.
        kind: the kind of the file.
        greatest: the largest difference of a value from the tensor reference, in levels.
        mean: the mean of all differences.
        psnr: peak signal-to-noise ratio in dB; infinite for equal pixels.
        diagnosis: the likely cause; empty if unknown.
        stored: uint8 [C, H, W].
        reference: uint8 [C, H, W].
    """

    split: str
    row: int
    sample: str
    file: str
    kind: str
    greatest: int
    mean: float
    psnr: float
    diagnosis: str
    stored: Tensor
    reference: Tensor

    def as_json(self) -> dict[str, Any]:
        """Everything except the pixels as plain data for JSON."""
        return {key: value for key, value in vars(self).items() if key not in ("stored", "reference")}


@dataclass(frozen=True, kw_only=True)
class Report:
    """The report of a complete check.

    Attributes:
        settings: what was compared, how many rows and draws, and the seed.
        verdicts: in the order of the checks.
        worst: the rows with the largest differences, in descending order.
        date: the date of the check in UTC, ISO 8601.
        contents: the :attr:`~mmload.store.manifest.Manifest.contents` of the checked dataset.
    """

    settings: dict[str, Any]
    verdicts: tuple[Verdict, ...]
    worst: tuple[WorstRow, ...] = ()
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    contents: str = ""

    @property
    def passed(self) -> bool:
        """Whether no verdict failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Verdict, ...]:
        """The verdicts that failed."""
        return tuple(verdict for verdict in self.verdicts if verdict.state == "fail")

    def as_json(self) -> dict[str, Any]:
        """Everything except pixels, with date and versions; non-finite numbers become None."""
        body = {
            "passed": self.passed,
            "date": self.date,
            "versions": versions(),
            "settings": self.settings,
            "verdicts": [vars(verdict) for verdict in self.verdicts],
            "worst": [row.as_json() for row in self.worst],
        }
        plain: dict[str, Any] = _finite(body)
        return plain


def versions() -> dict[str, str]:
    """The versions of the packages that the result depends on."""
    return {
        "mmload": mmload.__version__,
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "pillow": PIL.__version__,
        "python": platform.python_version(),
    }


def table(report: Report) -> str:
    """The verdicts as lines of 100 columns, failures with their diagnoses, and a summary as the last line.

    Line ends and control characters in names are escaped.
    """
    verdicts = [_printable(verdict) for verdict in report.verdicts]
    part = max([len(verdict.part) for verdict in verdicts], default=0)
    names: dict[str, int] = {}
    for verdict in verdicts:
        names[verdict.part] = max(names.get(verdict.part, 0), min(len(verdict.name), _NAME))
    lines = [line for verdict in verdicts for line in _lines(verdict, part, names[verdict.part])]
    judged = [verdict for verdict in verdicts if verdict.state != "note"]
    failed = len(report.failures)
    lines += _about_draws(judged)
    lines.append(f"{len(judged) - failed} of {len(judged)} hold" + (f", {failed} FAIL" if failed else ""))
    return "\n".join(lines)


def _printable(verdict: Verdict) -> Verdict:
    part, name = one_line(verdict.part), one_line(verdict.name)
    return replace(verdict, part=part, name=name, text=one_line(verdict.text), diagnosis=one_line(verdict.diagnosis))


def _lines(verdict: Verdict, part: int, name: int) -> list[str]:
    """One verdict: its text next to its name, or below a long name, and the diagnosis of a failure."""
    head = f"{verdict.state:<4}  {verdict.part:<{part}}  {verdict.name:<{name}}  "
    indent = " " * (8 + part + name + 2)
    room = max(_WIDTH - len(indent), _LEAST)
    text = textwrap.wrap(verdict.text, room, break_on_hyphens=False) or [""]
    lines = [head + text.pop(0)] if len(verdict.name) <= name else [head.rstrip()]
    lines += [indent + more for more in text]
    if verdict.diagnosis:
        looks = textwrap.wrap(verdict.diagnosis, room - 3, break_on_hyphens=False)
        lines += [f"{indent}{'   ' if number else '-> '}{more}" for number, more in enumerate(looks)]
    return lines


def _about_draws(judged: Sequence[Verdict]) -> list[str]:
    """The significance level for the p-values of the lines, once for all of them."""
    limits = [verdict.numbers["limit"] for verdict in judged if "p_least" in verdict.numbers]
    if not limits:
        return []
    return [f"p: how often equal distributions differ as much by chance; one below {limits[0]:.1g} fails"]


def _finite(value: Any) -> Any:
    """A JSON-compatible value: None for infinities and NaN."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
