"""The CRC-32 of a file from those of its parts, without reading the file.

A CRC is linear: that of two parts is the first one's, moved on by as many zero bytes as the second part has, XOR the
second one's. Moving on by a fixed number of bytes is a matrix of 32 x 32 bits, which is kept as four tables of 256.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

_POLYNOMIAL = 0xEDB88320
_BITS = 32

_Columns = tuple[int, ...]
_Tables = tuple[tuple[int, ...], ...]


def joined_checksum(parts: Iterable[tuple[int, int]]) -> int:
    """The CRC-32 of bytes.

    Args:
        parts: the CRC-32 and the length of each part, in order.
    """
    total = 0
    for checksum, length in parts:
        one, two, three, four = _tables(length)
        moved = one[total & 255] ^ two[total >> 8 & 255] ^ three[total >> 16 & 255] ^ four[total >> 24]
        total = moved ^ checksum
    return total


@lru_cache(maxsize=64)
def _tables(length: int) -> _Tables:
    """What moving on by ``length`` zero bytes makes of each byte of a checksum."""
    columns = _moved(length)
    return tuple(tuple(_times(columns, byte << shift) for byte in range(256)) for shift in range(0, _BITS, 8))


def _moved(length: int) -> _Columns:
    """Moving on by ``length`` zero bytes as a matrix, by squaring."""
    result = tuple(1 << bit for bit in range(_BITS))
    bit_moved = (_POLYNOMIAL, *(1 << bit for bit in range(_BITS - 1)))
    power = bit_moved
    for _ in range(3):  # a byte is eight bits
        power = _squared(power)
    while length:
        if length & 1:
            result = tuple(_times(power, column) for column in result)
        power, length = _squared(power), length >> 1
    return result


def _squared(columns: _Columns) -> _Columns:
    return tuple(_times(columns, column) for column in columns)


def _times(columns: _Columns, vector: int) -> int:
    """A matrix times a vector of bits."""
    total, bit = 0, 0
    while vector:
        if vector & 1:
            total ^= columns[bit]
        vector, bit = vector >> 1, bit + 1
    return total
