"""Changes a finished dataset without its source: subsets, compaction, unused files, results of checks.

A change opens the current version, and commits the next one. A subset is a list of rows of a split that is opened as a
split. Space is freed of earlier versions, and of shards of mostly removed rows: only files are removed that manifests
of dropped versions name, and none of a kept version. The manifest without the dropped versions is written first, and
theirs are removed last, so a kill leaves files that the next call finds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from mmload.builder.planned_build import plan_shards
from mmload.builder.previous_version import Shards, in_use, list_content, listing_time, stored_fields, stored_rows
from mmload.builder.shard_job import write_shard
from mmload.builder.shards import LISTS, BuildPaths, Chunk, Numbers, write_list
from mmload.builder.staging import Staging, owned_files, working_folder
from mmload.errors import BuildError, StoreError, UsageError, choices
from mmload.remote.urls import check_no_url
from mmload.runtime.files import folder_lock, read_regular, remove_partials, write_atomically
from mmload.store.dataset import Dataset, Split
from mmload.store.dataset_folder import check_no_links, dataset_files
from mmload.store.manifest import (
    FILE_NAME,
    ORDER_DTYPE,
    ORDER_NAME,
    RESERVED,
    VERSIONS,
    Manifest,
    RowOrder,
    SplitRecord,
    is_name,
    loads,
    read,
    staging_folder,
    versioned_name,
)
from mmload.store.row_numbers import row_numbers
from mmload.store.versions import next_shard_folders, next_version, versions_of, with_version

if TYPE_CHECKING:
    from mmload.store.dataset import Rows


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
    if isinstance(dataset, Dataset):
        place, opened = dataset.folder.title, dataset.manifest.contents
    else:
        place, opened = str(dataset), ""
    check_no_url(place, "change the dataset that was pushed there, and push it again")
    folder = Path(place).resolve()
    before = current = read(folder)
    if staging_folder(folder).exists():
        with Staging(folder):  # which completes a commit that was killed
            current = read(folder)
    if opened not in ("", current.contents):
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


def changed(
    opened: Dataset,
    change: str,
    splits_of: Callable[[BuildPaths], dict[str, SplitRecord]],
    warnings: Mapping[str, Sequence[str]] | None = None,
) -> Dataset:
    """Commits a version with the splits that a function returns, whose files it writes, if they are other ones.

    Recipe and source are those of the version before, and so are the warnings if none are given.

    Returns:
        The dataset, opened in its current version.

    Raises:
        BuildError: if the dataset has another version meanwhile, another command has begun something, or writing fails.
    """
    old = opened.manifest
    with working_folder(opened.path) as staging:
        staging.paths.dataset.mkdir(exist_ok=True)
        splits = splits_of(staging.paths)
        if splits != old.splits:
            said = old.card.get("warnings") if warnings is None else warnings
            card = {key: text for key, text in (("notes", old.card.get("notes")), ("warnings", said)) if text}
            body = {"recipe": old.recipe, "fingerprint": old.fingerprint, "splits": splits, "card": card}
            staging.commit(with_version(body, old, opened.path, change))
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


# Subsets.


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
    of_subset = stored_rows(chosen).chosen(_numbers(chosen, rows, is_of_ids))

    def with_subset(paths: BuildPaths) -> dict[str, SplitRecord]:
        write, whole = partial(write_list, paths, name), chosen.record
        shared = ("fields", "classes", "shard_samples", "objects", "mean", "std")
        kind = {**{key: getattr(whole, key) for key in shared}, "shards": whole.placed_shards}
        record = of_subset.record(write, next_version(opened.manifest), kind, whole.subset_of or chosen.name)
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


# Free space.


COMPACT = "compact"
"""The change of a version whose rows were moved together."""

_CHUNK_ROWS = 256


@dataclass(frozen=True, kw_only=True)
class Unused:
    """Numbers of the versions that are dropped, and number and size of the files that a dataset does not need."""

    versions: tuple[int, ...]
    files: int
    bytes: int


def remove_unused(path: str | Path, *, keep: int = 1, dry_run: bool = False) -> Unused:
    """Drops all but the latest ``keep`` versions of a dataset, and removes all files that no kept version refers to.

    Raises:
        UsageError: if ``keep`` is below 1.
        StoreError: if there is no finished dataset, or a file to remove lies behind a link.
        BuildError: if a build or an update of it is running, or a file cannot be removed.
    """
    if keep < 1:
        raise UsageError(f"keep is {keep}; the current version is always kept, so give 1 or more")
    path = Path(path).resolve()
    read(path)
    try:
        with Staging(path), folder_lock(path):  # which completes an update that was killed while it moved files
            manifest = read(path)
            versions = versions_of(manifest, path)
            dropped = tuple(version.number for version in versions[:-keep])
            kept = msgspec.structs.replace(manifest, versions=versions[-keep:])
            names = _unused_files(path, manifest, kept)
            check_no_links(path, names)
            sizes = [(path / name).stat().st_size for name in names]
            if not dry_run:
                if dropped:
                    write_atomically(path / FILE_NAME, kept.dumps())
                for name in names:
                    (path / name).unlink(missing_ok=True)
                for folder in sorted({name.rpartition("/")[0] for name in names}, key=len, reverse=True):
                    with suppress(OSError):  # it has other files
                        (path / folder).rmdir()
    except OSError as error:
        raise BuildError(
            f"cannot remove {error.filename or path} ({error.strerror}); run the same command again"
        ) from error
    return Unused(versions=dropped, files=len(names), bytes=sum(sizes))


def _unused_files(path: Path, manifest: Manifest, kept: Manifest) -> list[str]:
    """Returns the files that no kept version needs, of those that a version's manifest names; the manifests last.

    A version may also be one that a killed call has dropped.
    """
    needed = owned_files(path, kept, strict=True)
    files = {file.name for each in (manifest, *_manifests_in(path / VERSIONS)) for file in dataset_files(each)}
    manifests = [f"{VERSIONS}/{file.name}" for file in sorted((path / VERSIONS).glob("[0-9]*.json"))]
    return [name for name in (*sorted(files), *manifests) if name not in needed and (path / name).is_file()]


def _manifests_in(versions: Path) -> Iterator[Manifest]:
    """Yields the manifests of earlier versions that can be read, also of those that a killed call has dropped."""
    for file in sorted(versions.glob("*.json")):
        with suppress(StoreError):
            yield loads(read_regular(file).decode(), str(file))


def compact(path: str | Path) -> Manifest:
    """Writes the rows of mostly removed shards into new shards, as a new version; returns the current manifest.

    Rows and their order stay. If no shard is mostly removed, there is no new version.

    Raises:
        StoreError: if there is no finished dataset, or it cannot be read.
        BuildError: if a build or an update of it is unfinished, or it cannot be written.
    """
    opened = open_to_change(path)
    return changed(opened, COMPACT, partial(_compacted, opened)).manifest


def _compacted(dataset: Dataset, paths: BuildPaths) -> dict[str, SplitRecord]:
    """Writes new shards and lists of the splits with mostly removed shards; returns the records of all splits."""
    splits, firsts = dict(dataset.manifest.splits), next_shard_folders(dataset.path, dataset.manifest)
    for name in dataset.built_splits:
        if (rewritten := _rewritten(dataset[name], paths, firsts[name])) is not None:
            splits |= {
                own: _with_shards(dataset[own], *rewritten, next_version(dataset.manifest), paths)
                for own, record in splits.items()
                if name in (own, record.subset_of)
            }
    return splits


def _with_shards(split: Split, remaining: Shards, moved: Numbers, version: int, paths: BuildPaths) -> SplitRecord:
    """Writes the lists of a split whose rows have other numbers over all shards; those of samples are copies."""
    record, write = split.record, partial(write_list, paths, split.name, listed=listing_time(split))
    for name in LISTS:
        if record.list_name(name) in record.lists:
            write(versioned_name(name, version), [list_content(split, name)])
    rows = moved[split.files.shard_rows(np.arange(len(split)))]
    order = RowOrder(
        version=version,
        rows=write(versioned_name(ORDER_NAME, version), [rows.astype(ORDER_DTYPE).tobytes()]),
        shards_of=record.subset_of,
    )
    return msgspec.structs.replace(record, shards=remaining, order=order)


def _rewritten(split: Split, paths: BuildPaths, folder: int) -> tuple[Shards, Numbers] | None:
    """Copies the rows in use of shards of which at most half are to new ones, whose folders are numbered from a number.

    Returns:
        The shards without the old ones, and int64 [n], the new number of each row over all shards; None if
        there are no such shards.
    """
    counts = split.record.rows_of_shards
    starts = np.concatenate([[0], np.cumsum(counts)])
    stored, places = np.unique(split.files.shard_rows(np.arange(len(split))), return_index=True)
    of_shard = np.searchsorted(starts, stored, side="right") - 1
    used = np.bincount(of_shard, minlength=len(counts))
    is_moved = ((used <= counts / 2) & (counts > 0))[of_shard]
    if not is_moved.any():
        return None
    rows, moved = places[is_moved], np.arange(starts[-1])
    moved[stored[is_moved]] = np.arange(starts[-1], starts[-1] + len(rows))
    shards = list(split.record.placed_shards)
    for plan in plan_shards(split.name, len(rows), split.record.shard_samples, folder):
        summary = write_shard(paths, plan, split.record.fields, _chunks(split, rows[plan.start : plan.stop]))
        shards.append(msgspec.structs.replace(summary.record, folder=plan.index))
    remaining, again = in_use(tuple(shards), moved[stored])
    return remaining, again[moved]


def _chunks(split: Split, rows: Numbers) -> Generator[Chunk]:
    """Yields rows of a split as they are stored."""
    for start in range(0, len(rows), _CHUNK_ROWS):
        some = rows[start : start + _CHUNK_ROWS]
        yield Chunk(fields=stored_fields(split, some), samples=[("", None)] * len(some))
