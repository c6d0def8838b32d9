"""Compact lists of millions of samples, stored by column, and the split-off of samples for validation.

It reads no file of the source.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt

from mmload.errors import RecipeError, SourceError
from mmload.sources.columns import Bytes, Numbers, Texts

_RANK = np.dtype([("stratum", "<i8"), ("high", ">u8"), ("low", ">u8")])
_RANKED = 2**20
"""Samples of which it is decided at a time whether they are held out; of one stratum all, if they are more."""

T = TypeVar("T", bound=tuple[Any, ...])


class Listing(Generic[T]):
    """Named tuples by number. Append-only, picklable.

    Args:
        kind: their class; its fields are ``str`` or ``int``.
        rows: the first rows.
    """

    def __init__(self, kind: Callable[..., T], rows: Iterable[T] = ()) -> None:
        self._kind = kind
        self._columns: dict[str, Texts | Numbers] = {
            name: Texts() if type_ is str else Numbers() for name, type_ in get_type_hints(kind).items()
        }
        self.extend(rows)

    def append(self, row: T) -> None:
        """Appends a row."""
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)

    def extend(self, rows: Iterable[T]) -> None:
        """Appends rows."""
        for row in rows:
            self.append(row)

    def column(self, name: str) -> Any:
        """Returns one field of all rows: :class:`Texts` or :class:`Numbers`."""
        return self._columns[name]

    def only(self, rows: Iterable[int]) -> Listing[T]:
        """Returns these rows, in this order; copies a contiguous range by column, in a twentieth of the time."""
        if not isinstance(rows, range) or rows.step != 1 or not 0 <= rows.start <= rows.stop <= len(self):
            return Listing(self._kind, (self[row] for row in rows))
        part = Listing(self._kind)
        part._columns = {name: column.cut(rows.start, rows.stop) for name, column in self._columns.items()}
        return part

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, index: int) -> T:
        return self._kind(*(column[index] for column in self._columns.values()))

    def __iter__(self) -> Iterator[T]:
        return (self[index] for index in range(len(self)))


def with_held_out(
    splits: Mapping[str, Listing[T]],
    name: Callable[[T], str],
    stratum: Callable[[T], Hashable],
    fraction: float,
    seed: int,
) -> dict[str, Listing[T]]:
    """Returns the splits with ``val`` taken out of ``train``, the same share of every stratum.

    Args:
        splits: by name.
        name: a sample's id.
        stratum: the group of a sample, usually its class.
        fraction: in (0, 1).
        seed: another seed draws others.

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
            "no class has two samples, so val_fraction can hold none out; leave it out, or put samples into a "
            "val folder or split of their own"
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
    """Selects the samples of a validation split, the same share of every stratum.

    In each stratum the samples are ranked by a hash of seed and id, and the first round(fraction x size) are taken, but
    at least one and never all (of a single one: none). So it does not depend on the files' order.

    Args:
        samples: each one's id, and what it belongs to, usually its class.
        fraction: in (0, 1).
        seed: another seed draws others.

    Returns:
        bool [N].
    """
    numbers: dict[Hashable, int] = {}
    ranks, sizes = Bytes(), array("q")
    for sample, stratum in samples:
        number = numbers.setdefault(stratum, len(numbers))
        if number == len(sizes):
            sizes.append(0)
        sizes[number] += 1
        digest = hashlib.blake2b(f"{seed}\0{sample}".encode("utf-8", "surrogateescape"), digest_size=16).digest()
        ranks.append(number.to_bytes(8, "little") + digest)
    taken = np.zeros(sum(sizes), np.bool_)
    first = ranked = 0
    for after, size in enumerate(sizes, 1):  # some strata at a time
        ranked += size
        if after == len(sizes) or ranked + sizes[after] > _RANKED:
            taken[_lowest(ranks, range(first, after), fraction)] = True
            first, ranked = after, 0
    return taken


def _lowest(ranks: Bytes, strata: range, fraction: float) -> npt.NDArray[np.int64]:
    """Returns the samples of some strata that are held out: int64 [n]."""
    places, parts = [], []
    for start in range(0, len(ranks), _RANKED * _RANK.itemsize):
        stop = min(start + _RANKED * _RANK.itemsize, len(ranks))
        part = np.frombuffer(ranks.cut(start, stop), _RANK)
        own = np.flatnonzero((part["stratum"] >= strata.start) & (part["stratum"] < strata.stop))
        places.append(own + start // _RANK.itemsize)
        parts.append(part[own])
    place, rank = np.concatenate(places), np.concatenate(parts)
    order = np.lexsort((rank["low"], rank["high"], rank["stratum"]))
    number = rank["stratum"][order] - strata.start
    sizes = np.bincount(number, minlength=len(strata))
    shares = np.array([min(max(1, round(fraction * size)), size - 1) for size in sizes.tolist()], np.int64)
    first = np.cumsum(sizes) - sizes
    held: npt.NDArray[np.int64] = place[order[np.arange(len(order)) < (first + shares)[number]]]
    return held
