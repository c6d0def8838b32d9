"""A pool of threads that each do one thing at a time: inside them torch uses a single intra-op thread.

Without this every pool thread would start its own team of OpenMP threads, and they would fight for the cores.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from mmload.errors import UsageError
from mmload.runtime import cgroup

MOST_THREADS = 1024
"""More threads, or worker processes, are a slip of the finger that would take the machine down."""


def available_cores() -> int:
    """Cores this process may use: its affinity mask and its cgroup's CPU quota, whichever is smaller; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup.cores()
    return max(1, min(cores, round(quota)) if quota else cores)


def check_threads(threads: int | None) -> None:
    """Refuses an invalid number of threads; None is valid: the cores available.

    Raises:
        UsageError: if it is not from 1 to :data:`MOST_THREADS`.
    """
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MOST_THREADS):
        raise UsageError(f"threads is {threads!r}; use 1 to {MOST_THREADS}, or leave it out for the cores available")


def single_op_pool(size: int, name: str) -> ThreadPoolExecutor:
    """A pool of ``size`` threads, all started, each with torch's intra-op parallelism at 1.

    ``torch.set_num_threads`` in a thread also stores the number for threads born later, so the caller's own number is
    put back once every thread has its own. A thread takes the stored number up at its first parallel operation, or when
    it is asked for its number, as here: else that first operation would undo the setting.

    Raises:
        UsageError: if the system does not start so many.
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
    except RuntimeError as error:  # no more threads: those that wait for the others would do so for ever
        started.abort()
        pool.shutdown(cancel_futures=True)
        raise UsageError(f"{size} threads cannot be started here ({error}); use fewer") from error
    finally:
        torch.set_num_threads(before)
    return pool
