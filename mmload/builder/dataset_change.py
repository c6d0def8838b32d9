"""Changes a finished dataset without a source: opens its current version, and commits the next one, or a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mmload.builder.shards import COLUMN, UPDATES, BuildPaths
from mmload.builder.staging import Staging, has_finished_shards, unfinished_advice
from mmload.errors import BuildError, StoreError, UsageError, choices
from mmload.remote.urls import check_no_url
from mmload.runtime.durable_files import folder_lock, remove_partials, write_atomically
from mmload.store.dataset import Dataset, Split
from mmload.store.manifest import FILE_NAME, Manifest, SplitRecord, read
from mmload.store.unfinished import staging_folder
from mmload.store.versions import with_version


def open_to_change(
    dataset: Dataset | str | Path, column: Mapping[str, Any] | None = None, *, by_number: bool = False
) -> Dataset:
    """Opens the current version of a dataset, after what a killed command has left undone at its end.

    Args:
        dataset: the dataset, in its current version, or its folder.
        column: ``name`` and ``split`` of the field that is being added, which may have been begun before, and
            ``values`` where they are known; a split of None is the only one.
        by_number: whether rows are given by their numbers, which are those of the version that is there before a
            killed update is completed.

    Raises:
        UsageError: if the dataset is opened in a version that is not the current one, or lies in object storage; if
            rows that are given by number may be other ones now.
        BuildError: if the work of another command is unfinished, or another command is changing the dataset.
        StoreError: if there is no dataset.
    """
    opened = dataset if isinstance(dataset, Dataset) else None
    place = dataset.folder.title if isinstance(dataset, Dataset) else dataset
    check_no_url(place, "change the dataset that was pushed there, and push it again")
    folder = Path(place).resolve()
    before = current = read(folder)
    if staging_folder(folder).exists():
        current = _completed(folder, column)
    if opened is not None and opened.manifest.contents != current.contents:
        raise UsageError(f"{folder} is opened in a version that is not the current one; open it again")
    if by_number and before.contents != current.contents:
        raise UsageError(
            f"a command that was killed while it changed {folder} is completed now, as version {current.version}, "
            "whose rows may have other numbers; check what you give, then run this again"
        )
    return Dataset(folder)


def _completed(folder: Path, column: Mapping[str, Any] | None) -> Manifest:
    """Completes a commit that was killed, and removes what is of no use any more; returns the current manifest."""
    with Staging(folder) as staging:
        plan, current = staging.plan(), read(folder)
        if plan is not None and plan.get(UPDATES) in (None, current.contents):
            unlike = _differences(plan.get(COLUMN), column, folder)
            if not unlike:
                return current
            if unlike != ["values"] and has_finished_shards(staging.paths):
                raise BuildError(f"{staging.paths.folder} holds an unfinished {unfinished_advice(plan)}")
        staging.discard()
    return current


def _differences(begun: Mapping[str, Any] | None, column: Mapping[str, Any] | None, folder: Path) -> list[str]:
    """Returns in which keys a field that is being added differs from the unfinished one; in its name if one is none."""
    if begun is None or column is None:
        return ["name"]
    wanted = {**column, "split": only_split(Dataset(folder), column["split"]).name}
    return [key for key, value in wanted.items() if begun.get(key) != value]


def only_split(dataset: Dataset, name: str | None) -> Split:
    """Returns the split of a name; None: the only one beside subsets.

    Raises:
        UsageError: if there is none, or there are several and none is named.
    """
    if name is None and len(dataset.built_splits) > 1:
        raise UsageError(f"{dataset.path} has the splits {choices(dataset.built_splits)}; name one of them as split")
    return dataset[next(iter(dataset.built_splits)) if name is None else name]


def commit_version(
    staging: Staging,
    opened: Dataset,
    splits: dict[str, SplitRecord],
    change: str,
    warnings: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Commits a version with other splits, of the same recipe and source; without warnings, the card's stay.

    Raises:
        BuildError: if the dataset has another version meanwhile, or writing fails.
    """
    old = opened.manifest
    card = {key: old.card[key] for key in ("notes", "warnings") if key in old.card}
    if warnings is not None:
        card |= {"warnings": warnings}
    card = {key: text for key, text in card.items() if text}
    body = {"recipe": old.recipe, "fingerprint": old.fingerprint, "splits": splits, "card": card}
    staging.commit(with_version(body, old, opened.path, change))


def changed(
    opened: Dataset,
    change: str,
    splits_of: Callable[[BuildPaths], dict[str, SplitRecord]],
    warnings: Mapping[str, Sequence[str]] | None = None,
) -> Dataset:
    """Commits a version with the splits that a function returns, whose lists it writes; returns the dataset in it.

    Raises:
        BuildError: as :func:`commit_version`, and if another command has begun something meanwhile.
    """
    with Staging(opened.path) as staging:
        staging.check_nothing_begun()
        staging.paths.dataset.mkdir(exist_ok=True)
        commit_version(staging, opened, splits_of(staging.paths), change, warnings)
    return Dataset(opened.path)


def write_card(folder: Path, name: str, content: Mapping[str, Any], contents: str) -> None:
    """Writes the result of a check into the card of a dataset's manifest; replaces an earlier result of that check.

    ``contents`` is :attr:`Manifest.contents` of the dataset that was checked.

    Raises:
        StoreError: if it is not the dataset that was checked, or cannot be written.
    """
    file = folder / FILE_NAME
    try:
        with folder_lock(folder):
            manifest = read(folder)
            if manifest.contents != contents:
                raise StoreError(f"{folder} changed during the check and the report was not saved; check it again")
            remove_partials(file)
            recorded = msgspec.structs.replace(manifest, card={**manifest.card, name: dict(content)})
            write_atomically(file, recorded.dumps())
    except OSError as error:
        raise StoreError(f"cannot write {file} ({error.strerror}), so the report was not saved") from error
