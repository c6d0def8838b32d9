"""The loaders that a bench compares, each giving the same batches its own way; one file a kind.

    entry -> source -> stock, tutorial, ours, ...

Comes in: a :class:`~mmload.bench.task.Task`. Goes out: entries, of which those that are not missing can be made in a
process of their own. Never measures anything.
"""

from __future__ import annotations

from mmload.bench.contenders.dali import dali_entries
from mmload.bench.contenders.entry import Contender, Entry
from mmload.bench.contenders.ffcv import ffcv_entries
from mmload.bench.contenders.litdata import litdata_entries
from mmload.bench.contenders.ours import own_entries
from mmload.bench.contenders.source import check_source
from mmload.bench.contenders.stock import stock_entries
from mmload.bench.contenders.tutorial import tutorial_entries
from mmload.bench.contenders.webdataset import webdataset_entries
from mmload.bench.task import Task

__all__ = ["Contender", "Entry", "entries"]


def entries(task: Task) -> list[Entry]:
    """Every contender, in the order of the table; those that cannot run here say why.

    Raises:
        SourceError: if the task's source is not there, or is not what the store was built from.
    """
    check_source(task)
    groups = (
        stock_entries,
        tutorial_entries,
        ffcv_entries,
        dali_entries,
        litdata_entries,
        webdataset_entries,
        own_entries,
    )
    return [entry for group in groups for entry in group(task)]
