"""The ranks of this machine, and the part of its cores that is each one's."""

from __future__ import annotations

import os

from mmload.errors import counted
from mmload.runtime import cgroup
from mmload.runtime.thread_pools import available_cores


def local_ranks() -> int:
    """The number of ranks on this machine (``LOCAL_WORLD_SIZE``, set by torchrun); 1 if it is not set."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(ranks)) if ranks.isdecimal() else 1


def threads_of_rank() -> tuple[int, str]:
    """How many threads this rank should use, so that all ranks of the machine together use its cores once; and why.

    The cores that the launcher may use, or the CPU quota of the container, are divided among the ranks. A rank that is
    bound to some of them (``numactl``, ``taskset``) uses at most these: other ranks may be bound to the same.
    """
    ranks, own = local_ranks(), available_cores()
    if ranks == 1:
        return own, f"{counted(own, 'core')} available"
    bound = _affinity(0) or set(range(own))
    cores: float = len(bound | _affinity(os.getppid()))
    quota = cgroup.cores()
    what = counted(int(cores), "core")
    if quota is not None and quota < cores:
        cores, what = quota, f"a quota of {quota:g} cores"
    binding = f", bound to {len(bound)}" if len(bound) < cores else ""
    return max(1, min(len(bound), int(cores // ranks))), f"{what} for {ranks} ranks here{binding}"


def _affinity(process: int) -> set[int]:
    """The cores that a process may use; none where it is unknown: another user's, or not on Linux."""
    try:
        return os.sched_getaffinity(process) if hasattr(os, "sched_getaffinity") else set()
    except OSError:
        return set()
