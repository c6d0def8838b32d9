"""Formats a record as text of at most 80 columns. Never prints."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from PIL import Image

from mmload.bench.record import Record, Row, best
from mmload.errors import MmloadError, UsageError, one_line

WIDTH = 80
_NAME = 39
_BESIDE = (
    "beside: while another thread of the same process runs pure Python, or some dozens of small torch operations again "
    "and again, as a launch-bound training step does; it keeps that share of its speed alone; ± is half of the range"
)


def table(record: Record) -> str:
    """Formats the rates, alone and beside other threads, costs, training, deviations, failures, and the verdict."""
    blocks = [
        "\n".join(rates(record)),
        "\n".join(beside(record)),
        "\n".join(costs(record)),
        "\n".join(trained(record)),
        "\n".join(remarks(record)),
        "\n".join(wrapped(record.verdict, "")),
    ]
    return "\n\n".join(block for block in blocks if block)


def rates(record: Record) -> list[str]:
    """Formats images per second: median, lowest and highest epoch, ratio to the best stock loader, share of limit."""
    stock = best(record.rows, "stock")
    layout = one_line(str(record.settings.get("layout", "")))[: _NAME - 1]
    lines = [f"{layout:<{_NAME}}{'images/s':>8}{'lowest..highest':>16}{'x stock':>8}{'of limit':>9}"]
    for row in record.rows:
        if row.rate:
            ratio = _ratio(row.rate / stock.rate) if stock else "-"
            share = _share(row)
            spread = f"{number(min(row.epochs))}..{number(max(row.epochs))}" if len(row.epochs) > 1 else "one epoch"
            lines.append(f"{_called(row):<{_NAME}}{number(row.rate):>8}{spread:>16}{ratio:>8}{share:>9}")
        elif row.group != "cached":
            lines.append(f"{_called(row):<{_NAME}}{'not measured, see below':>24}")
    return lines


def _share(row: Row) -> str:
    """Formats the share of the ceiling that a row reaches; no number where the ceiling was disturbed."""
    if row.passes_limit:
        return "disturbed"
    return "-" if row.of_ceiling is None else f"{row.of_ceiling:.0%}"


def beside(record: Record) -> list[str]:
    """Formats images per second beside each neighbor: median, half of the range, the neighbor's share of its speed."""
    rows = [row for row in record.rows if row.beside]
    lines = [f"{'':<{_NAME}}{'beside Python':>20}{'beside torch ops':>20}"]
    lines.append(f"{'':<{_NAME}}" + f"{'images/s (it keeps)':>20}" * 2)
    for row in rows:
        lines.append(f"{_called(row):<{_NAME}}{_beside(row, 'python'):>20}{_beside(row, 'torch'):>20}")
    return lines if rows else []


def _beside(row: Row, neighbor: str) -> str:
    turns, keeps = row.beside.get(neighbor), row.neighbors_keep.get(neighbor)
    if not turns or not keeps:
        return "-"
    rate = median(turns)
    spread = f" ±{(max(turns) - min(turns)) / 2 / rate:.0%}" if len(turns) > 1 else ""
    return f"{number(rate)}{spread} ({median(keeps):.0%})"


def costs(record: Record) -> list[str]:
    """Formats the cost of an image: processor time, memory."""
    rows = [row for row in record.rows if row.group != "ceiling" and row.rate]
    lines = [f"{'':<{_NAME}}{'CPU s/1,000':>12}{'peak MiB':>10}"]
    for row in rows:
        cpu = f"{row.cpu_seconds_per_1000:.3g}" if row.cpu_seconds_per_1000 is not None else "-"
        memory = f"{row.peak_bytes / 2**20:,.0f}" if row.peak_bytes else "-"
        lines.append(f"{_called(row):<{_NAME}}{cpu:>12}{memory:>10}")
    return lines if rows else []


def trained(record: Record) -> list[str]:
    """Formats training: its rate, the time of a step, and how much of it is the wait for data."""
    rows = [row for row in record.rows if row.training]
    lines = [f"{'':<{_NAME}}{'trained/s':>11}{'ms/step':>11}{'waits':>8}"]
    for row in rows:
        rate = number(row.trained_per_second) if row.trained_per_second else "-"
        step = f"{1000 * row.step_seconds:,.1f}" if row.step_seconds else "-"
        waits = f"{row.waited:.0%}" if row.waited is not None else "-"
        lines.append(f"{_called(row):<{_NAME}}{rate:>11}{step:>11}{waits:>8}")
    return lines if rows else []


def remarks(record: Record) -> list[str]:
    """Formats the applicable limits, deviations, failures, and the record's own notes."""
    lines: list[str] = []
    limits = {row.ceiling for row in record.rows if row.ceiling}
    if limits:
        lines += wrapped(f"of limit: the share of {', '.join(sorted(limits))}", "")
    if any(row.beside for row in record.rows):
        lines += wrapped(_BESIDE, "  ")
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
    """Formats a rate in at most 7 characters."""
    if rate >= 10_000_000:
        return f"{rate / 1e6:,.0f}M"
    if rate >= 100_000:
        return f"{rate / 1e3:,.0f}k"
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def _ratio(times: float) -> str:
    """Formats a ratio in at most 7 characters."""
    return f"{number(times)}x" if times >= 1000 else f"{times:.1f}x"


def wrapped(text: str, indent: str) -> Iterable[str]:
    """Returns lines of at most 80 columns; all but the first begin with ``indent``. Escapes line ends in names."""
    return textwrap.wrap(one_line(text), WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _called(row: Row) -> str:
    """Returns the row's name, with a star if it deviates from the task."""
    return one_line(row.name)[: _NAME - 1] + ("*" if row.differs and _measured(row) else "")


def _measured(row: Row) -> bool:
    return bool(row.rate or row.training)


def compare(a: Record, b: Record, names: tuple[str, str] = ("a", "b")) -> str:
    """Formats both records' rates with the ratio of each row, and every setting, fact and version that differs.

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
    """Returns the lines of one row, if it was measured in either record."""
    if not (a and a.rate) and not (b and b.rate):
        return []
    shown = [number(row.rate) if row and row.rate else "-" for row in (a, b)]
    line = f"{one_line(name)[: _NAME - 1]:<{_NAME}}{shown[0]:>9}{shown[1]:>9}"
    if a and b and a.rate and b.rate:
        apart = min(b.epochs) > max(a.epochs) or min(a.epochs) > max(b.epochs)
        line += f"{b.rate / a.rate:>7.2f}x  {'apart' if apart else 'overlaps'}"
    return [line]


def _different(a: Record, b: Record) -> list[str]:
    """Returns the settings that differ although the ratios are only meaningful if they are equal."""
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
    """Returns the body without the versions that the machine's facts repeat."""
    return {key: value for key, value in body.items() if not (key in ("torch", "python", "mmload") and "cores" in body)}


# Contrast with white / with #0d1117 (WCAG), all at least 3: ink 4.3 / 4.4, mmload 3.9 / 4.8, stock 3.5 / 5.4,
# peer 3.4 / 5.6, ceiling 4.0 / 4.8.
INK = "#7a7a7a"
COLORS = {"mmload": "#2d80e8", "stock": "#8a8a8a", "peer": "#c07a1e", "ceiling": "#e0524a"}

_OFF_SCALE = 5  # times the fastest bar: a ceiling above that would compress the bars too much
_DOTS = 160
_PAD = 0.12  # inches around the chart, so that no label touches its edge
_PALETTE = 64  # colors, with their opacity: a third of the bytes, and no difference to see


def check_plot(path: Path) -> None:
    """Checks that a chart can be drawn at this path, before anything is measured.

    Raises:
        UsageError: if matplotlib is not installed, or the name does not end in .png.
    """
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib; in a clone of mmload run: pip install '.[plot]'")
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot is {path}; give a name that ends in .png")


def draw(record: Record, path: Path) -> None:
    """Draws the chart into a PNG file.

    Raises:
        UsageError: see :func:`check_plot`.
        MmloadError: if nothing was measured, or the file cannot be written.
    """
    check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in record.rows if row.rate and row.group in ("stock", "peer", "mmload")]
    if not rows:
        raise MmloadError("there is nothing to draw: no contender was measured")
    figure = Figure(figsize=(9, 1.7 + 0.36 * len(rows)))
    figure.set_layout_engine("constrained", w_pad=_PAD, h_pad=_PAD)
    FigureCanvasAgg(figure)
    figure.suptitle(_title(record), color=INK, fontsize=13)
    axes = figure.add_subplot()
    _draw_bars(axes, rows)
    _draw_ceilings(axes, record, rows)
    _draw_axes(axes, record)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=_DOTS, transparent=True, format="png")
    try:
        Image.open(drawn).quantize(_PALETTE, Image.Quantize.FASTOCTREE).save(path, "PNG", optimize=True)
    except OSError as error:
        raise MmloadError(f"cannot write the chart {path} ({error.strerror})") from error


def _title(record: Record) -> str:
    """Names the dataset and the layout of its rows; records of earlier versions have no name."""
    names = [str(record.settings[key]) for key in ("dataset", "layout") if record.settings.get(key)]
    return one_line(": ".join(["Loading speed", ", ".join(names)] if names else ["Loading speed"]))


def _draw_bars(axes: Any, rows: list[Row]) -> None:
    """Draws medians as bars, lowest to highest as whiskers, and numbers next to them."""
    places = range(len(rows))
    below = [row.rate - min(row.epochs) for row in rows]
    above = [max(row.epochs) - row.rate for row in rows]
    axes.barh(places, [row.rate for row in rows], color=[COLORS[row.group] for row in rows], height=0.68)
    nothing = [0.0] * len(rows)
    for spread, color in (((below, nothing), "white"), ((nothing, above), INK)):  # inside the bar, and beyond it
        medians = [row.rate for row in rows]
        bars = axes.errorbar(medians, places, xerr=spread, fmt="none", ecolor=color, capsize=3, lw=1.6)
        for cap in bars.lines[1][0 if color == INK else 1 :: 2]:
            cap.set_visible(False)  # the cap at the median
    for place, row in zip(places, rows, strict=True):
        at = (max(row.epochs), place)
        axes.annotate(number(row.rate), at, (6, 0), textcoords="offset points", va="center", color=INK, fontsize=10)
    names = [row.name + ("*" if row.differs else "") for row in rows]
    axes.set_yticks(places, names, fontsize=10)
    axes.invert_yaxis()


def _draw_ceilings(axes: Any, record: Record, rows: list[Row]) -> None:
    """Draws a line for each ceiling that limits one of the rows; an arrow for ceilings that are off the scale.

    A ceiling that a row passes has a label, but no line: its measurement was disturbed.
    """
    most = max(max(row.epochs) for row in rows)
    limits = [row for row in record.rows if row.rate and row.name in {each.ceiling for each in rows}]
    disturbed = {row.ceiling for row in rows if row.passes_limit}
    near = [row for row in limits if row.rate <= _OFF_SCALE * most and row.name not in disturbed]
    axes.set_xlim(0, 1.12 * max([most, *(row.rate for row in near)]))
    for row in near:
        axes.axvline(row.rate, color=COLORS["ceiling"], lw=1.6, ls=(0, (5, 3)))
    for line, row in enumerate(sorted(limits, key=lambda row: row.rate, reverse=True)):  # each label on its own line
        is_near = row in near
        text = f"{row.name}, {number(row.rate)}"
        label = f"limit: {text} " if is_near else f"limit, off the scale: {text} \u2192"
        if row.name in disturbed:
            label = f"limit not drawn, its measurement was disturbed: {row.name} "
        at = (row.rate if is_near else axes.get_xlim()[1], 1.0)
        style = {"fontsize": 10, "va": "bottom", "ha": "right", "color": COLORS["ceiling"]}
        place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        axes.annotate(label, at, (0, 2 + 14 * line), **place, **style)


def _draw_axes(axes: Any, record: Record) -> None:
    """Draws axes, ticks and texts in one muted color."""
    cache, device = record.settings.get("cache", "warm"), record.settings.get("device", "cpu")
    text = f"images/s (median, whiskers: lowest to highest epoch; {cache} cache, {device})"
    if any(row.differs and row.rate for row in record.rows):
        text += "\n* not quite the same work: see the table"
    axes.set_xlabel(text, color=INK)
    axes.tick_params(colors=INK, length=0)
    axes.xaxis.set_major_formatter(lambda value, _: number(value) if value else "0")
    axes.grid(axis="x", color=INK, alpha=0.3, lw=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "left")
        spine.set_color(INK)
