"""The :class:`Contender` contract, and :class:`ContenderEntry`: the description of a contender before it runs.

Also contains the code that contenders share: copies to the device, and the conversion of a store to another format.
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
from typing import Any, Protocol

from torch import Tensor

from mmload.bench.task import Task
from mmload.errors import bytes_text, counted
from mmload.runtime.resources import available_cores
from mmload.store.manifest import FILE_NAME

ROOM_SHARE = 1 / 8
"""Upper bound on the share of free space for one conversion: there are five of them."""


class Contender(Protocol):
    """One way to load, created and used in its own process."""

    def epoch(self) -> Iterator[tuple[Any, Tensor]]:
        """Yields images [B, C, H, W] and labels [B] of one epoch in a new order, on the task's device.

        If the task has several views, a tuple of them takes the images' place.

        A batch is ready to use, and may become invalid when the next one is requested.
        """

    def close(self) -> None:
        """Stops its threads and processes."""


@dataclass(frozen=True, kw_only=True)
class ContenderEntry:
    """One row of a bench's table. Picklable.

    Attributes:
        name: the row's name, at most 38 characters.
        group: "stock", "peer" or "mmload".
        differs: deviations from the task, "" if there are none.
        missing: why it cannot run here and how to fix that, "" if it can run.
        need: start order under a short time budget, lowest first. Entries with 0 are always started, because the
            verdict needs them.
        ceiling: the limit of its rate: "" for the default of the device, or "device" if the images are
            on the device before the epoch begins.
        make: a module-level class or function that creates the contender of a task; the path is a folder for
            conversions, which are never timed and reused if they exist.
    """

    name: str
    group: str
    differs: str = ""
    missing: str = ""
    need: int = 0
    ceiling: str = ""
    make: Callable[[Task, Path], Contender]


class Batches:
    """A contender over any iterable of (images, labels) batches, such as a DataLoader, whose workers closing ends.

    From pinned memory the copy to the device overlaps with the next batch.
    """

    def __init__(self, loader: Iterable[tuple[Any, Tensor]], device: str) -> None:
        self._loader: Iterable[tuple[Any, Tensor]] = loader
        self._device = device

    def epoch(self) -> Iterator[tuple[Any, Tensor]]:
        for images, labels in self._loader:
            views = [images] if isinstance(images, Tensor) else images
            moved = tuple(view.to(self._device, non_blocking=True) for view in views)
            yield moved if len(moved) > 1 else moved[0], labels.to(self._device, non_blocking=True)

    def close(self) -> None:
        self._loader = ()


def not_installed(module: str, advice: str) -> str:
    """Returns why a package cannot be used, "" if it is installed; it is not imported."""
    try:
        found = find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is not installed
        found = False
    return "" if found else f"{module} is not installed: {advice}"


def no_recipe(task: Task) -> str:
    """Returns why a peer whose steps are written here for plain crops cannot run, "" if it can."""
    return "its steps are written here for --augment, not for a training recipe" if task.training_recipe else ""


def one_view(task: Task) -> str:
    """Returns why a peer that makes one batch of a row cannot run, "" if it can."""
    views = len(task.views)
    return f"it makes one view of an image, the training recipe {views}" if views > 1 else ""


def without(task: Task) -> str:
    """Returns which of the task's steps a peer lacks that crops, flips and normalizes only; "" if none."""
    return f"does less: no {task.left_out}" if task.left_out else ""


def not_color(task: Task) -> str:
    """Returns why a peer that stores color images only cannot store the rows, "" if it can."""
    channels = task.rows.fields["images"].shape[0]
    return "" if channels == 3 else f"it stores color images only, the rows have {counted(channels, 'channel')}"


def one_size(task: Task) -> str:
    """Returns why a peer that stores rows of one size cannot store variable-size photographs, "" if it can."""
    return "images are variable-size, and its rows have one size" if task.variable_size else ""


def all_cores(task: Task) -> str:
    """Returns how many threads a peer has that takes all cores, if that is not the task's number; else ""."""
    cores = available_cores()
    return "" if task.threads == cores else f"{counted(cores, 'thread')}, as many as cores"


def unlabeled(task: Task) -> str:
    """Returns why a peer that requires a class for each image cannot run, "" if it can."""
    return "" if task.labeled else f"split {task.split!r} does not have one class for each image"


def no_room(task: Task) -> str:
    """Returns why the task's rows cannot be stored again in a peer's format, "" if they can."""
    need = round(task.pixel_bytes * task.epoch_images)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if need <= ROOM_SHARE * free:
        return ""
    return (
        f"its files may take {bytes_text(need)}, more than {ROOM_SHARE:.1%} of the {bytes_text(free)} free "
        f"in {tempfile.gettempdir()}; set TMPDIR, or measure a smaller split"
    )


def converted(task: Task, scratch: Path, name: str, write: Callable[[Path], None]) -> Path:
    """Returns a folder that ``write`` filled from the task's split, now or in an earlier run over the same store.

    ``name`` has the format and all settings that its bytes depend on; manifest, split and repeats are added.
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
