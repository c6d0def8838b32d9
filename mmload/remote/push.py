"""Copies a dataset to object storage: in parallel, checked, only what is missing there, its manifest last.

A dataset that is there has a ``dataset.json``, so one that was pushed in part is never read. While a push works, the
object ``dataset.pushing`` says of which dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mmload.cloud.client import PARALLEL, Objects
from mmload.cloud.parallel import check_parallel, in_parallel
from mmload.cloud.urls import refuse_url
from mmload.errors import StoreError, UsageError
from mmload.remote.block_checksums import SUFFIX, block_bytes_of, lengths_of, parse, sums_of_file
from mmload.remote.remote_manifest import manifest_at
from mmload.store.dataset_files import DatasetFile, dataset_files
from mmload.store.manifest import FILE_NAME, Manifest
from mmload.store.opening import opened

MARK = "dataset.pushing"

Progress = Callable[[int, int], None]
"""Called with (bytes done, all of them)."""


@dataclass(frozen=True, kw_only=True)
class Copied:
    """What a push or a pull has done.

    Attributes:
        files: how many were copied.
        bytes: their bytes.
        present: files that were there already.
    """

    files: int
    bytes: int
    present: int


def push(dataset: str | Path, url: str, *, parallel: int = PARALLEL, progress: Progress | None = None) -> Copied:
    """Copy a dataset to object storage. Run again after an interruption, it copies only what is missing.

    Args:
        dataset: its folder.
        url: where to, such as ``s3://bucket/photos-256``; nothing else may be there.
        parallel: requests at once.
        progress: called with (bytes done, bytes in all).

    Raises:
        UsageError: if something else is at the URL.
        DamagedError: if a file of the dataset does not have its checksum; it is not copied.
        RemoteError: if the store cannot be read or written.
    """
    refuse_url(dataset, "push copies a dataset from here")
    check_parallel(parallel)
    objects = Objects(url)
    folder, manifest = opened(dataset)
    root = folder.path
    files = list(dataset_files(manifest))
    listed = _listed(objects, manifest, files)
    missing, done = [], sum(file.record.bytes for file in files)
    total = done
    for file, is_there in in_parallel(
        lambda file: (file, _is_there(objects, folder.path, listed, file)), files, parallel
    ):
        if not is_there:
            missing.append(file)
            done -= file.record.bytes
    complete = FILE_NAME in listed and not missing
    if not complete:
        objects.put(MARK, manifest.contents.encode())
        for copied in in_parallel(lambda file: _push_file(objects, root, file), missing, parallel):
            done += copied
            if progress is not None:
                progress(done, total)
        folder.check()
        objects.put(FILE_NAME, root / FILE_NAME)
    if MARK in listed or not complete:
        objects.delete(MARK)
    return Copied(
        files=len(missing), bytes=sum(file.record.bytes for file in missing), present=len(files) - len(missing)
    )


def _listed(objects: Objects, manifest: Manifest, files: list[DatasetFile]) -> dict[str, int]:
    """Name -> size of the objects that are there; refuses what does not belong to this dataset."""
    own = {FILE_NAME, MARK, *(name for file in files for name in (file.name, file.name + SUFFIX))}
    listed: dict[str, int] = {}
    for found in objects.listed():
        if found.name not in own:
            raise UsageError(f"{objects.url} holds {found.name}, which is no file of this dataset; push to another URL")
        listed[found.name] = found.size
    if not listed:
        return listed
    if FILE_NAME in listed:
        contents = manifest_at(objects).contents
    elif MARK in listed:
        contents = bytes(objects.get(MARK)).decode("ascii", "replace")
    else:
        raise UsageError(f"{objects.url} holds {next(iter(listed))}, which no push has left there; push to another URL")
    if contents != manifest.contents:
        raise UsageError(f"{objects.url} holds another dataset; push to another URL, or remove that one")
    return listed


def _is_there(objects: Objects, root: Path, listed: dict[str, int], file: DatasetFile) -> bool:
    """Whether a file was pushed: its object has its size, and the checksums that were written after it are its own."""
    if listed.get(file.name) != file.record.bytes:
        return False
    if file.content is not None:
        return True
    if file.name + SUFFIX not in listed:
        return False
    with _reading(root):
        lengths = lengths_of(root, file)
    return parse(objects.get(file.name + SUFFIX), file.record, block_bytes_of(file), lengths) is not None


def _push_file(objects: Objects, root: Path, file: DatasetFile) -> int:
    """Copy one file; returns its bytes."""
    if file.content is not None:
        objects.put(file.name, file.content)
        return file.record.bytes
    with _reading(root):
        sums = sums_of_file(root, file)
    objects.put(file.name, root / file.name)
    objects.put(file.name + SUFFIX, sums.to_bytes())
    return file.record.bytes


@contextmanager
def _reading(root: Path) -> Iterator[None]:
    """An error of the system names the file."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot read {error.filename or root} ({error.strerror})") from error
