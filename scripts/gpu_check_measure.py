"""What the parts of scripts/gpu_check share: settings, rows of the table, clocks and bandwidths.

Images or bytes a second are measured in alternating turns, so that a drift of the machine affects all of them alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Turn = Callable[[float], float]
"""Works for some seconds, and gives its rate."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a part is told.

    Attributes:
        device: "cuda" or "cpu".
        quick: tiny sizes and short turns, to see that all of it runs.
        work: the folder of the data.
        out: the folder of the records.
    """

    device: str
    quick: bool
    work: Path
    out: Path

    @property
    def seconds(self) -> float:
        """Of one measured turn."""
        return 0.02 if self.quick else 1.0

    @property
    def rounds(self) -> int:
        """Turns of each contender, after one to warm up."""
        return 1 if self.quick else 4

    @property
    def batch(self) -> int:
        """Images of a batch of photographs."""
        return 16 if self.quick else 256


def row(name: str, value: float | str, unit: str = "", aim: str = "", right: bool | None = None) -> dict[str, Any]:
    """A line of the table.

    Args:
        name: what was looked at.
        value: the number.
        unit: of the number.
        aim: what it was hoped to be, in words.
        right: of a check of correctness, how it ended; None: it is a measurement.
    """
    return {"name": name, "value": value, "unit": unit, "aim": aim, "right": right}


def wait(device: str) -> None:
    """Until the device has done all it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def repeated(work: Callable[[], object], amount: float, device: str) -> Turn:
    """A turn that repeats a piece of work.

    Args:
        work: is given to the device; need not wait for it.
        amount: what one call counts, in images or bytes.
        device: that is waited for.
    """

    def turn(seconds: float) -> float:
        wait(device)
        began = time.perf_counter()
        calls = 0
        while not calls or time.perf_counter() - began < seconds:
            for _ in range(4):  # a clock that is read too often, and a device that is waited for, would take part
                work()
            calls += 4
            wait(device)
        return calls * amount / (time.perf_counter() - began)

    return turn


def epochs_of(epoch: Callable[[], Iterator[Tensor]], settings: Settings) -> Turn:
    """Images a second over epochs of batches, the last of which may be cut short."""

    def turn(seconds: float) -> float:
        wait(settings.device)
        began = time.perf_counter()
        images = 0
        while not images or time.perf_counter() - began < seconds:
            for batch in epoch():
                images += len(batch)
                if time.perf_counter() - began >= seconds:
                    break
        wait(settings.device)
        return images / (time.perf_counter() - began)

    return turn


def in_turns(turns: Mapping[str, Turn], settings: Settings) -> dict[str, list[float]]:
    """Rates of every contender, each round after the other; one round to warm up is left out."""
    rates: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(settings.rounds + 1):
        for name, turn in turns.items():
            rate = turn(settings.seconds)
            if number:
                rates[name].append(rate)
    return rates


def median(rates: list[float]) -> float:
    """Of the rounds."""
    return statistics.median(rates)


def share(rates: list[float], limits: list[float]) -> float:
    """The median over the rounds of a rate's share of the limit that was measured in the same round."""
    return statistics.median(rate / limit for rate, limit in zip(rates, limits, strict=True))


def device_copy(settings: Settings) -> Turn:
    """Bytes read and written a second by copies from the device's memory to itself."""
    size = 2**20 if settings.quick else 2**30
    source = torch.ones(size, dtype=torch.uint8, device=settings.device)
    target = torch.empty_like(source)
    return repeated(lambda: target.copy_(source), 2 * size, settings.device)


def host_copy(settings: Settings, shape: tuple[int, ...]) -> Turn:
    """Bytes a second from pinned memory to the device; on a CPU, of copies in memory."""
    pinned = settings.device == "cuda"
    hosts = [torch.ones(shape, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
    target = torch.empty(shape, dtype=torch.uint8, device=settings.device)

    def both() -> None:
        for host in hosts:
            target.copy_(host, non_blocking=True)

    return repeated(both, 2.0 * hosts[0].numel(), settings.device)


def apart(got: Tensor, expected: Tensor) -> float:
    """The largest difference, on whatever devices they are."""
    return float((got.cpu().double() - expected.cpu().double()).abs().max())


UNIT = 2.0**-10
"""A unit in the last place of float16, as a share of the value."""


def same_half(name: str, got: Tensor, expected: Tensor) -> dict[str, Any]:
    """A check that float16 pixels differ by no more than their rounding, as a row."""
    difference = apart(got, expected)
    allowed = UNIT * float(expected.abs().max())
    return row(name, difference, "most apart", f"at most {allowed:.4f}", difference <= allowed)
