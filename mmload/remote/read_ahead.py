"""Runs ahead of an epoch in a thread, and asks for the blocks that it needs next, in its order."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

import numpy as np

from mmload.errors import MmloadError
from mmload.remote.epoch_plan import EpochPlan
from mmload.remote.remote_blocks import RemoteBlocks

AHEAD_BYTES = 2 * 2**30
"""How far it is ahead at most: half of it is more than a window of a shuffle in blocks, 64 blocks of 64 rows, if
rows take 196 kB. Neighbors that one window reads in any order then come in one request."""

_SHARE = 1 / 16  # of the limit: what comes early evicts what the same epoch may still need
_LEAST, _LARGEST = 256, 1 << 16  # positions asked for at a time
_WAIT_S = 0.002


class ReadAhead:
    """Fetches what an epoch needs; until it is closed or collected.

    Args:
        fields: the blocks of the fields that are read, each with its plan.
        limit: of the cache, in bytes.
        epoch: which epoch.
    """

    def __init__(self, fields: Sequence[RemoteBlocks], limit: int | None, epoch: int) -> None:
        self._ended = threading.Event()
        self.close = weakref.finalize(self, self._ended.set)
        row_bytes = sum(blocks.grid.row_bytes for blocks in fields)
        positions = positions_ahead(row_bytes, limit)
        plans = [(blocks, blocks.plan) for blocks in fields if blocks.plan is not None]
        if plans:
            arguments = plans, epoch, positions, limit is not None, self._ended
            threading.Thread(target=_run, args=arguments, name="mmload-ahead", daemon=True).start()


def _run(
    fields: list[tuple[RemoteBlocks, EpochPlan]], epoch: int, most: int, is_limited: bool, ended: threading.Event
) -> None:
    plan = fields[0][1]
    if is_limited:  # the tables of an eviction take seconds for millions of rows: made here, and not under its lock
        for _, each in fields:
            each.next_needs(np.empty(0, np.int64))
    try:
        for position, rows in plan.chunks(epoch, plan.now, positions_at_once(most)):
            while position + len(rows) - plan.now > most and position > plan.now and not ended.wait(_WAIT_S):
                pass
            if ended.is_set():
                break
            for blocks, _ in fields:
                blocks.ahead(blocks.grid.of_rows(rows))
    except MmloadError:
        return  # the batch that needs those rows meets the same error, and raises it
    for blocks, _ in fields if ended.is_set() else ():
        blocks.forget_ahead()


def positions_ahead(row_bytes: int, limit: int | None) -> int:
    """How many positions an epoch is ahead at most, with so many bytes in a row of all fields."""
    ahead = AHEAD_BYTES if limit is None else min(AHEAD_BYTES, int(_SHARE * limit))
    return max(1, ahead // max(1, row_bytes))


def positions_at_once(most: int) -> int:
    """How many positions are asked for at a time: the more, the more neighbors come in one request."""
    return max(min(_LEAST, most), min(_LARGEST, most // 2))
