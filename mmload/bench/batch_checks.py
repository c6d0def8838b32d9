"""Checks the batches of a contender against the task."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mmload.bench.task import Task
from mmload.errors import MmloadError

Output = tuple[list[tuple[int, ...]], str, str]
"""The shape of one image, in each view, its dtype's name, and the kind of device."""


def output_of(task: Task) -> Output:
    """The output that a task requires."""
    return [tuple(shape[1:]) for shape in task.shapes], str(task.dtype), task.device


def check_batch(wanted: Output, images: Tensor | Sequence[Tensor], labels: Tensor) -> None:
    """Check a batch, or its views, against the output that the task requires.

    Raises:
        MmloadError: if the output differs; the message describes the actual output.
    """
    views = [images] if isinstance(images, Tensor) else list(images)
    device = wanted[2]
    kinds = {(str(view.dtype), view.device.type) for view in views}
    got = [tuple(view.shape[1:]) for view in views], *sorted(kinds)[0]
    if got != wanted or len(kinds) > 1:
        raise MmloadError(f"it gives images {_described(got)}, the task is {_described(wanted)}")
    counts = {view.shape[0] for view in views}
    if counts != {len(labels)} or labels.device.type != device:
        raise MmloadError(
            f"it gives labels {list(labels.shape)} on {labels.device.type} for {max(counts)} images on {device}"
        )


def _described(output: Output) -> str:
    shapes, dtype, device = output
    shown = list(shapes[0]) if len(shapes) == 1 else [list(shape) for shape in shapes]
    return f"{shown} {dtype.removeprefix('torch.')} on {device}"
