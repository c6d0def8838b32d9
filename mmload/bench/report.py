"""Formats a record as text of at most 80 columns. Never prints."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from mmload.bench.record import Record, Row, best
from mmload.errors import one_line

WIDTH = 80
_NAME = 39


def table(record: Record) -> str:
    """The rates, costs, deviations, failures, and the verdict."""
    blocks = [
        "\n".join(rates(record)),
        "\n".join(costs(record)),
        "\n".join(remarks(record)),
        "\n".join(wrapped(record.verdict, "")),
    ]
    return "\n\n".join(block for block in blocks if block)


def rates(record: Record) -> list[str]:
    """Images per second: median, lowest and highest epoch, ratio to the best stock loader, share of the limit."""
    stock = best(record.rows, "stock")
    layout = one_line(str(record.settings.get("layout", "")))[: _NAME - 1]
    lines = [f"{layout:<{_NAME}}{'images/s':>8}{'lowest..highest':>16}{'x stock':>8}{'of limit':>9}"]
    for row in record.rows:
        if row.rate:
            ratio = _ratio(row.rate / stock.rate) if stock else "-"
            share = f"{row.of_ceiling:.0%}" if row.of_ceiling is not None else "-"
            spread = f"{number(min(row.epochs))}..{number(max(row.epochs))}" if len(row.epochs) > 1 else "one epoch"
            lines.append(f"{_called(row):<{_NAME}}{number(row.rate):>8}{spread:>16}{ratio:>8}{share:>9}")
        elif row.group != "cached":
            lines.append(f"{_called(row):<{_NAME}}{'not measured, see below':>24}")
    return lines


def costs(record: Record) -> list[str]:
    """The cost of an image: processor time, memory; with training also its rate and the wait for data."""
    rows = [row for row in record.rows if row.group != "ceiling" and (row.rate or row.training)]
    trained = any(row.training for row in rows)
    more = f"{'trained/s':>11}{'waits':>8}" if trained else ""
    lines = [f"{'':<{_NAME}}{'CPU s/1,000':>12}{'peak MiB':>10}{more}"]
    for row in rows:
        cpu = f"{row.cpu_seconds_per_1000:.3g}" if row.cpu_seconds_per_1000 is not None else "-"
        memory = f"{row.peak_bytes / 2**20:,.0f}" if row.peak_bytes else "-"
        line = f"{_called(row):<{_NAME}}{cpu:>12}{memory:>10}"
        if trained:
            rate = number(row.trained_per_second) if row.trained_per_second else "-"
            line += f"{rate:>11}{f'{row.waited:.0%}' if row.waited is not None else '-':>8}"
        lines.append(line)
    return lines if rows else []


def remarks(record: Record) -> list[str]:
    """The applicable limits, deviations, failures, and the record's own notes."""
    lines: list[str] = []
    limits = {row.ceiling for row in record.rows if row.ceiling}
    if limits:
        lines += wrapped(f"of limit: the share of {', '.join(sorted(limits))}", "")
    for row in record.rows:
        if row.differs and _measured(row):
            lines += wrapped(f"* {row.name}: {row.differs}", "  ")
    failures: dict[tuple[str, str], list[str]] = {}
    for row in record.rows:
        if row.failure:
            failures.setdefault(("failed later" if row.rate else "not measured", row.failure), []).append(row.name)
    for (what, failure), names in failures.items():
        lines += wrapped(f"{what}: {'; '.join(names)}: {failure}", "  ")
    for note in record.notes:
        lines += wrapped(note, "  ")
    return lines


def number(rate: float) -> str:
    """A rate in at most 7 characters."""
    if rate >= 10_000_000:
        return f"{rate / 1e6:,.0f}M"
    if rate >= 100_000:
        return f"{rate / 1e3:,.0f}k"
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def _ratio(times: float) -> str:
    """A ratio in at most 7 characters."""
    return f"{number(times)}x" if times >= 1000 else f"{times:.1f}x"


def wrapped(text: str, indent: str) -> Iterable[str]:
    """Lines of at most 80 columns; all but the first begin with ``indent``. Line ends in names are escaped."""
    return textwrap.wrap(one_line(text), WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _called(row: Row) -> str:
    """The row's name, with a star if it deviates from the task."""
    return one_line(row.name)[: _NAME - 1] + ("*" if row.differs and _measured(row) else "")


def _measured(row: Row) -> bool:
    return bool(row.rate or row.training)
