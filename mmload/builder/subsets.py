"""Named subsets of a dataset: a list of rows of a split that is opened as a split, saved as a new version."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mmload.builder.dataset_change import changed, only_split, open_to_change
from mmload.builder.previous_version import kind_of, stored_rows
from mmload.builder.shards import BuildPaths, write_list
from mmload.errors import UsageError, choices
from mmload.store.dataset import Dataset, Split
from mmload.store.manifest import RESERVED, VERSIONS, SplitRecord, is_name
from mmload.store.row_numbers import row_numbers
from mmload.store.versions import next_version

if TYPE_CHECKING:
    from mmload.store.dataset import Rows


def save_subset(
    dataset: Dataset | str | Path, name: str, rows: Rows | Sequence[str], *, split: str | None = None
) -> Dataset:
    """Saves rows of a split under a name, which opens as a split: a new version of the dataset; no pixel is copied.

    Args:
        dataset: the dataset, in its current version, or its folder.
        name: name of the subset; a subset of this name is replaced.
        rows: rows in the order of the subset, as :meth:`Split.rows` takes them, or ids of their samples; each once.
        split: split of the rows, which may be a subset; None: the only one.

    Returns:
        The dataset, opened in its new version.

    Raises:
        UsageError: if the name is that of a split or none, there is no such split or sample, a row is given twice or
            none at all, or the dataset is opened in a version that is not the current one.
        IndexError, TypeError: as :meth:`Split.rows`.
        BuildError: if another command is changing the dataset, or writing fails.
    """
    is_of_ids = not isinstance(rows, slice | str) and len(rows) > 0 and all(isinstance(row, str) for row in rows)
    opened = open_to_change(dataset, by_number=not is_of_ids)
    _check_name(opened, name)
    chosen = only_split(opened, split)
    numbers = _numbers(chosen, rows, is_of_ids)
    of_subset = stored_rows(chosen).chosen(numbers)

    def with_subset(paths: BuildPaths) -> dict[str, SplitRecord]:
        write = partial(write_list, paths, name)
        kind, owner = kind_of(chosen.record, chosen.record.placed_shards), chosen.record.subset_of or chosen.name
        record = of_subset.record(write, next_version(opened.manifest), kind, owner)
        return {**opened.manifest.splits, name: record}

    return changed(opened, f"subset {name}", with_subset)


def remove_subset(dataset: Dataset | str | Path, name: str) -> Dataset:
    """Removes a subset, which stays in earlier versions of the dataset.

    Args:
        dataset: the dataset, in its current version, or its folder.
        name: name of the subset.

    Returns:
        The dataset, opened in its new version.

    Raises:
        UsageError: if there is no subset of this name, or the dataset is opened in an earlier version.
        BuildError: if another command is changing the dataset, or writing fails.
    """
    opened = open_to_change(dataset)
    splits = opened.manifest.splits
    subsets = [own for own, record in splits.items() if record.subset_of is not None]
    if name not in subsets:
        has = choices(subsets) if subsets else "none"
        raise UsageError(f"{opened.path} has no subset {name!r}; it has {has}")
    remaining = {own: record for own, record in splits.items() if own != name}
    return changed(opened, f"remove subset {name}", lambda paths: remaining)


def _check_name(dataset: Dataset, name: str) -> None:
    if name in (VERSIONS, *RESERVED):
        raise UsageError(f"name is {name!r}, which is reserved; give another name")
    if not is_name(name):
        raise UsageError(f"name is {name!r:.80}; give a plain name of letters, digits, _ and -, such as hard")
    if name in dataset.built_splits:
        raise UsageError(f"{name!r} is a split of {dataset.path}; give another name for the subset")


def _numbers(split: Split, rows: Rows | Sequence[str], is_of_ids: bool) -> npt.NDArray[np.int64]:
    """Returns the numbers of the rows, which are given as numbers, a mask or ids."""
    if isinstance(rows, str):
        raise UsageError(f"rows is {rows!r:.80}; give a list of ids, or numbers of rows")
    chosen = split.row_of(rows) if is_of_ids else rows  # type: ignore[arg-type]  # a sequence of str
    numbers = row_numbers(chosen, len(split), f"split {split.name!r}")
    if not len(numbers):
        raise UsageError("rows has no row; a subset has at least one")
    values, counts = np.unique(numbers, return_counts=True)
    if (twice := values[counts > 1]).size:
        raise UsageError(f"row {twice[0]} of split {split.name!r} is given twice; a subset has each row once")
    return numbers
