"""Compares two records as text of at most 80 columns: the rows of both, and the settings that differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmload.bench.record import Record, Row
from mmload.bench.report import number, wrapped
from mmload.errors import one_line

_NAME = 39


def compare(a: Record, b: Record, names: tuple[str, str] = ("a", "b")) -> str:
    """Both records' rates with the ratio of each row, and every setting, machine fact and version that differs.

    Args:
        a: the first record.
        b: the second record; ratios are b / a.
        names: the labels of the records, such as their file names.
    """
    lines = [one_line(f"a: {names[0]}"), one_line(f"b: {names[1]}"), ""]
    lines.append(f"{'images/s':<{_NAME}}{'a':>9}{'b':>9}{'b / a':>8}  {'spread':<13}")
    first, second = {row.name: row for row in a.rows}, {row.name: row for row in b.rows}
    for name in dict.fromkeys([*first, *second]):
        lines += _line(name, first.get(name), second.get(name))
    lines += _different(a, b)
    for letter, record in (("a", a), ("b", b)):
        lines += ["", *wrapped(f"{letter}: {record.verdict}", "   ")]
    return "\n".join(lines)


def _line(name: str, a: Row | None, b: Row | None) -> list[str]:
    """The lines of one row, if it was measured in either record."""
    if not (a and a.rate) and not (b and b.rate):
        return []
    shown = [number(row.rate) if row and row.rate else "-" for row in (a, b)]
    line = f"{one_line(name)[: _NAME - 1]:<{_NAME}}{shown[0]:>9}{shown[1]:>9}"
    if a and b and a.rate and b.rate:
        apart = min(b.epochs) > max(a.epochs) or min(a.epochs) > max(b.epochs)
        line += f"{b.rate / a.rate:>7.2f}x  {'apart' if apart else 'overlaps'}"
    return [line]


def _different(a: Record, b: Record) -> list[str]:
    """The settings that differ although the ratios are only meaningful if they are equal."""
    lines: list[str] = []
    for what in ("settings", "machine", "versions"):
        mine, other = _plain(getattr(a, what)), _plain(getattr(b, what))
        for key in dict.fromkeys([*mine, *other]):
            if mine.get(key) != other.get(key):
                text = f"{what}, {key}: {mine.get(key, 'none')} in a, {other.get(key, 'none')} in b"
                lines += wrapped(text, "  ")
    if lines:
        return ["", "not the same:", *lines]
    return ["", "settings, machine and versions are the same"]


def _plain(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body without the versions that the machine's facts repeat."""
    return {key: value for key, value in body.items() if not (key in ("torch", "python", "mmload") and "cores" in body)}
