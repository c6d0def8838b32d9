"""The finalizer of splitmix64 (Steele, Lea and Flood 2014): a bijection of 64-bit words, every output bit random.

Everything random in mmload is made of it: draws (:mod:`mmload.runtime.hashing`) and orders
(:mod:`mmload.runtime.permutation`).
"""

from __future__ import annotations

GOLDEN = 0x9E3779B97F4A7C15
"""The odd increment of splitmix64, 2**64 over the golden ratio."""

FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)

_MASK = 2**64 - 1


def mix_integer(number: int) -> int:
    """The finalizer for one Python integer of any size, as an unsigned word."""
    word = number & _MASK
    word = (word ^ word >> SHIFTS[0]) * FACTORS[0] & _MASK
    word = (word ^ word >> SHIFTS[1]) * FACTORS[1] & _MASK
    return word ^ word >> SHIFTS[2]


def signed(number: int) -> int:
    """Any Python integer as the signed 64-bit integer of the same low bits, as torch holds words."""
    return (number + 2**63) % 2**64 - 2**63
