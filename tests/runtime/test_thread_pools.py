"""Pools whose threads do one thing at a time, and leave everybody else as they were."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from mmload.errors import UsageError
from mmload.loader.epoch_iterator import single_op_threads
from mmload.runtime.resources import check_threads, in_threads


@pytest.fixture
def two_threads() -> object:
    """Torch with two intra-op threads, whatever the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_operations_of_parts_use_one_thread(two_threads: None) -> None:
    assert list(in_threads(range(8), lambda _: torch.get_num_threads(), 2)) == [1] * 8


def test_the_caller_and_later_threads_keep_their_own(two_threads: None) -> None:
    made, seen = in_threads(range(8), lambda part: part, 3), list[int]()
    next(made)
    assert torch.get_num_threads() == 2
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert seen == [2]
    made.close()


def test_single_op_threads_each_run_the_work_with_one_thread(two_threads: None) -> None:
    numbers: list[int] = []
    threads = single_op_threads(3, "test", lambda: numbers.append(torch.get_num_threads()))
    for thread in threads:
        thread.join()
    assert numbers == [1] * 3
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("number", [0, -1, 1025, 1.5, True])
def test_check_threads_invalid_number_raises(number: object) -> None:
    with pytest.raises(UsageError, match=f"threads is {number!r}; use 1 to 1024"):
        check_threads(number)  # type: ignore[arg-type]  # that is the point


def test_threads_that_cannot_be_started_are_an_error_and_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    started = 0
    start = threading.Thread.start

    def few(thread: threading.Thread) -> None:
        nonlocal started
        if thread.name.startswith("mmload-parts"):
            started += 1
            if started > 3:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", few)
    before = torch.get_num_threads()
    with pytest.raises(UsageError, match="8 threads cannot be started here"):
        next(in_threads(range(9), abs, 8))
    assert torch.get_num_threads() == before


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


@pytest.mark.parametrize(
    "make",
    [lambda: next(in_threads(range(9), abs, 4)), lambda: single_op_threads(4, "mmload-parts", lambda: None)],
    ids=["parts", "threads"],
)
@pytest.mark.parametrize("number", [0, 1, 3])
def test_an_interrupt_while_threads_start_leaves_none(monkeypatch: pytest.MonkeyPatch, make: Any, number: int) -> None:
    start, before = threading.Thread.start, torch.get_num_threads()

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == f"mmload-parts_{number}":
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make()
    for thread in threading.enumerate():
        if thread.name.startswith("mmload-parts"):
            thread.join(20)
            assert not thread.is_alive()
    assert torch.get_num_threads() == before
