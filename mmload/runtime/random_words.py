"""Counter-based random words, the numbers made of them, and keyed permutations of range(n).

All are based on the finalizer of splitmix64 (Steele, Lea and Flood 2014), a bijection of 64-bit words whose every
output bit is random. There is one version for each type of word, and all return the same bits; that of torch's tensors
serves what is drawn per pixel on a device. A permutation takes O(1) memory, and O(1) time per element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mmload.runtime.kernels import filled, inlined, numba_compiled

if TYPE_CHECKING:
    from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
"""The odd increment of splitmix64, 2**64 over the golden ratio."""

FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)

_SHIFTS = (30, 27, 31)
_MASK = 2**64 - 1
_FACTOR_0, _FACTOR_1 = (np.uint64(factor) for factor in FACTORS)
_SHIFT_0, _SHIFT_1, _SHIFT_2 = (np.uint64(shift) for shift in _SHIFTS)


@inlined
def mix_word(word: Any) -> Any:
    """Applies the finalizer to words, uint64: to arrays, and to numbers in compiled loops."""
    word = (word ^ (word >> _SHIFT_0)) * _FACTOR_0
    word = (word ^ (word >> _SHIFT_1)) * _FACTOR_1
    return word ^ (word >> _SHIFT_2)


def mix_integer(number: int) -> int:
    """Applies the finalizer to a Python integer of any size; returns an unsigned word."""
    return int(mix_word(np.array([number & _MASK], np.uint64))[0])


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


MAX_ROWS = 2**61
"""With more rows, intermediate results could overflow int64."""

Words = NDArray[np.uint64]

Numbers = NDArray[np.int64]

# numpy scalars: Python ints would cost half a microsecond more in each of some hundred small operations.
_INCREMENT, _HALF = np.uint64(GOLDEN), np.uint64(32)
_SMALL, _FEW_ROUNDS, _MANY_ROUNDS = 1024, 6, 16


def key_of(*parts: int) -> int:
    """Returns a 64-bit hash that depends on all of the integers."""
    key = 0
    for part in parts:
        key = mix_integer((key ^ part) + GOLDEN)
    return key


def keys_of(numbers: Words, key: int | Words) -> Words:
    """Returns a key per number, uint64 of the same shape, derived from one common key or one key per number."""
    keys = (numbers + np.uint64(1)) * _INCREMENT ^ np.asarray(key, dtype=np.uint64)
    keys = (keys ^ keys >> _HALF) * _FACTOR_0
    keys ^= keys >> _HALF
    return keys


_ROUNDS = np.array([mix_integer(turn * GOLDEN) for turn in range(1, _MANY_ROUNDS + 1)], np.uint64)
_PERMUTED_AT_ONCE = 4096  # some 0.2 ms, in which no other thread can run Python
_0, _1, _2 = np.uint64(0), np.uint64(1), np.uint64(2)


def permute_words(x: Words, n: int | Words, key: Words | np.uint64) -> Words:
    """Permutes numbers by keyed permutations of range(n).

    Args:
        x: uint64 [B], each in its range.
        n: size of the range, 1 to :data:`MAX_ROWS`; one, or uint64 [B] with one per number.
        key: key of the permutation; one, or uint64 [B].
    """
    out = np.array(x)
    given = [np.atleast_1d(np.asarray(each, np.uint64)) for each in (n, key)]
    for first in range(0, len(out), _PERMUTED_AT_ONCE):
        piece = slice(first, first + _PERMUTED_AT_ONCE)
        _permute(out[piece], *(each if len(each) == 1 else each[piece] for each in given))
    return out


def permuted(positions: Sequence[int], n: int, key: int) -> list[int]:
    """Returns the image of each position under a permutation of range(n); any two keys select unrelated ones."""
    images: list[int] = permute_words(np.array(positions, np.uint64), n, np.uint64(key_of(key))).tolist()
    return images


_11 = np.uint64(11)


def mixed(value: Numbers) -> Numbers:
    """Applies the finalizer of splitmix64 to every element of an int64 array; products wrap around."""
    return counted(as_words(value), 0, 0, 1).view(np.int64).reshape(value.shape)


def unit(bits: Numbers) -> NDArray[np.float64]:
    """Converts the upper 53 bits of int64 words to float64 in [0, 1)."""
    return filled(_write_units, bits.size, np.float64, as_words(bits)).reshape(bits.shape)


def check_words(value: object, kind: type = np.ndarray) -> None:
    """Rejects values that the compiled functions would misinterpret or read past the end of.

    Raises:
        TypeError: if it is no array (or tensor, as ``kind`` says) of int64.
    """
    dtype = getattr(value, "dtype", None)
    if not isinstance(value, kind) or str(dtype) not in ("int64", "torch.int64"):
        got = type(value).__name__ if dtype is None else dtype
        raise TypeError(f"seeds and ids are {got}, expected int64")


def as_words(value: Numbers) -> Words:
    """Returns an int64 array as flat unsigned words."""
    check_words(value)
    flat = value if value.ndim == 1 and value.flags.c_contiguous else np.ascontiguousarray(value).reshape(-1)
    words: Words = flat.view(np.uint64)
    return words


# Compiled, and they keep the interpreter lock: torch's operations, and NumPy's on more than 500 numbers, release it,
# and then wait for it beside other threads.


@inlined
def unit_of_word(word: np.uint64) -> float:
    """Converts the upper 53 bits of a word to a number in [0, 1), in compiled functions."""
    return np.int64(word >> _11) * 2.0**-53


@numba_compiled("uint64[::1], float64[::1]", nogil=False)
def _write_units(words: Words, out: NDArray[np.float64]) -> None:
    for k in range(len(words)):
        out[k] = unit_of_word(words[k])


def seeded(ids: Words, run: int) -> Words:
    """Returns a word for each id, derived from the id and the run."""
    return filled(_write_seeded, len(ids), np.uint64, ids, run)


@numba_compiled("uint64[::1], uint64, uint64[::1]", nogil=False)
def _write_seeded(ids: Words, run: int, out: Words) -> None:
    for k in range(len(ids)):
        out[k] = mix_word(mix_word(ids[k] ^ run) + _INCREMENT)


@inlined
def _drawn(seed: np.uint64, step: Any, number: Any) -> Any:
    """Returns the word of a draw of a step, in compiled functions."""
    return mix_word(seed + step + number * _INCREMENT)


def counted(seeds: Words, step: int, first: int, count: int) -> Words:
    """Returns words [B, count]: draws ``first``, ``first`` + 1 ... of a step, for each seed."""
    return filled(_write_counted, (len(seeds), count), np.uint64, seeds, step, first)


@numba_compiled("uint64[::1], uint64, uint64, uint64[:, ::1]", nogil=False)
def _write_counted(seeds: Words, step: int, first: int, out: Words) -> None:
    for k in range(len(seeds)):
        for number in range(out.shape[1]):
            out[k, number] = _drawn(seeds[k], step, first + np.uint64(number))


def drawn_chances(seeds: Words, step: int, first: int, p: float) -> NDArray[np.bool_]:
    """Returns whether draw ``first`` of a step, as a number in [0, 1), is below ``p``, for each seed."""
    return filled(_write_chances, len(seeds), np.bool_, seeds, step, first, p)


@numba_compiled("uint64[::1], uint64, uint64, float64, boolean[::1]", nogil=False)
def _write_chances(seeds: Words, step: int, first: int, p: float, out: NDArray[np.bool_]) -> None:
    for k in range(len(seeds)):
        out[k] = unit_of_word(_drawn(seeds[k], step, first)) < p


def drawn_integers(seeds: Words, step: int, first: int, ranges: Sequence[tuple[int, int]]) -> list[NDArray[np.int64]]:
    """Converts draws ``first``, ``first`` + 1 ... of a step to integers in ranges, both ends included: [B] for each."""
    numbered = enumerate(ranges, first)
    return [filled(_write_integers, len(seeds), np.int64, seeds, step, number, *ends) for number, ends in numbered]


@numba_compiled("uint64[::1], uint64, uint64, int64, int64, int64[::1]", nogil=False)
def _write_integers(seeds: Words, step: int, number: int, low: int, high: int, out: NDArray[np.int64]) -> None:
    for k in range(len(seeds)):
        out[k] = np.int64(unit_of_word(_drawn(seeds[k], step, number)) * (high - low + 1)) + low


def drawn_orders(seeds: Words, step: int, first: int, count: int) -> NDArray[np.int64]:
    """Returns a random order of ``count`` things for each seed, int64 [B, count]: that of draws from ``first`` on."""
    return filled(_write_orders, (len(seeds), count), np.int64, seeds, step, first)


@numba_compiled("uint64[::1], uint64, uint64, int64[:, ::1]", nogil=False)
def _write_orders(seeds: Words, step: int, first: int, out: NDArray[np.int64]) -> None:
    """Sorts numbers by insertion, as there are few; draws are compared as numbers in [0, 1)."""
    for k in range(len(seeds)):
        for number in range(out.shape[1]):
            key, place = _drawn(seeds[k], step, first + np.uint64(number)) >> _11, number
            while place > 0 and _drawn(seeds[k], step, first + np.uint64(out[k, place - 1])) >> _11 > key:
                out[k, place] = out[k, place - 1]
                place -= 1
            out[k, place] = number


@inlined
def _root(number: np.uint64) -> np.uint64:
    """Returns the integer part of the square root of a number below 2**61."""
    root = np.uint64(np.sqrt(np.float64(number)))
    while root * root > number:
        root -= _1
    while (root + _1) * (root + _1) <= number:
        root += _1
    return root


@numba_compiled("uint64[::1], uint64[::1], uint64[::1]", nogil=False)
def _permute(x: Words, sizes: Words, keys: Words) -> None:
    """Replaces x[k] by its image under the permutation of range(sizes[k]) with the key keys[k].

    One size or one key is that of all numbers.

    A Feistel network over mixed radix (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"): x = left * b +
    right, and in turn each half is shifted by a hash of the other. About sqrt(n) numbers of [0, a * b) are n or more,
    where a power of four would have up to three in four; they are permuted again. An even a makes odd permutations
    possible, too. Six rounds pass chi-square tests of lagged differences from 1,000 rows on; fewer rows need 16.
    """
    for k in range(len(x)):
        size, key = sizes[k if len(sizes) > 1 else 0], keys[k if len(keys) > 1 else 0]
        a = _2 * ((_root(size - _1) + _2) // _2)
        b = (size + a - _1) // a
        rounds = _FEW_ROUNDS if size >= _SMALL else _MANY_ROUNDS
        number = x[k]
        while True:
            left = number // b
            right = number - left * b
            for turn in range(rounds):
                shift = (right if turn % 2 == 0 else left) ^ (key ^ _ROUNDS[turn])
                shift *= _FACTOR_0
                shift ^= shift >> _HALF
                shift *= _FACTOR_1
                shift >>= _HALF  # the upper half of 32 random bits times a size is a number below it
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
