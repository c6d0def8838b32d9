"""Looks at every row of a dataset once: brightness, outliers, copies. The page is in :mod:`mmload.inspection.page`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.inspection.class_rows import ClassRows, class_rows
from mmload.inspection.duplicates import Copies, copies
from mmload.inspection.thumbnails import Thumbnails, thumbnails
from mmload.store.dataset import Dataset, Split

DARK, LIGHT = 12.0, 243.0
"""Mean grays below and above which a row is called nearly black and nearly white."""

ONE_COLOR = 4.0
"""Standard deviation of grays below which a row is called one color."""

NARROW = 3.0
"""The longer side of an original over the shorter one from which on its aspect is called extreme."""

BINS = 16


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
class Pair:
    """Two rows that show one picture, by (split, row); ``equal``: every pixel is the same."""

    first: tuple[str, int]
    second: tuple[str, int]
    correlation: float
    equal: bool


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was seen.

    Attributes:
        brightness: split -> rows in each of 16 bins of their mean gray.
        sizes: split -> (height, width) of the originals, int64 [N, 2]; 0 where it is not known.
        outliers: the most conspicuous first.
        pairs: those across splits first.
        complete: whether the pairs are all.
        classes: split -> its classes, where rows have several.
    """

    brightness: dict[str, npt.NDArray[np.int64]]
    sizes: dict[str, npt.NDArray[np.int64]]
    outliers: list[Outlier]
    pairs: list[Pair]
    complete: bool
    classes: dict[str, ClassRows]


def report(dataset: Dataset, *, progress: Callable[[int, int], None] | None = None) -> Report:
    """Looks at every row of every split that has uint8 images.

    Args:
        dataset: an open dataset.
        progress: called with (rows done, all rows).
    """
    splits = {name: split for name, split in dataset.items() if _has_images(split) and len(split)}
    total, done = sum(len(split) for split in splits.values()), 0
    small: dict[str, Thumbnails] = {}
    for name, split in splits.items():
        before = done

        def step(rows: int, _: int, before: int = before) -> None:
            if progress is not None:
                progress(before + rows, total)

        small[name] = thumbnails(split, progress=step)
        done += len(split)
    sizes = {name: _sizes(split) for name, split in splits.items()}
    found = [one for name in splits for one in _outliers(name, small[name], sizes[name])]
    pairs = _copies(splits, small)
    return Report(
        brightness={
            name: np.histogram(each.mean, bins=BINS, range=(0, 256))[0].astype(np.int64) for name, each in small.items()
        },
        sizes=sizes,
        outliers=sorted(found, key=lambda one: -one.strength),
        pairs=_pairs(splits, pairs),
        complete=pairs.complete,
        classes={name: counts for name, split in dataset.items() if (counts := class_rows(split)) is not None},
    )


def _has_images(split: Split) -> bool:
    spec = split.fields.get("images")
    return spec is not None and spec.dtype == "uint8"


def _sizes(split: Split) -> npt.NDArray[np.int64]:
    sources = split.source(slice(None))
    return np.array([source.size or (0, 0) for source in sources], np.int64).reshape(-1, 2)


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


def _copies(splits: dict[str, Split], small: dict[str, Thumbnails]) -> Copies:
    grays = [small[name].grays for name in splits]
    return copies(np.concatenate(grays) if grays else np.empty((0, 16, 16), np.float32))


def _pairs(splits: dict[str, Split], found: Copies) -> list[Pair]:
    names, starts = list(splits), np.cumsum([0, *(len(split) for split in splits.values())])

    def place(index: int) -> tuple[str, int]:
        number = int(np.searchsorted(starts, index, "right")) - 1
        return names[number], index - int(starts[number])

    pairs = []
    for (one, other), correlation in zip(found.pairs.tolist(), found.correlation.tolist(), strict=True):
        first, second = place(one), place(other)
        images = [splits[name].reader.array("images", np.array([row])) for name, row in (first, second)]
        equal = images[0].shape == images[1].shape and bool((images[0] == images[1]).all())
        pairs.append(Pair(first=first, second=second, correlation=correlation, equal=equal))
    return sorted(pairs, key=lambda pair: (pair.first[0] == pair.second[0], not pair.equal, -pair.correlation))
