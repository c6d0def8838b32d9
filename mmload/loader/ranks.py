"""Ranks that share an epoch: this one, those of this machine, and torch.distributed's."""

from __future__ import annotations

import torch

from mmload.errors import UsageError
from mmload.runtime.resources import local_ranks


def ranks_for(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Returns rank and world size: the given ones, else those of torch.distributed, else (0, 1)."""
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank is {rank} and world_size is {world_size}; give both or none")
    if rank is not None and world_size is not None:
        return rank, world_size
    return _distributed_ranks() or (0, 1)


def _distributed_ranks() -> tuple[int, int] | None:
    """Returns rank and world size of torch.distributed; None if it is not initialized."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None


def ranks_here(rank: int, world_size: int) -> list[int]:
    """Returns the ``LOCAL_WORLD_SIZE`` ranks of this machine, numbered as torchrun does, starting with this one."""
    count = local_ranks()
    if count == 1 or world_size % count:
        return [rank]
    first = rank // count * count
    return [rank, *(other for other in range(first, first + count) if other != rank)]


def check_ranks(world_size: int) -> None:
    """Checks that torch.distributed was not initialized after the loader: every rank would read all rows."""
    ranks = _distributed_ranks()
    if ranks is not None and ranks[1] != world_size:
        raise UsageError(
            f"torch.distributed has {ranks[1]} ranks, but the loader was created for {world_size}; create it after "
            "init_process_group, or give it rank and world_size"
        )
