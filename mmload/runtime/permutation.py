"""Keyed permutations of range(n) in O(1) memory and O(1) time per element, for orders of any length."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmload.runtime.splitmix import FACTORS, GOLDEN, mix_integer

MAX_ROWS = 2**61
"""With more rows, intermediate results could overflow int64."""

Words = NDArray[np.uint64]

# numpy scalars: Python ints would cost half a microsecond more in each of some hundred small operations.
_WIDE_GOLDEN, _WIDE_1, _WIDE_2, _HALF = (np.uint64(word) for word in (GOLDEN, *FACTORS, 32))
SMALL, FEW_ROUNDS, MANY_ROUNDS = 1024, 6, 16


def key_of(*parts: int) -> int:
    """Returns a 64-bit hash that depends on all of the integers."""
    key = 0
    for part in parts:
        key = mix_integer((key ^ part) + GOLDEN)
    return key


def keys_of(numbers: Words, key: int | Words) -> Words:
    """Returns a key per number, uint64 of the same shape, derived from one common key or one key per number."""
    keys = (numbers + np.uint64(1)) * _WIDE_GOLDEN ^ np.asarray(key, dtype=np.uint64)
    keys = (keys ^ keys >> _HALF) * _WIDE_1
    keys ^= keys >> _HALF
    return keys


ROUNDS = tuple(np.uint64(mix_integer(turn * GOLDEN)) for turn in range(1, MANY_ROUNDS + 1))


def _feistel(x: Words, n: int, key: Words | np.uint64) -> Words:
    """Applies a keyed bijection of [0, a * b), hardly more than [0, n): a is even, and a and b are near sqrt(n).

    A Feistel network over mixed radix (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"): x = left * b +
    right, and in turn each half is shifted by a hash of the other. About sqrt(n) numbers of the range are n or more,
    where a power of four would have up to three in four. An even a makes odd permutations possible, too. Six rounds
    pass chi-square tests of lagged differences from 1,000 rows on; fewer rows need 16.
    """
    a = 2 * -(-(math.isqrt(n - 1) + 1) // 2)
    sizes = (np.uint64(a), np.uint64(-(-n // a)))
    left = x // sizes[1]
    halves = [left, x - left * sizes[1]]
    for turn in range(FEW_ROUNDS if n >= SMALL else MANY_ROUNDS):
        moved, size = turn % 2, sizes[turn % 2]
        shift = halves[1 - moved] ^ (key ^ ROUNDS[turn])
        shift *= _WIDE_1
        shift ^= shift >> _HALF
        shift *= _WIDE_2
        shift >>= _HALF
        shift *= size  # the upper half of 32 random bits times size is a number below size
        shift >>= _HALF
        shift += halves[moved]
        halves[moved] = np.minimum(shift, shift - size)  # modulo size: negative values wrap to huge ones
    result: Words = halves[0] * sizes[1] + halves[1]
    return result


def permute_words(x: Words, n: int, key: Words | np.uint64) -> Words:
    """Applies a keyed permutation of [0, n) by cycle walking; one key, or one per element (uint64, unchecked)."""
    out = _feistel(x, n, key)
    over = np.flatnonzero(out >= n)
    while over.size:
        again = _feistel(out[over], n, key[over] if isinstance(key, np.ndarray) else key)
        out[over] = again
        over = over[again >= n]
    return out


def permute(positions: Tensor, n: int, key: int) -> Tensor:
    """Returns the image of each position under a keyed permutation of range(n), in O(1) memory and O(1) time each.

    Args:
        positions: int64 [B] on the CPU, each in [0, n).
        n: the size of the permuted range, 1 to 2**61.
        key: selects the permutation, 0 to 2**64 - 1; neighboring keys select unrelated permutations.

    Returns:
        int64 [B], each in [0, n), distinct where the positions are.

    Raises:
        TypeError: if positions is not int64.
        ValueError: if n, key or a position is out of range.
    """
    check_integer("n", n, 1, MAX_ROWS)
    check_integer("key", key, 0, 2**64 - 1)
    if positions.dtype != torch.int64:
        raise TypeError(f"positions are {positions.dtype}, expected torch.int64")
    x = positions.numpy()
    if x.size and not 0 <= x.min() <= x.max() < n:
        raise ValueError(f"positions lie in [{x.min()}, {x.max()}], expected [0, {n - 1}]")
    return torch.from_numpy(permute_words(x.view(np.uint64), n, np.uint64(key_of(key))).view(np.int64))


def check_integer(name: str, value: int, low: int, high: int) -> None:
    """Checks that the value is an integer from low to high; raises ValueError otherwise."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}, expected an integer from {low} to {high}")
