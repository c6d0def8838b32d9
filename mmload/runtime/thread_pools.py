"""A pool of single-threaded workers: inside its threads torch uses a single intra-op thread.

Otherwise every pool thread would start its own team of OpenMP threads, and they would compete for the cores.
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

from mmload.errors import UsageError
from mmload.runtime import cgroup

T = TypeVar("T")
R = TypeVar("R")

MOST_THREADS = 1024
"""Upper bound on threads, or worker processes, that catches typing errors: more would overload the machine."""


def available_cores() -> int:
    """Cores this process may use: its affinity mask or its cgroup's CPU quota, whichever is smaller; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup.cores()
    return max(1, min(cores, round(quota)) if quota else cores)


def check_threads(threads: int | None) -> None:
    """Rejects an invalid number of threads; None is valid: the cores available.

    Raises:
        UsageError: if it is not from 1 to :data:`MOST_THREADS`.
    """
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MOST_THREADS):
        raise UsageError(f"threads is {threads!r}; use 1 to {MOST_THREADS}, or leave it out for the cores available")


def single_op_pool(size: int, name: str) -> ThreadPoolExecutor:
    """A pool of ``size`` threads, all started, each with torch's intra-op parallelism at 1.

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
    """What ``make`` makes of each part, in order, on several threads; at most two parts a thread are ahead.

    Args:
        parts: taken in the caller's thread.
        make: thread-safe; it releases the interpreter lock where it works.
        threads: how many; None: the cores available.
    """
    count, left = threads or available_cores(), iter(parts)
    with single_op_pool(count, "mmload-parts") as pool:
        waiting = deque(pool.submit(make, part) for part in islice(left, 2 * count))
        try:
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(pool.submit(make, part) for part in islice(left, 1))
        finally:
            for future in waiting:
                future.cancel()
