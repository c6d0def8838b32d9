"""Orders to give a Loader: ``Loader(..., order=weighted(weights))``.

Each is a pure function of (seed, epoch, position): the same rows for any number of ranks, resumable at any step. A row
that comes several times in an epoch gets random draws of its own each time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset

from mmload.errors import UsageError, choices, counted, shown
from mmload.loader.order import (
    EpochOrder,
    OrderContext,
    Sampling,
    bind_order,
    occurrences_in,
    order_by_aspect,
    shuffled,
)
from mmload.runtime.random_words import GOLDEN, MAX_ROWS, Words, key_of, keys_of, mix_word, permute_words
from mmload.store.dataset import View
from mmload.store.row_numbers import Numbers, as_integer, row_blocks, row_numbers, rows_digest

_DRAW, _CLASS, _MEMBER, _PART, _OF_PART = 5, 6, 7, 8, 9  # purposes of keys; the shuffles have 1 to 4


def weighted(weights: object, num_samples: int | None = None) -> Sampling:
    """Draws rows with replacement, in proportion to their weights, as torch's ``WeightedRandomSampler``.

    It takes 8 bytes per row.

    Args:
        weights: one number from 0 per row (of the subset, if the Loader reads one), in any unit: a tensor, an array or
            a list.
        num_samples: samples of an epoch; None: as many as rows.

    Raises:
        TypeError: if weights are no numbers.
        ValueError: if a weight is negative or not finite, all are 0, or ``num_samples`` is no integer from 1; when the
            Loader is made, if there are not as many weights as rows.
    """
    sums = _sums(_weights("weights", weights))
    total = float(sums[-1:].sum())
    if not 0 < total < math.inf:
        raise ValueError(
            f"weights are {shown(weights)}, which sum to {total:g}; give finite numbers from 0 of which some are above "
            "0"
        )
    length = _length("num_samples", num_samples)

    text = f"weighted({counted(len(sums), 'weight')}, num_samples={num_samples})"
    return Sampling(text, partial(_weighted, sums, length))


def balanced(labels: object = "targets", num_samples: int | None = None) -> Sampling:
    """Draws all classes equally often: each once in every run of as many samples as there are classes.

    The rows of a class come in a random order, all of them before one comes again; the rows of small classes therefore
    come more often. It takes 4 bytes per row.

    Args:
        labels: a field with one integer per row; or one integer per row: a tensor, an array or a list.
        num_samples: samples of an epoch; None: as many as rows.

    Raises:
        ValueError: if ``num_samples`` is no integer from 1.
        UsageError, ValueError, TypeError: when the Loader is made, if there is no such field, its values are no
            integers, or there are not as many as rows.
    """
    text = f"balanced({shown(labels)}, num_samples={num_samples})"
    return Sampling(text, partial(_balanced, labels, _length("num_samples", num_samples)))


def repeated(times: int = 3) -> Sampling:
    """Repeats every row ``times`` times in succession, each time with draws of its own (repeated augmentation).

    An epoch has as many samples as the dataset has rows, so it shows one in ``times`` of them (Hoffer and others 2020),
    as torchvision's ``RASampler`` and timm's ``RepeatAugSampler``. As there, several ranks get one of them each. They
    also round the epoch down to a multiple of 256 samples; this does not.

    Raises:
        ValueError: if ``times`` is no integer from 1.
    """
    number = _count("times", times, most=1 << 20)
    return Sampling(f"repeated({number})", partial(_repeated, number))


def classes(p: int, k: int, labels: object = "targets", batches: int | None = None) -> Sampling:
    """Makes batches of ``p`` classes with ``k`` rows of each, for metric learning.

    ``batch_size`` has to be p * k. A class comes once before all others have come, except for those that do not fill a
    batch at the end; its rows come in a random order. A class with fewer than k rows gives them several times, with
    draws of their own.

    Args:
        p: classes of a batch, on each rank.
        k: rows of a class in a batch.
        labels: a field with one integer per row; or one integer per row: a tensor, an array or a list.
        batches: batches of an epoch, of all ranks together; None: as many as p * k fits into the rows, at least one.

    Raises:
        ValueError: if a number is no integer from 1; when the Loader is made, if there are fewer than ``p`` classes, or
            its ``batch_size`` is another.
        UsageError, TypeError: when the Loader is made, if there is no such field, or its values are no integers.
    """
    per_batch, each = _count("p", p), _count("k", k)
    text = f"classes(p={per_batch}, k={each}, labels={shown(labels)}, batches={batches})"
    return Sampling(text, partial(_classes, per_batch, each, labels, _length("batches", batches)))


def mixed(shares: Mapping[Any, float] | Sequence[float], num_samples: int | None = None) -> Sampling:
    """Mixes several datasets, which a ``ConcatDataset`` joins, in fixed shares.

    In every 64 samples (more where a share is small) the shares are exact but for one sample. All rows of a dataset
    come, in a random order, before one comes again.

    Args:
        shares: shares of the parts of the ConcatDataset, in its order, in any unit; or part -> share.
        num_samples: samples of an epoch; None: as many as rows.

    Raises:
        TypeError: if a share is no number; when the Loader is made, if it reads no ConcatDataset.
        ValueError: if a share is not above 0, or ``num_samples`` is no integer from 1; when the Loader is made, if
            there are not as many shares as parts, or a key is none of the parts.
    """
    keys, given = ((*shares,), [*shares.values()]) if isinstance(shares, Mapping) else ((), shares)
    values = _weights("shares", given)
    if not len(values) or not np.isfinite(values).all() or values.min() <= 1e-6 * values.sum():
        raise ValueError(f"shares are {values.tolist()}; give a number above 0 (of a millionth or more) for each part")
    text = f"mixed({shown(shares)}, num_samples={num_samples})"
    return Sampling(text, partial(_mixed, values, keys, _length("num_samples", num_samples)))


def subset(rows: object) -> Sampling:
    """Shuffles listed rows, each as often as it is listed. It takes 8 bytes per row.

    Args:
        rows: row numbers, or one boolean a row: a tensor, an array or a list.

    Raises:
        TypeError, IndexError: when the Loader is made, if they are no rows of what it reads.
    """
    return Sampling(f"subset({shown(rows)})", partial(_subset, rows))


def by_aspect(order: str | Sampling = "shuffled") -> Sampling:
    """Makes batches of variable-size images of similar shapes, of the rows of another order.

    If no step gives the images of a batch one size, each batch has the size of its largest, padded with black.

    Args:
        order: "shuffled"; "sequential", for batches from the highest images to the widest; "block"; or an order of
            this module that does not make batches itself.

    Raises:
        ValueError, UsageError: when the Loader is made, if there is no such order, it makes batches itself, or images
            have one size.
    """
    if not isinstance(order, str | Sampling):
        raise TypeError(f"order is {shown(order)}; give 'shuffled', 'sequential', 'block' or an order of this module")
    return Sampling(f"by_aspect({order!r})", partial(_by_aspect, order), framed=True)


# What makes the order of each Sampling when a Loader is made, and the rows at its positions: functions of this module,
# so that both can be pickled.


def _weighted(sums: NDArray[np.float64], length: int | None, context: OrderContext) -> EpochOrder:
    rows = len(context.view)
    if rows != len(sums):
        raise ValueError(f"got {counted(len(sums), 'weight')} for {counted(rows, 'row')}; give one each")
    identity = f"weighted by {rows_digest(sums):016x}, {length or rows} samples"
    rows_at = partial(_weighted_rows, sums, context.seed)
    return EpochOrder(rows=rows, length=length or rows, identity=identity, rows_at=rows_at)


def _weighted_rows(sums: NDArray[np.float64], seed: int, positions: Words, epoch: int) -> tuple[Words, Words]:
    """Inverts the cumulative distribution: a row is the first whose cumulative weight exceeds a uniform draw.

    Returns also the positions + 1, because the number of earlier occurrences of a row is unknown without drawing all
    earlier positions.
    """
    drawn = _units(positions, key_of(seed, epoch, _DRAW)) * sums[-1]
    # A product that is rounded up to the whole belongs to the last row that has a weight.
    drawn = np.minimum(drawn, np.nextafter(sums[-1:], 0))
    return np.searchsorted(sums, drawn, "right").astype(np.uint64), positions + np.uint64(1)


def _units(positions: Words, key: int) -> NDArray[np.float64]:
    """Returns a number in [0, 1) for each position, of 53 bits."""
    words: Words = mix_word(positions * np.uint64(GOLDEN) + np.uint64(key))
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassMembers:
    """Rows of each class that has any.

    Attributes:
        rows: int64 or int32 [N], the rows of the first class, then of the second, ascending.
        starts: int64 [C + 1], where each class begins.
    """

    rows: NDArray[np.signedinteger]
    starts: NDArray[np.int64]

    @property
    def count(self) -> int:
        """Number of classes."""
        return len(self.starts) - 1

    @property
    def digest(self) -> int:
        """Digest of the rows of all classes."""
        return rows_digest(self.rows) ^ rows_digest(self.starts)

    def drawn(self, classes: Words, numbers: Words, cycles: Words, key: int) -> Words:
        """Returns row ``numbers`` of each class, in an order that differs by class and cycle."""
        keys = keys_of(cycles * np.uint64(self.count) + classes, key)
        places = permute_words(numbers, self.sizes(classes), keys)
        rows: Words = self.rows[self.starts.view(np.uint64)[classes] + places].astype(np.uint64)
        return rows

    def sizes(self, classes: Words) -> Words:
        """Returns the number of rows of each of these classes."""
        starts = self.starts.view(np.uint64)
        sizes: Words = starts[classes + np.uint64(1)] - starts[classes]
        return sizes


def _balanced(labels: object, length: int | None, context: OrderContext) -> EpochOrder:
    members, rows = _members(labels, context.view), len(context.view)
    identity = f"balanced over {members.count} classes {members.digest:016x}, {length or rows} samples"
    rows_at = partial(_balanced_rows, members, context.seed)
    return EpochOrder(rows=rows, length=length or rows, identity=identity, rows_at=rows_at)


def _balanced_rows(members: ClassMembers, seed: int, positions: Words, epoch: int) -> tuple[Words, Words]:
    """Returns the next row of each position's class, and how often the class has given all of its rows before."""
    runs, places = np.divmod(positions, np.uint64(members.count))
    classes = permute_words(places, members.count, keys_of(runs, key_of(seed, epoch, _CLASS)))
    cycles, numbers = np.divmod(runs, members.sizes(classes))
    return members.drawn(classes, numbers, cycles, key_of(seed, epoch, _MEMBER)), cycles


def _repeated(times: int, context: OrderContext) -> EpochOrder:
    rows = len(context.view)
    rows_at = partial(_repeated_rows, times, rows, context.seed)
    return EpochOrder(rows=rows, length=rows, identity=f"repeated {times} times", rows_at=rows_at)


def _repeated_rows(times: int, rows: int, seed: int, positions: Words, epoch: int) -> tuple[Words, Words]:
    """Returns the shuffled rows, each at ``times`` positions, and the number of each repetition, from 0."""
    places, occurrences = np.divmod(positions, np.uint64(times))
    return shuffled(places, rows, seed, epoch), occurrences


def _classes(per_batch: int, each: int, labels: object, batches: int | None, context: OrderContext) -> EpochOrder:
    members, rows = _members(labels, context.view), len(context.view)
    if members.count < per_batch:
        raise ValueError(f"p is {per_batch}, and the number of classes that have rows is {members.count}; use fewer")
    size = per_batch * each
    many = batches or max(1, rows // size)
    identity = f"{many} batches of {each} of {per_batch} classes, of {members.count} classes {members.digest:016x}"
    rows_at = partial(_class_rows, members, per_batch, each, context.seed)
    return EpochOrder(rows=rows, length=many * size, identity=identity, rows_at=rows_at, group_size=size)


def _class_rows(
    members: ClassMembers, per_batch: int, per_class: int, seed: int, positions: Words, epoch: int
) -> tuple[Words, Words]:
    """Returns rows of each position's class, and how often the class has given all of its rows before.

    Within a cycle no class comes twice; classes that do not fill a batch at its end are left out. So are the rows of a
    class that remain when it has given as many ``per_class`` as it has. A class with fewer rows gives them several
    times.
    """
    groups, places = np.divmod(positions, np.uint64(per_class))
    usable = members.count // per_batch * per_batch
    cycles, numbers = np.divmod(groups, np.uint64(usable))
    classes = permute_words(numbers, members.count, keys_of(cycles, key_of(seed, epoch, _CLASS)))
    sizes, each = members.sizes(classes), np.uint64(per_class)
    rounds, turns = np.divmod(cycles, np.maximum(sizes // each, np.uint64(1)))
    again, numbers = np.divmod(turns * each + places, sizes)
    rows = members.drawn(classes, numbers, rounds, key_of(seed, epoch, _MEMBER))
    per_round = (each + sizes - np.uint64(1)) // sizes
    return rows, rounds * per_round + again


def _mixed(
    shares: NDArray[np.floating], keys: tuple[object, ...], length: int | None, context: OrderContext
) -> EpochOrder:
    dataset = context.dataset
    if type(dataset) is not ConcatDataset:
        raise TypeError(
            f"order=mixed(...) reads a ConcatDataset of the parts, not {type(dataset).__name__}: give the Loader "
            "torch.utils.data.ConcatDataset([a, b])"
        )
    parts: list[Any] = list(dataset.datasets)
    if len(shares) != len(parts):
        raise ValueError(f"got {counted(len(shares), 'share')} for {counted(len(parts), 'part')}; give one each")
    if keys:
        places = [next((n for n, key in enumerate(keys) if key is part), None) for part in parts]
        if None in places:
            raise ValueError(
                f"shares has no key for part {places.index(None)} of the ConcatDataset; give each part a share"
            )
        shares = shares[[place for place in places if place is not None]]
    sizes = tuple(len(part) for part in parts)
    if 0 in sizes:
        raise ValueError(f"part {sizes.index(0)} of the ConcatDataset has no rows; leave it out")
    ranges = _Ranges(sizes=sizes, shares=tuple((shares / shares.sum()).tolist()), seed=context.seed)
    rows = len(context.view)
    listed = ", ".join(f"{share:g} of {size}" for share, size in zip(ranges.shares, sizes, strict=True))
    identity = f"mixed {listed}, {length or rows} samples"
    return EpochOrder(rows=rows, length=length or rows, identity=identity, rows_at=ranges.rows_at)


@dataclass(frozen=True, kw_only=True)
class _Ranges:
    """Ranges of rows in fixed shares, exact in every run of ``run`` positions but for one row.

    A range gives all of its rows, shuffled, before it gives one of them again, in a different order each time.

    Attributes:
        sizes: rows of each range.
        shares: share of each range; they sum to 1.
        seed: seed of the loader.
    """

    sizes: tuple[int, ...]
    shares: tuple[float, ...]
    seed: int

    @property
    def run(self) -> int:
        """Number of positions per run, so that each range has three or more of them."""
        return max(64, *(int(4 / share) for share in self.shares))

    def rows_at(self, positions: Words, epoch: int) -> tuple[Words, Words]:
        """Returns the next row of each position's range, and how often the range has given all of its rows before."""
        parts, numbers = self._places(positions, epoch)
        sizes = np.array(self.sizes, dtype=np.uint64)
        firsts = np.cumsum(sizes) - sizes
        keys = np.array([key_of(self.seed, epoch, _OF_PART, part) for part in range(len(sizes))], dtype=np.uint64)
        cycles, places = np.divmod(numbers, sizes[parts])
        return permute_words(places, sizes[parts], keys_of(cycles, keys[parts])) + firsts[parts], cycles

    def _places(self, positions: Words, epoch: int) -> tuple[NDArray[np.int64], Words]:
        """Returns the range of each position, and how many positions the range had before it."""
        runs, places = np.divmod(positions, np.uint64(self.run))
        places = permute_words(places, self.run, keys_of(runs, key_of(self.seed, epoch, _PART)))
        before = self._positions_below(runs)
        within = self._positions_below(runs + np.uint64(1)) - before
        parts = (places >= within[1:-1]).sum(0)
        each = np.arange(len(positions))
        numbers: Words = before[parts + 1, each] - before[parts, each] + places - within[parts, each]
        return parts, numbers

    def _positions_below(self, runs: Words) -> Words:
        """Returns the positions of all ranges below each one in so many runs, uint64 [ranges + 1, B]."""
        below = np.array([0.0, *np.cumsum(self.shares[:-1]), 1.0])
        positions: Words = np.floor(runs.astype(np.float64) * self.run * below[:, None] + 0.5).astype(np.uint64)
        return positions


def _subset(rows: object, context: OrderContext) -> EpochOrder:
    count = len(context.view)
    listed = row_numbers(rows, count, "the loader's dataset")
    identity = f"subset {rows_digest(listed):016x}, shuffled"
    rows_at = partial(_listed_rows, listed, occurrences_in(listed, count), context.seed)
    return EpochOrder(rows=count, length=len(listed), identity=identity, rows_at=rows_at)


def _listed_rows(
    listed: Numbers, occurrences: Numbers | None, seed: int, positions: Words, epoch: int
) -> tuple[Words, Words | None]:
    """Returns the listed rows at the shuffled positions, and their occurrences in the list."""
    places = shuffled(positions, len(listed), seed, epoch)
    again = None if occurrences is None else occurrences[places].view(np.uint64)
    return listed[places].view(np.uint64), again


def _by_aspect(order: str | Sampling, context: OrderContext) -> EpochOrder:
    return order_by_aspect(bind_order(order, context), context)


def _length(name: str, value: object) -> int | None:
    """Returns an integer from 1, or None."""
    return None if value is None else _count(name, value)


def _count(name: str, value: object, most: int = MAX_ROWS) -> int:
    """Returns an integer from 1."""
    number = as_integer(value)
    if number is None or not 1 <= number <= most:
        limit = "" if most == MAX_ROWS else f" to {most}"
        raise ValueError(f"{name} is {shown(value)}; give an integer from 1{limit}")
    return number


def _on_host(values: Any) -> NDArray[Any]:
    """Returns a tensor, an array or a list as an array."""
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)


def _weights(name: str, weights: object) -> NDArray[np.floating]:
    """Returns weights, the argument ``name``, as float64 or float32 [N]."""
    try:
        array = _on_host(weights)
        if array.dtype.kind not in "iuf":
            raise TypeError
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} are {shown(weights)}; give a tensor, an array or a list of numbers") from error
    if array.ndim != 1:
        raise ValueError(f"{name} have the shape {list(array.shape)}; give them in one dimension")
    narrow = array.dtype == np.float32
    return np.ascontiguousarray(array, dtype=np.float32 if narrow else np.float64)


def _sums(weights: NDArray[np.floating]) -> NDArray[np.float64]:
    """Returns the cumulative weights: a copy, as the caller may change the weights."""
    if not (lowest := weights.min(initial=0)) >= 0:  # NaN is not
        raise ValueError(f"weights have {lowest:g}; give numbers from 0")
    return np.cumsum(weights, dtype=np.float64)


def _members(labels: object, view: View) -> ClassMembers:
    """Returns the rows of each class."""
    values = _labels_of(labels, view)
    if not len(values):
        raise ValueError("the dataset has no rows to draw classes from; give one with rows")
    if values.min() < 0 or values.max() >= max(1 << 16, len(values)):
        values = np.unique(values, return_inverse=True)[1].astype(np.int64)
    counts = np.bincount(values)
    short = values.astype(np.uint16) if len(counts) <= 1 << 16 else values  # which numpy sorts in a quarter of the time
    kind = np.int32 if len(values) < 1 << 31 else np.int64
    rows: NDArray[np.signedinteger] = np.argsort(short, kind="stable").astype(kind)
    return ClassMembers(rows=rows, starts=np.concatenate([[0], np.cumsum(counts[counts > 0])]).astype(np.int64))


def _labels_of(labels: object, view: View) -> NDArray[np.signedinteger]:
    """Returns one integer per row of the view, int64 or int32."""
    if isinstance(labels, str):
        spec = view.rows.fields.get(labels)
        if spec is None:
            raise UsageError(f"split {view.rows.name!r} has no field {labels!r}; it has {choices(view.rows.fields)}")
        if spec.shape or spec.torch_dtype.is_floating_point:
            raise ValueError(
                f"field {labels!r} is {spec.torch_dtype} of the shape {list(spec.shape)} per row; give one with one "
                "integer per row, or a list of one integer per row"
            )
        read = np.empty(len(view), np.int64)
        for rows in row_blocks(len(view)):
            read[rows] = view.rows.reader.array(labels, view.ids(rows))
        return read
    array = _on_host(labels)
    if array.dtype.kind not in "iub" or array.ndim != 1:
        raise TypeError(f"labels are {shown(labels)}; give the name of a field, or a list of one integer per row")
    if len(array) != len(view):
        raise ValueError(f"got {counted(len(array), 'label')} for {counted(len(view), 'row')}; give one each")
    return np.ascontiguousarray(array, dtype=array.dtype if array.dtype == np.int32 else np.int64)
