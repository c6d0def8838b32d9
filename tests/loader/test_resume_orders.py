"""Calls of a resume in any order, compared with a plain model of what is read next."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mmload.loader import Loader
from mmload.store.dataset import Dataset

ROWS, SIZE = 18, 4
EPOCHS = st.integers(0, 2)
CALLS = st.one_of(
    st.tuples(st.just("iterate"), st.integers(0, 5)),
    st.tuples(st.just("begin"), st.just(0)),
    st.tuples(st.just("save"), st.just(0)),
    st.tuples(st.just("load"), st.booleans()),
    st.tuples(st.just("set_epoch"), EPOCHS),
)


class Model:
    """Position of the next batch: an epoch and its used rows, the resumed position, and that of the state."""

    def __init__(self) -> None:
        self.next = self.state = (0, 0)
        self.resumed = (-1, 0)

    def iterate(self, batches: int) -> tuple[int, int, int]:
        """Returns the epoch that is read, and where it is read from and to."""
        epoch, used = self.next
        to = min(ROWS, used + batches * SIZE)
        self.next, self.resumed, self.state = (epoch + 1, 0), (-1, 0), (epoch, to)
        return epoch, used, to

    def load(self, state: tuple[int, int]) -> None:
        epoch, used = self.resumed = state
        self.next = self.state = (epoch + 1, 0) if used == ROWS else state

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.next[0]:
            self.next = self.resumed if epoch == self.resumed[0] and self.resumed[1] < ROWS else (epoch, 0)
            if epoch == self.resumed[0] and self.resumed[1] == ROWS:
                self.next = self.resumed  # an epoch that was resumed at its end is empty
        self.state = self.next


def loader_of(dataset: Dataset) -> Loader:
    return Loader(dataset, batch_size=SIZE, shuffle=True, seed=5, threads=1, prefetch=0)


@settings(max_examples=60)
@given(calls=st.lists(CALLS, max_size=10))
def test_resume_in_any_order_of_calls_continues_where_the_model_does(
    dataset: Dataset, calls: list[tuple[str, Any]]
) -> None:
    loader, model = loader_of(dataset), Model()
    order = [loader.sampler._order.rows_for(epoch).tolist() for epoch in range(20)]
    saved, kept = (loader.state_dict(), model.state), []
    for name, value in [*calls, ("iterate", 5)]:
        if name == "iterate":
            epoch, start, stop = model.iterate(value)
            batches = iter(loader)
            rows = [row for _, batch in zip(range(value), batches, strict=False) for row in batch.ids.tolist()]
            assert rows == order[epoch][start:stop]
        elif name == "begin":
            kept.append(iter(loader))
            model.iterate(0)
        elif name == "save":
            saved = loader.state_dict(), model.state
        elif name == "load":
            if value:
                loader.close()
                loader = loader_of(dataset)
            loader.load_state_dict(saved[0])
            model = Model() if value else model
            model.load(saved[1])
        else:
            loader.set_epoch(value)
            model.set_epoch(value)
        state = loader.state_dict()
        assert (state["epoch"], state["samples"]) == model.state, name
    loader.close()
