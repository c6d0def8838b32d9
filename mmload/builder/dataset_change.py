"""Changes a finished dataset without a source: opens its current version, and commits the next one, or a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mmload.builder.shards import BuildPaths
from mmload.builder.staging import Staging, working_folder
from mmload.errors import StoreError, UsageError, choices
from mmload.remote.urls import check_no_url
from mmload.runtime.durable_files import folder_lock, remove_partials, write_atomically
from mmload.store.dataset import Dataset, Split
from mmload.store.manifest import FILE_NAME, SplitRecord, read, staging_folder
from mmload.store.versions import with_version


def open_to_change(dataset: Dataset | str | Path, *, by_number: bool = False) -> Dataset:
    """Opens the current version of a dataset, after what a killed command has left undone at its end.

    Args:
        dataset: the dataset, in its current version, or its folder.
        by_number: whether rows are given by their numbers, which are those of the version that is there before a
            killed update is completed.

    Raises:
        UsageError: if the dataset is opened in a version that is not the current one, or lies in object storage; if
            rows that are given by number may be other ones now.
        BuildError: if another command is changing the dataset.
        StoreError: if there is no dataset.
    """
    opened = dataset if isinstance(dataset, Dataset) else None
    place = dataset.folder.title if isinstance(dataset, Dataset) else dataset
    check_no_url(place, "change the dataset that was pushed there, and push it again")
    folder = Path(place).resolve()
    before = current = read(folder)
    if staging_folder(folder).exists():
        with Staging(folder):  # which completes a commit that was killed
            current = read(folder)
    if opened is not None and opened.manifest.contents != current.contents:
        raise UsageError(f"{folder} is opened in a version that is not the current one; open it again")
    if by_number and before.contents != current.contents:
        raise UsageError(
            f"a command that was killed while it changed {folder} is completed now, as version {current.version}, "
            "whose rows may have other numbers; check what you give, then run this again"
        )
    return Dataset(folder)


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
    card = {"notes": old.card.get("notes"), "warnings": old.card.get("warnings") if warnings is None else warnings}
    card = {key: text for key, text in card.items() if text}
    body = {"recipe": old.recipe, "fingerprint": old.fingerprint, "splits": splits, "card": card}
    staging.commit(with_version(body, old, opened.path, change))


def changed(
    opened: Dataset,
    change: str,
    splits_of: Callable[[BuildPaths], dict[str, SplitRecord]],
    warnings: Mapping[str, Sequence[str]] | None = None,
) -> Dataset:
    """Commits a version with the splits that a function returns, whose files it writes, if they are other ones.

    Returns:
        The dataset, opened in its current version.

    Raises:
        BuildError: as :func:`commit_version`, and if another command has begun something meanwhile.
    """
    with working_folder(opened.path) as staging:
        staging.paths.dataset.mkdir(exist_ok=True)
        splits = splits_of(staging.paths)
        if splits != opened.manifest.splits:
            commit_version(staging, opened, splits, change, warnings)
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
