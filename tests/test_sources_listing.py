"""Long lists in little memory: what went in comes out."""

from __future__ import annotations

import pickle
import tracemalloc
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmload.sources.listing import Listing, Texts


class Entry(NamedTuple):
    name: str
    target: int
    stamp: str


TEXTS = st.text(st.characters(exclude_categories=[]))  # lone surrogates, as of file names that are no UTF-8, included
ENTRIES = st.lists(st.builds(Entry, name=TEXTS, target=st.integers(-(2**63), 2**63 - 1), stamp=TEXTS), max_size=8)


@given(entries=ENTRIES)
def test_rows_come_back(entries: list[Entry]) -> None:
    listing = Listing(Entry, entries)
    for found in (listing, pickle.loads(pickle.dumps(listing))):
        assert len(found) == len(entries)
        assert list(found) == entries
        assert list(found.column("name")) == [entry.name for entry in entries]
        assert list(found.column("target")) == [entry.target for entry in entries]
    assert list(listing.only(reversed(range(len(entries))))) == entries[::-1]


@pytest.mark.parametrize("index", [-1, 2])
def test_what_is_not_there_is_an_index_error(index: int) -> None:
    texts = Texts()
    texts.append("a")
    texts.append("")
    with pytest.raises(IndexError, match=f"text {index} of 2"):
        texts[index]


def test_a_file_takes_a_hundred_bytes_and_not_several() -> None:
    tracemalloc.start()
    listing = Listing(Entry)
    for number in range(20_000):
        listing.append(
            Entry(f"class{number // 100:04d}/{number:08d}.jpeg", number // 100, f"{number} 1700000000000000000")
        )
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 110 * 20_000
    assert listing[19_999].target == 199


@given(entries=ENTRIES, data=st.data())
def test_neighbours_are_cut_out_as_any_others(entries: list[Entry], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(entries)))
    stop = data.draw(st.integers(start, len(entries)))
    listing = Listing(Entry, entries)
    cut = listing.only(range(start, stop))
    assert list(cut) == entries[start:stop]
    cut.append(Entry("later", 1, ""))
    assert cut[len(cut) - 1].name == "later"
    assert list(listing) == entries
