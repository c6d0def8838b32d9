"""The order of a loader as the ``sampler`` that training scripts ask a DataLoader for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch.utils.data import Sampler

from mmload.loader.order import Order


class HasEpochs(Protocol):
    """A loader, whose next epoch can be chosen."""

    @property
    def epoch(self) -> int:
        """The epoch that comes next."""

    def set_epoch(self, epoch: int) -> None:
        """Choose it."""


class EpochSampler(Sampler[int]):
    """The rows of a loader's next epoch on its rank, by their place in ``loader.dataset``.

    Args:
        order: the loader's.
        loader: whose epoch it is.
    """

    def __init__(self, order: Order, loader: HasEpochs) -> None:
        self._order, self._loader = order, loader

    @property
    def epoch(self) -> int:
        """The epoch that comes next."""
        return self._loader.epoch

    def set_epoch(self, epoch: int) -> None:
        """The same as :meth:`mmload.loader.loader.Loader.set_epoch`."""
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        """Rows of a whole epoch on this rank."""
        return self._order.remaining()

    def __iter__(self) -> Iterator[int]:
        return iter(self._order.rows_for(self.epoch).tolist())
