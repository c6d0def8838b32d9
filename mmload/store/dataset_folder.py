"""Folder of an open dataset: its files, opened, compared with the manifest, and watched for a dataset in their place.

Files are opened relative to a descriptor of the folder, many of them lazily. Renaming or replacing the folder and
changing the working directory therefore have no effect; a dataset written into the same folder is detected by its
``dataset.json``. Imports no torch: ``mmload info`` needs no more than this.

Files can be overwritten in place under a reader (``cp -r new/. old/``, ``rsync --inplace``): the same descriptor then
returns other bytes. Data is therefore valid only after a check that the file was not written to since the dataset was
opened: one ``fstat`` for each file of a batch.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmload.errors import DamagedError, StoreError
from mmload.runtime.lazy_property import lazy_property
from mmload.runtime.regular_files import allow_more_files, open_regular, read_at
from mmload.store.checksum import crc32
from mmload.store.manifest import FILE_NAME, Manifest, SplitRecord, read
from mmload.store.shard_table import BYTES, META_NAME, OFFSETS, FileRecord, files_of, tensordict_meta
from mmload.store.versions import read_version

_TRIES = 5
_OPEN_TRIES = 10
_UNSIGNED = 2**64 - 1
_CHUNK_BYTES = 2**20

Revision = tuple[int, int, int]
"""Identifies the content of a file without reading it: inode, size and time of modification."""


class Folder:
    """Folder of a dataset. Thread-safe; picklable: a copy opens the path again and checks that it is the same dataset.

    An update adds a version beside the one that was read, whose files stay: it is no other dataset.

    Attributes:
        path: absolute, as it was when the dataset was opened.
    """

    def __init__(self, path: str | Path, version: int | None = None) -> None:
        self.path, self._version = Path(path).absolute(), version
        self._manifest_status: tuple[int, ...] | None = None
        self._revisions_folder: tuple[int, int] | None = None
        self._revisions: dict[tuple[str, str], NDArray[np.uint64]] = {}
        self._manifest: Manifest | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "_version": self._version,
            "_manifest_status": self._manifest_status,
            "_manifest": None,
            "_revisions": self._revisions,
            "_revisions_folder": self._revisions_folder or self.device_inode,
            "identity": self.identity,
            "version": self.version,
        }

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # bound early: at exit the module may be gone
        handle = self.__dict__.get("_descriptor")
        if handle is not None:
            close(handle)

    def read(self) -> Manifest:
        """Reads the manifest; from now on the folder must contain this one.

        Raises:
            StoreError, VersionError, DamagedError: as :func:`mmload.store.manifest.read`.
        """
        self._manifest_status = self._current_status()
        manifest = read(self.path, self._handle())
        if self._version is not None:
            manifest = read_version(self.path, self._version, manifest, self._handle())
        self._manifest = manifest
        return manifest

    @lazy_property
    def identity(self) -> str:
        """Digest of everything that determines the rows; equal for copies of a dataset."""
        if self._manifest is None:
            raise RuntimeError("no manifest was read")
        return self._manifest.contents

    @lazy_property
    def version(self) -> int:
        """Number of the version that was read."""
        if self._manifest is None:
            raise RuntimeError("no manifest was read")
        return self._manifest.version

    @property
    def title(self) -> str:
        """Name of the dataset in messages."""
        return str(self.path)

    @property
    def remedy(self) -> str:
        """Advice in messages about damage."""
        return f"run: mmload verify {self.path}"

    def record_revisions(self, split: str, name: str, revisions: list[Revision]) -> None:
        """Records the files' revisions at the time when the dataset was opened: 24 bytes each."""
        self._revisions[split, name] = np.array(revisions, dtype=np.uint64).reshape(-1, 3)

    def recorded_revision(self, split: str, name: str, index: int) -> Revision | None:
        """Returns a file's revision when the dataset was opened; None in a copy that found another folder."""
        if self._revisions_folder is not None and self._revisions_folder != self.device_inode:
            return None
        revisions = self._revisions.get((split, name))
        if revisions is None:
            return None
        inode, size, modified = revisions[index].tolist()
        return inode, size, modified

    @property
    def device_inode(self) -> tuple[int, int]:
        """Device and inode of the folder."""
        handle = self._handle()
        try:
            status = os.stat(self.path) if handle is None else os.fstat(handle)
        except OSError as error:
            raise self._replaced() from error
        return status.st_dev, status.st_ino

    def is_current(self) -> bool:
        """Returns whether the dataset at the path is still the one that was read."""
        try:
            status = os.stat(self.path)
            same_folder = (status.st_dev, status.st_ino) == self.device_inode
            return same_folder and self._current_status() == self._manifest_status
        except (OSError, StoreError):
            return False

    def name(self, file: str) -> str:
        """Returns a file's absolute path, for messages; a str, as a Path would double the time to open many."""
        return os.path.join(self.path, file)

    def stat(self, file: str) -> os.stat_result:
        """Returns the status of a file, given by its path inside the folder."""
        handle = self._handle()
        return os.stat(self.name(file)) if handle is None else os.stat(file, dir_fd=handle)

    def open(self, file: str, record: FileRecord) -> int:
        """Opens a file, given by its path inside the folder and its record, if the folder still contains this dataset.

        Returns:
            A descriptor.

        Raises:
            StoreError: if it cannot be opened, is no regular file, or the dataset was replaced since it was read.
        """
        try:
            opened = self._open(file)
        except OSError as error:
            self.check()
            raise StoreError(f"cannot open {self.name(file)} ({error.strerror})") from error
        try:
            self.check()  # after opening: a check before it could pass for a file that is replaced in between
        except BaseException:
            os.close(opened)
            raise
        return opened

    def check_changed(self) -> None:
        """Checks that the folder contains no other dataset: one ``stat`` if nothing changed.

        A missing folder is no error here: files that are open can still be read.

        Raises:
            StoreError: if the folder contains another dataset.
        """
        if self._current_status() not in (None, self._manifest_status):
            self.check()

    def check(self) -> None:
        """Checks that the folder still contains the dataset that was read; its card may differ, and it may be updated.

        Raises:
            StoreError: if it does not.
        """
        for _ in range(_TRIES):
            now = self._current_status()
            if now is not None and now == self._manifest_status:
                return
            try:
                manifest = read(self.path, self._handle())
            except StoreError as error:
                raise self._replaced() from error
            if self.identity not in (manifest.contents, *(version.contents for version in manifest.versions)):
                break
            self._manifest_status = now  # taken before reading: the next iteration checks that it has not changed since
        raise self._replaced()

    def _replaced(self) -> StoreError:
        return StoreError(f"the dataset {self.path} was replaced or removed while it was open; open it again")

    def _current_status(self) -> tuple[int, ...] | None:
        """Returns what identifies the current ``dataset.json`` without reading it; None if it does not exist."""
        try:
            status = self.stat(FILE_NAME)
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def _open(self, file: str) -> int:
        handle = self._handle()
        try:
            return open_regular(self.name(file)) if handle is None else open_regular(file, dir_fd=handle)
        except OSError as error:
            if error.errno != errno.EMFILE or not allow_more_files():
                raise
        return self._open(file)

    def _handle(self) -> int | None:
        """Returns the descriptor of the folder. Lock-free, as a fork could leave a lock held."""
        if "_descriptor" not in self.__dict__:
            opened = _descriptor_of(self.path)
            if self.__dict__.setdefault("_descriptor", opened) != opened and opened is not None:
                os.close(opened)  # another thread was first
        handle: int | None = self.__dict__["_descriptor"]
        return handle


def revision_of(status: os.stat_result) -> Revision:
    """Returns a file's revision, without the device, whose number may differ between containers."""
    return status.st_ino & _UNSIGNED, status.st_size, status.st_mtime_ns & _UNSIGNED


class OpenedFile:
    """Open file of a dataset. Thread-safe.

    It has the expected revision, that of when the dataset was opened; None: the current one.

    Attributes:
        handle: the descriptor, closed with this object.
        path: absolute, for messages.

    Raises:
        StoreError: if it cannot be opened, or has other content than when the dataset was opened.
        DamagedError: if it was truncated.
    """

    def __init__(self, folder: Folder, file: str, record: FileRecord, expected: Revision | None) -> None:
        self.handle = folder.open(file, record)
        self.path = folder.name(file)
        self._folder, self._record = folder, record
        self._revision = expected
        self.check()

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._record.bytes

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # bound early: at exit the module may be gone
        handle = self.__dict__.get("handle")
        if handle is not None:
            close(handle)

    def check(self) -> None:
        """Checks that everything read so far belongs to the dataset that was opened; call it after reading.

        A file that was replaced or touched is accepted if its bytes have the manifest's checksum, as after a repair.

        Raises:
            StoreError: if the file was written to, or its file system has gone.
            DamagedError: if it was truncated.
        """
        try:
            current = revision_of(os.fstat(self.handle))
        except OSError as error:
            raise StoreError(f"cannot read the state of {self.path} ({error.strerror})") from error
        if current == self._revision:
            return
        self._folder.check()
        if current[1] < self._record.bytes:
            raise DamagedError(
                f"{self.path} is damaged: it ends at byte {current[1]}, the manifest says {self._record.bytes}: "
                "it was truncated; repair or rebuild the dataset"
            )
        if self._revision is not None and not self._is_intact():
            raise StoreError(
                f"{self.path} was written to or replaced while the dataset was open; open it again, "
                f"or run: mmload verify {self._folder.path}"
            )
        if revision_of(os.fstat(self.handle)) != current:
            raise StoreError(f"{self.path} is being written to; open the dataset again when that has ended")
        self._revision = current

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
                got = read_at(self.handle, out[done:] if done else out, offset + done)
            except OSError as error:
                raise StoreError(f"cannot read {self.path} ({error.strerror})") from error
            if got == 0:
                raise DamagedError(
                    f"{self.path} ends at byte {offset + done}, before its last row: "
                    "it was truncated; repair or rebuild the dataset"
                )
            done += got

    def _is_intact(self) -> bool:
        """Returns whether the file has the size and checksum of the manifest."""
        if os.fstat(self.handle).st_size != self._record.bytes:
            return False
        buffer, offset, checksum = memoryview(bytearray(_CHUNK_BYTES)), 0, 0
        try:
            while got := read_at(self.handle, buffer, offset):
                checksum = crc32(buffer[:got], checksum)
                offset += got
        except OSError as error:
            raise StoreError(f"cannot read {self.path} ({error.strerror})") from error
        return f"{checksum:08x}" == self._record.crc32


def check_files(files: Iterable[OpenedFile]) -> None:
    """Checks that what was read of files belongs to the dataset that was opened: one ``fstat`` each.

    Raises:
        DamagedError, StoreError: if a file was written to, or its file system has gone.
    """
    for file in set(files):
        file.check()


def _descriptor_of(path: Path) -> int | None:
    """Returns a descriptor; None on an error, which reading the manifest then reports."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.EMFILE and allow_more_files():
            return _descriptor_of(path)
        return None


def open_folder(path: str | Path, version: int | None = None) -> tuple[Folder, Manifest]:
    """Returns a dataset's folder and manifest, which match the sizes of its files, even while the dataset is replaced.

    Takes O(shards), not O(rows).

    Raises:
        StoreError: if there is no finished dataset, or no such version of it.
        VersionError: if it is of another format version.
        DamagedError: if its files do not have the sizes that the manifest says.
    """
    path = Path(path)
    for _ in range(_OPEN_TRIES):
        folder = Folder(path, version)
        try:
            manifest = folder.read()
            for name, record in manifest.splits.items():
                if record.subset_of is None:
                    _check_files(folder, name, record)
        except StoreError:
            if folder.is_current() or not path.exists():
                raise
            continue
        if folder.is_current():
            return folder, manifest
    raise StoreError(f"the dataset {path} is being replaced again and again; open it when that has ended")


def _check_files(folder: Folder, split: str, record: SplitRecord) -> None:
    """Compares the files' sizes with the manifest, and records their revisions."""
    advice = f"run: mmload verify {folder.path} --repair --source ROOT"
    revisions: dict[str, list[Revision]] = {name: [] for name in files_of(record.fields)}
    for index, shard in enumerate(record.shards):
        for name, expected in shard.files.items():
            file = f"{record.shard_folder(split, index)}/{name}.memmap"
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
            revisions[name].append(revision_of(status))
    for name, found in revisions.items():
        folder.record_revisions(split, name, found)


def first_link(root: Path, name: str) -> Path | None:
    """Returns the first part of a relative path that is a link; None if none is. The root itself may be one."""
    place = root
    for part in name.split("/"):
        place /= part
        if place.is_symlink():
            return place
    return None


def check_no_links(root: Path, names: Iterable[str]) -> None:
    """Checks that no part of some paths below a folder is a link, before a command writes or removes them.

    What a link leads to may belong to another dataset.

    Raises:
        StoreError: naming the first link.
    """
    for name in names:
        if (link := first_link(root, name)) is not None:
            raise StoreError(
                f"{link} is a link to {os.readlink(link)}, and nothing is written or removed behind links; "
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
