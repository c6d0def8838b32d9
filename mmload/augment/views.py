"""Several views of every sample, each by a collate of its own: batches for self-supervised training.

Views take the same input as :class:`~mmload.augment.collate.Collate` and return a tuple of batches, one per view. They
never read files: a :class:`mmload.loader.Loader` reads each row once and renders all its views while it is in cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmload.augment.collate import Collate, HasCollates, PreparedBatch
from mmload.augment.given_samples import given_samples
from mmload.augment.step import branch_seeds, view_seeds
from mmload.batch import Batch
from mmload.errors import shown
from mmload.runtime.host_memory import MemoryPool
from mmload.runtime.random_words import Numbers


class Views(HasCollates):
    """Independently drawn views of every sample, of any sizes.

    Each view is the batch that its collate makes of the same samples. The first is drawn with the samples' own seeds,
    view ``k`` with ``view_seeds(seeds, k)``, so a collate may be given several times: ``Views(a, b, *[c] * 8)`` makes
    the ten crops of DINO.

    Args:
        views: the collate of each view.

    Raises:
        TypeError: if a view is no Collate.
        ValueError: if there are none, or they go to different devices.
    """

    def __init__(self, *views: Collate) -> None:
        super().__init__()
        for number, view in enumerate(views):
            if not isinstance(view, Collate):
                raise TypeError(f"view {number} is {shown(view)}, expected a Collate")
            if step := view.joining_step:
                raise ValueError(f"{step} cannot be used in Views, whose views show the same rows; use a Collate")
        if not views:
            raise ValueError("the number of views is 0, expected a Collate for each view")
        devices = dict.fromkeys(view.device for view in views)
        if len(devices) > 1:
            first, second, *_ = devices
            raise ValueError(f"the device of one view is {first}, of another {second}: give all views the same")
        self.views = nn.ModuleList(views)
        self._memories = [MemoryPool(spare=2) for _ in views]  # a collate given eight times has eight batches alive

    @property
    def collates(self) -> tuple[Collate, ...]:
        """The collate of each view."""
        return tuple(view for view in self.views if isinstance(view, Collate))

    @property
    def device(self) -> torch.device | None:
        """Device of the batches that come out; None: that of the images."""
        return self.collates[0].device

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next batches in the collate of every view."""
        for view in self.collates:
            view.set_epoch(epoch)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # as Collate.forward
    def forward(
        self, batch: Tensor | np.ndarray[Any, Any] | Batch | Sequence[Any], generator: torch.Generator | None = None
    ) -> tuple[Tensor, ...] | tuple[Batch, ...]:
        """Renders all views of a batch, each as :class:`Collate` does.

        Args:
            batch: what :class:`Collate` takes; its images are read once per view and not changed.
            generator: generator of seeds if the batch has none, new ones per view; None: torch's default one.
        """
        given = given_samples(batch)
        given = given.moved(self.device or given.one.device)
        made = tuple(
            view.render(given._replace(batch=_of_view(given.batch, number)), generator, memory)
            for number, (view, memory) in enumerate(zip(self.collates, self._memories, strict=True))
        )
        return tuple(view.images for view in made) if isinstance(batch, Tensor | np.ndarray) else made

    def prepare(
        self, batch: Batch, shape: tuple[int, int, int], *, seeds: Numbers, **images: Any
    ) -> tuple[PreparedBatch, ...]:
        """Draws and describes every view before the images are read, by the seeds of the batch, int64 [B].

        See :meth:`Collate.prepare`.
        """
        own = [seeds, *(branch_seeds(seeds, number) for number in range(1, len(self.views)))]
        batches = [batch, *(batch.replace(seeds=torch.from_numpy(each)) for each in own[1:])]
        return tuple(
            view.prepare(one, shape, seeds=each, **images)
            for view, one, each in zip(self.collates, batches, own, strict=True)
        )


def _of_view(batch: Batch, number: int) -> Batch:
    """Returns the batch with the seeds of a view."""
    return batch if batch.seeds is None else batch.replace(seeds=view_seeds(batch.seeds, number))
