"""FFCV over the stored rows, raw and as JPEG: https://ffcv.io.

The rows are first converted to FFCV's file; its Loader then runs numba-compiled pipelines. The package is imported when
a contender is created: this takes seconds and needs OpenCV's libraries.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmload.bench.contenders.entry import Contender, ContenderEntry, converted, has_room, installed
from mmload.bench.task import Task
from mmload.errors import counted

QUALITY = 90
"""JPEG quality, FFCV's default."""
_FILE = "rows.beton"
_TO_END = 1.0  # seconds: its thread looks every half second whether its epoch was cut short


def ffcv_loader(task: Task, scratch: Path, *, mode: str) -> Contender:
    """Makes FFCV's Loader, shuffled, with its file in the page cache."""
    from ffcv.loader import Loader, OrderOption

    folder = converted(scratch, f"ffcv-{mode}", partial(write_rows, task, mode))
    loader: Any = Loader(
        str(folder / _FILE),
        batch_size=task.batch_size,
        num_workers=task.threads,
        order=OrderOption.RANDOM,
        os_cache=True,
        indices=np.tile(np.arange(len(task.rows)), task.repeats),
        drop_last=False,
        pipelines={"image": _image_pipeline(task), "label": _label_pipeline(task)},
    )

    def epoch() -> Generator[tuple[Tensor, Tensor]]:
        # A batch's memory is reused a few batches later.
        batches = iter(loader)
        try:
            for images, labels in batches:
                yield images, labels.flatten()
        finally:
            batches.close()
            batches.join(_TO_END)
            while batches.is_alive():  # it waits without end for room in a full queue, for the end of its epoch
                with suppress(Empty):
                    batches.output_queue.get_nowait()
                batches.join(_TO_END)

    return epoch


def ffcv_entries(task: Task) -> list[ContenderEntry]:
    """Returns entries of raw pixels and JPEGs; for variable-size photographs also of FFCV's "smart" mode.

    None where FFCV is not installed, or cannot make the task's batches.
    """
    in_color = task.rows.fields["images"].channels == 3
    crops = not task.variable_size or task.augment != "crop"  # its center crop is a share of each photograph
    able = crops and in_color and task.labeled and not task.is_preset and has_room(task)
    if not able or not installed("ffcv"):
        return []
    ways = [("raw", "raw", ""), ("JPEG", "jpg", f"JPEGs of quality {QUALITY} of the rows")]
    if task.variable_size:
        ways.append(("smart", "smart", f"JPEGs of quality {QUALITY} of the rows above the mean of their bytes"))
    return [
        ContenderEntry(
            name=f"FFCV {name}, {counted(task.threads, 'thread')}",
            group="peer",
            differs="; ".join(filter(None, [loss, _crop_differs(task), "channels_last"])),
            need=2,
            ahead=4,  # FFCV's default, and one that it makes
            make=partial(ffcv_loader, mode=mode),
        )
        for name, mode, loss in ways
    ]


def write_rows(task: Task, mode: str, folder: Path) -> None:
    """Writes the stored rows to FFCV's file, in the size that they have."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    image = RGBImageField(
        write_mode=mode,
        max_resolution=int(task.sizes.max()),
        smart_threshold=round(task.pixel_bytes),
        jpeg_quality=QUALITY,
    )
    fields = {"image": image, "label": IntField()}
    DatasetWriter(str(folder / _FILE), fields, num_workers=task.threads).from_indexed_dataset(_Rows(task))


class _Rows:
    """The stored rows in the format of FFCV's writer: uint8 [H, W, C] and a class index."""

    def __init__(self, task: Task) -> None:
        self._rows = task.rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        # numpy, not torch: FFCV forks its writers, and torch's intra-op threads hang in a fork after their first use.
        row = self._rows[index]
        return np.ascontiguousarray(row.images.numpy().transpose(1, 2, 0)), int(row.targets)


def _image_pipeline(task: Task) -> list[Any]:
    from ffcv import transforms

    if task.augment == "none":
        steps = [_decoder(task), transforms.ToTensor()]
        return [*steps, *_moved(task), transforms.ToTorchImage()]
    steps = [_decoder(task), transforms.RandomHorizontalFlip()]
    if _translates(task):
        steps.append(transforms.RandomTranslate(padding=task.padding))
    mean, std = np.array(task.mean) * 255, np.array(task.std) * 255
    if task.device == "cpu":
        scaled = transforms.NormalizeImage(mean, std, np.dtype(np.float32))
        return [*steps, scaled, transforms.ToTensor(), transforms.ToTorchImage()]
    from torchvision.transforms import Normalize  # FFCV's own Normalize needs CuPy on a GPU

    to_float = [transforms.ToTorchImage(), transforms.Convert(torch.float32), Normalize(mean, std)]
    return [*steps, transforms.ToTensor(), *_moved(task), *to_float]


def _label_pipeline(task: Task) -> list[Any]:
    from ffcv.fields.basics import IntDecoder
    from ffcv.transforms import ToTensor

    return [IntDecoder(), ToTensor(), *_moved(task)]


def _moved(task: Task) -> list[Any]:
    from ffcv.transforms import ToDevice

    return [] if task.device == "cpu" else [ToDevice(torch.device(task.device), non_blocking=True)]


def _decoder(task: Task) -> Any:
    """Returns FFCV's decoder that is most similar to the task's crop."""
    from ffcv.fields import rgb_image

    if task.augment == "none" or _translates(task):
        return rgb_image.SimpleRGBImageDecoder()
    size = (task.crop, task.crop)
    if task.augment == "resized-crop":
        return rgb_image.RandomResizedCropRGBImageDecoder(size)
    return rgb_image.CenterCropRGBImageDecoder(size, task.crop / min(task.least_size))


def _translates(task: Task) -> bool:
    """Returns whether FFCV's RandomTranslate is equivalent to the padded crop: only if the size stays the same."""
    height, width = task.least_size
    return not task.variable_size and task.augment == "crop" and task.padding > 0 and task.crop == height == width


def _crop_differs(task: Task) -> str:
    if task.augment == "resized-crop":
        return "resized by area, not bilinear"
    return "center crop: it has no random one" if task.augment == "crop" and not _translates(task) else ""
