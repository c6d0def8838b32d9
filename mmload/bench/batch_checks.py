"""Checks the batches of a contender against the task."""

from __future__ import annotations

from torch import Tensor

from mmload.bench.task import Task
from mmload.errors import MmloadError

Output = tuple[tuple[int, ...], str, str]
"""The shape of one image, its dtype's name, and the kind of device."""


def output_of(task: Task) -> Output:
    """The output that a task requires."""
    return tuple(task.shape[1:]), str(task.dtype), task.device


def check_batch(wanted: Output, images: Tensor, labels: Tensor) -> None:
    """Check a batch against the output that the task requires.

    Raises:
        MmloadError: if the output differs; the message describes the actual output.
    """
    device = wanted[2]
    got = tuple(images.shape[1:]), str(images.dtype), images.device.type
    if got != wanted:
        raise MmloadError(f"it gives images {_described(got)}, the task is {_described(wanted)}")
    if labels.shape[:1] != images.shape[:1] or labels.device.type != device:
        raise MmloadError(
            f"it gives labels {list(labels.shape)} on {labels.device.type} for {len(images)} images on {device}"
        )


def _described(output: Output) -> str:
    shape, dtype, device = output
    return f"{list(shape)} {dtype.removeprefix('torch.')} on {device}"
