"""Pools whose threads do one thing at a time, and leave everybody else as they were."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from mmload.errors import UsageError
from mmload.runtime.resources import check_threads, in_threads, single_op_pool, single_op_threads


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

    pool.submit(work).result()  # torch 2.11 starts a thread of its own meanwhile, once
    return pool.submit(work).result()


@pytest.mark.usefixtures("two_threads")
def test_operations_in_the_pool_use_one_thread_and_the_caller_and_later_threads_keep_their_own() -> None:
    with single_op_pool(2, "test") as pool, ThreadPoolExecutor(1) as later:
        own, whole = spent(pool)
        assert whole < 1.3 * own
        assert list(pool.map(lambda _: torch.get_num_threads(), range(8))) == [1] * 8
        assert torch.get_num_threads() == later.submit(torch.get_num_threads).result() == 2


@pytest.mark.usefixtures("two_threads")
def test_single_op_threads_each_run_the_work_with_one_thread() -> None:
    numbers: list[int] = []
    for thread in single_op_threads(3, "test", lambda: numbers.append(torch.get_num_threads())):
        thread.join()
    assert numbers == [1] * 3
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("number", [0, -1, 1025, 1.5, True])
def test_check_threads_invalid_number_raises(number: object) -> None:
    with pytest.raises(UsageError, match=f"threads is {number!r}; use 1 to 1024"):
        check_threads(number)  # type: ignore[arg-type]  # that is the point


def test_parts_are_made_in_order_and_few_ahead() -> None:
    taken: list[int] = []
    made = in_threads((taken.append(part) or part for part in range(100)), lambda part: part * part, 2)
    for place, square in enumerate(made):
        assert square == place * place
        assert len(taken) <= place + 5
    assert taken == list(range(100))


def test_what_a_part_raises_ends_the_others_and_so_does_a_break() -> None:
    seen: list[int] = []

    def work(part: int) -> int:
        seen.append(part)
        if part == 3:
            raise ValueError("three")
        return part

    made = in_threads(range(100), work, 2)
    with pytest.raises(ValueError, match="three"):
        list(made)
    assert len(seen) < 10
    some = in_threads(range(4, 100), work, 2)
    assert next(some) == 4
    some.close()
    assert len(seen) < 20
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mmload-parts")]


@pytest.mark.parametrize("make", [single_op_pool, lambda size, name: single_op_threads(size, name, lambda: None)])
@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize(
    ("fault", "raised", "message"),
    [
        (RuntimeError("can't start new thread"), UsageError, "4 threads cannot be started here"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
    ids=["too many", "interrupt"],
)
def test_a_fault_while_threads_start_is_an_error_and_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
    make: Any,
    number: int,
    fault: BaseException,
    raised: type[BaseException],
    message: str | None,
) -> None:
    start, before = threading.Thread.start, torch.get_num_threads()

    def faulty(thread: threading.Thread) -> None:
        is_last = thread.name == f"few_{number}"
        if not (is_last and raised is UsageError):
            start(thread)
        if is_last:
            raise fault

    monkeypatch.setattr(threading.Thread, "start", faulty)
    with pytest.raises(raised, match=message):
        make(4, "few")
    for thread in threading.enumerate():
        if thread.name.startswith("few"):
            thread.join(20)
            assert not thread.is_alive()
    assert torch.get_num_threads() == before
