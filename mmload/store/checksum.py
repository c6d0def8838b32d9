"""CRC-32 as in zip, PNG and zlib: of bytes, of files, and of a file from the checksums of its parts.

ISA-L computes it where it is installed, ten times as fast as zlib.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmload.runtime.regular_files import open_regular

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this platform
    from zlib import crc32

__all__ = ["crc32", "file_crc32", "joined_crc32"]

_BLOCK = 4 * 2**20
_POLYNOMIAL = 0xEDB88320
_BITS = 32

_Columns = tuple[int, ...]
"""Matrix of 32 x 32 bits, column by column."""


def file_crc32(path: Path) -> str:
    """Returns the CRC-32 of a file as the manifest writes it, 8 hexadecimal digits.

    Raises:
        OSError: if it cannot be read, or is not a regular file.
    """
    block, crc = bytearray(_BLOCK), 0
    view = memoryview(block)
    with open(path, "rb", buffering=0, opener=open_regular) as file:
        while got := file.readinto(block):
            crc = crc32(view[:got], crc)
    return f"{crc:08x}"


def joined_crc32(parts: Iterable[tuple[int, int]]) -> int:
    """Returns the CRC-32 of parts that follow each other, without reading their bytes.

    A CRC is linear: the result is the XOR of the parts' checksums, each advanced by as many zero bytes as follow the
    part. Advancing by a power of two is a matrix of 32 x 32 bits, stored as four tables of 256. All parts whose number
    of following bytes has that bit set are advanced together: about 1 us per part, whatever its size.

    Args:
        parts: the CRC-32 and the length of each part, in order.
    """
    numbers = np.array(list(parts), np.int64).reshape(-1, 2)
    checksums, ends = numbers[:, 0], np.cumsum(numbers[:, 1])
    after = ends[-1:] - ends
    for bit in range(int(after.max(initial=0)).bit_length()):
        advanced = np.flatnonzero(after >> bit & 1)
        total, tables = checksums[advanced], _tables(bit)
        checksums[advanced] = (
            tables[0][total & 255] ^ tables[1][total >> 8 & 255] ^ tables[2][total >> 16 & 255] ^ tables[3][total >> 24]
        )
    return int(np.bitwise_xor.reduce(checksums))


@cache
def _tables(bit: int) -> NDArray[np.int64]:
    """Returns what advancing by ``2**bit`` zero bytes makes of each byte of a checksum, int64 [4, 256]."""
    columns = _advance(bit)
    return np.array([[_times(columns, byte << shift) for byte in range(256)] for shift in range(0, _BITS, 8)], np.int64)


@cache
def _advance(bit: int) -> _Columns:
    """Returns the matrix that advances by ``2**bit`` zero bytes, the square of the one before; -3 is a single bit."""
    if bit == -3:
        return (_POLYNOMIAL, *(1 << column for column in range(_BITS - 1)))
    before = _advance(bit - 1)
    return tuple(_times(before, column) for column in before)


def _times(columns: _Columns, vector: int) -> int:
    """Multiplies a matrix by a vector of bits."""
    total, bit = 0, 0
    while vector:
        if vector & 1:
            total ^= columns[bit]
        vector, bit = vector >> 1, bit + 1
    return total
