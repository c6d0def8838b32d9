"""Draws a record as a PNG: one bar per contender, its range as a whisker, the limit as a line.

The background is transparent, and the colors are readable on white and on black. matplotlib is imported on first use:
``pip install mmload[plot]``.
"""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image

from mmload.bench.record import Record, Row
from mmload.bench.report import number
from mmload.errors import MmloadError, UsageError

# Contrast with white / with #0d1117 (WCAG), all at least 3: ink 4.3 / 4.4, mmload 3.9 / 4.8, stock 3.5 / 5.4,
# peer 3.4 / 5.6, ceiling 4.0 / 4.8.
INK = "#7a7a7a"
COLORS = {"mmload": "#2d80e8", "stock": "#8a8a8a", "peer": "#c07a1e", "ceiling": "#e0524a"}

_OFF_SCALE = 5  # times the fastest bar: a ceiling above that would compress the bars too much
_DOTS = 160
_PALETTE = 64  # colors, with their opacity: a third of the bytes, and no difference to see


def check_plot(path: Path) -> None:
    """Check that a chart can be drawn at this path, before anything is measured.

    Raises:
        UsageError: if matplotlib is not installed, or the name does not end in .png.
    """
    if find_spec("matplotlib") is None:
        raise UsageError('--plot needs matplotlib; install it: pip install "mmload[plot]"')
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot is {path}; give a name that ends in .png")


def draw(record: Record, path: Path) -> None:
    """Draw the chart into a PNG file.

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
    figure = Figure(figsize=(9, 1.3 + 0.36 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _bars(axes, rows)
    _ceilings(axes, record, rows)
    _plain(axes, record)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=_DOTS, transparent=True, format="png")
    try:
        Image.open(drawn).quantize(_PALETTE, Image.Quantize.FASTOCTREE).save(path, "PNG", optimize=True)
    except OSError as error:
        raise MmloadError(f"cannot write the chart {path} ({error.strerror})") from error


def _bars(axes: Any, rows: list[Row]) -> None:
    """Draw medians as bars, lowest to highest as whiskers, and numbers next to them."""
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


def _ceilings(axes: Any, record: Record, rows: list[Row]) -> None:
    """Draw a line for each ceiling that limits one of the rows; an arrow to ceilings that are off the scale."""
    most = max(max(row.epochs) for row in rows)
    limits = [row for row in record.rows if row.rate and row.name in {each.ceiling for each in rows}]
    near = [row for row in limits if row.rate <= _OFF_SCALE * most]
    axes.set_xlim(0, 1.12 * max([most, *(row.rate for row in near)]))
    for row in near:
        axes.axvline(row.rate, color=COLORS["ceiling"], lw=1.6, ls=(0, (5, 3)))
    for line, row in enumerate(sorted(limits, key=lambda row: row.rate, reverse=True)):  # each label on its own line
        there = row in near
        text = f"{row.name}, {number(row.rate)}"
        label = f"limit: {text} " if there else f"limit, off the scale: {text} \u2192"
        at = (row.rate if there else axes.get_xlim()[1], 1.0)
        style = {"fontsize": 10, "va": "bottom", "ha": "right", "color": COLORS["ceiling"]}
        place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        axes.annotate(label, at, (0, 2 + 14 * line), **place, **style)


def _plain(axes: Any, record: Record) -> None:
    """Draw axes, ticks and texts in one muted color."""
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
