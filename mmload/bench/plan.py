"""The time budget of a bench: which processes to start, and how long each turn may take.

Takes entries and a clock, returns decisions. It never sleeps and starts no process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mmload.bench.contenders import ContenderEntry

START_SHARE = 0.5
"""Share of the budget for starting processes. A process imports torch for 3 to 8 s, and 16 once took 55 s of 60."""

CLOSE_SHARE = 0.08
"""Share of the budget that is reserved for ending the processes."""

_LEAST_TURN = 1.0  # seconds: lower bound of a turn, or half its fair share of a budget that is smaller
_TO_MAKE = 60.0  # seconds for creating the contenders that the verdict needs, however small the budget is
OWN_PATIENCE = 300.0
"""Seconds that mmload's own rows may take to answer: the first run on a machine compiles, and without them a bench says
nothing. A limit of half a minute once lost them on a busy machine."""
_TO_MAKE_AT_LEAST = 10.0  # seconds for each of them
_LEAST_PATIENCE = 5.0  # seconds: lower bound of a turn's patience, however little time is left


@dataclass(kw_only=True)
class Budget:
    """Time budget of a whole bench, in seconds: starting the processes, their turns, and ending them.

    Attributes:
        seconds: the total budget.
        clock: returns the time in seconds.
        began: the clock's time at which the budget began, such as the start of a command; None: now.
    """

    seconds: float
    clock: Callable[[], float] = time.monotonic
    began: float | None = None
    _start: float = field(init=False)

    def __post_init__(self) -> None:
        self._start = self.clock() if self.began is None else self.began

    @property
    def spent(self) -> float:
        """Seconds elapsed since it began."""
        return self.clock() - self._start

    @property
    def left(self) -> float:
        """Seconds left for turns; negative if the budget is exceeded."""
        return (1 - CLOSE_SHARE) * self.seconds - self.spent

    def room_to_start(self, made: int, starting: int) -> bool:
        """Returns whether one more process can be started within the share of the budget for starting.

        The start-up times of the processes that are ``made`` are known; others are ``starting``.
        """
        if not made:
            return False
        return self.spent * (made + starting + 1) / made <= START_SHARE * self.seconds

    def to_make(self, entry: ContenderEntry) -> float:
        """Returns the time limit in seconds for creating a contender; those that the verdict needs have a minute."""
        least = OWN_PATIENCE if is_own(entry) else _TO_MAKE_AT_LEAST if entry.need else _TO_MAKE
        return max(least, START_SHARE * self.seconds - self.spent)

    def least_turn(self, turns: int) -> float:
        """Returns a lower bound of a turn in seconds, given the number of turns; a shorter one measures nothing."""
        return min(_LEAST_TURN, self.seconds / 2 / max(1, turns))

    def turn(self, turns: int, least: float, beyond: float = 0.0) -> float:
        """Seconds of the next of ``turns`` turns: a fair share of the time left, less ``beyond``, their overrun."""
        return max(least, self.left / turns - beyond)

    def patience(self, seconds: float, entry: ContenderEntry) -> float:
        """Returns the seconds by which a turn may overrun.

        They are at most ``seconds`` and what the budget allows; the verdict's rows have ``seconds`` in any case, and
        mmload's own ones :data:`OWN_PATIENCE`.
        """
        if is_own(entry):
            return OWN_PATIENCE
        return min(seconds, max(_LEAST_PATIENCE, self.left)) if entry.need else seconds


def is_own(entry: ContenderEntry) -> bool:
    """Returns whether an entry is one of mmload's own that the verdict needs."""
    return entry.group == "mmload" and not entry.need


def start_order(entries: Sequence[ContenderEntry]) -> list[int]:
    """Returns the indices of the entries that can run here: mmload's own first, then the others that are needed."""
    available = [number for number, entry in enumerate(entries) if not entry.missing]
    return sorted(available, key=lambda number: (not is_own(entries[number]), entries[number].need))


def overrun(budget: Budget) -> str:
    """Returns a note if the bench took longer than its budget, in whole seconds, else ""."""
    if round(budget.spent) <= budget.seconds:
        return ""
    enough = 10 * math.ceil(budget.spent / 10)
    return (
        f"it took {budget.spent:.0f} s and not the {budget.seconds:g} s of its time budget: what the verdict needs is "
        f"started and measured in any case; give --time-budget {enough} for the others"
    )


def no_room(seconds: float) -> str:
    """Returns the reason why an entry was not started or not measured."""
    return f"the time budget of {seconds:g} s has no room for it; raise --time-budget"
