"""A user's steps with loaders and datasets, in any order, each held against the answer of loading_reference.py."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import loading_variable
import torch
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from loading_driven import Driven, Run, State, rows_of
from loading_orders import order_options, row_likes, row_lists, samplers, settings_of_loaders
from loading_rows import STEPS, STORES, Rows, fields_of
from loading_steps import collates
from loading_stores import REPLACED
from torch import Tensor
from torch.utils.data import Subset

import mmload
from mmload.errors import StoreError
from mmload.loader import Loader

HOW = ("rename", "remove and copy", "copy into", "manifest last", "shards alone")


def take_the_place(path: Path, other: Path, how: str) -> None:
    """Put ``other`` where ``path`` is, as users do."""
    match how:
        case "rename":
            new = Path(shutil.copytree(other, path.with_name("new")))
            path.rename(path.with_name("old"))
            new.rename(path)
        case "remove and copy":
            shutil.rmtree(path)
            shutil.copytree(other, path)
        case "copy into":
            shutil.copytree(other, path, copy_function=overwrite, dirs_exist_ok=True)
        case "manifest last":
            shutil.copytree(other / "train", path / "train", copy_function=overwrite, dirs_exist_ok=True)
            shutil.copy(other / "dataset.json", path)
        case "shards alone":
            shutil.copytree(other / "train", path / "train", copy_function=overwrite, dirs_exist_ok=True)


def overwrite(source: str, path: str) -> None:
    """Write a file into another one without emptying it first, which could end a process that has it mapped."""
    with open(path, "r+b" if Path(path).exists() else "wb") as file:
        file.write(Path(source).read_bytes())
        file.truncate()


class Loading(Rows):
    """Everything a user can do with one dataset and loaders over it."""

    def opened(self, data: Any) -> None:
        """Begin with a loader."""
        self.driven: list[Driven] = []
        self.saved: list[tuple[State, Driven]] = []
        self.kept: list[tuple[Tensor, Tensor]] = []
        self._drive(*self._asked(data))

    def teardown(self) -> None:
        """End all threads."""
        for one in getattr(self, "driven", []):
            one.loader.close()

    @rule(data=st.data())
    def whole_photographs(self, data: Any) -> None:
        """An epoch of rows of a size each."""
        STEPS["whole_photographs"] += 1
        loading_variable.play(data, STORES)

    # Loaders

    @precondition(lambda self: len(self.driven) < 3)
    @rule(data=st.data())
    def new_loader(self, data: Any) -> None:
        """A loader over the dataset."""
        STEPS["new_loader"] += 1
        self._drive(*self._asked(data))

    def _asked(self, data: Any) -> tuple[dict[str, Any], list[int], dict[str, Any]]:
        """What a loader is given: what one that resumes needs too, the rows this is over, and what may differ."""
        dataset, ids = self.part(data) if data.draw(st.integers(0, 3)) == 0 else (self.split, list(range(self.rows)))
        lasting: dict[str, Any] = {"dataset": dataset, "seed": data.draw(st.sampled_from([0, 1, 2**64 - 1]))}
        lasting["collate"] = data.draw(collates(self.kind))
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
    @rule(data=st.data())
    def begin(self, data: Any) -> None:
        """``iter(loader)``."""
        STEPS["begin"] += 1
        data.draw(st.sampled_from(self.driven)).begin()

    @precondition(lambda self: self.driven)
    @rule(data=st.data(), many=st.integers(1, 4))
    def batches(self, data: Any, many: int) -> None:
        """The next batches of an iteration."""
        STEPS["batches"] += 1
        self._batches(data, many)

    @precondition(lambda self: self.driven)
    @rule(data=st.data())
    def rest(self, data: Any) -> None:
        """All batches that an iteration still has, and its end."""
        STEPS["rest"] += 1
        self._batches(data, 1000)

    def _batches(self, data: Any, many: int) -> None:
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
    @rule(data=st.data())
    def abandon(self, data: Any) -> None:
        """An epoch that is not gone through to its end."""
        STEPS["abandon"] += 1
        one = data.draw(st.sampled_from([one for one in self.driven if one.runs]))
        one.runs.pop()

    @precondition(lambda self: self.driven)
    @rule(data=st.data(), epoch=st.sampled_from([0, 1, 2, 7, 2**40]))
    def set_epoch(self, data: Any, epoch: int) -> None:
        """Another epoch next."""
        STEPS["set_epoch"] += 1
        one = data.draw(st.sampled_from(self.driven))
        one.set_epoch(epoch)

    @precondition(lambda self: self.driven)
    @rule(data=st.data())
    def save(self, data: Any) -> None:
        """``state_dict``."""
        STEPS["save"] += 1
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
    @rule(data=st.data())
    def resume(self, data: Any) -> None:
        """Another loader, or the same, goes on where a state was taken."""
        STEPS["resume"] += 1
        state, one = data.draw(st.sampled_from(self.saved))
        if data.draw(st.booleans()) and one in self.driven:
            to = one
        else:
            if len(self.driven) == 3:
                self.driven.pop(0).loader.close()
            to = self._drive(one.lasting, one.ids, data.draw(settings_of_loaders(self.rows)))
        to.load(state)

    @precondition(lambda self: self.saved)
    @rule(
        data=st.data(),
        change=st.sampled_from(
            [{"samples": 10**6}, {"samples": -1}, {"epoch": 0.5}, {"seed": 5}, {"order": "other"}, None]
        ),
    )
    def spoil(self, data: Any, change: State | None) -> None:
        """A state that cannot be is refused and changes nothing."""
        STEPS["spoil"] += 1
        state, one = data.draw(st.sampled_from(self.saved))
        spoiled = state | change if change else {name: state[name] for name in ("epoch", "samples")}
        try:
            one.loader.load_state_dict(spoiled)
        except ValueError:
            return
        raise AssertionError(f"the state {spoiled} was taken")

    @precondition(lambda self: any(one.shared for one in self.driven))
    @rule(data=st.data(), epoch=st.integers(0, 3), threads=st.integers(1, 3))
    def every_rank(self, data: Any, epoch: int, threads: int) -> None:
        """All ranks together give every row of an epoch once."""
        STEPS["every_rank"] += 1
        one = data.draw(st.sampled_from([one for one in self.driven if one.shared]))
        world = data.draw(st.integers(1, 4))
        seen: list[int] = []
        same = one.lasting | {"collate": None, "fields": [min(self.files)]}
        size = one.changing["batch_size"]
        for rank in range(world):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="order=.block.|drop_last=True leaves")
                loader = Loader(**same, batch_size=size, threads=threads, ranks=(rank, world))
            with loader:
                loader.set_epoch(epoch)
                seen += [row for batch in loader for row in batch.ids.tolist()]
        assert sorted(seen) == sorted(one.ids)

    @precondition(lambda self: self.driven)
    @rule(data=st.data())
    def close(self, data: Any) -> None:
        """``close``: what follows starts anew."""
        STEPS["close"] += 1
        one = data.draw(st.sampled_from(self.driven))
        one.loader.close()
        one.runs.clear()

    @precondition(lambda self: self.kept)
    @rule()
    def write_into_a_batch(self) -> None:
        """A user may write into a batch; batches that he keeps stay as they are."""
        STEPS["write_into_a_batch"] += 1
        for images, copy in self.kept:
            assert torch.equal(images, copy), "a batch that was kept has changed"
        self.kept.pop()[0].zero_()

    @precondition(lambda self: self.kind in REPLACED)
    @rule(data=st.data(), used=st.integers(0, 3), how=st.sampled_from(HOW))
    def replace(self, data: Any, used: int, how: str) -> None:
        """Another dataset of the same shapes takes the place of one that is read: an epoch of old rows, or an error."""
        STEPS["replace"] += 1
        with tempfile.TemporaryDirectory() as folder:
            path = Path(shutil.copytree(STORES[self.kind], Path(folder) / "store"))
            split = mmload.open(path)["train"]
            lasting = {"dataset": split, "seed": 1, "shuffle": True, "collate": data.draw(collates(self.kind))}
            changing = data.draw(settings_of_loaders(self.rows))
            with Loader(**lasting, **changing) as loader:
                one = Driven(loader, lasting, list(range(self.rows)), changing, rows_of(self.rows, lasting))
                run = one.begin()
                for _ in range(min(used, len(run.coming))):
                    self._next(one, run)
                take_the_place(path, STORES[f"other {self.kind}"], how)
                for begin in (lambda: run, one.begin):
                    self._old_rows_or_an_error(one, begin)
                numbers = data.draw(row_lists(self.rows, negative=False))
                with suppress(StoreError):
                    self.check(fields_of(split[numbers]), numbers, f"split that was replaced by {how}")

    def _old_rows_or_an_error(self, one: Driven, begin: Callable[[], Run]) -> None:
        """The rest of an epoch: old rows, or an error, at its end at the latest."""
        wrong: AssertionError | None = None
        try:
            run = begin()
            while run.coming:
                try:
                    self._next(one, run)
                except AssertionError as error:  # of files that were overwritten, which the end of the epoch has to say
                    wrong = error
            assert next(run.iterator, None) is None
        except StoreError:
            return
        if wrong is not None:
            raise wrong
