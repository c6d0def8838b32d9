"""Changes a dataset in one step, by its manifest: adds a version, its files first, or the result of a check."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mmload.errors import BuildError, StoreError
from mmload.runtime.durable_files import folder_lock, remove_partials, sync_folder, write_atomically
from mmload.store.dataset_folder import check_no_links, dataset_files
from mmload.store.manifest import FILE_NAME, VERSIONS, Manifest, read
from mmload.store.versions import versions_of


def add_to_dataset(new: Path, out: Path, manifest: Manifest, after: str) -> None:
    """Moves the files of a new version into a dataset, its manifest last; does what is left to do, if called again.

    ``after`` is :attr:`Manifest.contents` of the version that it follows.

    Raises:
        BuildError: if the dataset has another version meanwhile, or a file of the new version is missing.
        StoreError: if a folder that is written to is a link.
        OSError: if a file system operation fails.
    """
    with folder_lock(out):
        current = read(out)
        if (current.contents, current.version) == (manifest.contents, manifest.version):
            return
        if current.contents != after or current.version + 1 != manifest.version:
            raise BuildError(f"{out} was changed by another command meanwhile; run this one again")
        moved, kept = dict[str, int](), {file.name for file in dataset_files(current)}
        for file in dataset_files(manifest):
            if file.name in kept:
                continue  # whatever is there: no file of the dataset changes
            if (new / file.name).exists():
                moved[file.name] = file.record.bytes
            elif not _is_there(out / file.name, file.record.bytes):
                raise BuildError(f"{file.name} of the new version of {out} is missing; run the command again")
        check_no_links(out, (f"{VERSIONS}/{current.version}.json", *moved))
        for name, size in moved.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.replace(new / name, out / name)
            except FileNotFoundError:
                if not _is_there(out / name, size):  # else another part has moved it, where folders have no locks
                    raise
        for folder in {(out / name).parent for name in moved}:
            sync_folder(folder)
        versions = out / VERSIONS
        versions.mkdir(exist_ok=True)
        write_atomically(versions / f"{current.version}.json", current.dumps(), beside=new / FILE_NAME)
        numbers = {version.number for version in versions_of(current, out)}  # gc may have dropped some meanwhile
        own = tuple(version for version in manifest.versions[:-1] if version.number in numbers)
        manifest = msgspec.structs.replace(manifest, versions=(*own, manifest.versions[-1]))
        write_atomically(out / FILE_NAME, manifest.dumps(), beside=new / FILE_NAME)
        (new / FILE_NAME).unlink(missing_ok=True)


def write_card(folder: str | Path, name: str, content: Mapping[str, Any], contents: str) -> None:
    """Writes the result of a check into the card of a dataset's manifest; replaces an earlier result of that check.

    ``contents`` is :attr:`Manifest.contents` of the dataset that was checked.

    Raises:
        StoreError: if there is no finished dataset, it is not the checked one, or it cannot be written.
    """
    folder = Path(folder)
    read(folder)
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


def _is_there(path: Path, size: int) -> bool:
    """Returns whether an earlier call has moved a file to its place."""
    try:
        return path.stat().st_size == size
    except OSError:
        return False
