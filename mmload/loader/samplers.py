"""A user's sampler as the order of a loader, and the order of a loader as samplers for others."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from torch import Tensor
from torch.utils.data import Sampler

from mmload.errors import counted, shown
from mmload.loader.order import Occurrences, Order, RowSelection, Take
from mmload.store.row_numbers import Numbers, as_integer, row_numbers, rows_digest


class SamplerOrder:
    """Rows in the order of a user's sampler.

    As in a DataLoader, each rank has its own sampler: a DistributedSampler has already dealt its rows, and every rank
    reads all rows of a list. Lists and arrays are read again for every epoch. Resuming in the middle of an epoch skips
    the consumed rows, and is exact if the sampler is a function of its epoch.

    A loader calls a sampler's ``set_epoch`` with each epoch's number until the user calls it: once its ``epoch``
    differs from what a loader set last (0 before), no loader calls it again.

    The source is rows as :func:`~mmload.store.row_numbers.row_numbers` takes them, or what yields one at a time for
    each ``iter``.

    Raises:
        TypeError: if source is an iterator, which lasts one epoch only, or does not yield rows.
        IndexError: if a row of a list or array is out of range, or a mask has another length.
    """

    rank, world_size, ranks_here = 0, 1, (0,)
    is_drawn, taken_at_once = False, 1

    def __init__(self, source: Iterable[Any], rows: int) -> None:
        if isinstance(source, Iterator):
            raise TypeError(
                f"order is a {type(source).__name__}, which can be read only once; give a list or a torch Sampler"
            )
        if not isinstance(source, Iterable):
            raise TypeError(
                f"order is {shown(source)}; give 'block', an order of mmload.loader.orders, rows or a torch Sampler"
            )
        self.rows = rows
        self._source = source
        self._user_sets_epoch = False
        self._begun: Numbers | None = None
        self._fixed()

    @property
    def identity(self) -> str:
        """Kind of order in a loader's state."""
        return "rows" if self._fixed() is not None else f"sampler {type(self._source).__name__}"

    @property
    def digest(self) -> int:
        """Digest of listed rows, as they were when an epoch last began; for a sampler, its length."""
        if self._begun is not None:
            return rows_digest(self._begun)
        fixed = self._fixed()
        return len(self) if fixed is None else rows_digest(fixed)

    def __len__(self) -> int:
        """Returns the number of indices of an epoch; raises TypeError if the sampler does not know it."""
        fixed = self._fixed()
        return len(self._source if fixed is None else fixed)  # type: ignore[arg-type]  # a sampler says so itself

    @property
    def length(self) -> int:
        """Number of indices of an epoch."""
        return len(self)

    def check_ranks(self) -> None:
        """Checks nothing: the sampler is of one rank."""

    def remaining(self, offset: int = 0) -> int:
        """Returns the indices that remain in an epoch after the first ``offset``."""
        return max(0, len(self) - offset)

    def most_remaining(self, offset: int = 0) -> int:
        """Returns the same as :meth:`remaining`: other ranks are not known."""
        return self.remaining(offset)

    def consumed(self, stop: int, offset: int = 0) -> int:
        """Returns the indices of this rank that are used."""
        return offset + stop

    def begin(self, epoch: int) -> Take:
        """Draws the sampler for an epoch; returns what takes its rows. Several epochs may be in progress at once."""
        self._begun = begun = self._fixed()
        if begun is not None:
            return _CountedRows(lambda start, stop: begun[start:stop], self.rows).take
        self._set_epoch(epoch)
        length = len(self) if hasattr(self._source, "__len__") else None
        sampled = _SampledRows(iter(self._source), self.rows, length)
        sampled.drawn(0, 1)  # a generator __iter__ reads the sampler's epoch only at its first item
        return _CountedRows(sampled.drawn, self.rows).take

    def _fixed(self) -> Numbers | None:
        """Returns all rows if the sampler lists them; else None."""
        if isinstance(self._source, Tensor | np.ndarray | list | tuple | range):
            return row_numbers(self._source, self.rows, "the sampler's dataset")
        return None

    def _set_epoch(self, epoch: int) -> None:
        """Calls the sampler's ``set_epoch``, unless the user does."""
        set_epoch = getattr(self._source, "set_epoch", None)
        if set_epoch is None:
            return
        current = getattr(self._source, "epoch", None)
        if current is not None and current != _EPOCHS_SET.get(self._source, 0):
            self._user_sets_epoch = True
        if not self._user_sets_epoch:
            set_epoch(epoch)
            _EPOCHS_SET[self._source] = epoch


_EPOCHS_SET: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""Sampler -> the epoch that a loader set last."""


class _CountedRows:
    """Rows of one epoch, (start, stop) -> int64, of which it counts how often they come."""

    def __init__(self, drawn: Callable[[int, int], Numbers], rows: int) -> None:
        self._drawn, self._rows = drawn, rows
        self._occurrences, self._stop = Occurrences(rows), 0

    def take(self, start: int, stop: int, offset: int = 0) -> RowSelection:
        """Returns the rows at positions [start, stop) after ``offset``; cheap if they follow the last ones."""
        if offset + start != self._stop:
            self._occurrences = Occurrences(self._rows)
            self._occurrences.add(self._drawn(0, offset + start))
        rows = self._drawn(offset + start, offset + stop)
        self._stop = offset + start + len(rows)
        return RowSelection(rows, self._occurrences.add(rows))


class _SampledRows:
    """Rows of a sampler, read lazily. Not thread-safe."""

    def __init__(self, items: Iterator[Any], rows: int, length: int | None) -> None:
        self._items, self._rows, self._length = items, rows, length
        self._yielded = array("q")

    def drawn(self, start: int, stop: int) -> Numbers:
        """Returns the rows at positions [start, stop); reads more from the sampler if needed.

        Raises:
            TypeError: if the sampler yields anything but integers.
            ValueError: if it yields a row that does not exist, or fewer rows than its length.
        """
        wanted = stop if self._length is None else min(stop, self._length)
        for item in islice(self._items, max(0, wanted - len(self._yielded))):
            self._yielded.append(self._row(item))
        if self._length is not None and len(self._yielded) < wanted:
            raise ValueError(
                f"sampler ends after {counted(len(self._yielded), 'row')}, its length is {self._length}; "
                "let __len__ return how many rows it yields"
            )
        return np.array(self._yielded[start:stop], np.int64)

    def _row(self, item: object) -> int:
        row = as_integer(item)
        if row is None:
            raise TypeError(
                f"sampler yields {item!r}, expected one integer at a time; for a batch sampler, "
                "give the sampler inside it"
            )
        if not -self._rows <= row < self._rows:
            raise ValueError(f"sampler yields {row}, expected a row in [{-self._rows}, {self._rows - 1}]")
        return row % self._rows


class SkippableBatches:
    """Batches of a loader's next epoch for a DataLoader without workers, as Accelerate's ``skip_first_batches`` makes.

    It yields placeholders, of which that function drops the first ones. The DataLoader calls :meth:`make_batch` with
    each other one, and the loader's threads make the batches.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._batches: Iterator[Any] | None = None
        self._number = 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the loader's next epoch."""
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        self._batches, epoch = None, self._loader.epoch
        for number in range(len(self)):
            self._number = number
            yield []
        if self._batches is None:  # all are skipped
            self._loader.set_epoch(epoch + 1)

    def make_batch(self, placeholder: object) -> Any:
        """Returns the next batch; the first one decides how many are skipped."""
        if self._batches is None:
            self._batches = self._loader.begin_after(self._number)
        return next(self._batches)


class EpochSampler(Sampler[int]):
    """Rows of a loader's next epoch on its rank, by their place in ``loader.dataset``."""

    def __init__(self, order: Order, loader: Any) -> None:
        self._order, self._loader = order, loader

    @property
    def epoch(self) -> int:
        """Number of the next epoch."""
        return int(self._loader.epoch)

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the loader's next epoch."""
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        """Returns the number of rows of a complete epoch on this rank."""
        return self._order.remaining()

    def __iter__(self) -> Iterator[int]:
        rows: list[int] = self._loader.agreed_order().rows_for(self.epoch).tolist()
        return iter(rows)
