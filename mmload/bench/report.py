"""Says what a bench has found: the verdict, the tables in at most 80 columns, and the chart. Never prints."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from mmload.bench.record import Record, Row, best
from mmload.errors import MmloadError, UsageError, aligned, one_line

# The verdict.

WAITS = 0.1
"""From this share of a step's time on, the wait for data is called the bottleneck."""

_BUSY = 0.75  # of the cores: from this utilization on, a loader is limited by processor time
AGAIN = "run it again on an idle machine"


def verdict(rows: Sequence[Row], *, cores: int, device: str, missing: str = "", trains: bool = True) -> str:
    """Identifies the bottleneck in one or two sentences, from undisturbed rows where there are some.

    Without training it only compares loaders; with training it also reports whether the model waits for data, and how
    long a step takes.

    Args:
        rows: the contenders and ceilings.
        cores: the number of cores available.
        device: the device of the batches.
        missing: why no stock loader can run, "" if one can.
        trains: ``--train`` can be given for this task.
    """
    own, stock = best(rows, "mmload"), best(rows, "stock")
    if own is None:
        return f"Nothing can be said: mmload was not measured{_why(rows, 'mmload')}."
    if stock is None:
        reason = f" ({missing})" if missing else _why(rows, "stock")
        return f"mmload delivers {_rate(own)}{_limit(own)}. No stock loader was measured to compare it with{reason}."
    if not any(row.group == "cached" for row in rows):
        return _of_loaders(own, stock, cores, trains)
    trained = {row.group: row for row in rows if row.training and not row.training_disturbed}
    if missed := [name for group, name in _TRAINED.items() if group not in trained]:
        reason = (
            f"it was not measured, or faster than possible, so other programs disturbed it; {AGAIN}, or with --full"
        )
        unsaid = f"Of training with {' and '.join(missed)} nothing can be said: {reason}."
        return " ".join(filter(None, [_of_loaders(own, stock, cores, False), _steps(trained), unsaid]))
    model, before, after = trained["cached"], trained["stock"], trained["mmload"]
    return f"{_with_model(model, before, after, cores, device)} {_steps(trained)}"


_TRAINED = {"cached": "a batch in memory", "mmload": "mmload", "stock": "the stock loader"}
"""Groups of rows that train -> what the verdict calls them."""


def _of_loaders(own: Row, stock: Row, cores: int, trains: bool) -> str:
    """Returns the verdict if no model was trained."""
    both = f"The stock loader ({stock.name}) delivers {_rate(stock)} and mmload ({own.name}) {number(own.rate)}"
    if min(own.epochs) <= max(stock.epochs):
        relation = "fewer" if own.rate < stock.rate else "no difference beyond the spread of the epochs"
        return f"{both}: {relation}. There is nothing to gain here."
    busy = _cores(stock, cores)
    cause = "decoding and transforming there is the bottleneck" if busy else "loading there is the limit"
    tells = "; --train MODEL measures which it is" if trains else ""
    return (
        f"{both}, {own.rate / stock.rate:,.1f} times as many{_limit(own)}: {cause}{busy}. A model that "
        f"takes fewer than {_rate(stock)} gains nothing from that{tells}."
    )


def _with_model(model: Row, stock: Row, own: Row, cores: int, device: str) -> str:
    """Returns the verdict if a model was trained with the best stock loader, with mmload, and with a cached batch."""
    most, before, after = (row.trained for row in (model, stock, own))
    waits, still = stock.waited, own.waited
    takes = f"the model takes {number(most)}"
    change = (
        f"with mmload, which delivers {number(own.rate)}, training runs at {number(after)} instead of {number(before)}"
    )
    if waits < WAITS:
        shared = device == "cpu" and before < (1 - WAITS) * min(most, after)  # loading uses processor time, too
        rest = f"they share the cores, though: {change}" if shared else "a faster loader gains nothing"
        return (
            f"Your loader delivers {_rate(stock)} and {takes}: the model is the bottleneck, it waits for data only "
            f"{waits:.0%} of its time; {rest}."
        )
    rest = f", and still waits {still:.0%} of its time" if still >= WAITS else ""
    busy = f"{used}," if (used := _cores(stock, cores)) else ""
    return (
        f"Your loader delivers {_rate(stock)}{busy} and {takes}: loading is the bottleneck, the step "
        f"waits for data {waits:.0%} of its time; {change}{rest}."
    )


def _steps(trained: Mapping[str, Row]) -> str:
    """Returns how long a step takes with a batch in memory and with each loader, "" if no training counts."""
    texts = [_step(trained[group], name) for group, name in _TRAINED.items() if group in trained]
    return f"A step takes {', '.join(texts)}." if texts else ""


def _step(row: Row, name: str) -> str:
    step = 1000 * row.step_seconds
    waits = f" ({number(step * row.waited)} of waiting)" if row.group != "cached" else ""
    return f"{number(step)} ms with {name}{waits}"


def _why(rows: Sequence[Row], group: str) -> str:
    """Returns `` (the first reason)`` why a group has no result that counts, "" if none is known."""
    reason = next((row.failure for row in rows if row.group == group and row.failure), "")
    return f" ({reason})" if reason else ""


def _rate(row: Row) -> str:
    return f"{number(row.rate)} images/s"


def _limit(row: Row) -> str:
    if row.disturbed:
        return f" (more than its limit, so other programs disturbed one of the two; {AGAIN})"
    return f" ({row.of_ceiling:.0%} of {row.ceiling})" if row.of_ceiling else ""


def _cores(row: Row, cores: int) -> str:
    """Returns the number of cores that a loader keeps busy, if that is nearly all of them."""
    used = row.cpu * row.rate / 1000
    return f", with {min(used, cores):.1f} of {cores} cores busy" if used >= _BUSY * cores else ""


# The table.

WIDTH = 80
NAME = 36
"""Characters of a row's name, with a star: the columns beside it take 44."""
_LEGEND = "gain: times the fastest stock loader"
_BESIDE = "beside: images/s while a thread of the same process runs pure Python, as a training loop does"
_WAITS = (
    "waits: the share of a step in which no batch was ready; in the rest the model shares the cores with the loader"
)


def report_text(record: Record) -> str:
    """Formats the verdict, the rates alone and beside a thread, training, building, deviations, failures, and notes."""
    blocks = [wrapped(record.verdict, ""), rates(record), trained(record), built(record), remarks(record)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def rates(record: Record) -> list[str]:
    """Formats images per second: the median and half of the range alone, gain, share of limit, the median beside."""
    stock = best(record.rows, "stock")
    cells = [["loader", "images/s", "±", "gain", "of limit", "beside"]]
    for row in (row for row in record.rows if row.rate):
        gain = f"{number(row.rate / stock.rate)}x" if stock and not row.disturbed and row.group != "ceiling" else "-"
        share = _share(row.of_ceiling, row.disturbed)
        beside = number(median(turn.rate for turn in row.beside)) if row.beside else "-"
        cells.append([_called(row), number(row.rate), spread(row.epochs), gain, share, beside])
    return _table(cells)


def trained(record: Record) -> list[str]:
    """Formats training: its rate, the time of a step, and how much of it is the wait for data."""
    cells = [["training", "images/s", "of no loading", "ms/step", "waits"]]
    for row in (row for row in record.rows if row.training):
        share = _share(row.of_model, row.training_disturbed)
        step, waits = f"{1000 * row.step_seconds:,.1f}", f"{row.waited:.0%}"
        cells.append([_called(row), number(row.trained), share, step, waits])
    return _table(cells)


def built(record: Record) -> list[str]:
    """Formats images per second of building, and of a pass over the same files."""
    ways = [[name, number(median(rates)), spread(rates)] for name, rates in record.building.items()]
    return _table([["building", "images/s", "±"], *ways])


def _table(cells: Sequence[Sequence[str]]) -> list[str]:
    """Formats a head and its rows; nothing without rows."""
    return aligned(cells) if len(cells) > 1 else []


def _share(share: float, disturbed: bool) -> str:
    """Formats a share of a limit; "-" for 0, which was not measured."""
    if disturbed:
        return "disturbed"
    return f"{share:.0%}" if share else "-"


def remarks(record: Record) -> list[str]:
    """Formats what the columns mean, deviations, failures, and the record's own notes."""
    limits = ", ".join(sorted({row.ceiling for row in record.rows if row.ceiling}))
    legend = [
        (f"of limit: the share of {limits}", limits),
        (_BESIDE, any(row.beside for row in record.rows)),
        (_WAITS, any(row.training for row in record.rows)),
    ]
    texts = [
        "{layout}, {output}, batches of {batch_size}, {cache} page cache".format_map(record.settings),
        _LEGEND,
        *(text for text, applies in legend if applies),
    ]
    texts += [f"* {row.name}: {row.differs}" for row in record.rows if row.differs and (row.rate or row.training)]
    texts += [f"failed: {row.name}: {row.failure}" for row in record.rows if row.failure]
    return list(chain.from_iterable(wrapped(text, "  ") for text in [*texts, *record.notes]))


def spread(rates: Sequence[float]) -> str:
    """Formats half of the range of some rates as a share of their median; "-" for a single one."""
    return f"{(max(rates) - min(rates)) / 2 / median(rates):.0%}" if len(rates) > 1 else "-"


def number(rate: float) -> str:
    """Formats a rate or a ratio in at most 7 characters."""
    if rate >= 10_000_000:
        return f"{rate / 1e6:,.0f}M"
    if rate >= 100_000:
        return f"{rate / 1e3:,.0f}k"
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def wrapped(text: str, indent: str) -> list[str]:
    """Returns lines of at most 80 columns; all but the first begin with ``indent``. Escapes line ends in names."""
    return textwrap.wrap(one_line(text), WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _called(row: Row) -> str:
    """Returns the row's name, with a star if it deviates from the task."""
    return f"{row.name[: NAME - 1]}*" if row.differs else row.name[:NAME]


# The chart.

# Contrast with white / with #0d1117 (WCAG), all at least 3: ink 4.3 / 4.4, mmload 3.9 / 4.8, stock 3.5 / 5.4,
# peer 3.4 / 5.6, ceiling 4.0 / 4.8.
INK = "#7a7a7a"
COLORS = {"mmload": "#2d80e8", "stock": "#8a8a8a", "peer": "#c07a1e", "ceiling": "#e0524a"}

_FAINT = 0.4  # opacity of bars that do not count
_DOTS = 160
_PAD = 0.12  # inches around the chart, so that no label touches its edge


def check_plot() -> None:
    """Checks that a chart can be drawn, before anything is measured.

    Raises:
        UsageError: if matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib; in a clone of mmload run: pip install '.[plot]'")


def draw(record: Record, path: Path) -> None:
    """Draws the chart of a record in which a contender was measured into a PNG file.

    Raises:
        MmloadError: if the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in record.rows if row.rate]
    most = max(max(row.epochs) for row in rows if row.group != "ceiling")
    figure = Figure(figsize=(9, 1.4 + 0.36 * len(rows)))
    figure.set_layout_engine("constrained", w_pad=_PAD, h_pad=_PAD)
    FigureCanvasAgg(figure)
    names = f"{record.settings['dataset']}, {record.settings['layout']}"
    figure.suptitle(one_line(f"Loading speed: {names}"), color=INK, fontsize=13)
    axes = figure.add_subplot()
    _draw_bars(axes, rows, most)
    _draw_axes(axes, record)
    try:
        figure.savefig(path, dpi=_DOTS, transparent=True, format="png")
    except OSError as error:
        raise MmloadError(f"cannot write the chart {path} ({error.strerror})") from error


def _draw_bars(axes: Any, rows: Sequence[Row], most: float) -> None:
    """Draws medians as bars, lowest to highest as whiskers, and numbers next to them, in the rows of the table.

    Bars of limits end at the edge of the chart, which is beyond the fastest contender's ``most``, with an arrow.
    """
    edge = 1.04 * most
    axes.set_xlim(0, 1.18 * most)
    for place, row in enumerate(rows):
        beyond = row.rate > edge
        axes.barh(
            place, min(row.rate, edge), color=COLORS[row.group], height=0.68, alpha=_FAINT if row.disturbed else 1
        )
        if not beyond and len(row.epochs) > 1 and row.group != "ceiling":  # whose rate is its highest
            spread = [[row.rate - min(row.epochs)], [max(row.epochs) - row.rate]]
            axes.errorbar(row.rate, place, xerr=spread, fmt="none", ecolor=INK, capsize=3, lw=1.6)
        text, end = (f"{number(row.rate)} \u2192", edge) if beyond else (number(row.rate), max(row.epochs))
        axes.annotate(text, (end, place), (6, 0), textcoords="offset points", va="center", color=INK, fontsize=10)
    names = [row.name + "*" * bool(row.differs) + " (disturbed)" * row.disturbed for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=10)
    axes.invert_yaxis()


def _draw_axes(axes: Any, record: Record) -> None:
    """Draws axes, ticks and texts in one muted color."""
    where = f"{record.settings['cache']} cache, {record.settings['device']}"
    text = f"images/s (median, whiskers: lowest to highest turn; red: limits; {where})"
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
