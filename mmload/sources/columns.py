"""Columns of strings, numbers and arrays with millions of values, which spill to a temporary file beyond a few MiB.

Any thread may read them. The file is anonymous, so nothing is left of it however the process ends.
"""

from __future__ import annotations

import tempfile
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from io import FileIO
from itertools import pairwise
from math import prod
from struct import Struct, unpack
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from mmload.errors import SourceError
from mmload.runtime.lazy_property import lazy_property

_IN_MEMORY = 4 * 2**20
"""Bytes of a column that stay in memory. Names and revisions of a million files take some 30 MB each."""

_BLOCK = 2**14
"""Bytes read from the file at a time. The last block is kept, as most reading is in order."""

_RUN = 256
"""Values to decode at a time when they are read in order."""

_NUMBER = Struct("<q")

T = TypeVar("T")


class Bytes:
    """An array of bytes. Append-only, picklable; one thread at a time may append, any may read.

    Raises:
        SourceError: at any use, if the temporary file cannot be written or read.
    """

    def __init__(self) -> None:
        self._tail = bytearray()
        self._in_file = 0
        self._block = (0, b"")
        self._lock = threading.Lock()

    @lazy_property
    def _file(self) -> FileIO:
        """Made by the thread that appends, before anything can be read from it."""
        file = tempfile.TemporaryFile(prefix="mmload-", buffering=0)  # noqa: SIM115  # closed with the column
        weakref.finalize(self, file.close)
        return file

    def append(self, data: bytes) -> None:
        """Appends the bytes; moves them to the file when they are many."""
        self._tail += data
        if len(self._tail) >= _IN_MEMORY:
            self._to_file()

    def cut(self, start: int, stop: int) -> bytes:
        """Returns the bytes from ``start`` to ``stop``, which must exist."""
        if start >= self._in_file:
            return bytes(self._tail[start - self._in_file : stop - self._in_file])
        if stop > self._in_file:
            return self.cut(start, self._in_file) + self.cut(self._in_file, stop)
        first, block = self._block
        if start < first or stop > first + len(block):
            first, block = self._block = start, self._read(start, max(stop - start, _BLOCK))
        return block[start - first : stop - first]

    def __len__(self) -> int:
        return self._in_file + len(self._tail)

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
        self._in_file, self._tail = len(self), bytearray()

    def _read(self, start: int, size: int) -> bytes:
        data = bytearray()
        size = min(size, self._in_file - start)
        with self._lock:
            try:
                self._file.seek(start)
                while len(data) < size and (more := self._file.read(size - len(data))):  # Linux reads 2 GiB at most
                    data += more
            except OSError as error:
                raise _no_room(error) from error
        return bytes(data)


class Column(ABC, Generic[T]):
    """Values by number. Append-only, picklable."""

    def __init__(self) -> None:
        self._count = 0
        self._run: tuple[int, Sequence[T]] = 0, ()

    @abstractmethod
    def _values(self, start: int, stop: int) -> Sequence[T]:
        """Returns the values from ``start`` to ``stop``, which exist."""

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> T:
        first, values = self._run
        at = index - first
        if 0 <= at < len(values):
            return values[at]
        if index < 0 or index >= self._count:
            raise IndexError(f"{index} of {self._count}")
        # sequential access decodes a run at a time
        values = self._values(index, min(index + _RUN, self._count) if at == len(values) else index + 1)
        self._run = index, values
        return values[0]

    def __iter__(self) -> Iterator[T]:
        return (self[index] for index in range(len(self)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": (0, ())}


class Numbers(Column[int]):
    """64-bit integers."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = Bytes()

    def append(self, number: int) -> None:
        """Appends a number of 64 bits."""
        self._bytes.append(_NUMBER.pack(number))
        self._count += 1

    def cut(self, start: int, stop: int) -> Numbers:
        """Returns a copy of the values from ``start`` to ``stop``."""
        part = Numbers()
        part._bytes.append(self._bytes.cut(8 * start, 8 * stop))
        part._count = stop - start
        return part

    def _values(self, start: int, stop: int) -> Sequence[int]:
        return unpack(f"<{stop - start}q", self._bytes.cut(8 * start, 8 * stop))


class Arrays(Column[npt.NDArray[Any]]):
    """Read-only arrays of one dtype and shape; numpy scalars if the shape is ().

    Args:
        dtype: of each.
        shape: of each; () for plain numbers.
    """

    def __init__(self, dtype: npt.DTypeLike, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.dtype, self.shape = np.dtype(dtype), shape
        self._size = self.dtype.itemsize * prod(shape)
        self._bytes = Bytes()

    def append(self, array: npt.ArrayLike) -> None:
        """Appends an array of the column's shape."""
        self._bytes.append(np.asarray(array, self.dtype).tobytes())
        self._count += 1

    def only(self, rows: Iterable[int]) -> Arrays:
        """Returns a copy of these rows, in this order."""
        part = Arrays(self.dtype, self.shape)
        for row in rows:
            part.append(self[row])
        return part

    def _values(self, start: int, stop: int) -> Sequence[npt.NDArray[Any]]:
        data = self._bytes.cut(self._size * start, self._size * stop)
        return [*np.frombuffer(data, self.dtype).reshape(stop - start, *self.shape)]


class Texts(Column[str]):
    """Strings; each takes 8 bytes besides its own."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes, self._ends, self._end = Bytes(), Numbers(), 0
        self._ends.append(0)

    def append(self, text: str) -> None:
        """Appends a text; preserves a lone surrogate, as in a file name that is not UTF-8."""
        data = text.encode("utf-8", "surrogatepass")
        self._bytes.append(data)
        self._end += len(data)
        self._ends.append(self._end)
        self._count += 1

    def cut(self, start: int, stop: int) -> Texts:
        """Returns a copy of the values from ``start`` to ``stop``."""
        part = Texts()
        for first in range(start, stop, _RUN):
            for text in self._values(first, min(first + _RUN, stop)):
                part.append(text)
        return part

    def _values(self, start: int, stop: int) -> Sequence[str]:
        ends = self._ends._values(start, stop + 1)
        data = self._bytes.cut(ends[0], ends[-1])
        return [data[a - ends[0] : b - ends[0]].decode("utf-8", "surrogatepass") for a, b in pairwise(ends)]


def _no_room(error: OSError) -> SourceError:
    return SourceError(
        f"the list of samples is long and goes to {tempfile.gettempdir()}, where it cannot be kept "
        f"({error.strerror or error}); make room, or set TMPDIR to another folder"
    )
