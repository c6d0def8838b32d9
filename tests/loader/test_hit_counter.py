"""Rows are counted exactly, whichever threads read them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from mmload.loader.tiers import Tier
from mmload.store.dataset import Dataset


class Slow(int):
    """A number that takes its time when it is added, so that threads meet."""

    def __radd__(self, other: int) -> int:
        time.sleep(0.002)
        return int(other) + int(self)


def test_no_thread_forgets_what_another_has_added(dataset: Dataset) -> None:
    counts = Tier(dataset["train"].reader.field("images"))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: counts.count(Slow(3), Slow(2)), range(12)))
    assert (counts.hits, counts.misses) == (36, 24)
