"""Which sample of the source a row was made of, and which rows a file became. Reads lists of samples, never rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from mmload.errors import DamagedError, UsageError, choices, counted
from mmload.store.dataset_folder import Folder
from mmload.store.manifest import SKIPPED_NAME, Manifest
from mmload.store.row_sources import Samples


class Origin(NamedTuple):
    """A row and the sample that it was made of: its id in the source, and (height, width) before any transform."""

    split: str
    row: int
    id: str
    size: tuple[int, int] | None


def origins(folder: Folder, manifest: Manifest, split: str | None, rows: Sequence[int]) -> list[Origin]:
    """The samples that rows were made of.

    Args:
        folder: the dataset's.
        manifest: the dataset's.
        split: which split; may be None if there is one only.
        rows: their numbers, from 0.

    Raises:
        UsageError: if there is no such split or row, or several splits and none is named.
        DamagedError, StoreError: if the list of samples is damaged or cannot be read.
    """
    names = _splits(manifest, split)
    if len(names) > 1:
        raise UsageError(f"{folder.path} has the splits {choices(names)}; say which with --split")
    name = names[0]
    record = manifest.splits[name]
    for row in rows:
        if not 0 <= row < record.rows:
            raise UsageError(
                f"row {row} is not in split {name} of {folder.path}, which has {counted(record.rows, 'row')}"
            )
    samples = Samples(folder, name, record)
    return [Origin(name, row, *samples.source(row)) for row in rows]


def rows_of(folder: Folder, manifest: Manifest, split: str | None, file: str) -> list[Origin]:
    """The rows that a file became.

    Args:
        folder: the dataset's.
        manifest: the dataset's.
        split: only this split; None: all.
        file: a sample's id, or a path that ends with one, such as the file's whole path.

    Raises:
        UsageError: if no row was made of it; the message says so if it was left out, and why.
        DamagedError, StoreError: if the lists of samples are damaged or cannot be read.
    """
    names = _splits(manifest, split)
    lists = {name: Samples(folder, name, manifest.splits[name]) for name in names}
    for candidate in _endings(file):
        found = [
            Origin(name, row, candidate, samples.source(row).size)
            for name, samples in lists.items()
            for row in samples.rows_of(candidate)
        ]
        if found:
            return found
    for name in names:
        for candidate in _endings(file):
            if candidate in manifest.excluded(name):
                raise UsageError(f"{candidate} was left out of split {name}: the build was told to, by --exclude")
            reason = _left_out(folder, manifest, name, candidate)
            if reason is not None:
                raise UsageError(f"{candidate} was left out of split {name}: {reason}")
    where = f"split {names[0]} of {folder.path}" if split else f"{folder.path}"
    example = next((lists[name].source(0).id for name in names if manifest.splits[name].rows), "none")
    raise UsageError(f"no row of {where} was made of {file!r}; its files are named as in {example!r}")


def _splits(manifest: Manifest, split: str | None) -> list[str]:
    if split is None:
        return list(manifest.splits)
    if split not in manifest.splits:
        raise UsageError(f"there is no split {split!r}; there are {choices(manifest.splits)}")
    return [split]


def _endings(file: str) -> Iterator[str]:
    """The path itself, then without its first part, and so on: ``/data/photos/a/b.jpg`` ends with ``a/b.jpg``."""
    yield file
    parts = PurePosixPath(Path(file).as_posix()).parts
    for start in range(len(parts)):
        ending = "/".join(parts[start:])
        if ending != file:
            yield ending


def _left_out(folder: Folder, manifest: Manifest, split: str, sample: str) -> str | None:
    """Why a sample was left out; None if it was not."""
    if not manifest.splits[split].skipped_count:
        return None
    path = Path(folder.name(f"{split}/{SKIPPED_NAME}"))
    try:
        with path.open(encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                body = json.loads(line)
                if body["id"] == sample:
                    return str(body["reason"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DamagedError(f"{path} cannot be read ({error}); run: mmload verify {folder.path}") from error
    return None
