"""Copies a dataset to object storage (push) and back (pull): in parallel, checked, and only what is missing.

A push writes the manifest last, so a dataset that was pushed in part is never read; meanwhile the object
``dataset.pushing`` names the dataset. A pull works in ``.DIR.pulling`` beside the destination, and renames that when
everything is complete and durable. A file arrives in parts, and has its name when it is complete, so an interrupted
pull continues with the files that it lacks.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mmload.errors import DamagedError, MmloadError, StoreError, UsageError
from mmload.records import Progress
from mmload.remote.chunks import SUFFIX, checksums_of_file, chunks_of, current_manifest, file_checksum, manifest_at
from mmload.remote.object_store import PART_BYTES, Objects, check_parallel, in_parallel
from mmload.remote.urls import PARALLEL, check_no_url
from mmload.runtime.files import (
    begin_sync,
    folder_lock,
    lock,
    open_lock,
    open_regular,
    remove,
    sync,
    sync_folder,
    write_atomically,
)
from mmload.store.checksum import file_crc32
from mmload.store.dataset_folder import DatasetFile, check_no_links, dataset_files, open_again, open_folder
from mmload.store.manifest import FILE_NAME, VERSIONS, Manifest, read
from mmload.store.versions import versions_of

MARK = "dataset.pushing"


@dataclass(frozen=True, kw_only=True)
class Copied:
    """Result of a push or a pull.

    Attributes:
        files: number of files copied.
        bytes: number of bytes copied.
        present: number of files that existed already.
    """

    files: int
    bytes: int
    present: int


def push(
    dataset: str | Path,
    url: str,
    *,
    version: int | None = None,
    parallel: int = PARALLEL,
    progress: Progress | None = None,
) -> Copied:
    """Copies a dataset to object storage. Run again after an interruption, it copies only what is missing.

    Where an earlier version of the dataset is, only new shards and lists are copied; readers of that version go on.

    Args:
        dataset: folder of the dataset.
        url: destination, such as ``s3://bucket/photos-256``: empty, or where a version of the dataset was pushed.
        version: number of the version to copy; None: the current one.
        parallel: number of concurrent requests.
        progress: called with (bytes done, bytes in all).

    Raises:
        UsageError: if something else is at the URL.
        DamagedError: if a file of the dataset does not have its checksum; it is not copied.
        RemoteError: if the store cannot be read or written.
    """
    check_no_url(dataset, "push copies a dataset from here")
    check_parallel(parallel)
    objects = Objects(url)
    folder, manifest = open_folder(dataset, version)
    root = folder.path
    files = list(dataset_files(manifest))
    listed, there = _listed(objects, manifest)
    looked_at = in_parallel(lambda file: (file, _is_there(objects, root, listed, file)), files, parallel)
    missing = [file for file, is_there in looked_at if not is_there]
    complete = FILE_NAME in listed and not missing
    if not complete:
        objects.put(MARK, manifest.contents.encode())
    pushed = in_parallel(lambda file: _push_file(objects, root, listed, file), missing, parallel)
    copied = _copied(files, missing, pushed, progress)
    if not complete:
        open_again(root, manifest.version, manifest.contents)
        now = _contents(current_manifest(objects))
        if now != manifest.contents:  # else another push of this version has ended
            if now != _contents(there):
                raise MmloadError(f"{objects.url} was changed by another push meanwhile; run the same command again")
            if there is not None:
                _put_manifest(objects, f"{VERSIONS}/{there.version}.json", there)
            _put_manifest(objects, FILE_NAME, manifest)
    if MARK in listed or not complete:
        objects.delete(MARK)
    return copied


def _copied(
    files: list[DatasetFile], missing: list[DatasetFile], arrived: Iterable[int], progress: Progress | None
) -> Copied:
    """Copies the missing files, bytes of which ``arrived`` yields as they arrive."""
    total, wanted = (sum(file.record.bytes for file in some) for some in (files, missing))
    done = total - wanted
    for more in arrived:
        done += more
        if progress is not None:
            progress(done, total)
    return Copied(files=len(missing), bytes=wanted, present=len(files) - len(missing))


def _contents(manifest: Manifest | None) -> str:
    return "" if manifest is None else manifest.contents


def _put_manifest(objects: Objects, name: str, manifest: Manifest) -> None:
    objects.put(name, manifest.dumps().encode("utf-8", "backslashreplace"))


def _listed(objects: Objects, manifest: Manifest) -> tuple[dict[str, int], Manifest | None]:
    """Returns the size of the existing objects, and the manifest of an earlier version that is there, or None.

    Raises:
        UsageError: if they are not from a push of a version of this dataset.
    """
    sizes = {found.name: found.size for found in objects.listed()}
    if not sizes:
        return sizes, None
    there = current_manifest(objects)
    if there is None and MARK not in sizes:
        raise UsageError(f"{objects.url} holds {next(iter(sizes))}, which is not from a push; push to another URL")
    contents = _contents(there) or bytes(objects.get(MARK)).decode("ascii", "replace")
    if contents == manifest.contents:
        return sizes, None
    if contents not in [version.contents for version in manifest.versions]:
        raise UsageError(f"{objects.url} holds another dataset; push to another URL, or remove that one")
    return {name: size for name, size in sizes.items() if name != FILE_NAME}, there


def _is_there(objects: Objects, root: Path, listed: dict[str, int], file: DatasetFile) -> bool:
    """Returns whether an object is the file, by its size and by the checksums that are written after it.

    A push of other values of the file, which was interrupted, may have left an object of that size.
    """
    if listed.get(file.name) != file.record.bytes:
        return False
    if file.content is not None:
        return bytes(objects.get(file.name)) == file.content
    with _reading(root):
        size = 4 * (len(chunks_of(root, file)) + 1)
    name = file.name + SUFFIX
    return listed.get(name) == size and bytes(objects.get_range(name, 0, 4)) == file_checksum(file.record)


def _push_file(objects: Objects, root: Path, listed: dict[str, int], file: DatasetFile) -> int:
    """Copies one file and returns its bytes."""
    if file.content is not None:
        objects.put(file.name, file.content)
        return file.record.bytes
    with _reading(root):
        sums = checksums_of_file(root, file)
    if file.name + SUFFIX in listed:  # of other bytes: if this is interrupted, they must not stand for these
        objects.put(file.name + SUFFIX, b"")
    objects.put(file.name, root / file.name)
    objects.put(file.name + SUFFIX, sums)
    return file.record.bytes


@contextmanager
def _reading(root: Path) -> Iterator[None]:
    """Converts an error of the system to one that names the file."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot read {error.filename or root} ({error.strerror})") from error


_LOCK, _DATASET = "lock", re.compile(r"[0-9a-f]{32}(\.[0-9a-f]+\.partial)?")
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def pull(
    url: str,
    out: str | Path,
    *,
    version: int | None = None,
    parallel: int = PARALLEL,
    progress: Progress | None = None,
) -> Copied:
    """Copies a dataset from object storage. Run again after an interruption, it copies only what is missing.

    Where an earlier version of the dataset is, only new shards and lists are copied; the copy keeps that version.

    Args:
        url: URL of a dataset that was pushed.
        out: folder to create; or a copy of this dataset with missing files, or of an earlier version of it.
        version: number of the version to copy; None: the current one.
        parallel: number of concurrent requests.
        progress: called with (bytes done, bytes in all).

    Raises:
        UsageError: if something else is at ``out``.
        StoreError: if there is no dataset at the URL.
        DamagedError: if an object does not have the checksum of the manifest.
        RemoteError: if the store cannot be read.
        MmloadError: if the folder cannot be written, or another pull is writing it.
    """
    check_no_url(out, "pull copies a dataset to here")
    check_parallel(parallel)
    objects, place = Objects(url), Path(out).absolute()
    manifest = manifest_at(objects, version)
    kept = {manifest.contents, *(version.contents for version in manifest.versions)}
    manifest = msgspec.structs.replace(manifest, versions=manifest.versions[-1:])  # only its manifest is copied
    files = list(dataset_files(manifest))
    try:
        _dataset_at(place, kept)  # before anything is written
        with _staging(place, manifest.contents) as work:
            here = _dataset_at(place, kept)
            lacking = files if here is None else _lacking(place, here, files)
            copied = _fetch_missing(objects, work, files, lacking, parallel, progress)
            write_atomically(work / FILE_NAME, manifest.dumps(), beside=work)
            os.sync()  # a rename may reach the disk before what was written earlier
            if here is not None:
                _add_files(work, place, here, manifest, lacking)
            else:
                with suppress(FileNotFoundError):
                    place.rmdir()  # it is empty
                work.rename(place)
                sync_folder(place.parent)
        return copied
    except OSError as error:
        name = error.filename2 or error.filename or place
        raise MmloadError(
            f"cannot write {name} ({error.strerror or error}); run the same command again to continue"
        ) from error


def _dataset_at(place: Path, kept: set[str]) -> Manifest | None:
    """Returns the manifest of the copy at a place; None if nothing is there; raises UsageError for anything else."""
    if not os.path.lexists(place) or (place.is_dir() and not any(place.iterdir())):
        return None
    here = read(place) if (place / FILE_NAME).is_file() else None
    if _contents(here) not in kept:
        raise UsageError(f"{place} exists and is not this dataset, nor an earlier version of it; choose another place")
    return here


def _lacking(place: Path, here: Manifest, files: list[DatasetFile]) -> list[DatasetFile]:
    """Returns the files that a copy of a version lacks.

    A file that its manifest does not name may be of another version, whose pull was killed at its end: it is read.
    """
    named = {(file.name, file.record.crc32) for file in dataset_files(here)}
    lacking = [
        file
        for file in files
        if not _has(place, file)
        or ((file.name, file.record.crc32) not in named and file_crc32(place / file.name) != file.record.crc32)
    ]
    check_no_links(place, (file.name for file in lacking))
    return lacking


def _fetch_missing(
    objects: Objects,
    work: Path,
    files: list[DatasetFile],
    lacking: list[DatasetFile],
    parallel: int,
    progress: Progress | None,
) -> Copied:
    """Copies those of the files that are ``lacking``, and not in the folder to work in."""
    missing = [file for file in lacking if not _has(work, file)]
    check_no_links(work.parent, (f"{work.name}/{name}" for name in (FILE_NAME, *(file.name for file in lacking))))
    for folder in {(work / file.name).parent for file in missing}:
        folder.mkdir(parents=True, exist_ok=True)
    arriving = (_ArrivingFile(objects, work, file) for file in missing)
    parts = ((file, index) for file in arriving for index in range(file.count))
    return _copied(files, missing, in_parallel(lambda part: part[0].fetch(part[1]), parts, parallel), progress)


class _ArrivingFile:
    """File that arrives in parts, beside its place until it is complete."""

    def __init__(self, objects: Objects, folder: Path, file: DatasetFile) -> None:
        self._objects, self._file, self._path = objects, file, folder / file.name
        self._partial = self._path.with_name(f"{self._path.name}.partial")
        self.count = self._missing = max(1, -(-file.record.bytes // PART_BYTES))
        self._lock = threading.Lock()

    def fetch(self, index: int) -> int:
        """Fetches one part and completes the file with the last one; returns the bytes of the part."""
        file, start = self._file, index * PART_BYTES
        length = min(PART_BYTES, file.record.bytes - start)
        if file.content is None:
            data = self._objects.get_range(file.name, start, length)
        else:
            data = memoryview(file.content)[start : start + length]
        with open(open_regular(self._partial, os.O_WRONLY | os.O_CREAT | _NO_LINK), "wb") as opened:
            opened.seek(start)
            opened.write(data)
            opened.flush()
            begin_sync(opened.fileno(), start, length)
        with self._lock:
            self._missing -= 1
            is_last = self._missing == 0
        if is_last:
            self._finish()
        return length

    def _finish(self) -> None:
        """Checks the file and renames it, when it is on the disk: a pull that goes on compares sizes alone."""
        if (got := file_crc32(self._partial)) != self._file.record.crc32:
            raise DamagedError(
                f"{self._objects.url_of(self._file.name)} has the checksum {got}, the manifest says "
                f"{self._file.record.crc32}: its bytes have changed; remove that object, and push the dataset again"
            )
        with open(self._partial, "rb") as opened:
            sync(opened)
        self._partial.replace(self._path)


def _has(folder: Path, file: DatasetFile) -> bool:
    with suppress(FileNotFoundError):
        return os.stat(folder / file.name).st_size == file.record.bytes
    return False


def _add_files(work: Path, place: Path, earlier: Manifest, manifest: Manifest, lacking: list[DatasetFile]) -> None:
    """Moves what has arrived into a copy, of which it becomes the current version; the earlier one is kept."""
    with folder_lock(place):
        now = read(place)
        if now.contents != earlier.contents:
            raise MmloadError(f"{place} was changed by another command meanwhile; run this one again")
        names = [file.name for file in lacking]
        check_no_links(place, (f"{VERSIONS}/{now.version}.json", *names))
        for name in names:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(work / name, place / name)
        if now.contents != manifest.contents:
            (place / VERSIONS).mkdir(exist_ok=True)
            own = work / FILE_NAME
            write_atomically(place / VERSIONS / f"{now.version}.json", now.dumps(), beside=own)
            versions = (*versions_of(now, place), *manifest.versions)
            text = msgspec.structs.replace(manifest, versions=versions).dumps()
            write_atomically(place / FILE_NAME, text, beside=own)


@contextmanager
def _staging(place: Path, contents: str) -> Iterator[Path]:
    """Yields a folder to work in, in a locked one beside the place; removes that afterwards.

    It has the name of the dataset, as an interrupted pull may have left another one.
    """
    locked = place.with_name(f".{place.name}.pulling")
    locked.mkdir(parents=True, exist_ok=True)
    if locked.is_symlink() or any(name != _LOCK and not _DATASET.fullmatch(name) for name in os.listdir(locked)):
        raise UsageError(f"{locked} was not made by a pull; rename it, or remove it")
    with open_lock(locked / _LOCK) as file:
        if not lock(file) or not os.path.samestat(os.fstat(file.fileno()), os.stat(locked / _LOCK)):
            raise MmloadError(f"another pull is writing {place}; wait for it to end")
        work = locked / contents[:32]
        for other in locked.iterdir():
            if other not in (work, locked / _LOCK):
                remove(other)
        work.mkdir(exist_ok=True)
        yield work
        with suppress(OSError):  # another pull may be waiting
            remove(locked)
