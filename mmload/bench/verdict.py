"""Identifies the bottleneck in one or two sentences, from a record's rows alone.

Without training it only compares loaders; with training it also reports whether the model waits for data, and how long
a step takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmload.bench.record import Row, best
from mmload.bench.report import number

WAITS = 0.1
"""From this share of a step's time on, the wait for data is called the bottleneck."""

_BUSY = 0.75  # of the cores: from this utilization on, a loader is limited by processor time


def verdict(rows: Sequence[Row], *, cores: int, device: str, trains: bool = True) -> str:
    """Returns the verdict as text; ``trains``: --train can be given for this task."""
    own, stock = best(rows, "mmload"), best(rows, "stock")
    if own is None:
        return f"Nothing can be said: mmload was not measured{_why(rows, 'mmload')}."
    if stock is None:
        missing = _why(rows, "stock")
        return f"mmload delivers {_rate(own)}{_limit(own)}. No stock loader was measured to compare it with{missing}."
    model = next((row.trained_per_second for row in rows if row.group == "cached"), None)
    trained = _fastest_trained(rows, "stock"), _fastest_trained(rows, "mmload")
    if model and trained[0] and trained[1]:
        return _with_model(model, trained[0], trained[1], cores, device) + _steps(rows, trained[0], trained[1])
    return _of_loaders(own, stock, cores, trains)


def _of_loaders(own: Row, stock: Row, cores: int, trains: bool) -> str:
    """Returns the verdict if no model was trained."""
    both = f"The stock loader ({stock.name}) delivers {_rate(stock)} and mmload ({own.name}) {number(own.rate)}"
    if min(own.epochs) <= max(stock.epochs):
        relation = "fewer" if own.rate < stock.rate else "no difference beyond the spread of the epochs"
        return f"{both}: {relation}. There is nothing to gain here."
    cause = "decoding and transforming there is the bottleneck" if _busy(stock, cores) else "loading there is the limit"
    tells = "; --train MODEL measures which it is" if trains else ""
    return (
        f"{both}, {own.rate / stock.rate:,.1f} times as many{_limit(own)}: {cause}{_cores(stock, cores)}. A model that "
        f"takes fewer than {_rate(stock)} gains nothing from that{tells}."
    )


def _with_model(model: float, stock: Row, own: Row, cores: int, device: str) -> str:
    """Returns the verdict if a model was trained with the best stock loader, with mmload, and with a cached batch."""
    before, after = stock.trained_per_second or 0.0, own.trained_per_second or 0.0
    waits, still = stock.waited or 0.0, own.waited or 0.0
    takes = f"the model takes {number(model)}"
    change = (
        f"with mmload, which delivers {number(own.rate)}, training runs at {number(after)} instead of {number(before)}"
    )
    if waits < WAITS:
        shared = device == "cpu" and before < (1 - WAITS) * min(model, after)  # loading uses processor time, too
        rest = f"they share the cores, though: {change}" if shared else "a faster loader would gain about that much"
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


def _steps(rows: Sequence[Row], stock: Row, own: Row) -> str:
    """Returns `` A sentence.`` on how long a step takes with a batch in memory, and with each loader."""
    cached = next((row.step_seconds for row in rows if row.group == "cached"), None)
    if not cached or not stock.step_seconds or not own.step_seconds:
        return ""
    return (
        f" A step takes {_milliseconds(cached)} with random tensors in memory, {_milliseconds(own.step_seconds)} with "
        f"mmload, {_waiting(own)}, and {_milliseconds(stock.step_seconds)} with the stock loader, {_waiting(stock)}."
    )


def _waiting(row: Row) -> str:
    """Returns the part of a step that is the wait for data."""
    return f"{_milliseconds((row.waited or 0.0) * (row.step_seconds or 0.0))} of it waiting"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.3g} ms"


def _fastest_trained(rows: Sequence[Row], group: str) -> Row | None:
    trained = [row for row in rows if row.group == group and row.trained_per_second and row.rate]
    return max(trained, key=lambda row: row.trained_per_second or 0.0, default=None)


def _why(rows: Sequence[Row], group: str) -> str:
    """Returns `` (the first reason)`` if a row of the group has a failure, else ""."""
    reason = next((row.failure for row in rows if row.group == group and row.failure), "")
    return f" ({reason})" if reason else ""


def _rate(row: Row) -> str:
    return f"{number(row.rate)} images/s"


def _limit(row: Row) -> str:
    if row.passes_limit:
        return f" (more than {row.ceiling}, whose measurement was disturbed)"
    return f" ({row.of_ceiling:.0%} of {row.ceiling})" if row.of_ceiling is not None else ""


def _busy(row: Row, cores: int) -> bool:
    return _cores_used(row) >= _BUSY * cores


def _cores(row: Row, cores: int) -> str:
    """Returns the number of cores that a loader keeps busy, if that is nearly all of them."""
    return f", with {min(_cores_used(row), cores):.1f} of {cores} cores busy" if _busy(row, cores) else ""


def _cores_used(row: Row) -> float:
    return (row.cpu_seconds_per_1000 or 0.0) * row.rate / 1000
