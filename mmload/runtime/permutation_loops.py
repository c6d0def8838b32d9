"""Keyed permutations of many small ranges at once, compiled: the same bits as :mod:`mmload.runtime.permutation`."""

from __future__ import annotations

import numpy as np

from mmload.runtime.numba_compile import inlined, numba_compiled
from mmload.runtime.permutation import FEW_ROUNDS, MANY_ROUNDS, ROUNDS, SMALL, Words
from mmload.runtime.splitmix import FACTORS

_ROUNDS = np.array(ROUNDS)
_FACTOR_0, _FACTOR_1, _HALF = np.uint64(FACTORS[0]), np.uint64(FACTORS[1]), np.uint64(32)
_0, _1, _2 = np.uint64(0), np.uint64(1), np.uint64(2)


@inlined
def _root(number: np.uint64) -> np.uint64:
    """The integer part of the square root of a number below 2**53."""
    root = np.uint64(np.sqrt(np.float64(number)))
    while root * root > number:
        root -= _1
    while (root + _1) * (root + _1) <= number:
        root += _1
    return root


@numba_compiled("void(uint64[::1], uint64[::1], uint64[::1])")
def permute_each(x: Words, sizes: Words, keys: Words) -> None:
    """Replaces x[k] by its image under the permutation of range(sizes[k]) with the key keys[k].

    Args:
        x: uint64 [B], x[k] < sizes[k].
        sizes: uint64 [B], 1 to 2**53.
        keys: uint64 [B].
    """
    for k in range(len(x)):
        size = sizes[k]
        a = _2 * ((_root(size - _1) + _2) // _2)
        b = (size + a - _1) // a
        rounds = FEW_ROUNDS if size >= SMALL else MANY_ROUNDS
        number = x[k]
        while True:
            left = number // b
            right = number - left * b
            for turn in range(rounds):
                shift = (right if turn % 2 == 0 else left) ^ (keys[k] ^ _ROUNDS[turn])
                shift *= _FACTOR_0
                shift ^= shift >> _HALF
                shift *= _FACTOR_1
                shift >>= _HALF
                if turn % 2 == 0:
                    left += (shift * a) >> _HALF
                    left -= a if left >= a else _0
                else:
                    right += (shift * b) >> _HALF
                    right -= b if right >= b else _0
            number = left * b + right
            if number < size:
                break
        x[k] = number
