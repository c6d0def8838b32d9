"""A user's steps with the rows of a dataset, in any order, each held against the answer of loading_reference.py."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from loading_expected import Expected, Fields, differences, sample_seeds, seeds_of_view, stored
from loading_orders import batched, dealt, numbers_of, orders, row_likes, row_lists
from loading_reference import collated
from loading_steps import collates
from loading_stores import ROWS
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

import mmload
from mmload.augment import AlternatingHorizontalFlip, RandomIoUCrop
from mmload.augment.collate import Collate
from mmload.augment.views import Views
from mmload.batch import Batch
from mmload.loader import Loader
from mmload.records import FIELD_NAMES

STORES: dict[str, Path] = {}
"""What :func:`loading_stores.build_stores` made; set before the machine runs."""

STEPS: Counter[str] = Counter()
"""How often each rule was carried out."""


@cache
def files_of(path: Path) -> Fields:
    """All rows of a store, read once a process."""
    return stored(path)


class Rows(RuleBasedStateMachine):
    """Everything that a user can do with one dataset without a Loader."""

    @initialize(data=st.data())
    def open(self, data: Any) -> None:
        """Choose a dataset."""
        self.kind = data.draw(st.sampled_from(sorted(ROWS)))
        self.files = files_of(STORES[self.kind])
        self.rows = len(next(iter(self.files.values())))
        self.split = mmload.open(STORES[self.kind])["train"]
        self.forked = data.draw(st.integers(0, 4)) > 0  # starting workers takes as long as fifty other steps
        self.opened(data)

    def opened(self, data: Any) -> None:
        """What else a sequence begins with."""

    # Rows of the map-style dataset

    @rule(data=st.data())
    def row(self, data: Any) -> None:
        """One row."""
        STEPS["row"] += 1
        number = data.draw(st.integers(-self.rows, self.rows - 1))
        given = data.draw(st.sampled_from([number, torch.tensor(number), torch.tensor([number]).numpy()[0]]))
        got = fields_of(self.split[given])
        self.check({name: value[None] for name, value in got.items()}, [number % self.rows], f"split[{number}]")

    @rule(data=st.data())
    def a_slice(self, data: Any) -> None:
        """A slice of rows."""
        STEPS["a_slice"] += 1
        edge = st.none() | st.integers(-self.rows - 3, self.rows + 3)
        part = slice(data.draw(edge), data.draw(edge), data.draw(st.sampled_from([None, 1, 2, -1, -3, 5])))
        self.check(fields_of(self.split[part]), list(range(self.rows))[part], f"split[{part}]")

    @rule(data=st.data())
    def some_rows(self, data: Any) -> None:
        """A list of rows."""
        STEPS["some_rows"] += 1
        given = data.draw(row_likes(self.rows))
        numbers = numbers_of(given, self.rows)
        self.check(fields_of(self.split[given]), numbers, f"split[{given!r}]")

    @rule(data=st.data())
    def beyond(self, data: Any) -> None:
        """A row that there is not."""
        STEPS["beyond"] += 1
        number = data.draw(st.sampled_from([self.rows, -self.rows - 1, 2**40, -(2**62)]))
        for given in (number, [0, number], torch.tensor([number, 1])):
            try:
                self.split[given]
            except IndexError:
                continue
            raise AssertionError(f"split[{given!r}] gave something")

    @rule(data=st.data())
    def collate_rows(self, data: Any) -> None:
        """A collate by itself on a batch, a list of rows or bare images."""
        STEPS["collate_rows"] += 1
        collate = data.draw(collates(self.kind))
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
        rows = {name: value[numbers] for name, value in self.files.items()}
        if form != "images":
            self.compare(
                fields_of(made), collated(collate, rows | {"ids": torch.tensor(numbers)}, seeds, epoch), repr(collate)
            )
        else:
            self.compare({"images": made}, collated(collate, {"images": rows["images"]}, seeds, epoch), repr(collate))

    @rule(data=st.data(), seed=st.integers(0, 2**40), many=st.integers(1, 3))
    def views(self, data: Any, seed: int, many: int) -> None:
        """Views of a batch, each by its collate."""
        STEPS["views"] += 1
        views = [collate for _ in range(many) if (collate := data.draw(collates(self.kind))) is not None]
        if not views:
            return
        numbers = data.draw(row_lists(self.rows, negative=False))
        seeds = sample_seeds(seed, 1, numbers)
        several = Views(*views)
        epoch = set_epoch(data, several)
        self.compare_views(several(self.split[numbers].replace(seeds=seeds)), views, numbers, seeds, epoch)

    @rule(data=st.data(), epoch=st.integers(0, 3), many=st.integers(2, 4), tier=st.sampled_from(["disk", "memory"]))
    def views_of_a_loader(self, data: Any, epoch: int, many: int, tier: str) -> None:
        """Views of all batches of an epoch, one collate among them twice."""
        STEPS["views_of_a_loader"] += 1
        views = [collate for _ in range(many) if (collate := data.draw(collates(self.kind))) is not None]
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

    @rule(data=st.data(), epoch=st.integers(0, 3))
    def order(self, data: Any, epoch: int) -> None:
        """An order of any blocks and windows, dealt to ranks, from any place on."""
        STEPS["order"] += 1
        order = data.draw(orders())
        every = replace(order, rank=0, world_size=1).rows_for(epoch).tolist()
        assert sorted(every) == list(range(order.rows)), f"{order} gave no permutation"
        offset, start, count = (data.draw(st.integers(0, most)) for most in (order.rows, 20, 40))
        places = dealt(len(every), order.rank, order.world_size, order.tail, offset) if every else []
        rows = [every[place % len(every)] for place in places]
        assert order.take(epoch, start, start + count, offset).rows.tolist() == rows[start : start + count], f"{order}"

    # Datasets of torch.utils.data over it

    @rule(data=st.data())
    def data_loader(self, data: Any) -> None:
        """torch's own DataLoader over the split, a subset, a random part, or the split twice."""
        STEPS["data_loader"] += 1
        dataset, numbers = self.part(data)
        numbers = [number % self.rows for number in numbers]
        collate = data.draw(collates(self.kind))
        epoch = 0 if collate is None else set_epoch(data, collate)
        options: dict[str, Any] = {"batch_size": data.draw(st.integers(1, 6)), "drop_last": data.draw(st.booleans())}
        if data.draw(st.booleans()):
            chosen = data.draw(st.permutations(range(len(numbers))))
            options["sampler"], numbers = list(chosen), [numbers[place] for place in chosen]
        generator = torch.Generator().manual_seed(3)
        twin = torch.Generator().manual_seed(3)
        options["collate_fn"] = torch.stack if collate is None else lambda rows: collate(rows, generator)
        wanted = batched(numbers, options["batch_size"], options["drop_last"])
        loader = DataLoader(dataset, num_workers=0, **options)
        assert len(loader) == len(wanted)
        for rows, batch in zip(wanted[:5], loader, strict=False):
            if collate is None:
                self.check(fields_of(batch), rows, f"DataLoader of {dataset!r}")
                continue
            seeds = torch.randint(-(1 << 63), (1 << 63) - 1, (len(rows),), generator=twin)
            fields = {name: value[rows] for name, value in self.files.items()} | {"ids": torch.tensor(rows)}
            self.compare(fields_of(batch), collated(collate, fields, seeds, epoch), repr(collate))

    @precondition(lambda self: not self.forked)
    @rule(data=st.data())
    def data_loader_workers(self, data: Any) -> None:
        """A DataLoader with two worker processes, at most once in every fifth sequence."""
        STEPS["data_loader_workers"] += 1
        self.forked = True
        dataset, numbers = self.part(data)
        numbers = [number % self.rows for number in numbers]
        size, collate = data.draw(st.integers(1, 6)), data.draw(collates(self.kind))
        epoch = 0 if collate is None else set_epoch(data, collate)
        generator = torch.Generator().manual_seed(3)  # each worker has a copy of its own
        twins = [torch.Generator().manual_seed(3) for _ in range(2)]
        collate_fn: Any = torch.stack if collate is None else lambda rows: collate(rows, generator)
        loader = DataLoader(dataset, batch_size=size, num_workers=2, collate_fn=collate_fn)
        wanted = batched(numbers, size, False)
        seen = 0
        for place, (rows, batch) in enumerate(zip(wanted, loader, strict=True)):
            seen += len(rows)
            if collate is None:
                self.check(fields_of(batch), rows, f"a worker of {dataset!r}")
                continue
            seeds = torch.randint(-(1 << 63), (1 << 63) - 1, (len(rows),), generator=twins[place % 2])
            fields = {name: value[rows] for name, value in self.files.items()} | {"ids": torch.tensor(rows)}
            self.compare(fields_of(batch), collated(collate, fields, seeds, epoch), repr(collate))
        assert seen == len(numbers)

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
            self.compare(got, Expected(fields), what)
            return
        seeds = sample_seeds(loader["seed"], epoch, rows, occurrences)
        asked = {"ids", *loader.get("fields", fields)}
        fields = {name: value for name, value in fields.items() if name in asked} | {"seeds": seeds}
        collate: Collate | None = loader["collate"]
        self.compare(
            got, Expected(fields) if collate is None else collated(collate, fields, seeds, epoch), f"{what} {collate!r}"
        )

    def compare(self, got: Fields, expected: Expected, what: str) -> None:
        lines = differences(got, expected)
        assert not lines, f"{self.kind}, {what}: {'; '.join(lines)}"


def set_epoch(data: Any, collate: Collate | Views) -> int:
    """An epoch that a collate is told, since no loader does."""
    epoch: int = data.draw(st.integers(0, 3))
    collate.set_epoch(epoch)
    return epoch


def fields_of(batch: Batch) -> Fields:
    """What a batch has, by name."""
    fields = {name: getattr(batch, name) for name in (*FIELD_NAMES, "ids", "seeds")}
    extra = {} if batch.extra is None else dict(batch.extra.items())
    return {name: value for name, value in (fields | extra).items() if value is not None}
