"""The finalizer of splitmix64 (Steele, Lea and Flood 2014): a bijection of 64-bit words, every output bit random.

All random numbers in mmload are based on it: draws (:mod:`mmload.runtime.hashing`) and orders
(:mod:`mmload.runtime.permutation`). There is one version for each type of word; all return the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
"""The odd increment of splitmix64, 2**64 over the golden ratio."""

FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)

_SHIFTS = (30, 27, 31)
_MASK = 2**64 - 1
_FACTOR_0, _FACTOR_1 = (np.uint64(factor) for factor in FACTORS)
_SHIFT_0, _SHIFT_1, _SHIFT_2 = (np.uint64(shift) for shift in _SHIFTS)


def mix_integer(number: int) -> int:
    """Applies the finalizer to a Python integer of any size; returns an unsigned word."""
    word = number & _MASK
    word = (word ^ word >> _SHIFTS[0]) * FACTORS[0] & _MASK
    word = (word ^ word >> _SHIFTS[1]) * FACTORS[1] & _MASK
    return word ^ word >> _SHIFTS[2]


def mix_word(word: np.uint64) -> np.uint64:
    """Applies the finalizer in compiled loops; compiled elsewhere, as numba takes 0.3 s to import."""
    word = (word ^ (word >> _SHIFT_0)) * _FACTOR_0
    word = (word ^ (word >> _SHIFT_1)) * _FACTOR_1
    return word ^ (word >> _SHIFT_2)


def mix_tensor(words: Tensor) -> Tensor:
    """Applies the finalizer to int64 tensors of any shape, with torch operations that exist on every device."""
    words = (words ^ shift_right(words, _SHIFTS[0])) * signed(FACTORS[0])
    words = (words ^ shift_right(words, _SHIFTS[1])) * signed(FACTORS[1])
    return words ^ shift_right(words, _SHIFTS[2])


def shift_right(words: Tensor, bits: int) -> Tensor:
    """Shifts words right logically: torch's own shift copies the sign bit, and the mask removes it."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def signed(number: int) -> int:
    """Returns the signed 64-bit integer with the low bits of a Python integer, as torch represents words."""
    return (number + 2**63) % 2**64 - 2**63
