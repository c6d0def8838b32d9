"""A list of samples that may be millions long, a column at a time: some 80 bytes a file in place of 260.

Comes in: named tuples of texts and whole numbers, in order. Goes out: any of them again, or one column; and which of
them are held out for validation. Touches no file.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, get_type_hints

from mmload.errors import RecipeError, SourceError
from mmload.sources.files import held_out

T = TypeVar("T", bound=tuple[Any, ...])


class Texts:
    """Texts in one block of memory, 8 bytes each beside their own. Append-only, picklable."""

    def __init__(self) -> None:
        self._block = bytearray()
        self._ends = array("q", [0])

    def append(self, text: str) -> None:
        """Add one; a lone surrogate, as in a file name that is no UTF-8, comes back as it was."""
        self._block += text.encode("utf-8", "surrogatepass")
        self._ends.append(len(self._block))

    def cut(self, start: int, stop: int) -> Texts:
        """Those from ``start`` up to ``stop``, copied."""
        first = self._ends[start]
        part = Texts()
        part._block = self._block[first : self._ends[stop]]
        part._ends = array("q", (end - first for end in self._ends[start : stop + 1]))
        return part

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        if index < 0 or index >= len(self):
            raise IndexError(f"text {index} of {len(self)}")
        return self._block[self._ends[index] : self._ends[index + 1]].decode("utf-8", "surrogatepass")


class Listing(Generic[T]):
    """Named tuples by number. Append-only, picklable.

    Args:
        kind: their class; its fields are ``str`` or ``int``.
        rows: what to begin with.
    """

    def __init__(self, kind: Callable[..., T], rows: Iterable[T] = ()) -> None:
        self._kind = kind
        self._columns = {name: Texts() if type_ is str else array("q") for name, type_ in get_type_hints(kind).items()}
        self.extend(rows)

    def append(self, row: T) -> None:
        """Add one at the end."""
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)

    def extend(self, rows: Iterable[T]) -> None:
        """Add several at the end."""
        for row in rows:
            self.append(row)

    def column(self, name: str) -> Sequence[Any]:
        """One field of all rows, by row."""
        return self._columns[name]  # type: ignore[return-value]  # all of a Sequence that is used: length and index

    def only(self, rows: Iterable[int]) -> Listing[T]:
        """Those rows, in that order; neighbours by column, which takes a twentieth of the time."""
        if not isinstance(rows, range) or rows.step != 1 or not 0 <= rows.start <= rows.stop <= len(self):
            return Listing(self._kind, (self[row] for row in rows))
        part = Listing(self._kind)
        for name, column in self._columns.items():
            if isinstance(column, Texts):
                part._columns[name] = column.cut(rows.start, rows.stop)
            else:
                part._columns[name] = column[rows.start : rows.stop]
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
        name: what a sample is called.
        stratum: what a sample belongs to, usually its class.
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
    taken = held_out([name(row) for row in train], [stratum(row) for row in train], fraction, seed)
    if not taken:
        raise SourceError("no class has two samples, so val_fraction can hold none out")
    rest = train.only(row for row in range(len(train)) if row not in taken)
    others = {name: rows for name, rows in splits.items() if name != "train"}
    return {"train": rest, "val": train.only(sorted(taken)), **others}
