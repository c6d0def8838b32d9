"""Frees the space that a dataset's current version does not need: earlier versions, and shards of mostly removed rows.

Only files are removed that have the names of the lists or shards of a version, in the folders of splits, and that no
kept version refers to. The manifest without the dropped versions is written first, and the manifests of these are
removed last, so a kill leaves files that the next call finds.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from mmload.builder.dataset_change import changed, open_to_change
from mmload.builder.previous_version import Shards, in_use, list_content, listing_time, stored_fields
from mmload.builder.shards import LISTS, BuildPaths, Chunk, ShardWriter, write_list
from mmload.builder.staging import Staging, owned_files
from mmload.errors import BuildError, StoreError, UsageError
from mmload.runtime.durable_files import folder_lock, write_atomically
from mmload.runtime.regular_files import read_regular
from mmload.store.dataset import Dataset, Split
from mmload.store.dataset_folder import check_no_links
from mmload.store.manifest import (
    FILE_NAME,
    ORDER_DTYPE,
    ORDER_NAME,
    VERSIONS,
    Manifest,
    RowOrder,
    ShardRecord,
    SplitRecord,
    loads,
    read,
    staging_folder,
    versioned_name,
)
from mmload.store.versions import next_shard_folders, next_version, versions_of

COMPACT = "compact"
"""The change of a version whose rows were moved together."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOSTLY = 0.5  # a shard is compacted if at most this share of its rows is in use
_CHUNK_ROWS = 256
_MANIFEST = re.compile(rf"{VERSIONS}/[0-9]+\.json")
_SHARD = re.compile(r"[^/]+/[0-9]{6,}")
_OWN = re.compile(
    rf"{_MANIFEST.pattern}|[^/]+/(samples|skipped|origins)(\.[0-9]+)?\.jsonl|[^/]+/rows\.[0-9]+\.memmap"
    rf"|{_SHARD.pattern}/(meta\.json|[A-Za-z0-9][A-Za-z0-9_-]*(\.[a-z]+|\.[0-9]+)?\.memmap)"
)
"""Names that the lists and the files of the shards of a version have."""

Numbers = npt.NDArray[np.int64]


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
        staging = Staging(path)  # which completes an update that was killed while it moved files
    except BuildError as error:
        is_full = isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL
        if not is_full or os.path.lexists(staging_folder(path)):
            raise
        return _remove_unused(path, keep, dry_run)  # there is no update to complete, and this makes room
    with staging:
        try:
            return _remove_unused(path, keep, dry_run)
        finally:
            if staging.plan() is None:
                staging.discard()


def _remove_unused(path: Path, keep: int, dry_run: bool) -> Unused:
    try:
        with folder_lock(path):
            manifest = read(path)
            versions = versions_of(manifest, path)
            dropped = tuple(version.number for version in versions[:-keep])
            kept = msgspec.structs.replace(manifest, versions=versions[-keep:]) if manifest.versions else manifest
            names = list(_unused_files(path, manifest, kept))
            check_no_links(path, names)
            unused = [(name, (path / name).stat().st_size) for name in names]
            if not dry_run:
                manifests = [name for name in names if _MANIFEST.fullmatch(name)]
                others = [name for name in names if name not in manifests]
                if dropped:
                    _write_manifest(path, kept, others)
                for name in (*others, *manifests):
                    (path / name).unlink(missing_ok=True)
                for folder in sorted({name.rpartition("/")[0] for name in names}, key=len, reverse=True):
                    with suppress(OSError):  # it has other files
                        (path / folder).rmdir()
    except OSError as error:
        raise BuildError(
            f"cannot remove {error.filename or path} ({error.strerror}); run the same command again"
        ) from error
    return Unused(versions=dropped, files=len(unused), bytes=sum(size for _, size in unused))


def _write_manifest(path: Path, manifest: Manifest, unused: list[str]) -> None:
    """Writes the manifest without the dropped versions.

    On a full disk it removes the unused files first: a kill then leaves versions in the manifest that cannot be read.
    """
    text = manifest.dumps()
    try:
        write_atomically(path / FILE_NAME, text)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        for name in unused:
            (path / name).unlink()
        write_atomically(path / FILE_NAME, text)


def _unused_files(path: Path, manifest: Manifest, kept: Manifest) -> Iterator[str]:
    """Yields the files that no kept version needs, of those that have the names of a version's.

    A version may also be one that a killed call has dropped, or one that was never committed. A folder of no kept shard
    stays if it has files of other names: it may be somebody's own.
    """
    needed = owned_files(path, kept, strict=True)
    splits = {name for each in (manifest, *_manifests_in(path / VERSIONS)) for name in each.splits}
    for top in (VERSIONS, *sorted(splits)):
        for folder, _, files in os.walk(path / top):
            inside = Path(folder).relative_to(path).as_posix()
            names = {f"{inside}/{file}" for file in files}
            own = {name for name in names if _OWN.fullmatch(name)}
            if own == names or names & needed or not _SHARD.fullmatch(inside):
                yield from sorted(own - needed)


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
        if len(shards := _mostly_removed(dataset[name])):
            remaining, moved = _rewritten(dataset[name], shards, paths, firsts[name])
            splits |= {
                own: _with_shards(dataset[own], remaining, moved, next_version(dataset.manifest), paths)
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
    numbers = write(versioned_name(ORDER_NAME, version), [rows.astype(ORDER_DTYPE).tobytes()])
    order = RowOrder(version=version, rows=numbers, shards_of=record.subset_of)
    return msgspec.structs.replace(record, shards=remaining, order=order)


def _mostly_removed(split: Split) -> Numbers:
    """Returns the shards of which at most half of the rows are in use; int64 [n]."""
    rows = split.record.rows_of_shards
    stored = np.unique(split.files.shard_rows(np.arange(len(split))))
    of_shard = np.searchsorted(np.cumsum(rows), stored, side="right")
    used = np.bincount(of_shard, minlength=len(rows))
    return np.flatnonzero((rows > 0) & (used <= _MOSTLY * rows))


def _rewritten(split: Split, shards: Numbers, paths: BuildPaths, folder: int) -> tuple[Shards, Numbers]:
    """Copies the rows in use of some shards to new ones.

    Returns:
        The shards without the old ones, and int64 [n], the new number of each row over all shards.
    """
    size, starts = split.record.shard_samples, np.concatenate([[0], np.cumsum(split.record.rows_of_shards)])
    stored, places = np.unique(split.files.shard_rows(np.arange(len(split))), return_index=True)
    is_moved = np.isin(np.searchsorted(starts, stored, side="right") - 1, shards)
    rows, moved = places[is_moved], np.arange(starts[-1])
    moved[stored[is_moved]] = np.arange(starts[-1], starts[-1] + len(rows))
    records = [
        _written_shard(split, rows[first : first + size], paths, folder + number)
        for number, first in enumerate(range(0, len(rows), size))
    ]
    remaining, again = in_use((*split.record.placed_shards, *records), moved[stored])
    return remaining, again[moved]


def _written_shard(split: Split, rows: Numbers, paths: BuildPaths, folder: int) -> ShardRecord:
    """Writes rows of a split to a new shard."""
    with closing(ShardWriter(paths, split.name, folder, split.record.fields, len(rows))) as writer:
        for start in range(0, len(rows), _CHUNK_ROWS):
            some = rows[start : start + _CHUNK_ROWS]
            writer.write(Chunk(fields=stored_fields(split, some), samples=[("", None)] * len(some)))
        return msgspec.structs.replace(writer.seal().record, folder=folder)
