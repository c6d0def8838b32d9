"""Rounds of epochs, contenders interleaved, so that a drifting machine drifts for all of them alike.

Comes in: contenders. Goes out: a :class:`Measurement` of each. Never prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from mmload.bench.contenders import Contender


@dataclass
class Measurement:
    """One contender's rates.

    Attributes:
        name: the contender's.
        rates: images per second of each measured epoch.
    """

    name: str
    rates: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Images per second."""
        return median(self.rates)


def measure(
    contenders: Sequence[Contender], epochs: int, progress: Callable[[str], None] | None = None
) -> list[Measurement]:
    """Run every contender once to warm up, then ``epochs`` rounds of one epoch each.

    Args:
        contenders: what to run; closed at the end.
        epochs: measured epochs of each.
        progress: told what runs next.

    Returns:
        One measurement a contender, in their order.
    """
    results = [Measurement(contender.name) for contender in contenders]
    try:
        for turn in range(epochs + 1):
            for contender, result in zip(contenders, results, strict=True):
                if progress is not None:
                    progress(f"{contender.name}: {f'epoch {turn} of {epochs}' if turn else 'warm-up'}")
                rate = _rate(contender)
                if turn:
                    result.rates.append(rate)
    finally:
        for contender in contenders:
            contender.close()
    return results


def _rate(contender: Contender) -> float:
    """Images per second of one epoch, from asking for it to its last batch."""
    images = 0
    began = time.perf_counter()
    for batch in contender.epoch():
        images += len(batch)
        del batch
    return images / (time.perf_counter() - began)
