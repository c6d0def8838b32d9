"""A user's steps with loaders and datasets, in any order, each held against the answer of loading_expected.py."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any

import loading_variable
import torch
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from loading_driven import Driven, Run, State, rows_of
from loading_expected import Fields, collated, differences, sample_seeds, seeds_of_view, stored
from loading_orders import batched, numbers_of, order_options, row_likes, row_lists, samplers, settings_of_loaders
from loading_stores import ROWS
from step_lists import collates
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

import mmload
from mmload.augment import AlternatingHorizontalFlip, RandomIoUCrop
from mmload.augment.collate import Collate
from mmload.augment.views import Views
from mmload.batch import fields_of
from mmload.loader import Loader

STORES: dict[str, Path] = {}
"""What :func:`loading_stores.build_stores` made; set before the machine runs."""

STEPS: Counter[str] = Counter()
"""How often each rule was carried out."""


def step(**given: Any) -> Any:
    """Makes a rule, with what is drawn for it, whose runs are counted."""

    def made(function: Callable[..., None]) -> Any:
        @wraps(function)
        def counted(self: Loading, **drawn: Any) -> None:
            STEPS[function.__name__] += 1
            function(self, **drawn)

        return rule(**given)(counted)

    return made


@cache
def files_of(path: Path) -> Fields:
    """All rows of a store, read once a process."""
    return stored(path)


class Loading(RuleBasedStateMachine):
    """Everything that a user can do with one dataset and loaders over it."""

    @initialize(data=st.data())
    def open(self, data: Any) -> None:
        """Choose a dataset."""
        self.kind = data.draw(st.sampled_from(sorted(ROWS)))
        self.files = files_of(STORES[self.kind])
        self.rows = len(next(iter(self.files.values())))
        self.split = mmload.open(STORES[self.kind])["train"]
        self.forked = data.draw(st.integers(0, 4)) > 0  # starting workers takes as long as fifty other steps
        self.driven: list[Driven] = []
        self.saved: list[tuple[State, Driven]] = []
        self.kept: list[tuple[Tensor, Tensor]] = []
        self._drive(*self._asked(data))

    def teardown(self) -> None:
        """End all threads."""
        for one in getattr(self, "driven", []):
            one.loader.close()

    @step(data=st.data())
    def whole_photographs(self, data: Any) -> None:
        """An epoch of rows of a size each."""
        loading_variable.play(data, STORES)

    # Rows of the map-style dataset

    @step(data=st.data())
    def row(self, data: Any) -> None:
        """One row."""
        number = data.draw(st.integers(-self.rows, self.rows - 1))
        given = data.draw(st.sampled_from([number, torch.tensor(number), torch.tensor([number]).numpy()[0]]))
        got = fields_of(self.split[given])
        self.check({name: value[None] for name, value in got.items()}, [number % self.rows], f"split[{number}]")

    @step(data=st.data())
    def a_slice(self, data: Any) -> None:
        """A slice of rows."""
        edge = st.none() | st.integers(-self.rows - 3, self.rows + 3)
        part = slice(data.draw(edge), data.draw(edge), data.draw(st.sampled_from([None, 1, 2, -1, -3, 5])))
        self.check(fields_of(self.split[part]), list(range(self.rows))[part], f"split[{part}]")

    @step(data=st.data())
    def some_rows(self, data: Any) -> None:
        """A list of rows."""
        given = data.draw(row_likes(self.rows))
        numbers = numbers_of(given, self.rows)
        self.check(fields_of(self.split[given]), numbers, f"split[{given!r}]")

    @step(data=st.data())
    def beyond(self, data: Any) -> None:
        """A row that there is not."""
        number = data.draw(st.sampled_from([self.rows, -self.rows - 1, 2**40, -(2**62)]))
        for given in (number, [0, number], torch.tensor([number, 1])):
            try:
                self.split[given]
            except IndexError:
                continue
            raise AssertionError(f"split[{given!r}] gave something")

    @step(data=st.data())
    def collate_rows(self, data: Any) -> None:
        """A collate by itself on a batch, a list of rows or bare images."""
        collate = data.draw(collates(self.files))
        numbers = data.draw(row_lists(self.rows, negative=False))
        if collate is None:
            return
        seed = data.draw(st.integers(0, 2**40))
        epoch = set_epoch(data, collate)
        needs_fields = AlternatingHorizontalFlip | RandomIoUCrop  # ids and boxes, which bare images do not have
        bare = not any(isinstance(step, needs_fields) for step in collate.steps)
        form = data.draw(st.sampled_from(["batch", "rows", *["images"] * bare]))
        batch = self.split[numbers] if form == "batch" else [self.split[number] for number in numbers]
        if form == "images":
            batch = self.files["images"][numbers]
        made = collate(batch, torch.Generator().manual_seed(seed))
        seeds = torch.randint(-(1 << 63), (1 << 63) - 1, (len(numbers),), generator=torch.Generator().manual_seed(seed))
        rows = {name: value[numbers] for name, value in self.files.items()} | {"ids": torch.tensor(numbers)}
        if form == "images":
            expected = collated(collate, {"images": rows["images"]}, seeds, epoch)["images"]
            self.compare({"images": made}, {"images": expected}, repr(collate))
        else:
            self.compare(fields_of(made), collated(collate, rows, seeds, epoch), repr(collate))

    @step(data=st.data(), epoch=st.integers(0, 3), many=st.integers(2, 4), tier=st.sampled_from(["disk", "memory"]))
    def views_of_a_loader(self, data: Any, epoch: int, many: int, tier: str) -> None:
        """Views of all batches of an epoch, one collate among them twice."""
        views = [collate for _ in range(many) if (collate := data.draw(collates(self.files))) is not None]
        if not views:
            return
        views.append(views[0])
        size, threads = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 3))
        with Loader(
            self.split, batch_size=size, shuffle=True, seed=5, collate=Views(*views), tier=tier, threads=threads
        ) as loader:
            loader.set_epoch(epoch)
            seen: list[int] = []
            for batches in loader:
                numbers = batches[0].ids.tolist()
                self.compare_views(batches, views, numbers, sample_seeds(5, epoch, numbers), epoch)
                seen += numbers
        assert sorted(seen) == list(range(self.rows))

    def compare_views(
        self, made: Any, views: list[Collate], numbers: list[int], seeds: torch.Tensor, epoch: int
    ) -> None:
        """Each view must be what its collate makes of the rows with the view's seeds."""
        assert type(made) is tuple
        rows = {name: value[numbers] for name, value in self.files.items()} | {"ids": torch.tensor(numbers)}
        for place, (view, collate) in enumerate(zip(made, views, strict=True)):
            own = seeds_of_view(seeds, place)
            self.compare(
                fields_of(view), collated(collate, rows | {"seeds": own}, own, epoch), f"view {place}, {collate!r}"
            )

    # Datasets of torch.utils.data over it

    @step(data=st.data())
    def data_loader(self, data: Any) -> None:
        """torch's own DataLoader over the split, a subset, a random part, or the split twice.

        With two worker processes at most once in every fifth sequence.
        """
        dataset, numbers = self.part(data)
        numbers = [number % self.rows for number in numbers]
        collate = data.draw(collates(self.files))
        epoch = 0 if collate is None else set_epoch(data, collate)
        workers = 0 if self.forked else 2
        self.forked = True
        options: dict[str, Any] = {"batch_size": data.draw(st.integers(1, 6)), "drop_last": data.draw(st.booleans())}
        if data.draw(st.booleans()):
            chosen = data.draw(st.permutations(range(len(numbers))))
            options["sampler"], numbers = list(chosen), [numbers[place] for place in chosen]
        generator = torch.Generator().manual_seed(3)  # each worker has a copy of its own
        twins = [torch.Generator().manual_seed(3) for _ in range(max(1, workers))]
        options["collate_fn"] = torch.stack if collate is None else lambda rows: collate(rows, generator)
        wanted = batched(numbers, options["batch_size"], options["drop_last"])
        loader = DataLoader(dataset, num_workers=workers, **options)
        assert len(loader) == len(wanted)
        for place, (rows, batch) in enumerate(zip(wanted[:5], loader, strict=False)):
            if collate is None:
                self.check(fields_of(batch), rows, f"DataLoader of {dataset!r}")
                continue
            seeds = torch.randint(-(1 << 63), (1 << 63) - 1, (len(rows),), generator=twins[place % len(twins)])
            fields = {name: value[rows] for name, value in self.files.items()} | {"ids": torch.tensor(rows)}
            self.compare(fields_of(batch), collated(collate, fields, seeds, epoch), repr(collate))

    def part(self, data: Any) -> tuple[Any, list[int]]:
        """A dataset over the split, and its rows; those of the split's second time come after those of its first."""
        every = list(range(self.rows))
        form = data.draw(st.sampled_from(["split", "subset", "random_split", "concat", "nested"]))
        twice = ConcatDataset([self.split, self.split])
        if form == "subset":
            given = data.draw(row_likes(self.rows))
            return self.split.subset(given), numbers_of(given, self.rows)
        if form == "nested":
            numbers = data.draw(row_lists(2 * self.rows, negative=False))
            return Subset(twice, numbers), numbers
        if form == "random_split":
            part = random_split(self.split, [0.5, 0.5], torch.Generator().manual_seed(1))[data.draw(st.integers(0, 1))]
            return part, list(part.indices)
        return (twice, list(range(2 * self.rows))) if form == "concat" else (self.split, every)

    # Loaders

    @precondition(lambda self: len(self.driven) < 3)
    @step(data=st.data())
    def new_loader(self, data: Any) -> None:
        """A loader over the dataset."""
        self._drive(*self._asked(data))

    def _asked(self, data: Any) -> tuple[dict[str, Any], list[int], dict[str, Any]]:
        """What a loader is given: what one that resumes needs too, the rows this is over, and what may differ."""
        dataset, ids = self.part(data) if data.draw(st.integers(0, 3)) == 0 else (self.split, list(range(self.rows)))
        lasting: dict[str, Any] = {"dataset": dataset, "seed": data.draw(st.sampled_from([0, 1, 2**64 - 1]))}
        lasting["collate"] = data.draw(collates(self.files))
        given = ["list", "sampler"] if ids else []  # of nothing there is no list
        order = data.draw(st.sampled_from(["sequential", "shuffled", "shuffled", "block", *given]))
        if order == "list":
            lasting["order"] = data.draw(row_likes(len(ids)))
        elif order == "sampler":
            lasting["order"] = data.draw(samplers(len(ids)))
        else:
            lasting |= order_options(order)
        if lasting["collate"] is None and data.draw(st.booleans()):
            lasting["fields"] = data.draw(st.lists(st.sampled_from(sorted(self.files)), min_size=1, unique=True))
        return lasting, ids, data.draw(settings_of_loaders(self.rows))

    def _drive(self, lasting: dict[str, Any], ids: list[int], changing: dict[str, Any]) -> Driven:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="order=.block.|drop_last=True leaves")
            loader = Loader(**lasting, **changing)
        one = Driven(loader, lasting, ids, changing, rows_of(len(ids), lasting))
        self.driven.append(one)
        note(f"loader {len(self.driven) - 1}: {lasting} {changing}")
        assert len(loader) == len(one.coming(0, 0))
        return one

    @precondition(lambda self: self.driven)
    @step(data=st.data())
    def begin(self, data: Any) -> None:
        """``iter(loader)``."""
        data.draw(st.sampled_from(self.driven)).begin()

    @precondition(lambda self: self.driven)
    @step(data=st.data(), many=st.integers(1, 4) | st.just(1000))
    def batches(self, data: Any, many: int) -> None:
        """The next batches of an iteration, or all that it still has, and its end."""
        one = data.draw(st.sampled_from(self.driven))
        run = data.draw(st.sampled_from(one.runs)) if one.runs else one.begin()
        for _ in range(many):
            if not run.coming:
                assert next(run.iterator, None) is None, "a batch more than the epoch has"
                one.runs.remove(run)
                return
            self._next(one, run)

    def _next(self, one: Driven, run: Run) -> None:
        """One batch, which has to be the next one."""
        come = run.coming.pop(0)
        rows = [row for row, _ in come]
        batch = next(run.iterator)
        one.used(run, len(rows))
        assert batch.ids.tolist() == rows, f"rows {batch.ids.tolist()}, expected {rows}"
        self.check(fields_of(batch), rows, "Loader", one.lasting, run.epoch, [number for _, number in come])
        if batch.images is not None:
            layout = one.lasting["collate"].memory_format if one.lasting["collate"] else torch.contiguous_format
            assert batch.images.is_contiguous(memory_format=layout)
            self.kept = [*self.kept[-5:], (batch.images, batch.images.clone())]

    @precondition(lambda self: any(one.runs for one in self.driven))
    @step(data=st.data())
    def abandon(self, data: Any) -> None:
        """An epoch that is not gone through to its end."""
        one = data.draw(st.sampled_from([one for one in self.driven if one.runs]))
        one.runs.pop()

    @precondition(lambda self: self.driven)
    @step(data=st.data(), epoch=st.sampled_from([0, 1, 2, 7, 2**40]))
    def set_epoch(self, data: Any, epoch: int) -> None:
        """Another epoch next."""
        one = data.draw(st.sampled_from(self.driven))
        one.set_epoch(epoch)

    @precondition(lambda self: self.driven)
    @step(data=st.data())
    def save(self, data: Any) -> None:
        """``state_dict``."""
        one = data.draw(st.sampled_from(self.driven))
        state = one.loader.state_dict()
        epoch, samples = one.state
        expected = {"epoch": epoch, "samples": samples, "rows": len(one.ids), "seed": one.lasting["seed"]}
        expected |= {"order": one.order, "dataset": one.loader.split.digest}
        if one.loader.split.version is not None:
            expected["version"] = 1
        digests = [name for name in ("subset", "sampler") if name in state]
        assert digests == ["subset"] * isinstance(one.lasting["dataset"], Subset) + ["sampler"] * (not one.shared)
        expected |= {name: state[name] for name in digests}
        assert state == expected, f"the state is {state}, expected {expected}"
        self.saved = [*self.saved[-3:], (state, one)]

    @precondition(lambda self: self.saved)
    @step(data=st.data())
    def resume(self, data: Any) -> None:
        """Another loader, or the same, goes on where a state was taken."""
        state, one = data.draw(st.sampled_from(self.saved))
        if data.draw(st.booleans()) and one in self.driven:
            to = one
        else:
            if len(self.driven) == 3:
                self.driven.pop(0).loader.close()
            to = self._drive(one.lasting, one.ids, data.draw(settings_of_loaders(self.rows)))
        to.load(state)

    @precondition(lambda self: self.saved)
    @step(
        data=st.data(),
        change=st.sampled_from(
            [{"samples": 10**6}, {"samples": -1}, {"epoch": 0.5}, {"seed": 5}, {"order": "other"}, None]
        ),
    )
    def spoil(self, data: Any, change: State | None) -> None:
        """A state that cannot be is refused and changes nothing."""
        state, one = data.draw(st.sampled_from(self.saved))
        spoiled = state | change if change else {name: state[name] for name in ("epoch", "samples")}
        try:
            one.loader.load_state_dict(spoiled)
        except ValueError:
            return
        raise AssertionError(f"the state {spoiled} was taken")

    @precondition(lambda self: self.driven)
    @step(data=st.data())
    def close(self, data: Any) -> None:
        """``close``: what follows starts anew."""
        one = data.draw(st.sampled_from(self.driven))
        one.loader.close()
        one.runs.clear()

    @precondition(lambda self: self.kept)
    @step()
    def write_into_a_batch(self) -> None:
        """A user may write into a batch; batches that he keeps stay as they are."""
        for images, copy in self.kept:
            assert torch.equal(images, copy), "a batch that was kept has changed"
        self.kept.pop()[0].zero_()

    # What everything is held against

    def check(
        self,
        got: Fields,
        rows: list[int],
        what: str,
        loader: dict[str, Any] | None = None,
        epoch: int = 0,
        occurrences: list[int] | None = None,
    ) -> None:
        """Rows as they are stored, or what a loader makes of them, each at one of its occurrences in an epoch."""
        places = [row % self.rows for row in rows]
        fields = {name: value[places] for name, value in self.files.items()}
        fields["ids"] = torch.tensor(rows, dtype=torch.int64)
        if loader is None:
            self.compare(got, fields, what)
            return
        seeds = sample_seeds(loader["seed"], epoch, rows, occurrences)
        asked = {"ids", *loader.get("fields", fields)}
        fields = {name: value for name, value in fields.items() if name in asked} | {"seeds": seeds}
        collate: Collate | None = loader["collate"]
        self.compare(got, fields if collate is None else collated(collate, fields, seeds, epoch), f"{what} {collate!r}")

    def compare(self, got: Fields, expected: Fields, what: str) -> None:
        lines = differences(got, expected)
        assert not lines, f"{self.kind}, {what}: {'; '.join(lines)}"


def set_epoch(data: Any, collate: Collate | Views) -> int:
    """An epoch that a collate is told, since no loader does."""
    epoch: int = data.draw(st.integers(0, 3))
    collate.set_epoch(epoch)
    return epoch
