"""Pools whose threads do one thing at a time, and leave everybody else as they were."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mmload.threads import available_cores, single_op_pool


@pytest.fixture
def two_threads() -> object:
    """Torch with two intra-op threads, whatever the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def spent(pool: ThreadPoolExecutor) -> tuple[float, float]:
    """CPU seconds of a thread's own, and of the whole process, in a thread's large operations."""

    def work() -> tuple[float, float]:
        x = torch.ones(1 << 22)
        own, whole = time.thread_time(), time.process_time()
        for _ in range(30):
            x.mul_(1.0001).add_(0.1)
        return time.thread_time() - own, time.process_time() - whole

    return pool.submit(work).result()


def test_operations_in_the_pool_use_one_thread(two_threads: None) -> None:
    with single_op_pool(2, "test") as pool:
        own, whole = spent(pool)
        assert whole < 1.3 * own
        assert list(pool.map(lambda _: torch.get_num_threads(), range(8))) == [1] * 8


def test_the_caller_and_later_threads_keep_their_own(two_threads: None) -> None:
    with single_op_pool(3, "test"):
        assert torch.get_num_threads() == 2
        seen: list[int] = []
        later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        later.start()
        later.join()
        assert seen == [2]


def test_there_is_at_least_one_core() -> None:
    assert available_cores() >= 1
