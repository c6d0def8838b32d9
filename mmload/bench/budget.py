"""The time budget of a bench: what there is time to start, and how long a turn may take.

Takes entries and a clock, returns decisions. Never waits, and starts nothing itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mmload.bench.contenders import Entry

START_SHARE = 0.5
"""Of the budget that starting may take. A process imports torch for 3 to 8 s, and 16 of them once took 55 s of 60."""

CLOSE_SHARE = 0.08
"""Of the budget that is kept for ending the processes."""

_LEAST_TURN = 1.0  # seconds that a turn gets in any case, or half its fair share of a budget that is smaller
_TO_MAKE = 60.0  # seconds in which the contenders that the verdict needs may be made, however small the budget is
_TO_MAKE_AT_LEAST = 10.0  # seconds for each
_LEAST_PATIENCE = 5.0  # seconds that a turn may take beyond its time, however little is left


@dataclass(kw_only=True)
class Budget:
    """Seconds for all of a bench: starting the processes, their turns, and ending them.

    Attributes:
        seconds: in all.
        clock: returns the time in seconds.
        began: the clock's time when the budget began, such as that of a command's start; None: now.
    """

    seconds: float
    clock: Callable[[], float] = time.monotonic
    began: float | None = None
    _start: float = field(init=False)

    def __post_init__(self) -> None:
        self._start = self.clock() if self.began is None else self.began

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return self.clock() - self._start

    @property
    def left(self) -> float:
        """Seconds left for turns; below 0 when they are used up."""
        return (1 - CLOSE_SHARE) * self.seconds - self.spent

    def room_to_start(self, made: int, starting: int) -> bool:
        """Whether one more process can be made within the share of the budget that is for that.

        Args:
            made: processes that are ready, of which it is known what they took.
            starting: those that have been started and are not ready.
        """
        if not made:
            return False
        return self.spent * (made + starting + 1) / made <= START_SHARE * self.seconds

    def to_make(self, needed: bool) -> float:
        """Seconds that making a contender may take. Those that the verdict needs share one deadline."""
        deadline = max(_TO_MAKE if needed else 0.0, START_SHARE * self.seconds)
        return max(_TO_MAKE_AT_LEAST, deadline - self.spent)

    def least_turn(self, turns: int) -> float:
        """Seconds that each of so many turns gets in any case: less would measure nothing, even where none are left."""
        return min(_LEAST_TURN, self.seconds / 2 / max(1, turns))

    def turn(self, turns: int, least: float, beyond: float = 0.0) -> float:
        """Seconds of the next of so many turns: its fair share of what is left, less those that turns take beyond."""
        return max(least, self.left / turns - beyond)

    def patience(self, seconds: float, needed: bool) -> float:
        """Of the seconds that a turn may take beyond its time, those that the budget has for it."""
        return seconds if needed else min(seconds, max(_LEAST_PATIENCE, self.left))


def start_order(entries: Sequence[Entry]) -> list[int]:
    """The entries that can run here, by number: those first without which there is no verdict."""
    there = [number for number, entry in enumerate(entries) if not entry.missing]
    return sorted(there, key=lambda number: entries[number].need)


def overrun(budget: Budget) -> str:
    """A note on a bench that took longer than its budget, "" if it did not."""
    if budget.spent <= budget.seconds:
        return ""
    return (
        f"it took {budget.spent:.0f} s and not the {budget.seconds:g} s of its time budget: what the verdict needs is "
        "started and measured in any case"
    )


def no_room(seconds: float) -> str:
    """Why an entry was not started or not measured."""
    return f"the time budget of {seconds:g} s has no room for it; raise --time-budget"
