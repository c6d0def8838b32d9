"""The :class:`Contender` contract, and :class:`ContenderEntry`: the description of a contender before it runs.

Also contains the code that contenders share: copies to the device, and the conversion of the rows to another format.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor

from mmload.bench.task import Task

ROOM_SHARE = 1 / 8
"""Upper bound on the share of free space for one conversion: there are up to four of them."""


Contender = Callable[[], Generator[tuple[Any, Tensor]]]
"""One way to load, made and used in its own process: yields the batches of an epoch in a new order; closing ends it.

A batch is images [B, C, H, W], or a tuple of them if the task has several views, and labels [B], on the task's device.
It is ready to use, and may become invalid when the next one is requested. Threads and processes end with the last
reference.
"""


@dataclass(frozen=True, kw_only=True)
class ContenderEntry:
    """One row of a bench's table. Picklable.

    Attributes:
        name: the row's name, at most 36 characters.
        group: "stock", "peer" or "mmload".
        differs: deviations from the task, "" if there are none.
        need: start order when time is short, lowest first. Entries with 0 are always started, because the verdict needs
            them.
        on_device: whether the images are on the device before the epoch begins.
        ahead: upper bound on the batches that it has ready or makes while none is requested. What is measured is a
            multiple of it: several workers deliver that many batches at once, then none for a while.
        make: a module-level function that creates the contender of a task; the path is a folder for
            conversions, which are never timed and reused if they exist.
    """

    name: str
    group: str
    differs: str = ""
    need: int = 0
    on_device: bool = False
    ahead: int = 1
    make: Callable[[Task, Path], Contender]


def moved(loader: Iterable[tuple[Any, Tensor]], device: str) -> Generator[tuple[Any, Tensor]]:
    """Yields the batches of a loader on the device; from pinned memory the copy overlaps with the next batch."""
    for images, labels in loader:
        views = [images] if isinstance(images, Tensor) else images
        there = tuple(view.to(device, non_blocking=True) for view in views)
        yield there if len(there) > 1 else there[0], labels.to(device, non_blocking=True)


def installed(module: str) -> bool:
    """Returns whether a package is installed; it is not imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is not installed
        return False


def has_room(task: Task) -> bool:
    """Returns whether the task's rows may be stored again in a peer's format."""
    need = task.pixel_bytes * task.epoch_images
    return need <= ROOM_SHARE * shutil.disk_usage(tempfile.gettempdir()).free


def converted(scratch: Path, name: str, write: Callable[[Path], None]) -> Path:
    """Returns a folder that ``write`` filled from the task's split, now or when the contender was made before."""
    folder = scratch / name
    if not folder.is_dir():
        work = scratch / f"{name}.part"
        work.mkdir()
        write(work)
        work.rename(folder)
    return folder
