"""Frees the space that a dataset's current version does not need: earlier versions, and shards of mostly removed rows.

Only files are removed that have the names of the lists or shards of a version, in the folders of splits, and that no
kept version refers to. The manifest without the dropped versions is written first, and the manifests of these are
removed last, so a kill leaves files that the next call finds.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from mmload.builder.previous_version import Shards, in_use, kind_of, listing_time, stored_fields, stored_rows
from mmload.builder.shards import Chunk, ShardWriter, write_list
from mmload.builder.staging import Staging, owned_files
from mmload.errors import BuildError, StoreError, UsageError
from mmload.runtime.durable_files import folder_lock, write_atomically
from mmload.runtime.regular_files import read_regular
from mmload.store.dataset import Dataset, Split
from mmload.store.dataset_folder import check_no_links, dataset_files
from mmload.store.manifest import (
    FILE_NAME,
    META_NAME,
    SKIPPED_NAME,
    VERSIONS,
    Manifest,
    ShardRecord,
    files_of,
    loads,
    read,
    staging_folder,
)
from mmload.store.versions import next_shard_folders, next_version, versions_of, with_version

COMPACT = "compact"
"""The change of a version whose rows were moved together."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOSTLY = 0.5  # a shard is compacted if at most this share of its rows is in use
_CHUNK_ROWS = 256
_MANIFEST = re.compile(rf"{VERSIONS}/[0-9]+\.json")
_COLUMN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\.[0-9]+\.memmap")
_SHARD = re.compile(r"[^/]+/[0-9]{6,}")
_NUMBERED = re.compile(
    rf"{_MANIFEST.pattern}|[^/]+/(samples|skipped|origins)\.[0-9]+\.jsonl|[^/]+/rows\.[0-9]+\.memmap"
    rf"|{_SHARD.pattern}/{_COLUMN.pattern}"
)

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
    """Yields the files that a version has written and no kept one needs.

    A version may also be one that a killed call has dropped, or one that was never committed.
    """
    needed, known, shard_files = owned_files(path, kept, strict=True), set[str](), dict[str, set[str]]()
    for each in (manifest, *_manifests_in(path / VERSIONS)):
        known |= {file.name for file in dataset_files(each)}
        for split, record in each.splits.items():
            names = {f"{name}.memmap" for name in files_of(record.fields)}
            shard_files[split] = shard_files.get(split, {META_NAME}) | names
    for top in (VERSIONS, *shard_files):
        for folder, _, files in os.walk(path / top):
            inside = Path(folder).relative_to(path).as_posix()
            unknown = {file for file in files if f"{inside}/{file}" not in known and not _COLUMN.fullmatch(file)}
            is_lost_shard = _SHARD.fullmatch(inside) is not None and unknown <= shard_files[top]
            for name in sorted(f"{inside}/{file}" for file in files):
                if name not in needed and (name in known or _NUMBERED.fullmatch(name) or is_lost_shard):
                    yield name


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
    place = Path(path).resolve()
    read(place)
    with Staging(place) as staging:
        staging.check_nothing_begun()
        try:
            return _compacted(Dataset(place), staging)
        finally:
            staging.discard()


def _compacted(dataset: Dataset, staging: Staging) -> Manifest:
    """Writes the new shards and lists, and adds the version."""
    staging.clear()  # leftovers of a call that was killed
    manifest = dataset.manifest
    mostly = {name: _mostly_removed(split) for name, split in dataset.items() if split.record.subset_of is None}
    if not any(len(shards) for shards in mostly.values()):
        return manifest
    version, splits = next_version(manifest), dict(manifest.splits)
    firsts = next_shard_folders(dataset.path, manifest)
    for name, shards in mostly.items():
        if not len(shards):
            continue
        table, moved = _rewritten(dataset[name], shards, staging, firsts[name])
        for own, record in manifest.splits.items():
            if name in (own, record.subset_of):
                rows = stored_rows(dataset[own])
                rows = replace(rows, shard_rows=moved[rows.shard_rows])
                write = partial(write_list, staging.paths, own, listed=listing_time(dataset[own]))
                kind, skipped = kind_of(record, table), _skipped(dataset[own])
                splits[own] = rows.record(write, version, kind, record.subset_of, skipped)
    body = {"recipe": manifest.recipe, "fingerprint": manifest.fingerprint, "splits": splits, "card": manifest.card}
    made = with_version(body, manifest, dataset.path, COMPACT)
    staging.commit(made)
    return made


def _mostly_removed(split: Split) -> Numbers:
    """Returns the shards of which at most half of the rows are in use; int64 [n]."""
    rows = split.record.rows_of_shards
    stored = np.unique(split.files.shard_rows(np.arange(len(split))))
    of_shard = np.searchsorted(np.cumsum(rows), stored, side="right")
    used = np.bincount(of_shard, minlength=len(rows))
    return np.flatnonzero((rows > 0) & (used <= _MOSTLY * rows))


def _rewritten(split: Split, shards: Numbers, staging: Staging, folder: int) -> tuple[Shards, Numbers]:
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
        _written_shard(split, rows[first : first + size], staging, folder + number)
        for number, first in enumerate(range(0, len(rows), size))
    ]
    remaining, again = in_use((*split.record.placed_shards, *records), moved[stored])
    return remaining, again[moved]


def _written_shard(split: Split, rows: Numbers, staging: Staging, folder: int) -> ShardRecord:
    """Writes rows of a split to a new shard."""
    with closing(ShardWriter(staging.paths, split.name, folder, split.record.fields, len(rows))) as writer:
        for start in range(0, len(rows), _CHUNK_ROWS):
            some = rows[start : start + _CHUNK_ROWS]
            writer.write(Chunk(fields=stored_fields(split, some), samples=[("", None)] * len(some)))
        return msgspec.structs.replace(writer.seal().record, folder=folder)


def _skipped(split: Split) -> list[tuple[str, str]]:
    """Returns id and reason of all samples that were left out."""
    if not split.record.skipped_count:
        return []
    file = split.path / split.name / split.record.list_name(SKIPPED_NAME)
    lines = read_regular(file).split(b"\n")[:-1]  # ids may have characters at which str.splitlines() splits
    return [(item["id"], item["reason"]) for item in map(json.loads, lines)]
