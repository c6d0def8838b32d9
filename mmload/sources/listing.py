"""Compact lists of millions of samples, which spill to a temporary file, and the split-off of samples for validation.

It reads no file of the source. The temporary file is anonymous, so nothing is left of it however the process ends.
"""

from __future__ import annotations

import hashlib
import marshal
import tempfile
import unicodedata
import weakref
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from io import FileIO
from typing import IO, Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from mmload.errors import RecipeError, SourceError, counted
from mmload.runtime.regular_files import read_at, write_at

_IN_MEMORY = 4 * 2**20
"""Bytes of a listing that stay in memory. A million samples take about 70 MB."""

_BLOCK = 16
"""Number of rows per block. Reading a row unpacks its block in 5 us; only the offsets of blocks are stored."""

_RANK = np.dtype([("stratum", "<i8"), ("high", ">u8"), ("low", ">u8")])
_RANKED = 2**20
"""Number of samples that are ranked at a time; a larger stratum is ranked as one."""

T = TypeVar("T", bound=tuple[Any, ...])


class Listing(Generic[T]):
    """Named tuples of texts, numbers, None or lists of these, by number.

    Append-only, picklable; one thread at a time may append, any may read.

    Raises:
        SourceError: at any use, if the temporary file cannot be written or read.
    """

    def __init__(self, kind: Callable[..., T], rows: Iterable[T] = ()) -> None:
        self._kind = kind
        self._file: FileIO | None = None
        self._in_file = 0  # bytes
        self._in_memory = bytearray()  # the blocks after those in the file
        self._ends = array("q")  # the offset after each block
        self._last: list[tuple[Any, ...]] = []  # rows after all blocks
        self._unpacked: tuple[int, Sequence[tuple[Any, ...]]] = 0, ()  # the block that was read last, and its first row
        self.extend(rows)

    def append(self, row: T) -> None:
        """Appends a row; keeps a lone surrogate, as in a file name that is not UTF-8."""
        self._last.append(tuple(row))
        if len(self._last) == _BLOCK:
            self._in_memory += marshal.dumps(self._last)
            self._ends.append(self._in_file + len(self._in_memory))
            self._last = []
            if len(self._in_memory) >= _IN_MEMORY:
                self._spill()

    def extend(self, rows: Iterable[T]) -> None:
        """Appends rows."""
        for row in rows:
            self.append(row)

    def only(self, rows: Iterable[int]) -> Listing[T]:
        """Returns these rows, in this order."""
        return Listing(self._kind, (self[row] for row in rows))

    def __len__(self) -> int:
        return _BLOCK * len(self._ends) + len(self._last)

    def __getitem__(self, index: int) -> T:
        first, rows = self._unpacked
        place = index - first
        if not 0 <= place < len(rows):
            if not 0 <= index < len(self):
                raise IndexError(f"{index} of {len(self)}")
            block, place = divmod(index, _BLOCK)
            rows = self._rows(block)
            if rows is not self._last:
                self._unpacked = index - place, rows
        return self._kind(*rows[place])

    def __iter__(self) -> Iterator[T]:
        for block in range(len(self._ends) + 1):
            for row in self._rows(block):
                yield self._kind(*row)

    def __getstate__(self) -> tuple[Any, ...]:
        return self._kind, self._ends, self._cut(0, self._in_file) + self._in_memory, self._last

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        Listing.__init__(self, state[0])
        _, self._ends, self._in_memory, self._last = state
        if len(self._in_memory) >= _IN_MEMORY:
            self._spill()

    def _rows(self, block: int) -> Sequence[tuple[Any, ...]]:
        if block == len(self._ends):
            return self._last
        packed = self._cut(self._ends[block - 1] if block else 0, self._ends[block])
        rows: list[tuple[Any, ...]] = marshal.loads(packed)
        return rows

    def _cut(self, start: int, stop: int) -> bytearray:
        """Returns the bytes of blocks, which are all in the file or all in memory."""
        if self._file is None or start >= self._in_file:
            return self._in_memory[start - self._in_file : stop - self._in_file]
        data = bytearray(stop - start)
        rest = memoryview(data)
        with _room():
            while rest and (count := read_at(self._file.fileno(), rest, stop - len(rest))):  # Linux reads 2 GiB at most
                rest = rest[count:]
        return data

    def _spill(self) -> None:
        with _room():
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="mmload-", buffering=0)  # noqa: SIM115  # closed with this
                weakref.finalize(self, self._file.close)
            write_at(self._file.fileno(), memoryview(self._in_memory), self._in_file)
        self._in_file, self._in_memory = self._in_file + len(self._in_memory), bytearray()


@contextmanager
def _room() -> Iterator[None]:
    """Names the place of temporary files in an error of the system."""
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"cannot write the list of samples to {tempfile.gettempdir()} "
            f"({error.strerror or error}); free space there, or set TMPDIR to another folder"
        ) from error


def with_held_out(
    splits: Mapping[str, Listing[T]],
    name: Callable[[T], str],
    stratum: Callable[[T], Hashable],
    fraction: float,
    seed: int,
) -> dict[str, Listing[T]]:
    """Returns the splits with a new split ``val``, the same share of every stratum of ``train``.

    ``name`` and ``stratum`` return the id of a sample and its group, usually its class; :func:`held_out` selects.

    Raises:
        RecipeError: if there is no ``train``, or a ``val`` already.
        SourceError: if no stratum has two samples.
    """
    if "train" not in splits or any(name.startswith("val") for name in splits):
        raise RecipeError(
            f"val_fraction takes val out of train, and the source has the splits {', '.join(splits)}; "
            "leave val_fraction out"
        )
    train = splits["train"]
    taken = held_out(((name(row), stratum(row)) for row in train), fraction, seed)
    if not taken.any():
        raise SourceError(
            "no class has two samples, so val_fraction has none to move to val; leave it out, or put samples "
            "into a val folder"
        )
    rest = train.only(row for row in range(len(train)) if not taken[row])
    others = {name: rows for name, rows in splits.items() if name != "train"}
    return {"train": rest, "val": train.only(np.flatnonzero(taken).tolist()), **others}


def check_fraction(fraction: object, seed: object) -> None:
    """Raises RecipeError unless the two are what :func:`held_out` takes, or the fraction is None."""
    if fraction is not None and (not isinstance(fraction, float) or not 0 < fraction < 1):
        raise RecipeError(f"val_fraction is {fraction!r}; use a fraction between 0 and 1, for example 0.1")
    if type(seed) is not int:
        raise RecipeError(f"seed is {seed!r}; use an integer")


def held_out(samples: Iterable[tuple[str, Hashable]], fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """Selects a share in (0, 1) of the samples, of which id and stratum are given, the same of every stratum: bool [N].

    In each stratum the samples are ranked by a hash of seed and id, and the first round(fraction x size) are taken, but
    at least one and never all (none of a single sample). The selection does not depend on the order of the files.
    """
    numbers: dict[Hashable, int] = {}
    sizes = array("q")
    with _room(), tempfile.SpooledTemporaryFile(_IN_MEMORY, prefix="mmload-") as ranks:
        for sample, stratum in samples:
            number = numbers.setdefault(stratum, len(numbers))
            if number == len(sizes):
                sizes.append(0)
            sizes[number] += 1
            digest = hashlib.blake2b(f"{seed}\0{sample}".encode("utf-8", "surrogateescape"), digest_size=16).digest()
            ranks.write(number.to_bytes(8, "little") + digest)
        taken = np.zeros(sum(sizes), np.bool_)
        first = ranked = 0
        for after, size in enumerate(sizes, 1):  # some strata at a time
            ranked += size
            if after == len(sizes) or ranked + sizes[after] > _RANKED:
                ranks.seek(0)
                taken[_lowest(ranks, range(first, after), fraction)] = True
                first, ranked = after, 0
    return taken


def _lowest(ranks: IO[bytes], strata: range, fraction: float) -> npt.NDArray[np.int64]:
    """Returns the samples of some strata that are held out: int64 [n]."""
    places, parts, start = [], [], 0
    while data := ranks.read(_RANKED * _RANK.itemsize):
        part = np.frombuffer(data, _RANK)
        own = np.flatnonzero((part["stratum"] >= strata.start) & (part["stratum"] < strata.stop))
        places.append(own + start)
        parts.append(part[own])
        start += len(part)
    place, rank = np.concatenate(places), np.concatenate(parts)
    order = np.lexsort((rank["low"], rank["high"], rank["stratum"]))
    number = rank["stratum"][order] - strata.start
    sizes = np.bincount(number, minlength=len(strata))
    shares = np.array([min(max(1, round(fraction * size)), size - 1) for size in sizes.tolist()], np.int64)
    first = np.cumsum(sizes) - sizes
    selected: npt.NDArray[np.int64] = place[order[np.arange(len(order)) < (first + shares)[number]]]
    return selected


def similar_names(names: Iterable[str], kind: str = "classes") -> Iterator[str]:
    """Yields notes on names of classes, or of another kind, that are probably the same."""
    same: dict[str, list[str]] = {}
    for name in names:
        plain = unicodedata.normalize("NFKC", name).casefold().strip().strip("\"'").strip()
        same.setdefault(plain, []).append(name)
    for group in same.values():
        if len(group) > 1:
            both = " and ".join(map(ascii, group))
            yield f"{both} are {kind} of their own, but differ only in case, quotes, spaces or their Unicode form"


class ListedSplit(Generic[T]):
    """Split whose samples are listed: the class of a source adds ``revision`` and ``read``, and some another ``id``."""

    def __init__(
        self,
        items: Listing[T] | list[T],
        classes: tuple[str, ...],
        notes: tuple[str, ...] = (),
        *,
        boxes: bool = False,
    ) -> None:
        self.items, self.classes, self._notes, self._boxes = items, classes, notes, boxes

    def only(self, items: Listing[T] | list[T]) -> Self:
        """Returns the same split with only these samples."""
        own = copy(self)
        own.items = items
        return own

    def part(self, samples: Sequence[int]) -> Self:
        items = self.items
        return self.only(items.only(samples) if isinstance(items, Listing) else [items[index] for index in samples])

    def __len__(self) -> int:
        return len(self.items)

    def has_boxes(self) -> bool:
        return self._boxes

    def notes(self) -> tuple[str, ...]:
        """Returns notes for the summary of the build."""
        return self._notes

    def add_notes(self, notes: tuple[str, ...]) -> None:
        """Adds notes for the summary of the build."""
        self._notes += notes

    def id(self, index: int) -> str:
        """Returns the first field of a sample's item: the path of its image, relative to the root."""
        name: str = self.items[index][0]
        return name


def note_doubles(splits: Mapping[str, ListedSplit[Any]], others: tuple[str, ...] = ()) -> None:
    """Adds a note to each split on images that are in it several times, or in an earlier split too.

    The first split gets other notes on all of them, too.
    """
    next(iter(splits.values())).add_notes(others)
    doubles = notes_on_doubles({name: map(each.id, range(len(each))) for name, each in splits.items()}, "image")
    for name, split in splits.items():
        split.add_notes(doubles[name])


def notes_on_doubles(splits: Mapping[str, Iterable[str]], kind: str, more: str = "") -> dict[str, tuple[str, ...]]:
    """Returns notes on files that are in a split several times, ended by ``more``, or in an earlier split too."""
    notes: dict[str, tuple[str, ...]] = {}
    earlier: dict[str, npt.NDArray[np.int64]] = {}
    for name, files in splits.items():
        own, count = unique_hashes(files)
        again = count - len(own)
        notes[name] = (f"{counted(again, kind)} listed more than once{more}",) if again else ()
        for other, others in earlier.items():
            if shared := len(np.intersect1d(own, others, assume_unique=True)):
                notes[name] += (f"{counted(shared, kind)} also in split {other}",)
        earlier[name] = own
    return notes


def unique_hashes(texts: Iterable[str]) -> tuple[npt.NDArray[np.int64], int]:
    """Returns the different hashes of some texts, int64 [n] and sorted, and how many texts there are.

    A set of a million texts would take 130 MB.
    """
    hashes = np.fromiter(map(hash, texts), np.int64)
    return np.unique(hashes), len(hashes)
