"""Counter-based random words: splitmix64 on int64 tensors, with the same bits in compiled loops and on a device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.runtime.numba_compile import inlined, numba_compiled
from mmload.runtime.permutation import GOLDEN, mix_tensor, mix_word, shift_right, signed

Words = npt.NDArray[np.uint64]

INCREMENT = signed(GOLDEN)
"""The increment of splitmix64 as torch represents it."""

_INCREMENT = np.uint64(GOLDEN)
_11 = np.uint64(11)


def mixed(value: Tensor) -> Tensor:
    """Applies the finalizer of splitmix64 to every element.

    Args:
        value: int64, any shape.

    Returns:
        int64 of the same shape; products wrap around.
    """
    if value.device.type == "cpu":
        return torch.from_numpy(_mixed(as_words(value)).view(np.int64)).view(value.shape)
    return mix_tensor(value)


def unit(bits: Tensor) -> Tensor:
    """Converts the upper 53 bits of int64 words to float64 in [0, 1)."""
    if bits.device.type == "cpu":
        return torch.from_numpy(_units(as_words(bits))).view(bits.shape)
    return shift_right(bits, 11).to(torch.float64) * 2.0**-53


def expect_words(value: Tensor) -> None:
    """Rejects values that the compiled functions would misinterpret or read past the end of.

    Raises:
        TypeError: if it is not an int64 tensor.
    """
    if not isinstance(value, Tensor) or value.dtype != torch.int64:
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"seeds and ids are {got}, expected torch.int64")


def as_words(value: Tensor) -> Words:
    """Returns a CPU tensor as flat unsigned words."""
    expect_words(value)
    words: Words = np.ascontiguousarray(value.numpy()).reshape(-1).view(np.uint64)
    return words


# Compiled, as every torch operation releases the interpreter lock and has to reacquire it: with two threads this took
# 1.9 ms for the draws of a batch of 64, with one thread 0.25 ms; the pixels take 3. So these functions keep the lock.


_mix = inlined(mix_word)


@inlined
def unit_of_word(word: np.uint64) -> float:
    """Converts the upper 53 bits of a word to a number in [0, 1), in compiled functions."""
    return np.int64(word >> _11) * 2.0**-53


@numba_compiled("uint64[::1](uint64[::1])", nogil=False)
def _mixed(words: Words) -> Words:
    out = np.empty_like(words)
    for k in range(len(words)):
        out[k] = _mix(words[k])
    return out


@numba_compiled("float64[::1](uint64[::1])", nogil=False)
def _units(words: Words) -> npt.NDArray[np.float64]:
    out = np.empty(len(words))
    for k in range(len(words)):
        out[k] = unit_of_word(words[k])
    return out


@numba_compiled("uint64[::1](uint64[::1], uint64)", nogil=False)
def seeded(ids: Words, run: int) -> Words:
    """Returns a word for each id, derived from the id and the run."""
    out = np.empty_like(ids)
    for k in range(len(ids)):
        out[k] = _mix(_mix(ids[k] ^ run) + _INCREMENT)
    return out


@numba_compiled("uint64[:, ::1](uint64[::1], uint64, uint64, int64)", nogil=False)
def counted(seeds: Words, step: int, first: int, count: int) -> Words:
    """Returns words [B, count]: draws ``first``, ``first`` + 1 ... of a step, for each seed."""
    out = np.empty((len(seeds), count), np.uint64)
    for k in range(len(seeds)):
        for number in range(count):
            out[k, number] = _mix(seeds[k] + step + (first + np.uint64(number)) * _INCREMENT)
    return out


@numba_compiled("boolean[::1](uint64[::1], float64)", nogil=False)
def chances(words: Words, p: float) -> npt.NDArray[np.bool_]:
    """Returns whether each word, as a number in [0, 1), is below ``p``."""
    out = np.empty(len(words), np.bool_)
    for k in range(len(words)):
        out[k] = unit_of_word(words[k]) < p
    return out


@numba_compiled("int64[:, ::1](uint64[:, ::1], int64[:, ::1])", nogil=False)
def integers(words: Words, ranges: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Converts words [B, N] to integers in the ranges [N, 2], both ends included: int64 [N, B]."""
    out = np.empty((words.shape[1], words.shape[0]), np.int64)
    for number in range(len(out)):
        first, last = ranges[number]
        for k in range(len(words)):
            out[number, k] = np.int64(unit_of_word(words[k, number]) * (last - first + 1)) + first
    return out
