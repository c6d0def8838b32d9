"""The seed of a loader that was given none: that of ``torch.manual_seed``, and rank 0's where several ranks read."""

from __future__ import annotations

import torch
from torch.utils.data import get_worker_info

from mmload.augment.views import collates_of
from mmload.errors import UsageError
from mmload.loader.order import Order, distributed_ranks
from mmload.loader.samplers import SamplerOrder

MOST = 2**64 - 1
"""Greatest seed."""


def torch_seed() -> int:
    """Returns the seed of torch's default generator.

    Raises:
        UsageError: in a worker of a DataLoader, as each worker has another one.
    """
    if get_worker_info() is not None:
        raise UsageError(
            "seed is None, and each worker of a DataLoader has a torch seed of its own; give seed=N, or make the "
            "Loader in the training process"
        )
    return torch.initial_seed() & MOST


def needs_agreement(order: Order | SamplerOrder, collate: object) -> bool:
    """Returns whether ranks have to agree on a seed: there are several, and the order or the collate draws.

    Raises:
        ValueError: if they have to and cannot, as they are not those of torch.distributed.
    """
    is_drawn = isinstance(order, Order) and getattr(order.epoch_order, "seed", None) is not None
    if order.world_size == 1 or not (is_drawn or is_random(collate)):
        return False
    ranks = distributed_ranks()
    if ranks is None or ranks[1] != order.world_size:
        given = order.rank, order.world_size
        raise ValueError(f"ranks is {given}, which are not torch.distributed's and share no seed; give seed=N")
    return True


def is_random(collate: object) -> bool:
    """Returns whether a collate may depend on the samples' seeds; a function may."""
    collates = collates_of(collate)
    return any(each.is_random for each in collates) if collates else collate is not None


def agreed_seed(own: int) -> int:
    """Returns rank 0's seed, on every rank of torch.distributed; all have to call it.

    Raises:
        UsageError: in a worker of a DataLoader, which is no rank.
    """
    if get_worker_info() is not None:
        raise UsageError("a worker of a DataLoader cannot ask rank 0 for its seed; give the Loader seed=N")
    seeds = [own]
    torch.distributed.broadcast_object_list(seeds, src=0)  # by the backend's device
    return seeds[0]
