"""Counts the rows that the threads of a loader read."""

from __future__ import annotations

import threading


class RowCounts:
    """Rows that were in memory already, and rows that had to be read. Thread-safe.

    Attributes:
        hits: rows that were in memory.
        misses: rows that had to be read from files.
    """

    def __init__(self) -> None:
        self.hits = self.misses = 0
        self._counting = threading.Lock()

    def count(self, hits: int = 0, misses: int = 0) -> None:
        """Add the rows of a batch."""
        with self._counting:  # a plain += may forget what another thread adds meanwhile
            self.hits += hits
            self.misses += misses
