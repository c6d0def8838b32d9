"""A file of an open dataset, held by its descriptor, and whether it still has the content that it was opened with.

Files can be overwritten in place under a reader (``cp -r new/. old/``, ``rsync --inplace``): the same descriptor then
gives other bytes. So what was read counts only after a check that nothing was written to the file since the dataset
was opened: one ``fstat`` for each file of a batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from mmload.errors import DamagedError, StoreError
from mmload.runtime.positioned_reads import read_at
from mmload.store.checksum import crc32
from mmload.store.dataset_folder import Folder, Stamp, revision_of
from mmload.store.manifest import FileRecord

_CHUNK_BYTES = 2**20


class HeldFile:
    """An open file of a dataset. Thread-safe.

    Args:
        folder: the dataset's.
        file: the path inside it.
        record: the file's manifest entry.
        seen: what it was when the dataset was opened; None: what it is now.

    Attributes:
        handle: the descriptor, closed with this object.
        path: absolute, for messages.

    Raises:
        StoreError: if it cannot be opened, or has other content than when the dataset was opened.
        DamagedError: if it was truncated.
    """

    def __init__(self, folder: Folder, file: str, record: FileRecord, seen: Stamp | None) -> None:
        self.handle = folder.open(file)
        self.path = folder.name(file)
        self._folder, self._record = folder, record
        self._stamp = seen
        self.check()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at exit the module may be gone already
        handle = self.__dict__.get("handle")
        if handle is not None:
            close(handle)

    def check(self) -> None:
        """Whether all that was read of the file so far is of the dataset that was opened; to be called after reading.

        A file that was replaced or touched is accepted where its bytes have the manifest's checksum: a repair wrote
        them.

        Raises:
            StoreError: if the file was written to.
            DamagedError: if it was truncated.
        """
        now = revision_of(os.fstat(self.handle))
        if now == self._stamp:
            return
        self._folder.check()
        if now[1] < self._record.bytes:
            raise DamagedError(
                f"{self.path} is damaged: it ends at byte {now[1]}, the manifest says {self._record.bytes}: "
                "it was truncated; repair or rebuild the dataset"
            )
        if self._stamp is not None and not self._is_intact():
            raise StoreError(
                f"{self.path} was written to or replaced while the dataset was open; open it again, "
                f"or run: mmload verify {self._folder.path}"
            )
        if revision_of(os.fstat(self.handle)) != now:
            raise StoreError(f"{self.path} is being written to; open the dataset again when that has ended")
        self._stamp = now

    def _is_intact(self) -> bool:
        """Whether the bytes are those of the manifest."""
        if os.fstat(self.handle).st_size != self._record.bytes:
            return False
        buffer, at, checksum = memoryview(bytearray(_CHUNK_BYTES)), 0, 0
        try:
            while got := read_at(self.handle, buffer, at):
                checksum = crc32(buffer[:got], checksum)
                at += got
        except OSError as error:
            raise StoreError(f"cannot read {self.path} ({error.strerror})") from error
        return f"{checksum:08x}" == self._record.crc32
