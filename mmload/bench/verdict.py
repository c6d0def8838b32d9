"""Identifies the bottleneck in one or two sentences, from a record's undisturbed rows where it has some.

Without training it only compares loaders; with training it also reports whether the model waits for data, and how long
a step takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmload.bench.record import Row, best
from mmload.bench.report import number

WAITS = 0.1
"""From this share of a step's time on, the wait for data is called the bottleneck."""

_BUSY = 0.75  # of the cores: from this utilization on, a loader is limited by processor time
AGAIN = "run it again on an idle machine"


def verdict(rows: Sequence[Row], *, cores: int, device: str, missing: str = "", trains: bool = True) -> str:
    """Returns the verdict as text.

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
    most, before, after = (row.trained_per_second or 0.0 for row in (model, stock, own))
    waits, still = stock.waited or 0.0, own.waited or 0.0
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
    texts = []
    for group, name in _TRAINED.items():
        if row := trained.get(group):
            step = 1000 * (row.step_seconds or 0.0)
            waits = f" ({number(step * (row.waited or 0.0))} of waiting)" if group != "cached" else ""
            texts.append(f"{number(step)} ms with {name}{waits}")
    return f"A step takes {', '.join(texts)}." if texts else ""


def _why(rows: Sequence[Row], group: str) -> str:
    """Returns `` (the first reason)`` why a group has no result that counts, "" if none is known."""
    reason = next((row.failure for row in rows if row.group == group and row.failure), "")
    return f" ({reason})" if reason else ""


def _rate(row: Row) -> str:
    return f"{number(row.rate)} images/s"


def _limit(row: Row) -> str:
    if row.disturbed:
        return f" (more than its limit, so other programs disturbed one of the two; {AGAIN})"
    return f" ({row.of_ceiling:.0%} of {row.ceiling})" if row.of_ceiling is not None else ""


def _cores(row: Row, cores: int) -> str:
    """Returns the number of cores that a loader keeps busy, if that is nearly all of them."""
    used = (row.cpu_seconds_per_1000 or 0.0) * row.rate / 1000
    return f", with {min(used, cores):.1f} of {cores} cores busy" if used >= _BUSY * cores else ""
