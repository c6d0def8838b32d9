"""The report of a parity check: verdicts, and the rows with the largest differences.

A report consists of plain objects, which are converted to a table as text, to JSON data or to a self-contained HTML
page, or are recorded in the dataset's card. It never prints.
"""

from __future__ import annotations

import base64
import io
import math
import platform
import textwrap
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Self

import PIL
import PIL.Image
import torch
import torchvision
from torch import Tensor
from torchvision.transforms.v2 import functional as F

import mmload
from mmload.builder.version_commit import write_card
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

    @classmethod
    def judged(
        cls, part: str, name: str, holds: bool, text: str, diagnosis: str = "", /, **numbers: float | int | str
    ) -> Self:
        """Returns "pass" or "fail"; the diagnosis is of a failure alone."""
        state, diagnosis = ("pass", "") if holds else ("fail", diagnosis)
        return cls(part=part, name=name, state=state, text=text, diagnosis=diagnosis, numbers=numbers)

    @classmethod
    def note(cls, part: str, name: str, text: str, /, **numbers: float | int | str) -> Self:
        """Returns information without a judgment."""
        return cls(part=part, name=name, state="note", text=text, numbers=numbers)


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
        """Returns everything except the pixels as plain data for JSON."""
        return {key: value for key, value in vars(self).items() if key not in ("stored", "reference")}


@dataclass(frozen=True, kw_only=True)
class ParityReport:
    """The report of a complete check.

    Attributes:
        settings: compared splits and collate, number of rows, and the seed.
        verdicts: verdicts in the order of the checks.
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
        """True if no verdict failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Verdict, ...]:
        """The verdicts that failed."""
        return tuple(verdict for verdict in self.verdicts if verdict.state == "fail")

    def as_json(self) -> dict[str, Any]:
        """Returns everything except pixels as plain data, with versions; non-finite numbers become None."""
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
    """Returns the versions of the packages that the result depends on."""
    return {
        "mmload": mmload.__version__,
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "pillow": PIL.__version__,
        "python": platform.python_version(),
    }


def table(report: ParityReport) -> str:
    """Formats the verdicts as lines of 100 columns, failures with their diagnoses, and a summary as the last line.

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
    lines.append(f"{len(judged) - failed} of {len(judged)} hold" + (f", {failed} FAIL" if failed else ""))
    return "\n".join(lines)


def record(folder: str | Path, report: ParityReport) -> None:
    """Writes a report to the card of a dataset's manifest; replaces an earlier report.

    Args:
        folder: folder of the dataset.
        report: stored without the worst rows, whose file names are not useful on other machines.

    Raises:
        StoreError: if there is no finished dataset, it is not the checked one, or it cannot be written.
    """
    content = {key: value for key, value in report.as_json().items() if key != "worst"}
    write_card(folder, "parity", content, report.contents)


def _printable(verdict: Verdict) -> Verdict:
    part, name = one_line(verdict.part), one_line(verdict.name)
    return replace(verdict, part=part, name=name, text=one_line(verdict.text), diagnosis=one_line(verdict.diagnosis))


def _lines(verdict: Verdict, part: int, name: int) -> list[str]:
    """Formats one verdict: its text next to its name, or below a long name, and the diagnosis of a failure."""
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


def _finite(value: Any) -> Any:
    """Replaces infinities and NaN by None, which JSON can hold."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_PICTURE_WIDTH = 256  # lower bound on the width of a picture on the page, so that tiny images are visible
# Contrast with the page, light / dark (WCAG), all at least 4.5: text 15.9 / 13.1, green 7.2 / 8.7, red on its row
# 6.4 / 6.6, quiet 5.7 / 7.9.
_STYLE = """
:root { color-scheme: light dark; --text: #222; --page: #fff; --line: #ddd; --good: #27632a; --bad: #b00020;
--bad-row: #fdecea; --quiet: #666 }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --page: #15181c; --line: #3a3f45; --good: #7cc681;
--bad: #ff8a80; --bad-row: #3a1f22; --quiet: #a8adb3 } }
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: var(--text);
background: var(--page); overflow-wrap: anywhere }
h1, h2 { line-height: 1.25 } table { border-collapse: collapse; width: 100% }
td, th { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
td:first-child, td:nth-child(2), th { white-space: nowrap } td:first-child { padding-left: .4rem }
.pass td:first-child { color: var(--good) } .fail { background: var(--bad-row) }
.fail td:first-child, .fail b { color: var(--bad); font-weight: bold } .note { color: var(--quiet) }
figure { margin: 1.5rem 0 } figcaption { margin-bottom: .4rem } .three { display: flex; gap: 1rem }
.three div { text-align: center; min-width: 0 } img { image-rendering: pixelated; display: block; max-width: 100%;
height: auto; box-sizing: border-box; border: 1px solid var(--line); margin-bottom: .2rem }
@media (max-width: 40rem) { tr.pass, tr.fail, tr.note { display: block; border-bottom: 1px solid var(--line);
padding: .3rem .4rem } .pass td, .fail td, .note td { display: inline; border: 0; padding: 0 .4rem 0 0 }
.pass td:last-child, .fail td:last-child, .note td:last-child { display: block } .three { gap: .5rem } }
"""


def page(report: ParityReport) -> str:
    """Formats the report as HTML."""
    state = "everything holds" if report.passed else f"{len(report.failures)} of {len(report.verdicts)} lines fail"
    body = report.as_json()
    about = {**body["settings"], "date": body["date"], **body["versions"]}
    facts = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in about.items())
    rows = "".join(map(_row, report.verdicts))
    figures = "".join(map(_figure, report.worst)) or "<p>No row has pixels to compare.</p>"
    equal = report.worst and not any(row.greatest for row in report.worst)
    heading = "Some rows, all equal to their reference" if equal else "The rows that differ most"
    title = f"Parity of {escape(str(report.settings['dataset']))}: {state}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style>"
        f"</head><body><h1>{title}</h1><table>{rows}</table><h2>{heading}</h2>{figures}"
        f"<h2>About</h2><table>{facts}</table></body></html>\n"
    )


def amplified(stored: Tensor, reference: Tensor) -> tuple[Tensor, int]:
    """Shows the difference of two images [C, H, W] around gray, scaled so that its largest value is visible.

    Returns:
        uint8 [C, H, W], 128 where they are equal; and the scale factor.
    """
    difference = stored.to(torch.int32) - reference.to(torch.int32)
    factor = max(1, 127 // max(int(difference.abs().max()), 1))
    return (128 + difference * factor).clamp(0, 255).to(torch.uint8), factor


def _row(verdict: Verdict) -> str:
    looks = f"<br><b>{escape(verdict.diagnosis)}</b>" if verdict.diagnosis else ""
    cells = "".join(f"<td>{escape(text)}</td>" for text in (verdict.state, verdict.part, verdict.name))
    return f'<tr class="{verdict.state}">{cells}<td>{escape(verdict.text)}{looks}</td></tr>'


def _figure(row: WorstRow) -> str:
    difference, factor = amplified(row.stored, row.reference)
    pictures = (
        (row.stored, "stored"),
        (row.reference, "reference"),
        (difference, f"difference x {factor}, around gray" if row.greatest else "no difference"),
    )
    shown = "".join(f"<div>{_picture(pixels)}{escape(name)}</div>" for pixels, name in pictures)
    distance = "equal to the reference"
    if row.greatest:
        distance = f"at most {row.greatest} levels, mean {row.mean:.3f}, PSNR {row.psnr:.1f} dB"
    looks = f", looks like {row.diagnosis}" if row.diagnosis else ""
    caption = f"{row.split} row {row.row}: {row.file} ({row.kind}); {distance}{looks}"
    return f'<figure><figcaption>{escape(caption)}</figcaption><div class="three">{shown}</div></figure>'


def _picture(pixels: Tensor) -> str:
    """Returns an image as an ``img`` element with an embedded PNG; only the first channel unless there are 1 or 3."""
    image: PIL.Image.Image = F.to_pil_image(pixels if len(pixels) in (1, 3) else pixels[:1])
    file = io.BytesIO()
    image.save(file, format="PNG")
    width = image.width * max(1, -(-_PICTURE_WIDTH // image.width))
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<img width="{width}" alt="" src="data:image/png;base64,{data}">'
