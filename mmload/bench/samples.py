"""The measured turns of a contender: a :class:`Turn` alone, beside another thread, or in training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One measured turn of a contender.

    Attributes:
        images: number of images delivered.
        seconds: the duration.
    """

    images: int
    seconds: float

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / self.seconds


@dataclass(frozen=True, kw_only=True)
class LoadSample(Turn):
    """One turn that only loads, from the request of the first epoch to the last batch and a synchronized device.

    Attributes:
        cpu: processor seconds of its process tree during that time.
        complete: whether the last epoch was complete, not cut short by the time budget.
    """

    cpu: float
    complete: bool


@dataclass(frozen=True, kw_only=True)
class BesideSample(Turn):
    """One turn beside a neighbor.

    Attributes:
        pieces: pieces of work that the neighbor did in that time.
        alone: pieces per second of the neighbor while the contender did nothing.
    """

    pieces: int
    alone: float

    @property
    def keeps(self) -> float:
        """Speed of the neighbor beside the contender, as a share of its speed alone."""
        return self.pieces / self.seconds / self.alone


@dataclass(frozen=True, kw_only=True)
class TrainSample(Turn):
    """One turn of training.

    Attributes:
        steps: number of steps.
        waited: seconds that these waited for data.
    """

    steps: int
    waited: float

    @property
    def share(self) -> float:
        """Share of the time that training waited for data, in [0, 1]."""
        return self.waited / self.seconds
