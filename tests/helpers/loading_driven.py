"""A loader beside what is known of it: which rows an iteration has to give, and what its state has to say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from loading_expected import GOLDEN
from loading_orders import Ranked, Turning, batched, dealt, given_rows, numbers_of, order_name
from loading_orders import order as order_of_kind

from mmload.batch import Batch
from mmload.loader import Loader

State = dict[str, Any]
Come = tuple[int, int]
"""A row, and what tells its occurrences in an epoch apart."""
FACTOR = 0xBF58476D1CE4E5B9


@dataclass
class Run:
    """One pass of a loader over an epoch, and what it still has to give."""

    iterator: Iterator[Batch]
    epoch: int
    offset: int
    coming: list[list[Come]]
    number: int
    used: int = 0


@dataclass
class Driven:
    """A loader and what is known of it.

    Attributes:
        lasting: what a loader that resumes must be given too: dataset, order, seed, collate, fields.
        ids: the rows that the dataset is made of.
        changing: what may differ in it.
        rows_of: epoch -> the rows of all ranks in order.
        epoch, offset: where the next iteration begins.
        finished: the epoch at whose end the loader was resumed, and its samples.
        state: what ``state_dict`` has to say: where the iteration is that was begun last, or what was loaded since.
        begun: iterations and loaded states so far.
    """

    loader: Loader
    lasting: dict[str, Any]
    ids: list[int]
    changing: dict[str, Any]
    rows_of: Callable[[int], list[int]]
    epoch: int = 0
    offset: int = 0
    finished: tuple[int, int] = (-1, 0)
    state: tuple[int, int] = (0, 0)
    runs: list[Run] = field(default_factory=list)
    begun: int = 0

    @property
    def shared(self) -> bool:
        """Whether ranks share an epoch: a sampler is each rank's own."""
        return given_rows(self.lasting) is None

    @property
    def order(self) -> str:
        """What the state has to say of the order."""
        sampler = given_rows(self.lasting)
        if isinstance(sampler, Turning | Ranked):
            return f"sampler {type(sampler).__name__}"
        if sampler is not None:
            return "rows"
        names = {"shuffled": "full", "sequential": "sequential", "block": "block of 64 rows, window of 64"}
        return names[order_name(self.lasting)]

    def coming(self, epoch: int, offset: int, rank: int | None = None) -> list[list[Come]]:
        """What an iteration has to give, on this rank or another."""
        places, how = self.rows_of(epoch), self.changing
        listed, drawn = _before(self.ids), _before(places)
        mine = how["ranks"][0] if rank is None else rank
        count = len(places)
        rest = dealt(count, mine, how["ranks"][1], how["tail"], offset) if self.shared else range(offset, count)
        come = []
        for position in rest:
            place = places[position % count]
            again = GOLDEN * (position // count) + FACTOR * listed[place] + drawn[position % count]
            come.append((self.ids[place], again % (1 << 64)))
        return batched(come, how["batch_size"], how["drop_last"])

    def begin(self) -> Run:
        """``iter(loader)``; two at once are kept."""
        self.begun += 1
        coming = self.coming(self.epoch, self.offset)
        run = Run(iter(self.loader), self.epoch, self.offset, coming, self.begun)
        self.runs = [*self.runs[-1:], run]
        self.state, self.finished = self.reached(self.epoch, self.offset), (-1, 0)
        self.epoch, self.offset = self.epoch + 1, 0
        return run

    def reached(self, epoch: int, samples: int) -> tuple[int, int]:
        """What a state says after so many samples: all of them where no rank has a batch left."""
        if self.coming(epoch, samples, rank=0):
            return epoch, samples
        count = len(self.rows_of(epoch))
        return (epoch, count) if count else (epoch + 1, 0)

    def used(self, run: Run, rows: int) -> None:
        """So many rows were given."""
        run.used += rows
        if run.number == self.begun:
            ranks = self.changing["ranks"][1] if self.shared else 1
            samples = min(run.offset + run.used * ranks, len(self.rows_of(run.epoch)))
            self.state = self.reached(run.epoch, samples)

    def set_epoch(self, epoch: int) -> None:
        """Another epoch next; the one that was resumed goes on where it was."""
        self.loader.set_epoch(epoch)
        assert self.loader.epoch == epoch
        if epoch != self.epoch:
            self.epoch, self.offset = epoch, self.finished[1] if epoch == self.finished[0] else 0
        self.state = self.epoch, self.offset

    def load(self, state: State) -> None:
        """Go on from a state; from an epoch's end, on the rank that has most left, with the next epoch."""
        self.loader.load_state_dict(dict(state))
        self.begun += 1  # what was begun before no longer says where training is
        self.epoch, self.offset, self.finished = state["epoch"], state["samples"], (-1, 0)
        if self.offset and not self.coming(self.epoch, self.offset, rank=0):
            self.finished = self.epoch, self.offset
            self.epoch, self.offset = self.epoch + 1, 0
        self.state = self.epoch, self.offset


def rows_of(rows: int, lasting: dict[str, Any]) -> Callable[[int], list[int]]:
    """The order of an epoch: stored, given, or a permutation, which is held to be one."""
    sampler = given_rows(lasting)
    if isinstance(sampler, Turning | Ranked):
        return sampler.rows_of
    if sampler is not None:
        return lambda epoch: numbers_of(sampler, rows)
    if order_name(lasting) == "sequential":
        return lambda epoch: list(range(rows))
    order = order_of_kind(kind="block" if order_name(lasting) == "block" else "full", rows=rows, seed=lasting["seed"])

    def permuted(epoch: int) -> list[int]:
        mixed: list[int] = order.rows_for(epoch).tolist()
        assert sorted(mixed) == list(range(rows))
        return mixed

    return permuted


def _before(rows: list[int]) -> list[int]:
    """How often each comes before."""
    counts: Counter[int] = Counter()
    found = []
    for row in rows:
        found.append(counts[row])
        counts[row] += 1
    return found
