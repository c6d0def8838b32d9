"""Pools of single-threaded workers, and how many threads this process and this rank should use.

Inside the threads of a pool torch uses a single intra-op thread. Otherwise every pool thread would start its own team
of OpenMP threads, and they would compete for the cores.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import torch

from mmload.errors import UsageError, counted
from mmload.runtime import cgroup

T = TypeVar("T")
R = TypeVar("R")

MOST_THREADS = 1024
"""Upper bound on threads, or worker processes, that catches typing errors: more would overload the machine."""


def available_cores() -> int:
    """Returns the cores this process may use: the smaller of affinity mask and cgroup quota, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup.cores()
    return max(1, min(cores, round(quota)) if quota else cores)


def check_threads(threads: int | None) -> None:
    """Checks the number of threads; None is valid and means all available cores.

    Raises:
        UsageError: if it is not from 1 to :data:`MOST_THREADS`.
    """
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MOST_THREADS):
        raise UsageError(f"threads is {threads!r}; use 1 to {MOST_THREADS}, or leave it out for the cores available")


def single_op_pool(size: int, name: str) -> ThreadPoolExecutor:
    """Returns a pool of ``size`` started threads, each with torch's intra-op parallelism at 1.

    ``torch.set_num_threads`` in a thread also sets the number for threads created later, so the caller's own number is
    restored once every thread has its own. A thread reads the stored number at its first parallel operation, or when
    its number is queried, as here: otherwise that first operation would undo the setting.

    Raises:
        UsageError: if the system cannot start so many threads.
    """
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(size, thread_name_prefix=name)
    started = threading.Barrier(size)

    def settle() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()
        started.wait()

    try:
        for future in [pool.submit(settle) for _ in range(size)]:
            future.result()
    except RuntimeError as error:  # thread limit reached: threads waiting at the barrier would wait forever
        started.abort()
        pool.shutdown(cancel_futures=True)
        raise UsageError(f"{size} threads cannot be started here ({error}); use fewer") from error
    finally:
        torch.set_num_threads(before)
    return pool


def in_threads(parts: Iterable[T], make: Callable[[T], R], threads: int | None = None) -> Iterator[R]:
    """Yields ``make(part)`` for each part, in order, computed by threads; at most two parts per thread are ahead.

    Args:
        parts: read in the caller's thread.
        make: thread-safe; releases the interpreter lock for its work.
        threads: number of threads; None: all available cores.
    """
    count, remaining = threads or available_cores(), iter(parts)
    with single_op_pool(count, "mmload-parts") as pool:
        waiting = deque(pool.submit(make, part) for part in islice(remaining, 2 * count))
        try:
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(pool.submit(make, part) for part in islice(remaining, 1))
        finally:
            for future in waiting:
                future.cancel()


def local_ranks() -> int:
    """Returns the number of ranks on this machine (``LOCAL_WORLD_SIZE``, set by torchrun); 1 if it is not set."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(ranks)) if ranks.isdecimal() else 1


def threads_of_rank() -> tuple[int, str]:
    """Returns how many threads this rank should use, so that all ranks here share the cores; and the reason.

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
    """Returns the cores that a process may use; empty where unknown: another user's, or not on Linux."""
    try:
        return os.sched_getaffinity(process) if hasattr(os, "sched_getaffinity") else set()
    except OSError:
        return set()
