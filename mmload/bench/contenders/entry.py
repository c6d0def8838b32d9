"""The :class:`Contender` contract, and :class:`Entry`: what the bench knows of a contender before it runs.

Also what several contenders share: copies to the device, and one conversion of a store to another library's format.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from torch import Tensor

from mmload.bench.task import Task
from mmload.runtime.byte_sizes import bytes_text
from mmload.store.manifest import FILE_NAME

ROOM_SHARE = 1 / 8
"""The most of the free space that one conversion may take: there are five of them."""


class Contender(Protocol):
    """One way to load, made and used in a process of its own."""

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Images [B, C, H, W] and int64 labels [B] of each batch, on the task's device, of one epoch in a new order.

        A batch is ready to use, and need not stay valid once the next one is asked for.
        """

    def close(self) -> None:
        """End its threads and processes."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row of a bench's table. Picklable.

    Attributes:
        name: the row's name, at most 38 characters.
        group: "stock", "peer" or "mmload".
        differs: what is not equal to the task, "" if all is.
        missing: why it cannot run here and what to do about that, "" if it can.
        need: how early it is started where the time budget is short. Those of 0 are started in any case: the verdict is
            of them.
        ceiling: the limit of its rate: "" for the usual one of the device, or "device" where the images are
            on the device before the epoch begins.
        make: a module-level class or function that makes the contender of a task; the path is a folder for what it has
            to convert first, which is never timed and used again if it is there.
    """

    name: str
    group: str
    differs: str = ""
    missing: str = ""
    need: int = 0
    ceiling: str = ""
    make: Callable[[Task, Path], Contender]


class Batches:
    """A contender over anything that gives (images, labels) batches each time it is iterated.

    Args:
        loader: such as a DataLoader; it is let go of on closing, which ends its workers.
        device: where batches have to arrive; from pinned memory the copy runs beside the next batch.
    """

    def __init__(self, loader: Iterable[tuple[Tensor, Tensor]], device: str) -> None:
        self._loader: Iterable[tuple[Tensor, Tensor]] = loader
        self._device = device

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        """See :class:`Contender`."""
        for images, labels in self._loader:
            yield images.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True)

    def close(self) -> None:
        """See :class:`Contender`."""
        self._loader = ()


def not_installed(module: str, advice: str) -> str:
    """Why a package cannot be used, "" if it is there; it is not imported."""
    try:
        found = find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is not there
        found = False
    return "" if found else f"{module} is not installed: {advice}"


def unlabeled(task: Task) -> str:
    """Why a peer that wants a class for each image cannot run, "" if it can."""
    return "" if task.labeled else f"split {task.split!r} does not have one class for each image"


def no_room(task: Task) -> str:
    """Why the task's rows cannot be written once more in a peer's format, "" if they can."""
    need = task.rows.fields["images"].row_bytes * task.epoch_images
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if need <= ROOM_SHARE * free:
        return ""
    return (
        f"its files may take {bytes_text(need)}, more than {ROOM_SHARE:.1%} of the {bytes_text(free)} free "
        f"in {tempfile.gettempdir()}; set TMPDIR, or measure a smaller split"
    )


def converted(task: Task, scratch: Path, name: str, write: Callable[[Path], None]) -> Path:
    """A folder that ``write`` has filled from the task's split, now or in an earlier run over the same store.

    Args:
        task: whose split; the folder is named by its manifest, split and repeats, so that another store gets another.
        scratch: where.
        name: of the format and all settings that its bytes depend on.
        write: is given an empty folder to fill.
    """
    manifest = (task.dataset / FILE_NAME).read_bytes()
    key = hashlib.sha256(manifest + json.dumps([task.split, task.repeats]).encode()).hexdigest()[:16]
    folder = scratch / f"{name}-{key}"
    if not folder.is_dir():
        work = scratch / f"{name}-{key}.part"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        write(work)
        work.rename(folder)
    return folder
