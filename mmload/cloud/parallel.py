"""Runs requests on threads, a few ahead, and ends at the first that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import TypeVar

from mmload.errors import UsageError

T = TypeVar("T")
R = TypeVar("R")

MOST_PARALLEL = 512
"""Upper bound that catches typing errors."""


def check_parallel(parallel: int) -> None:
    """Refuse an invalid number of requests at once.

    Raises:
        UsageError: if it is not from 1 to :data:`MOST_PARALLEL`.
    """
    if type(parallel) is not int or not 1 <= parallel <= MOST_PARALLEL:
        raise UsageError(f"parallel is {parallel!r}; use 1 to {MOST_PARALLEL}")


def in_parallel(do: Callable[[T], R], tasks: Iterable[T], parallel: int) -> Iterator[R]:
    """What ``do`` returns for each task, as they end, in any order.

    The first error is raised once the tasks that run have ended; those that wait are dropped.

    Args:
        do: thread-safe.
        tasks: taken in the caller's thread, when a thread becomes free.
        parallel: how many at once.
    """
    left = iter(tasks)
    with ThreadPoolExecutor(parallel, thread_name_prefix="mmload-cloud") as pool:
        running: set[Future[R]] = {pool.submit(do, task) for task in islice(left, 2 * parallel)}
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                running |= {pool.submit(do, task) for task in islice(left, len(done))}
        finally:
            for future in running:
                future.cancel()
