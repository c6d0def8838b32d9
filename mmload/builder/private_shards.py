"""Shards that several processes may write at the same time: each in a folder of its own, then moved in one step.

The bytes of a shard depend on its plan alone, so it does not matter whose is kept. This needs only that the file system
creates folders exclusively and renames atomically, as seen from every machine; no locks.
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
    """Move a sealed shard to the shared build, its summary last; keep the one that is there already.

    Raises:
        BuildError: if the shared build has gone, or has other files in place of the shard.
    """
    if shared.sealed(split, index) is not None:
        return
    place, summary_file = shared.shard(split, index), shared.summary_file(split, index)
    try:
        shared.make_folders(split)
        for file in (BuildPaths.samples_file, BuildPaths.skipped_file):
            file(own, split, index).replace(file(shared, split, index))
        _move(own.shard(split, index), place, summary)
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
        _check_complete(place, summary)


def _check_complete(place: Path, summary: ShardSummary) -> None:
    """Check that the shard that is there already, moved by another process, has the files of this one."""
    for name, record in summary.record.files.items():
        if (place / f"{name}.memmap").stat().st_size != record.bytes:
            raise BuildError(f"{place} is not the shard that this build makes; remove that folder, then run again")
