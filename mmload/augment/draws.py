"""Random numbers as pure functions of what they are for: a counter-based hash on int64 tensors.

Comes in: a seed, an epoch and sample ids, or one int64 seed per sample. Goes out: int64 seeds, and draws in [0, 1)
keyed by (sample seed, step, draw number). Integer arithmetic only, so the bits are the same on CPU and CUDA, in any
batch and on any thread. Never touches a global generator, except in :func:`fresh_seeds`, for batches without seeds.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.compiled import compiled, inlined

Words = npt.NDArray[np.uint64]

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
"""The odd increment of splitmix64, as a signed 64-bit integer."""

STEP = 0xD1342543DE82EF95 - (1 << 64)
"""Another odd increment, so that steps and draws do not run into each other."""

_FACTORS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
_GOLDEN = np.uint64(GOLDEN % (1 << 64))
_FIRST, _SECOND = (np.uint64(factor % (1 << 64)) for factor in _FACTORS)
_30, _27, _31, _11 = (np.uint64(bits) for bits in (30, 27, 31, 11))
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


def _shifted(value: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's own shift copies the sign bit, the mask takes it off again."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def mixed(value: Tensor) -> Tensor:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection of int64 whose every output bit is random.

    Args:
        value: int64, any shape.

    Returns:
        int64 of the same shape; products wrap around.
    """
    if value.device.type == "cpu":
        return torch.from_numpy(_mixed(_words(value)).view(np.int64)).view(value.shape)
    return mixed_on_device(value)


def mixed_on_device(value: Tensor) -> Tensor:
    """The same bits by torch's operations, which exist on every device."""
    value = (value ^ _shifted(value, 30)) * _FACTORS[0]
    value = (value ^ _shifted(value, 27)) * _FACTORS[1]
    return value ^ _shifted(value, 31)


def mixed_number(number: int) -> int:
    """The same for one Python integer of any size, as an unsigned word."""
    word = number % (1 << 64)
    word = (word ^ word >> 30) * _FACTORS[0] % (1 << 64)
    word = (word ^ word >> 27) * _FACTORS[1] % (1 << 64)
    return word ^ word >> 31


def _words(value: Tensor) -> Words:
    """A CPU tensor as unsigned words, flat."""
    words: Words = np.ascontiguousarray(value.numpy()).reshape(-1).view(np.uint64)
    return words


# Compiled, as every torch operation gives up the interpreter lock and has to win it back: with two threads that was 1.9
# ms for the draws of a batch of 64 where one thread alone took 0.25 ms, and the pixels take 3. So these keep the lock.


@inlined
def _mix(word: np.uint64) -> np.uint64:
    word = (word ^ (word >> _30)) * _FIRST
    word = (word ^ (word >> _27)) * _SECOND
    return word ^ (word >> _31)


@compiled("uint64[::1](uint64[::1])", nogil=False)
def _mixed(words: Words) -> Words:
    out = np.empty_like(words)
    for k in range(len(words)):
        out[k] = _mix(words[k])
    return out


@compiled("uint64[::1](uint64[::1], uint64)", nogil=False)
def _seeded(ids: Words, run: int) -> Words:
    out = np.empty_like(ids)
    for k in range(len(ids)):
        out[k] = _mix(_mix(ids[k] ^ run) + _GOLDEN)
    return out


@compiled("uint64[:, ::1](uint64[::1], uint64, uint64, int64)", nogil=False)
def _counted(seeds: Words, step: int, first: int, count: int) -> Words:
    out = np.empty((len(seeds), count), np.uint64)
    for k in range(len(seeds)):
        for number in range(count):
            out[k, number] = _mix(seeds[k] + step + (first + np.uint64(number)) * _GOLDEN)
    return out


@inlined
def _unit(word: np.uint64) -> float:
    return np.int64(word >> _11) * 2.0**-53


@compiled("float64[::1](uint64[::1])", nogil=False)
def _units(words: Words) -> npt.NDArray[np.float64]:
    out = np.empty(len(words))
    for k in range(len(words)):
        out[k] = _unit(words[k])
    return out


@compiled("boolean[::1](uint64[::1], float64)", nogil=False)
def _chances(words: Words, p: float) -> npt.NDArray[np.bool_]:
    out = np.empty(len(words), np.bool_)
    for k in range(len(words)):
        out[k] = _unit(words[k]) < p
    return out


@compiled("int64[:, ::1](uint64[:, ::1], int64[:, ::1])", nogil=False)
def _places(words: Words, rooms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    out = np.empty((words.shape[1], words.shape[0]), np.int64)
    for number in range(len(out)):
        first, last = rooms[number]
        for k in range(len(words)):
            out[number, k] = np.int64(_unit(words[k, number]) * (last - first + 1)) + first
    return out


def wrapped(number: int) -> int:
    """Any Python integer as the signed 64-bit integer of the same low bits."""
    return (number - _LOWEST) % (1 << 64) + _LOWEST


def sample_seeds(seed: int, epoch: int, ids: Tensor) -> Tensor:
    """One seed per sample, from nothing but the run's seed, the epoch and the sample's id.

    Args:
        seed: the run's seed; any integer.
        epoch: the epoch's number.
        ids: int64 [B], the samples' ids.

    Returns:
        int64 [B] on the device of ``ids``, the same bits on every device.
    """
    run = _run_key(seed, epoch)
    if ids.device.type == "cpu":
        return torch.from_numpy(_seeded(_words(ids), run).view(np.int64)).view(ids.shape)
    return mixed(mixed(ids ^ wrapped(run)) + GOLDEN)


@lru_cache(maxsize=64)
def _run_key(seed: int, epoch: int) -> int:
    """What all samples of an epoch have in common, 64 bits."""
    return mixed_number(mixed_number(seed + GOLDEN) ^ GOLDEN * (epoch + 1))


def view_seeds(seeds: Tensor, view: int) -> Tensor:
    """Seeds [B] for another independently drawn view of the same samples; ``view`` 0 is the samples' own."""
    return seeds if view == 0 else mixed(mixed(seeds) ^ wrapped(GOLDEN * view))


def fresh_seeds(count: int, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """Seeds [count] for samples that carry none: from ``generator``, or torch's default one of ``device``."""
    where = device if generator is None else generator.device
    return torch.randint(_LOWEST, _HIGHEST, (count,), generator=generator, device=where).to(device)


class Draws:
    """One step's random numbers for a batch: draw ``n`` of sample ``k`` is hash(seed of k, step, n).

    Every call takes the next draw numbers, so a step must draw in the same order for every batch.

    Args:
        seeds: int64 [B], one per sample.
        step: the step's place in its list.
    """

    def __init__(self, seeds: Tensor, step: int) -> None:
        self._seeds = seeds
        self._step = wrapped(STEP * (step + 1))
        self._used = 0

    def bits(self, count: int) -> Tensor:
        """The next ``count`` draws of every sample: int64 [B, count], all 64 bits random."""
        if self._seeds.device.type == "cpu":
            return torch.from_numpy(self._words(count).view(np.int64))
        # Counted on the device: to copy the counters there would wait for all that is queued on its stream.
        first = self._taken(count)
        numbers = torch.arange(first, first + count, device=self._seeds.device)
        return mixed(self._seeds.unsqueeze(1) + (numbers * GOLDEN + self._step))

    def uniform(self, count: int) -> Tensor:
        """The next ``count`` draws of every sample in [0, 1): float64 [B, count] with 53 random bits."""
        return unit(self.bits(count))

    def chance(self, p: float) -> Tensor:
        """One draw per sample: bool [B], true with probability ``p`` (never for 0, always for 1)."""
        if self._seeds.device.type == "cpu":
            return torch.from_numpy(_chances(self._words(1).reshape(-1), p))
        return self.uniform(1)[:, 0] < p

    def places(self, *rooms: tuple[int, int]) -> list[Tensor]:
        """One draw per sample for each (first, last): whole numbers from first to last, int64 [B] each."""
        if self._seeds.device.type == "cpu":
            return list(torch.from_numpy(_places(self._words(len(rooms)), np.array(rooms, np.int64))))
        uniform = self.uniform(len(rooms))
        return [
            whole_numbers(uniform[:, number], last - first + 1) + first for number, (first, last) in enumerate(rooms)
        ]

    def normal(self, count: int) -> Tensor:
        """``count`` standard normal draws per sample: float64 [B, count], by Box and Muller."""
        pairs = self.uniform(2 * count)
        radius = (-2.0 * torch.log1p(-pairs[:, :count])).sqrt()
        return radius * (2.0 * torch.pi * pairs[:, count:]).cos()

    def _words(self, count: int) -> Words:
        """:meth:`bits` on a CPU, as unsigned words."""
        words: Words = _counted(_words(self._seeds), self._step % (1 << 64), self._taken(count), count)
        return words

    def _taken(self, count: int) -> int:
        """The number of the next draw, which ``count`` of them use up."""
        first = self._used + 1
        self._used += count
        return first


def unit(bits: Tensor) -> Tensor:
    """The upper 53 bits of int64 words as float64 in [0, 1)."""
    if bits.device.type == "cpu":
        return torch.from_numpy(_units(_words(bits))).view(bits.shape)
    return _shifted(bits, 11).to(torch.float64) * 2.0**-53


def whole_numbers(uniform: Tensor, count: Tensor | int) -> Tensor:
    """Uniform draws [0, 1) as whole numbers 0 to ``count`` - 1, int64; the bias is below count / 2^53."""
    return (uniform * count).to(torch.int64)
