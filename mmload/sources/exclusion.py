"""Leaves samples out of a source: those that a list or a recipe names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mmload.errors import RecipeError, choices, counted
from mmload.records import Sample
from mmload.sources import HasNotes, SourceSplit, Splittable
from mmload.store.exclusion_list import Entry, listed, read_entries

Excluded = Mapping[str, Sequence[str]]
"""Split -> ids of the samples to leave out."""


def samples_of(path: str | Path, splits: Mapping[str, SourceSplit]) -> dict[str, list[str]]:
    """The samples that a list names.

    Args:
        path: the list.
        splits: the source's.

    Raises:
        RecipeError: if the list cannot be read, or a line names no sample, or several; it names the line.
    """
    entries = read_entries(path)
    wanted = {entry.name for entry in entries}
    found: dict[str, dict[str, str]] = {name: {} for name in splits}  # split -> name in the list -> id
    for split, samples in splits.items():
        for sample in map(samples.id, range(len(samples))):
            name = listed(sample)
            if name in wanted and found[split].setdefault(name, sample) != sample:
                raise RecipeError(f"{path}: {name!r} names several samples of split {split}; rename one of their files")
    excluded: dict[str, list[str]] = {}
    for entry in entries:
        split = _split_of(entry, found, f"{path}, line {entry.line}: {entry.name!r}", splits)
        excluded.setdefault(split, []).append(found[split][entry.name])
    return excluded


def without(splits: Mapping[str, SourceSplit], excluded: Excluded, *, all_there: bool) -> Mapping[str, SourceSplit]:
    """The splits without some samples.

    Args:
        splits: the source's.
        excluded: what to leave out.
        all_there: whether each of these has to be in the source.

    Raises:
        RecipeError: if that is so and one is not; if no sample of a split is left.
    """
    if all_there:
        for name in excluded:
            if name not in splits:
                raise RecipeError(f"exclude names the split {name!r}; the source has {choices(splits)}")
    left: dict[str, SourceSplit] = {}
    for name, split in splits.items():
        names = set(excluded.get(name, ()))
        if not names:
            left[name] = split
            continue
        kept = np.fromiter((split.id(index) not in names for index in range(len(split))), np.bool_, len(split))
        if all_there:
            gone = names - set(compress(map(split.id, range(len(split))), ~kept))
            if gone:
                raise RecipeError(f"exclude names {min(gone)!r}, which is no sample of split {name}")
        if not kept.any():
            raise RecipeError(f"exclude names all {counted(len(split), 'sample')} of split {name}; leave one at least")
        left[name] = _only(split, np.flatnonzero(kept))
    return left


def _split_of(
    entry: Entry, found: Mapping[str, Mapping[str, str]], where: str, splits: Mapping[str, SourceSplit]
) -> str:
    """The split that an entry is about."""
    if entry.split:
        if entry.split not in splits:
            raise RecipeError(f"{where} is to be left out of split {entry.split!r}; the source has {choices(splits)}")
        if entry.name in found[entry.split]:
            return entry.split
        raise RecipeError(f"{where} names no sample of split {entry.split}; {_example(splits[entry.split])}")
    having = [split for split in splits if entry.name in found[split]]
    if len(having) == 1:
        return having[0]
    if having:
        raise RecipeError(
            f"{where} is in the splits {choices(having)}; say in a third field which is meant, a line for each"
        )
    raise RecipeError(f"{where} names no sample; {_example(next(iter(splits.values())))}")


def _example(split: SourceSplit) -> str:
    return f"samples are named as in {listed(split.id(0))!r} (mmload where shows them)"


def _only(split: SourceSplit, kept: npt.NDArray[np.int64]) -> SourceSplit:
    """A split with only these samples."""
    return split.part(kept.tolist()) if isinstance(split, Splittable) else _Remaining(split, kept)


class _Remaining:
    """The remaining samples of a split that cannot make a part of itself.

    Args:
        split: all samples.
        kept: which of them remain, ascending.
    """

    def __init__(self, split: SourceSplit, kept: npt.NDArray[np.int64]) -> None:
        self._split, self._kept = split, kept

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by index."""
        return self._split.classes

    def __len__(self) -> int:
        return len(self._kept)

    def notes(self) -> tuple[str, ...]:
        """Those on all samples."""
        return self._split.notes() if isinstance(self._split, HasNotes) else ()

    def id(self, index: int) -> str:
        """The sample's name."""
        return self._split.id(int(self._kept[index]))

    def revision(self, index: int) -> str:
        """The sample's; with the first one also that of the first of all samples, which may stand for the split."""
        own = self._split.revision(int(self._kept[index]))
        return own if index or not self._kept[0] else f"{self._split.revision(0)} {own}"

    def read(self, index: int) -> Sample:
        """The sample.

        Raises:
            SampleError: if it cannot be read.
        """
        return self._split.read(int(self._kept[index]))
