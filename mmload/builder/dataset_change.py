"""Changes a finished dataset without a source: opens its current version, and commits the next one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmload.builder.build_plans import COLUMN, column_advice
from mmload.builder.staging import UPDATES, Staging, has_finished_shards
from mmload.errors import BuildError, UsageError, choices
from mmload.remote.urls import check_no_url
from mmload.store.dataset import Dataset, Split
from mmload.store.manifest import Manifest, SplitRecord, read
from mmload.store.unfinished import staging_folder
from mmload.store.versions import with_version


def open_to_change(dataset: Dataset | str | Path, column: Mapping[str, Any] | None = None) -> Dataset:
    """Opens the current version of a dataset, after what a killed command has left undone at its end.

    Args:
        dataset: the dataset, in its current version, or its folder.
        column: the field that is being added, which may have been begun before.

    Raises:
        UsageError: if the dataset is opened in a version that is not the current one, or lies in object storage.
        BuildError: if the work of another command is unfinished, or another command is changing the dataset.
        StoreError: if there is no dataset.
    """
    opened = dataset if isinstance(dataset, Dataset) else None
    place = next(iter(dataset.values())).folder.title if isinstance(dataset, Dataset) else dataset
    check_no_url(place, "change the dataset that was pushed there, and push it again")
    folder = Path(place).resolve()
    current = read(folder)
    if staging_folder(folder).exists():
        current = _completed(folder, column)
    if opened is not None and opened.manifest.contents != current.contents:
        raise UsageError(f"{folder} is opened in a version that is not the current one; open it again")
    return Dataset(folder)


def _completed(folder: Path, column: Mapping[str, Any] | None) -> Manifest:
    """Completes a commit that was killed, and removes what is of no use any more; returns the current manifest."""
    with Staging(folder) as staging:
        plan, current = staging.plan(), read(folder)
        if plan is not None and plan.get(UPDATES) in (None, current.contents):
            begun = plan.get(COLUMN)
            if column is not None and begun == column:
                return current
            is_other = (
                column is None or begun is None or any(begun.get(key) != column[key] for key in ("name", "split"))
            )
            if is_other and has_finished_shards(staging.paths):
                found = "build; run it again, or remove that folder" if begun is None else column_advice(begun)
                raise BuildError(f"{staging.paths.folder} holds an unfinished {found}")
        staging.discard()
    return current


def only_split(dataset: Dataset, name: str | None) -> Split:
    """Returns the split of a name; None: the only one beside subsets.

    Raises:
        UsageError: if there is none, or there are several and none is named.
    """
    if name is None and len(dataset.built_splits) > 1:
        raise UsageError(f"{dataset.path} has the splits {choices(dataset)}; name one of them as split")
    return dataset[next(iter(dataset.built_splits)) if name is None else name]


def commit_version(staging: Staging, opened: Dataset, splits: dict[str, SplitRecord], change: str) -> None:
    """Commits a version with other splits, of the same recipe and source.

    Args:
        staging: the working folder, with the files that are new.
        opened: the dataset in its current version.
        splits: splits of the new version.
        change: what makes it.

    Raises:
        BuildError: if the dataset has another version meanwhile, or writing fails.
    """
    old = opened.manifest
    card = {key: old.card[key] for key in ("notes", "warnings") if key in old.card}
    body = {"recipe": old.recipe, "fingerprint": old.fingerprint, "splits": splits, "card": card}
    staging.add_version(with_version(body, old, opened.path, change), old.contents)
