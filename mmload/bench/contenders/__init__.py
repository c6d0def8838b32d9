"""The loaders that a bench compares: each delivers the batches of the same task in its own way, one file per kind.

    entry -> stock, tutorial, ours, ...

Takes a :class:`~mmload.bench.task.Task` and returns entries; each entry that is not missing can be created in its own
process. Never measures anything.
"""

from __future__ import annotations

from mmload.bench.contenders.dali import dali_entries
from mmload.bench.contenders.entry import Contender, ContenderEntry
from mmload.bench.contenders.ffcv import ffcv_entries
from mmload.bench.contenders.ours import own_entries
from mmload.bench.contenders.stock import check_source, stock_entries
from mmload.bench.contenders.tutorial import tutorial_entries
from mmload.bench.task import Task

__all__ = ["Contender", "ContenderEntry", "entries"]


def entries(task: Task) -> list[ContenderEntry]:
    """Returns every contender, in the order of the table; entries that cannot run here contain the reason.

    Raises:
        SourceError: if the task's source does not exist, or is not what the dataset was built from.
    """
    check_source(task)
    groups = (stock_entries, tutorial_entries, ffcv_entries, dali_entries, own_entries)
    return [entry for group in groups for entry in group(task)]
