"""Folder of an open dataset: its files, compared with the manifest and with what they were when the dataset was opened.

Opening takes the inode, size and time of modification of every file of the shards. A file is opened at its first use,
and is the one that was there then, or an error: so rows of a dataset that takes the place of another are never read as
rows of that. A file that is unlinked or replaced later is read as it was. Files can also be overwritten in place under
a reader (``cp -r new/. old/``, ``rsync --inplace``): data is valid only after a check of its file, one ``fstat``.
Imports no torch: ``mmload info`` needs no more than this.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmload.errors import DamagedError, StoreError
from mmload.runtime.regular_files import allow_more_files, open_regular
from mmload.store.checksum import crc32
from mmload.store.manifest import BYTES, FILE_NAME, META_NAME, OFFSETS, FileRecord, Manifest, files_of, tensordict_meta
from mmload.store.versions import read_any

_TRIES = 10

Revision = tuple[int, int, int]
"""Identifies the content of a file without reading it: inode, size and time of modification."""


class Folder:
    """Folder of a dataset. Thread-safe; picklable: a copy opens the path again and checks that it is the same dataset.

    An update adds a version beside the one that was read, whose files stay.

    Attributes:
        path: absolute, as it was given.
        manifest: the manifest that was read.

    Args:
        root: the folder at the path: a link to the current dataset may lead to another one later.
        revisions: of the files of the shards, by their paths below it.
    """

    def __init__(self, path: Path, root: Path, manifest: Manifest, revisions: Mapping[str, Revision]) -> None:
        self.path, self.manifest, self._root, self._revisions = path, manifest, root, revisions

    def __reduce__(self) -> tuple[Any, ...]:
        return open_again, (self.path, self.manifest.version, self.identity)

    @property
    def identity(self) -> str:
        """Digest of everything that determines the rows; equal for copies of a dataset."""
        return self.manifest.contents

    @property
    def title(self) -> str:
        """Name of the dataset in messages."""
        return str(self.path)

    @property
    def remedy(self) -> str:
        """Advice in messages about damage."""
        return f"run: mmload verify {self.path}"

    def name(self, file: str) -> str:
        """Returns a file's absolute path; a str, as a Path would double the time to open many."""
        return os.path.join(self._root, file)

    def revision(self, file: str) -> Revision | None:
        """Returns the revision of a file of a shard when the dataset was opened; None of other files."""
        return self._revisions.get(file)

    def open(self, file: str, record: FileRecord) -> int:
        """Opens a file, given by its path inside the folder and its record; returns a descriptor.

        Raises:
            StoreError: if it cannot be opened, or is no regular file.
        """
        try:
            return open_regular(self.name(file))
        except OSError as error:
            if error.errno == errno.EMFILE and allow_more_files():
                return self.open(file, record)
            what = f"cannot open {self.name(file)} ({error.strerror})"
            if error.errno == errno.ENOENT:
                what += ": it was removed or replaced while the dataset was open; open it again"
            raise StoreError(what) from error


def revision_of(status: os.stat_result) -> Revision:
    """Returns a file's revision, without the device, whose number may differ between containers."""
    return status.st_ino, status.st_size, status.st_mtime_ns


class OpenedFile:
    """Open file of a dataset, of the revision that it had when the dataset was opened. Thread-safe.

    Attributes:
        handle: the descriptor, closed with this object.
        path: absolute, for messages.
        size: bytes of the file.

    Raises:
        StoreError: if it cannot be opened, or was written to or replaced since the dataset was opened.
        DamagedError: if it was truncated.
    """

    def __init__(self, folder: Folder, file: str, record: FileRecord) -> None:
        self.handle = folder.open(file, record)
        self.path, self.size = folder.name(file), record.bytes
        self._crc32, self._remedy = record.crc32, folder.remedy
        self._revision = folder.revision(file) or revision_of(os.fstat(self.handle))
        self.check()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # bound early: at exit the module may be gone
        handle = self.__dict__.get("handle")
        if handle is not None:
            close(handle)

    def check(self) -> None:
        """Checks that everything read so far belongs to the dataset that was opened; call it after reading.

        Raises:
            StoreError: if the file was written to, or its file system has gone.
            DamagedError: if it was truncated.
        """
        try:
            current = revision_of(os.fstat(self.handle))
        except OSError as error:
            raise StoreError(f"cannot read the state of {self.path} ({error.strerror})") from error
        if current[1] < self.size:
            raise self.damaged(f"it ends at byte {current[1]}, the manifest says {self.size}: it was truncated")
        if current != self._revision:
            raise StoreError(
                f"{self.path} was written to or replaced while the dataset was open; open it again, or {self._remedy}"
            )

    def prefetch(self, offset: int, size: int) -> None:
        """Asks the system to read a range ahead; only a hint."""
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(self.handle, offset, size, os.POSIX_FADV_WILLNEED)

    def fill(self, out: memoryview, offset: int) -> None:
        """Reads bytes from ``offset`` on into ``out``; they are valid after :meth:`check`.

        Raises:
            StoreError: if the file cannot be read.
            DamagedError: if it ends before.
        """
        done = 0
        while done < len(out):
            try:
                got = os.preadv(self.handle, [out[done:] if done else out], offset + done)
            except OSError as error:
                raise StoreError(f"cannot read {self.path} ({error.strerror})") from error
            if got == 0:
                raise self.damaged(f"it ends at byte {offset + done}, before its last row: it was truncated")
            done += got

    def fill_checked(self, out: memoryview) -> None:
        """Reads the complete file into ``out``, and compares its checksum with the manifest's.

        Raises:
            StoreError: if the file cannot be read, or was written to.
            DamagedError: if it ends before, or has another checksum.
        """
        self.fill(out, 0)
        self.check()
        if f"{crc32(out):08x}" != self._crc32:
            raise self.damaged("checksum mismatch")

    def damaged(self, reason: str) -> DamagedError:
        """Returns the error of the file: what is wrong, and what to do."""
        return DamagedError(f"{self.path} is damaged: {reason}; {self._remedy}")


def open_folder(path: str | Path, version: int | None = None) -> tuple[Folder, Manifest]:
    """Returns a dataset's folder and manifest, which match the sizes of its files, even while the dataset is replaced.

    Takes O(shards), not O(rows).

    Raises:
        StoreError: if there is no finished dataset, or no such version of it.
        VersionError: if it is of another format version.
        DamagedError: if its files do not have the sizes that the manifest says.
    """
    path = Path(path).absolute()
    for _ in range(_TRIES):
        root = Path(os.path.realpath(path))
        before = _manifest_status(root)
        try:
            manifest = read_any(root, version)
            folder = Folder(path, root, manifest, _revisions(root, manifest))
        except StoreError:
            if _manifest_status(root) == before:
                raise
        else:
            if _manifest_status(root) == before:
                return folder, manifest
    raise StoreError(f"the dataset {path} is being replaced again and again; open it when that has ended")


def open_again(path: Path, version: int, identity: str) -> Folder:
    """Opens a dataset that was opened before.

    Raises:
        StoreError: if the path holds another dataset; as :func:`open_folder`.
    """
    folder, _ = open_folder(path, version)
    if folder.identity != identity:
        raise StoreError(f"the dataset {path} was replaced or removed while it was open; open it again")
    return folder


def _manifest_status(path: Path) -> tuple[object, ...] | None:
    """Returns what identifies the current ``dataset.json`` without reading it; None if it does not exist."""
    with suppress(OSError):
        status = os.stat(path / FILE_NAME)
        return status.st_dev, *revision_of(status)
    return None


def _revisions(path: Path, manifest: Manifest) -> dict[str, Revision]:
    """Compares the sizes of the shards' files with the manifest, and returns their revisions."""
    advice = f"run: mmload verify {path} --repair --source ROOT"
    found = {}
    for split, record in manifest.built_splits.items():
        for index, shard in enumerate(record.shards):
            for name, expected in shard.files.items():
                file = f"{record.shard_folder(split, index)}/{name}.memmap"
                full = os.path.join(path, file)  # a Path would double the time to open many
                try:
                    status = os.stat(full)
                except FileNotFoundError as error:
                    raise DamagedError(f"{full} is missing; {advice}") from error
                except OSError as error:
                    raise DamagedError(f"{full} cannot be read ({error.strerror})") from error
                if not stat.S_ISREG(status.st_mode):
                    raise DamagedError(f"{full} is not a file; {advice}")
                if status.st_size != expected.bytes:
                    what = "was truncated" if status.st_size < expected.bytes else "was written to"
                    have = f"{full} has {status.st_size:,} bytes, the manifest says {expected.bytes:,}"
                    raise DamagedError(f"{have}: it {what}; {advice}")
                found[file] = revision_of(status)
    return found


def check_no_links(root: Path, names: Iterable[str]) -> None:
    """Checks that no part of some paths below a folder is a link, before a command writes or removes them.

    The folder itself may be one. What a link leads to may belong to another dataset.

    Raises:
        StoreError: naming the first link.
    """
    for name in names:
        place = root
        for part in name.split("/"):
            place /= part
            if place.is_symlink():
                raise StoreError(
                    f"{place} is a link to {os.readlink(place)}, and nothing is written or removed behind links; "
                    "put the file or folder itself in its place, then run this again"
                )


@dataclass(frozen=True, kw_only=True)
class DatasetFile:
    """File that a dataset must have.

    Attributes:
        split: the split's name.
        shard: the shard's number; None for the split's lists of samples.
        name: relative to the dataset's folder.
        record: its size and checksum.
        row_bytes: bytes of a row, in a file of rows; else None.
        offsets: for a file of variable-size rows, the file that says where each begins; else None.
        content: content of a file that follows from the manifest; else None.
    """

    split: str
    shard: int | None
    name: str
    record: FileRecord
    row_bytes: int | None = None
    offsets: str | None = None
    content: bytes | None = None


def dataset_files(manifest: Manifest) -> Iterator[DatasetFile]:
    """Yields all files of a dataset but ``dataset.json``, split by split, shard by shard."""
    for name, split in manifest.splits.items():
        files = files_of(split.fields)
        own = split.shards if split.subset_of is None else ()
        for index, shard in enumerate(own):
            folder = split.shard_folder(name, index)
            meta = tensordict_meta(split.fields, shard).encode()
            record = FileRecord(bytes=len(meta), crc32=f"{crc32(meta):08x}")
            yield DatasetFile(split=name, shard=index, name=f"{folder}/{META_NAME}", record=record, content=meta)
            for field, record in shard.files.items():
                yield DatasetFile(
                    split=name,
                    shard=index,
                    name=f"{folder}/{field}.memmap",
                    record=record,
                    row_bytes=files[field].spec.row_bytes,
                    offsets=None
                    if files[field].counted or files[field].is_list
                    else f"{folder}/{field.removesuffix(BYTES)}{OFFSETS}.memmap",
                )
        for file, record in split.lists.items():
            yield DatasetFile(split=name, shard=None, name=f"{name}/{file}", record=record)
