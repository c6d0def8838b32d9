"""Opens a dataset's folder: reads its manifest and compares the sizes of its files, O(shards), not O(rows).

It reads no row and imports no torch: ``mmload info`` needs no more.
"""

from __future__ import annotations

import stat
from pathlib import Path

from mmload.errors import DamagedError, StoreError
from mmload.store.dataset_folder import Folder, Revision, revision_of
from mmload.store.field_files import files_of
from mmload.store.manifest import Manifest, SplitRecord, shard_name

_TRIES = 10


def opened(path: str | Path) -> tuple[Folder, Manifest]:
    """A dataset's folder and manifest, checked against its files; consistent even while the dataset is replaced.

    Raises:
        StoreError: if there is no finished dataset.
        VersionError: if it is of another format version.
        DamagedError: if its files do not have the sizes that the manifest says.
    """
    path = Path(path)
    for _ in range(_TRIES):
        folder = Folder(path)
        try:
            manifest = folder.read()
            for name, record in manifest.splits.items():
                _check_files(folder, name, record)
        except StoreError:
            if folder.is_current() or not path.exists():
                raise
            continue
        if folder.is_current():
            return folder, manifest
    raise StoreError(f"the dataset {path} is being replaced again and again; open it when that has ended")


def _check_files(folder: Folder, split: str, record: SplitRecord) -> None:
    """Compare the files' sizes with the manifest, and remember their revisions: O(shards), not O(rows)."""
    advice = f"run: mmload repair {folder.path} --source ROOT"
    seen: dict[str, list[Revision]] = {name: [] for name in files_of(record.fields)}
    for index, shard in enumerate(record.shards):
        for name, expected in shard.files.items():
            file = f"{split}/{shard_name(index)}/{name}.memmap"
            try:
                status = folder.stat(file)
            except FileNotFoundError as error:
                raise DamagedError(f"{folder.name(file)} is missing; {advice}") from error
            except OSError as error:
                raise DamagedError(f"{folder.name(file)} cannot be read ({error.strerror})") from error
            if not stat.S_ISREG(status.st_mode):
                raise DamagedError(f"{folder.name(file)} is not a file; {advice}")
            if status.st_size != expected.bytes:
                what = "was truncated" if status.st_size < expected.bytes else "was written to"
                raise DamagedError(
                    f"{folder.name(file)} has {status.st_size:,} bytes, the manifest says {expected.bytes:,}: "
                    f"it {what}; {advice}"
                )
            seen[name].append(revision_of(status))
    for name, revisions in seen.items():
        folder.remember(split, name, revisions)
