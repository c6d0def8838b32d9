"""Long lists in little memory: what went in comes out."""

from __future__ import annotations

import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from mmload.sources.listed_split import Listing


class Entry(NamedTuple):
    name: str
    target: int
    revision: str


TEXTS = st.text(st.characters(exclude_categories=[]))  # lone surrogates, as of file names that are no UTF-8, included
ENTRIES = st.lists(st.builds(Entry, name=TEXTS, target=st.integers(-(2**63), 2**63 - 1), revision=TEXTS), max_size=8)


@given(entries=ENTRIES)
def test_rows_come_back(entries: list[Entry]) -> None:
    listing = Listing(Entry, entries)
    for found in (listing, pickle.loads(pickle.dumps(listing))):
        assert len(found) == len(entries)
        assert list(found) == entries
        assert [found[number] for number in range(len(entries))] == entries
    assert list(listing.only(reversed(range(len(entries))))) == entries[::-1]


def test_many_threads_read_a_listing() -> None:
    listing = Listing(Entry, (Entry(f"{number:05d}", number, "x" * (number % 50)) for number in range(500)))

    def read(first: int) -> list[Entry]:
        return [listing[(first + 7 * step) % 500] for step in range(500)]

    with ThreadPoolExecutor(8) as pool:
        for first, entries in enumerate(pool.map(read, range(8))):
            assert [entry.target for entry in entries] == [(first + 7 * step) % 500 for step in range(500)]
            assert all(
                entry.name == f"{entry.target:05d}" and len(entry.revision) == entry.target % 50 for entry in entries
            )


class Labeled(NamedTuple):
    label: str | int | float | list[float]
    place: str | None


LABELS = TEXTS | st.integers() | st.floats(allow_nan=False) | st.lists(st.floats(allow_nan=False))


@given(rows=st.lists(st.builds(Labeled, label=LABELS, place=st.none() | TEXTS)))
def test_values_of_any_type_come_back(rows: list[Labeled]) -> None:
    found = list(pickle.loads(pickle.dumps(Listing(Labeled, rows))))
    assert found == rows
    assert [type(row.label) for row in found] == [type(row.label) for row in rows]


def test_long_lists_take_little_memory() -> None:
    tracemalloc.start()
    listing = Listing(
        Entry,
        (
            Entry(f"class{number // 100:04d}/{number:08d}.jpeg", number // 100, f"{number} 1700000000000000000")
            for number in range(6_000)
        ),
    )
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 120 * 6_000
    assert listing[5_999].target == 59


@given(entries=ENTRIES, data=st.data())
def test_neighbours_are_cut_out_as_any_others(entries: list[Entry], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(entries)))
    stop = data.draw(st.integers(start, len(entries)))
    listing = Listing(Entry, entries)
    cut = listing.only(range(start, stop))
    assert list(cut) == entries[start:stop]
    assert list(listing) == entries
