"""NVIDIA DALI over the original files of an image folder: https://github.com/NVIDIA/DALI.

The pipeline runs on the CPU alone or, with device "cuda", decodes and transforms on the GPU.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

from torch import Tensor

from mmload.bench.contenders.entry import Contender, ContenderEntry, installed
from mmload.bench.contenders.stock import no_source, shrinks, source_dataset, stored_specs
from mmload.bench.task import Task
from mmload.errors import UsageError, counted

_READER = "source"
_DIFFERS = "its own decoder and resize; what is cut out of the middle may lie a pixel off"


def dali_entries(task: Task) -> list[ContenderEntry]:
    """Returns the pipeline of the task's device; none where DALI is not installed, or cannot make the batches."""
    crops = not task.padding and (not task.variable_size or task.augment != "crop")  # of unpadded rows of one size
    files = not no_source(task) and task.recipe["source"]["kind"] == "imagefolder"
    if not files or task.is_preset or not crops or not installed("nvidia.dali"):
        return []
    return [
        ContenderEntry(
            name=f"NVIDIA DALI, {task.device.upper().replace('CUDA', 'GPU')}, {counted(task.threads, 'thread')}",
            group="peer",
            differs="; ".join(filter(None, [_DIFFERS, shrinks(task)])),
            need=2,
            ahead=3,  # DALI's default, and one that it makes
            make=dali_loader,
        )
    ]


def dali_loader(task: Task, scratch: Path) -> Contender:
    """Makes a pipeline with DALI's own threads and its own iterator for PyTorch."""
    batches: Any = _pipeline(task)

    def epoch() -> Generator[tuple[Tensor, Tensor]]:
        nonlocal batches
        current, batches = batches or _pipeline(task), None  # DALI cannot restart in the middle of an epoch
        for (batch,) in current:
            labels = batch["labels"].flatten().long()
            yield batch["images"], labels.to(task.device, non_blocking=True)
        batches = current

    return epoch


def _pipeline(task: Task) -> Any:
    """Returns a new pipeline, which starts at the beginning of an epoch."""
    from nvidia.dali import pipeline_def
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    device = 0 if task.device == "cuda" else None
    define = pipeline_def(batch_size=task.batch_size, num_threads=task.threads, device_id=device)
    samples = source_dataset(task).samples * task.repeats
    return DALIGenericIterator(
        [define(lambda: _graph(task, samples))()],
        ["images", "labels"],
        reader_name=_READER,
        last_batch_policy=LastBatchPolicy.PARTIAL,
        auto_reset=True,
    )


def _graph(task: Task, samples: list[tuple[str, int]]) -> tuple[Any, Any]:
    """Returns the task as DALI operators on files, in a new order each epoch."""
    from nvidia.dali import fn, types

    encoded, labels = fn.readers.file(
        files=[path for path, _ in samples],
        labels=[target for _, target in samples],
        shuffle_after_epoch=True,
        pad_last_batch=True,  # otherwise the last batch contains samples of the next epoch
        name=_READER,
    )
    device = "mixed" if task.device == "cuda" else "cpu"
    images = fn.decoders.image(encoded, device=device, output_type=types.RGB)
    for spec in stored_specs(task):
        images = _step(images, spec)
    if task.augment == "none":
        return fn.transpose(images, perm=[2, 0, 1]), labels
    window: dict[str, Any] = {}
    if task.augment == "resized-crop":
        images = fn.random_resized_crop(images, size=task.crop)
    else:
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
        most = side - task.crop
        window[f"crop_pos_{axis}"] = fn.random.uniform(values=[offset / max(1, most) for offset in range(most + 1)])
    return window


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
