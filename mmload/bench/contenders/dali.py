"""NVIDIA DALI over the original files: https://github.com/NVIDIA/DALI.

The pipeline runs on the CPU alone or, with device "cuda", decodes and transforms on the GPU. CIFAR's rows come from
memory through ``external_source``, a batch at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from mmload.bench.contenders.entry import ContenderEntry, installed
from mmload.bench.contenders.source import no_source, recipe_specs, shrinks, source_dataset
from mmload.bench.task import Task
from mmload.errors import UsageError, counted

_READER = "source"
_DIFFERS = "its own decoder and resize; what is cut out of the middle may lie a pixel off"


class Dali:
    """A pipeline with DALI's own threads and its own iterator for PyTorch."""

    def __init__(self, task: Task, scratch: Path) -> None:
        self._task = task
        self._source: Any = source_dataset(task)
        self._finished = True
        self._batches: Any = self._made()

    def _made(self) -> Any:
        """Returns a new pipeline, which starts at the beginning of an epoch."""
        from nvidia.dali import pipeline_def
        from nvidia.dali.plugin.base_iterator import LastBatchPolicy
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        gpu = self._task.device == "cuda"
        define = pipeline_def(
            batch_size=self._task.batch_size,
            num_threads=self._task.threads,
            device_id=0 if gpu else None,
        )
        memory = hasattr(self._source, "data")
        inputs = _rows(self._task, self._source) if memory else _files(self._task, self._source)
        graph = define(lambda: _graph(self._task, inputs))()
        length = {"size": -1} if memory else {"reader_name": _READER}
        return DALIGenericIterator(
            [graph], ["images", "labels"], last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True, **length
        )

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        if not self._finished:  # DALI cannot restart in the middle of an epoch
            self._batches = self._made()
        self._finished = False
        for (batch,) in self._batches:
            labels = batch["labels"].flatten().long()
            yield batch["images"], labels.to(self._task.device, non_blocking=True)
        self._finished = True

    def close(self) -> None:
        self._batches = None


def dali_entries(task: Task) -> list[ContenderEntry]:
    """Returns the pipeline of the task's device; none where DALI is not installed, or cannot make the batches."""
    crops = not task.variable_size or task.augment != "crop"  # its random crops are written here for rows of one size
    if no_source(task) or task.training_recipe or not crops or not installed("nvidia.dali"):
        return []
    return [
        ContenderEntry(
            name=f"NVIDIA DALI, {task.device.upper().replace('CUDA', 'GPU')}, {counted(task.threads, 'thread')}",
            group="peer",
            differs="; ".join(filter(None, [_DIFFERS, shrinks(task)])),
            need=2,
            ahead=3,  # DALI's default, and one that it makes
            make=Dali,
        )
    ]


def _graph(task: Task, inputs: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
    """Returns the task as DALI operators."""
    from nvidia.dali import fn, types

    images, labels = inputs()
    for spec in recipe_specs(task):
        images = _step(images, spec)
    if task.augment == "none":
        return fn.transpose(images, perm=[2, 0, 1]), labels
    window: dict[str, Any] = {}
    if task.augment == "resized-crop":
        images = fn.random_resized_crop(images, size=task.crop)
    else:
        images = _padded(images, task) if task.padding else images
        window = _random_window(task)
    scaled = fn.crop_mirror_normalize(
        images,
        **window,
        mirror=fn.random.coin_flip(),
        mean=[255 * value for value in task.mean],
        std=[255 * value for value in task.std],
        dtype=types.FLOAT,
        output_layout="CHW",
    )
    return scaled, labels


def _random_window(task: Task) -> dict[str, Any]:
    """Returns a crop with uniformly distributed offsets: DALI takes offsets as fractions, and rounds."""
    from nvidia.dali import fn

    window: dict[str, Any] = {"crop_h": task.crop, "crop_w": task.crop}
    for axis, side in zip("yx", task.rows.fields["images"].shape[1:], strict=True):
        most = side + 2 * task.padding - task.crop
        window[f"crop_pos_{axis}"] = fn.random.uniform(values=[offset / max(1, most) for offset in range(most + 1)])
    return window


def _padded(images: Any, task: Task) -> Any:
    """Returns the images with zeros around them."""
    from nvidia.dali import fn

    height, width = task.rows.fields["images"].shape[1:]
    around = 2 * task.padding
    return fn.crop(images, crop=(height + around, width + around), out_of_bounds_policy="pad")


def _step(images: Any, spec: dict[str, Any]) -> Any:
    """Returns one of the recipe's transforms as a DALI operator."""
    from nvidia.dali import fn, types

    size: Any = spec.get("size")
    if spec["step"] == "Resize":
        sides = {"resize_shorter": size} if isinstance(size, int) else {"resize_y": size[0], "resize_x": size[1]}
        cubic = spec.get("interpolation") == "bicubic"
        return fn.resize(images, interp_type=types.INTERP_CUBIC if cubic else types.INTERP_LINEAR, **sides)
    if spec["step"] == "CenterCrop":
        window = (size, size) if isinstance(size, int) else tuple(size)
        return fn.crop(images, crop=window, out_of_bounds_policy="pad")
    raise UsageError(f"the recipe's step {spec['step']} is not written for DALI here; measure without it")


def _files(task: Task, source: Any) -> Callable[[], tuple[Any, Any]]:
    """Returns a reader of files that DALI reads and decodes, in a new order each epoch."""
    from nvidia.dali import fn, types

    samples = list(source.samples) * task.repeats

    def inputs() -> tuple[Any, Any]:
        encoded, labels = fn.readers.file(
            files=[path for path, _ in samples],
            labels=[target for _, target in samples],
            shuffle_after_epoch=True,
            pad_last_batch=True,  # otherwise the last batch contains samples of the next epoch
            name=_READER,
        )
        device = "mixed" if task.device == "cuda" else "cpu"
        return fn.decoders.image(encoded, device=device, output_type=types.RGB), labels

    return inputs


def _rows(task: Task, source: Any) -> Callable[[], tuple[Any, Any]]:
    """Returns a reader of rows that torchvision holds in memory, a batch at a time, in a new order each epoch."""
    from nvidia.dali import fn

    pixels, targets = np.ascontiguousarray(source.data), np.array(source.targets, dtype=np.int32)[:, None]
    rng = np.random.default_rng()

    def epochs() -> Iterator[tuple[Any, Any]]:
        order = rng.permutation(np.tile(np.arange(len(pixels)), task.repeats))
        for start in range(0, len(order), task.batch_size):
            rows = order[start : start + task.batch_size]
            yield pixels[rows], targets[rows]

    def inputs() -> tuple[Any, Any]:
        batches: Any = epochs
        images, labels = fn.external_source(source=batches, num_outputs=2, cycle="raise", layout=["HWC", ""])
        return (images.gpu() if task.device == "cuda" else images), labels

    return inputs
