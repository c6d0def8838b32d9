"""Open files of a dataset: what is read of them belongs to the dataset that was opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress

from mmload.errors import DamagedError, StoreError
from mmload.runtime.regular_files import read_at
from mmload.store.checksum import crc32
from mmload.store.dataset_folder import Folder, Revision, revision_of
from mmload.store.shard_table import FileRecord

_CHUNK_BYTES = 2**20


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
