"""Columns of texts and whole numbers that may be many millions long: beyond some MiB each lies in a temporary file.

Comes in: values, one after the other. Goes out: any of them again, in any thread. The file has no name, so that nothing
is left of it, however the process ends.
"""

from __future__ import annotations

import tempfile
import threading
import weakref
from functools import cached_property
from io import FileIO
from struct import Struct

import numpy as np
import numpy.typing as npt

from mmload.errors import SourceError

_KEPT = 4 * 2**20
"""Bytes of a column that stay in memory. Of a million files names and stamps are some 30 MB each."""

_BLOCK = 2**14
"""Bytes read from the file at a time. The last block is kept, as most reading is in order."""

_NUMBER, _TWO = Struct("<q"), Struct("<qq")


class Bytes:
    """Bytes one behind the other. Append-only, picklable; one thread at a time may append, any may read.

    Raises:
        SourceError: at any use, if the temporary file cannot be written or read.
    """

    def __init__(self) -> None:
        self._tail = bytearray()
        self._filed = 0
        self._block = (0, b"")
        self._lock = threading.Lock()

    @cached_property
    def _file(self) -> FileIO:
        file = tempfile.TemporaryFile(prefix="mmload-", buffering=0)  # noqa: SIM115  # closed with the column
        weakref.finalize(self, file.close)
        return file

    def append(self, data: bytes) -> None:
        """Add some at the end."""
        self._tail += data
        if len(self._tail) >= _KEPT:
            self._to_file()

    def cut(self, start: int, stop: int) -> bytes:
        """Those from ``start`` up to ``stop``, which must be there."""
        if start >= self._filed:
            return bytes(self._tail[start - self._filed : stop - self._filed])
        if stop > self._filed:
            return self.cut(start, self._filed) + self.cut(self._filed, stop)
        first, block = self._block
        if start < first or stop > first + len(block):
            first, block = self._block = start, self._read(start, max(stop - start, _BLOCK))
        return block[start - first : stop - first]

    def __len__(self) -> int:
        return self._filed + len(self._tail)

    def __getstate__(self) -> bytes:
        return self.cut(0, len(self))

    def __setstate__(self, data: bytes) -> None:
        Bytes.__init__(self)
        self.append(data)

    def _to_file(self) -> None:
        rest = memoryview(self._tail)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise _no_room(error) from error
        self._filed, self._tail = len(self), bytearray()

    def _read(self, start: int, size: int) -> bytes:
        with self._lock:
            try:
                self._file.seek(start)
                return self._file.read(min(size, self._filed - start))
            except OSError as error:
                raise _no_room(error) from error


class Numbers:
    """Whole numbers of 64 bits. Append-only, picklable."""

    def __init__(self) -> None:
        self._bytes = Bytes()

    def append(self, number: int) -> None:
        """Add one."""
        self._bytes.append(_NUMBER.pack(number))

    def cut(self, start: int, stop: int) -> Numbers:
        """Those from ``start`` up to ``stop``, copied."""
        part = Numbers()
        part._bytes.append(self._bytes.cut(8 * start, 8 * stop))
        return part

    def array(self) -> npt.NDArray[np.int64]:
        """All of them, in memory: int64 [N]."""
        return np.frombuffer(bytearray(self._bytes.cut(0, len(self._bytes))), "<i8").astype(np.int64, copy=False)

    def __len__(self) -> int:
        return len(self._bytes) // 8

    def __getitem__(self, index: int) -> int:
        if index < 0 or index >= len(self):
            raise IndexError(f"number {index} of {len(self)}")
        number: int = _NUMBER.unpack(self._bytes.cut(8 * index, 8 * index + 8))[0]
        return number


class Texts:
    """Texts, 8 bytes each beside their own. Append-only, picklable."""

    def __init__(self) -> None:
        self._bytes, self._ends = Bytes(), Bytes()
        self._ends.append(_NUMBER.pack(0))

    def append(self, text: str) -> None:
        """Add one; a lone surrogate, as in a file name that is no UTF-8, comes back as it was."""
        self._bytes.append(text.encode("utf-8", "surrogatepass"))
        self._ends.append(_NUMBER.pack(len(self._bytes)))

    def cut(self, start: int, stop: int) -> Texts:
        """Those from ``start`` up to ``stop``, copied."""
        ends = np.frombuffer(self._ends.cut(8 * start, 8 * stop + 8), "<i8")
        part = Texts()
        part._bytes.append(self._bytes.cut(int(ends[0]), int(ends[-1])))
        part._ends.append((ends[1:] - ends[0]).tobytes())
        return part

    def __len__(self) -> int:
        return len(self._ends) // 8 - 1

    def __getitem__(self, index: int) -> str:
        if index < 0 or index >= len(self):
            raise IndexError(f"text {index} of {len(self)}")
        start, stop = _TWO.unpack(self._ends.cut(8 * index, 8 * index + 16))
        return self._bytes.cut(start, stop).decode("utf-8", "surrogatepass")


def _no_room(error: OSError) -> SourceError:
    return SourceError(
        f"the list of samples is long and goes to {tempfile.gettempdir()}, where it cannot be kept "
        f"({error.strerror or error}); make room, or set TMPDIR to another folder"
    )
