"""mmload in the workers of Ray Train: each reads its share of every epoch, and gets batches as Ray Data gives them.

Needs the ``ray`` package with Ray Train: ``pip install 'ray[train]'``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray.train
from torch import Tensor

from mmload.loader import Loader
from mmload.loader.arguments import resolve_view
from mmload.store.dataset import Dataset, Split


class DatasetShard:
    """A worker's share of a split: what ``ray.train.get_dataset_shard`` is for Ray Data.

    Made in the function that Ray Train runs in every worker, with the same arguments. Rank and world size are those of
    the worker. A training split (``shuffle`` or ``order``) is padded, so that all workers make equally many steps:
    ``tail="drop"`` leaves rows out instead.

    Args:
        dataset: the dataset's path, or an opened dataset or split; every node must see the path.
        split: the split's name, if there are several.
        options: further arguments of :class:`~mmload.loader.Loader`, such as batch_size, collate, device and seed.

    Attributes:
        loader: the loader; its ``state_dict`` belongs in a checkpoint.

    Raises:
        RuntimeError: outside a worker of Ray Train.
    """

    def __init__(self, dataset: str | Path | Dataset | Split, *, split: str | None = None, **options: Any) -> None:
        context = ray.train.get_context()
        if options.get("shuffle") or options.get("order"):
            options.setdefault("tail", "pad")
        fields = options.get("fields") or resolve_view(dataset, split).rows.fields
        options.setdefault("returns", {name: name for name in fields})
        ranks = {"rank": context.get_world_rank(), "world_size": context.get_world_size()}
        self.loader = Loader(dataset, split=split, **ranks, **options)

    def iter_torch_batches(self) -> Iterator[dict[str, Tensor]]:
        """Yields the batches of the next epoch: dicts of tensors by field, or as the option ``returns`` says."""
        yield from self.loader
