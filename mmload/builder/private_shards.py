"""Shards that several processes may write at the same time: each in a folder of its own, then moved in one step.

The bytes of a shard depend on its plan alone, so it does not matter whose is kept; that they are equal is checked. This
needs only that the file system creates folders exclusively and renames atomically, as seen from every machine; no
locks.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmload.builder.staging_files import PARTS
from mmload.errors import BuildError
from mmload.runtime.durable_files import TOKEN_BYTES, remove, sync_folder
from mmload.store.checksum import file_crc32
from mmload.store.shard_writer import BuildPaths, ShardSummary


@contextmanager
def private_paths(shared: BuildPaths) -> Iterator[BuildPaths]:
    """The paths of a build of one process inside a shared one; removed at the end.

    Raises:
        BuildError: if the folder cannot be created.
    """
    folder = shared.folder / PARTS / secrets.token_hex(TOKEN_BYTES)
    try:
        folder.parent.mkdir(exist_ok=True)
        folder.mkdir()
    except OSError as error:
        raise BuildError(f"cannot write to {folder.parent} ({error.strerror})") from error
    try:
        yield BuildPaths(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(own: BuildPaths, shared: BuildPaths, split: str, index: int, summary: ShardSummary) -> None:
    """Move a sealed shard to the shared build, its lists after it and its summary last; keep the one that is there.

    Raises:
        BuildError: if the shared build has gone, or has a shard there whose checksums are not the summary's.
    """
    place, summary_file = shared.shard(split, index), shared.summary_file(split, index)
    there = shared.sealed(split, index)
    if there is not None:
        if there.record != summary.record:
            raise _unlike(place)
        return
    try:
        shared.make_folders(split)
        _move(own.shard(split, index), place, summary)
        for file in (BuildPaths.samples_file, BuildPaths.skipped_file):
            file(own, split, index).replace(file(shared, split, index))
        remove(place.with_suffix(".partial"))  # of a build by one process, which was killed
        sync_folder(place.parent)
        own.summary_file(split, index).replace(summary_file)
        sync_folder(summary_file.parent)
    except OSError as error:
        raise BuildError(
            f"cannot move a shard to {place} ({error.strerror}); what is sealed is kept: run the same again"
        ) from error


def _move(own: Path, place: Path, summary: ShardSummary) -> None:
    try:
        own.rename(place)
    except OSError:
        if not place.is_dir():
            raise
        _check_equal(place, summary)


def _check_equal(place: Path, summary: ShardSummary) -> None:
    """Check that the shard that is there already, moved by another process, has the bytes of this one."""
    for name, record in summary.record.files.items():
        file = place / f"{name}.memmap"
        if file.stat().st_size != record.bytes or file_crc32(file) != record.crc32:
            raise _unlike(place)


def _unlike(place: Path) -> BuildError:
    return BuildError(
        f"{place} is not the shard that this build makes: a source with other files, or another library, made it; "
        "remove that folder, then run again"
    )
