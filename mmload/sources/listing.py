"""Compact lists of millions of samples, stored by column, and the split-off of samples for validation.

It reads no file of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, get_type_hints

import numpy as np

from mmload.errors import RecipeError, SourceError
from mmload.sources.columns import Numbers, Texts
from mmload.sources.files import held_out

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
        """Append a row."""
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)

    def extend(self, rows: Iterable[T]) -> None:
        """Append rows."""
        for row in rows:
            self.append(row)

    def column(self, name: str) -> Any:
        """One field of all rows, by row: :class:`Texts` or :class:`Numbers`."""
        return self._columns[name]

    def only(self, rows: Iterable[int]) -> Listing[T]:
        """These rows, in this order; a contiguous range is copied by column, in a twentieth of the time."""
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
    """The splits with ``val`` taken out of ``train``, the same share of every stratum; see :func:`held_out`.

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
