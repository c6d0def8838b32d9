"""Looks at every row of a dataset once: brightness, outliers, copies. The page is in :mod:`mmload.inspection.page`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.inspection.class_rows import ClassRows, class_rows
from mmload.inspection.duplicates import Copies, copies, groups
from mmload.inspection.row_kernels import SIDE, Numbers
from mmload.inspection.thumbnails import Thumbnails, thumbnails
from mmload.store.dataset import Dataset, Split

DARK, LIGHT = 12.0, 243.0
"""Mean grays below and above which a row is called nearly black and nearly white."""

ONE_COLOR = 4.0
"""Standard deviation of grays below which a row is called one color."""

NARROW = 3.0
"""The longer side of an original over the shorter one from which on its aspect is called extreme."""

BINS = 16

MOST_PICTURES, MOST_ROWS = 48, 8
"""Pictures that are named, of those in several rows, and rows of each."""

_AT_ONCE = 65536  # samples' names


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """A row that stands out.

    Attributes:
        split: the split's name.
        row: its number.
        reason: what stands out.
        strength: how much; the greatest first.
    """

    split: str
    row: int
    reason: str
    strength: float


@dataclass(frozen=True, kw_only=True)
class CopiedPicture:
    """A picture that several rows show.

    Attributes:
        rows: (split, row) of two of them, in two splits if there are such; then those of a few more.
        count: how many show it.
        correlation: of the first two.
        equal: whether every pixel of the first two is the same.
    """

    rows: list[tuple[str, int]]
    count: int
    correlation: float
    equal: bool


@dataclass(frozen=True, kw_only=True)
class CopiedPictures:
    """All pictures that several rows show.

    Attributes:
        first: the most conspicuous: those in two splits, then equal rows, then the most alike ones.
        count: how many pictures.
        across: how many of them are in two splits.
        rows: how many rows show them.
        complete: whether these are all.
    """

    first: list[CopiedPicture]
    count: int
    across: int
    rows: int
    complete: bool


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was seen.

    Attributes:
        brightness: split -> rows in each of 16 bins of their mean gray.
        sizes: split -> (height, width) of the originals, int64 [N, 2]; 0 where it is not known.
        outliers: the most conspicuous first.
        copied: pictures that several rows show.
        classes: split -> its classes, where rows have several.
    """

    brightness: dict[str, npt.NDArray[np.int64]]
    sizes: dict[str, npt.NDArray[np.int64]]
    outliers: list[Outlier]
    copied: CopiedPictures
    classes: dict[str, ClassRows]


def report(dataset: Dataset, *, progress: Callable[[int, int], None] | None = None) -> Report:
    """Looks at every row of every split that has uint8 images.

    Args:
        dataset: an open dataset.
        progress: called with (rows done, all rows).
    """
    splits = {name: split for name, split in dataset.items() if _has_images(split) and len(split)}
    starts = np.cumsum([0, *(len(split) for split in splits.values())]).tolist()
    grays = np.empty((starts[-1], SIDE, SIDE), np.float32)
    small: dict[str, Thumbnails] = {}
    for (name, split), start, stop in zip(splits.items(), starts, starts[1:], strict=False):

        def step(rows: int, _: int, before: int = start) -> None:
            if progress is not None:
                progress(before + rows, len(grays))

        small[name] = thumbnails(split, grays=grays[start:stop], progress=step)
    sizes = {name: _sizes(split) for name, split in splits.items()}
    found = [one for name in splits for one in _outliers(name, small[name], sizes[name])]
    checksums = np.concatenate([np.empty(0, np.uint32), *(each.checksums for each in small.values())])
    pairs = copies(grays, checksums, starts=starts[:-1])
    return Report(
        brightness={
            name: np.histogram(each.mean, bins=BINS, range=(0, 256))[0].astype(np.int64) for name, each in small.items()
        },
        sizes=sizes,
        outliers=sorted(found, key=lambda one: -one.strength),
        copied=_copied(pairs, list(splits), np.array(starts)),
        classes={name: counts for name, split in dataset.items() if (counts := class_rows(split)) is not None},
    )


def _has_images(split: Split) -> bool:
    spec = split.fields.get("images")
    return spec is not None and spec.dtype == "uint8"


def _sizes(split: Split) -> npt.NDArray[np.int64]:
    sizes = np.zeros((len(split), 2), np.int64)
    for start in range(0, len(split), _AT_ONCE):
        sources = split.source(slice(start, start + _AT_ONCE))
        sizes[start : start + _AT_ONCE] = [source.size or (0, 0) for source in sources]
    return sizes


def _outliers(name: str, small: Thumbnails, sizes: npt.NDArray[np.int64]) -> list[Outlier]:
    longer, shorter = sizes.max(1), np.maximum(sizes.min(1), 1)
    aspects = np.where(longer > 0, longer / shorter, 1)
    reasons: tuple[tuple[str, Any], ...] = (
        ("nearly black", (DARK - small.mean) / DARK),
        ("nearly white", (small.mean - LIGHT) / (255 - LIGHT)),
        ("one color", (ONE_COLOR - small.std) / ONE_COLOR),
        ("extreme aspect", (aspects - NARROW) / NARROW),
    )
    return [
        Outlier(split=name, row=int(row), reason=reason, strength=float(strength[row]))
        for reason, strength in reasons
        for row in np.flatnonzero(strength > 0)
    ]


def _copied(found: Copies, names: list[str], starts: Numbers) -> CopiedPictures:
    """The pictures that pairs of rows show, by the splits that begin at these rows."""
    group = groups(found.pairs, int(starts[-1]))
    split = np.searchsorted(starts, np.arange(starts[-1]), "right") - 1
    across = split[found.pairs[:, 0]] != split[found.pairs[:, 1]]
    order = np.lexsort((-found.correlation, ~found.equal, ~across))  # the first pair of a picture is the one to show
    of_pair = group[found.pairs[order, 0]]
    pictures, first = np.unique(of_pair, return_index=True)
    shown = np.sort(first)
    in_group = np.flatnonzero(np.isin(group, pictures))
    by_group = in_group[np.argsort(group[in_group], kind="stable")]
    ends = np.searchsorted(group[by_group], pictures, "right")
    listed = []
    for place in shown[:MOST_PICTURES].tolist():
        pair, number = order[place], int(np.searchsorted(pictures, of_pair[place]))
        members = by_group[ends[number - 1] if number else 0 : ends[number]]
        rows = [*found.pairs[pair].tolist(), *np.setdiff1d(members, found.pairs[pair])[: MOST_ROWS - 2].tolist()]
        listed.append(
            CopiedPicture(
                rows=[(names[split[row]], int(row - starts[split[row]])) for row in rows],
                count=len(members),
                correlation=float(found.correlation[pair]),
                equal=bool(found.equal[pair]),
            )
        )
    return CopiedPictures(
        first=listed,
        count=len(pictures),
        across=int(across[order][first].sum()),
        rows=len(in_group),
        complete=found.complete,
    )
