"""Versions of a dataset: the manifests that are kept, and the record of a new one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mmload.errors import DamagedError, StoreError
from mmload.runtime.files import read_regular
from mmload.store.manifest import FILE_NAME, MOST_BYTES, VERSIONS, Manifest, VersionRecord, loads, read

BUILD = "build"
"""The change of the first version."""

UNKNOWN_TIME = "unknown"

_UNKNOWN = "0" * 64


def versions_of(manifest: Manifest, folder: Path) -> tuple[VersionRecord, ...]:
    """Returns the records of all kept versions of a dataset, its own last; that of a build is made up here."""
    if manifest.versions:
        return manifest.versions
    rows = sum(split.rows for split in manifest.splits.values())
    try:
        written = _time((folder / FILE_NAME).stat().st_mtime)
    except FileNotFoundError:  # in object storage
        written = UNKNOWN_TIME
    return (VersionRecord(number=1, contents=manifest.contents, time=written, change=BUILD, added=rows),)


def with_version(
    body: Mapping[str, Any],
    old: Manifest,
    folder: Path,
    change: str,
    counts: tuple[int, int, int] = (0, 0, 0),
) -> Manifest:
    """Returns the manifest of the version after another one.

    The body has the attributes of it but ``versions``, where new lists have the number of :func:`next_version`. Counts
    are rows of new and of changed samples, and rows that are gone.
    """
    record = VersionRecord(
        number=next_version(old),
        contents=_UNKNOWN,
        time=_time(time.time()),
        change=change,
        added=counts[0],
        changed=counts[1],
        removed=counts[2],
    )
    earlier = versions_of(old, folder)
    unnamed = Manifest(**body, versions=(*earlier, record))
    named = msgspec.structs.replace(record, contents=unnamed.contents)
    return msgspec.structs.replace(unnamed, versions=(*earlier, named))


def next_version(manifest: Manifest) -> int:
    """Returns the number of the version after a dataset's current one."""
    return manifest.version + 1


def next_shard_folders(folder: Path, manifest: Manifest) -> dict[str, int]:
    """Returns, for each split, a number above those of the folders of all its shards in all kept versions."""
    firsts: dict[str, int] = {}
    for kept in kept_manifests(folder, manifest, strict=True):
        for name, record in kept.splits.items():
            owner, last = record.subset_of or name, max(record.folder_numbers, default=-1)
            firsts[owner] = max(firsts.get(owner, 0), last + 1)
    return firsts


def kept_manifests(folder: Path, manifest: Manifest, *, strict: bool = False) -> Iterator[Manifest]:
    """Yields the manifests of all kept versions, the current one first; without ``strict``, those that can be read.

    Raises:
        DamagedError: if one cannot be read, and ``strict`` is given.
    """
    yield manifest
    for version in manifest.versions[:-1]:
        try:
            yield read_version(folder, version.number, manifest)
        except StoreError:  # damaged: verify reports it
            if strict:
                raise


def read_version(folder: str | Path, version: int, current: Manifest) -> Manifest:
    """Reads the manifest of a version of a dataset.

    Raises:
        StoreError: if the dataset has no such version.
        VersionError, DamagedError: as :func:`loads`, and if it is not the manifest that the current one names.
    """
    if version == current.version:
        return current
    file = Path(folder) / version_file(folder, version, current)
    try:
        text = read_regular(file, most=MOST_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedError(f"{file} cannot be read ({error}), so version {version} is lost") from error
    return version_of(text, str(file), version, current)


def read_any(folder: str | Path, version: int | None) -> Manifest:
    """Reads the manifest of a dataset, or of one of its versions; raises what :func:`read_version` does."""
    current = read(folder)
    return current if version is None else read_version(folder, version, current)


def version_file(dataset: object, version: int, current: Manifest) -> str:
    """Returns the name of the file with the manifest of an earlier version.

    Raises:
        StoreError: if the dataset has no such version.
    """
    numbers = {current.version, *(each.number for each in current.versions)}
    if version not in numbers:
        raise StoreError(f"{dataset} has no version {version}; it has {', '.join(map(str, sorted(numbers)))}")
    return f"{VERSIONS}/{version}.json"


def version_of(text: str, path: str, version: int, current: Manifest) -> Manifest:
    """Parses the manifest of an earlier version.

    Raises:
        VersionError, DamagedError: as :func:`loads`, and if it is not the manifest that the current one names.
    """
    manifest = loads(text, path)
    if manifest.contents not in [each.contents for each in current.versions if each.number == version]:
        raise DamagedError(f"{path} is damaged: it is not version {version} of the dataset")
    return manifest


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
