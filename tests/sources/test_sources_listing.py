"""Long lists in little memory: what went in comes out."""

from __future__ import annotations

import io
import pickle
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmload.errors import SourceError
from mmload.sources import columns
from mmload.sources.columns import Numbers, Texts
from mmload.sources.listing import Listing


class Entry(NamedTuple):
    name: str
    target: int
    revision: str


TEXTS = st.text(st.characters(exclude_categories=[]))  # lone surrogates, as of file names that are no UTF-8, included
ENTRIES = st.lists(st.builds(Entry, name=TEXTS, target=st.integers(-(2**63), 2**63 - 1), revision=TEXTS), max_size=8)


@pytest.fixture(autouse=True, params=[1, 40, 2**22], ids=["all in files", "files", "memory"])
def kept(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything here with columns that go to files after every value, now and then, and not at all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_IN_MEMORY", request.param)
        patch.setattr(columns, "_BLOCK", 16)
        yield


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
    texts, numbers = Texts(), Numbers()
    for text, number in (("a", 5), ("", -5)):
        texts.append(text)
        numbers.append(number)
    with pytest.raises(IndexError, match=f"{index} of 2"):
        texts[index]
    with pytest.raises(IndexError, match=f"{index} of 2"):
        numbers[index]
    assert [*numbers] == [5, -5]
    assert [*numbers.cut(1, 2)] == [-5]


def test_many_threads_read_what_one_wrote() -> None:
    listing = Listing(Entry, (Entry(f"{number:05d}", number, "x" * (number % 50)) for number in range(500)))

    def read(first: int) -> list[Entry]:
        return [listing[(first + 7 * step) % 500] for step in range(500)]

    with ThreadPoolExecutor(8) as pool:
        for first, entries in enumerate(pool.map(read, range(8))):
            assert [entry.target for entry in entries] == [(first + 7 * step) % 500 for step in range(500)]
            assert all(
                entry.name == f"{entry.target:05d}" and len(entry.revision) == entry.target % 50 for entry in entries
            )


def test_a_file_that_gives_less_than_asked_for_is_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_IN_MEMORY", 1)
    numbers = Numbers()
    for number in range(100):
        numbers.append(number)

    class Slow:
        def __init__(self, file: io.FileIO) -> None:
            self.seek, self.file = file.seek, file

        def read(self, size: int) -> bytes:
            return self.file.read(min(size, 7))

    monkeypatch.setitem(vars(numbers._bytes), "_file", Slow(numbers._bytes._file))
    assert [*numbers] == list(range(100))


@pytest.mark.parametrize(("dtype", "shape"), [(np.int64, ()), (np.float32, ()), (np.float32, (3,)), (np.uint8, (2, 5))])
@pytest.mark.parametrize("kept", [1, 2**20])
def test_arrays_come_back(dtype: type, shape: tuple[int, ...], kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_IN_MEMORY", kept)
    wanted = np.random.default_rng(0).integers(0, 200, (600, *shape)).astype(dtype)
    arrays = columns.Arrays(dtype, shape)
    for array in wanted:
        arrays.append(array)
    again = pickle.loads(pickle.dumps(arrays))
    for each in (arrays, again):
        assert np.array_equal(np.array(each), wanted)
        assert np.array(each).dtype == dtype
        assert np.array_equal(each[599], wanted[599])
    some = [5, 5, 599, 0]
    assert np.array_equal(np.array(arrays.only(some)), wanted[some])


def test_no_room_for_a_long_list_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(columns.tempfile, "TemporaryFile", full)
    monkeypatch.setattr(columns, "_IN_MEMORY", 100)
    with pytest.raises(SourceError, match=r"list of samples is long .* \(No space left on device\); .* set TMPDIR"):
        Listing(Entry, (Entry(str(number), number, "") for number in range(100)))


def test_long_lists_take_no_memory() -> None:
    tracemalloc.start()
    listing = Listing(Entry)
    for number in range(6_000):
        listing.append(
            Entry(f"class{number // 100:04d}/{number:08d}.jpeg", number // 100, f"{number} 1700000000000000000")
        )
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < (110 * 6_000 if columns._IN_MEMORY > 40 else 50_000)
    assert listing[5_999].target == 59


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
