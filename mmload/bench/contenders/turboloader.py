"""TurboLoader over the stored rows and over the photographs: https://github.com/ALJainProjects/TurboLoader.

The rows are first written to its raw file, the photographs to a tar. Its samples have no labels: they are looked up
here by the indices that it returns. It has no random crop, but a resized crop of a single size and shape is one.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmload.bench.contenders.entry import (
    ContenderEntry,
    all_cores,
    converted,
    no_room,
    not_color,
    not_installed,
    one_size,
    one_view,
    unlabeled,
    without,
)
from mmload.bench.contenders.source import FROM_PHOTOGRAPHS, no_source, source_dataset
from mmload.bench.task import Task
from mmload.errors import MmloadError, counted

PREFETCH = 2
"""Batches that are made ahead: the raw loader's default."""
_RAW, _TAR = "rows.tbl", "photographs.tar"
_SCALE = (0.08, 1.0)  # of its crops from a tar, which cannot be set
_INSTALL = "pip install turboloader (Linux and macOS)"


class Labeled:
    """A loader of TurboLoader, shuffled by its seed and the epoch, with the labels of the samples that it names."""

    def __init__(self, loader: Any, targets: Sequence[int], device: str) -> None:
        self._loader, self._labels, self._device = loader, torch.tensor(targets), device
        self._epoch = 0

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        # turboloader gives zeros in place of images that it cannot decode; that is an MmloadError here.
        self._loader.set_epoch(self._epoch)
        self._epoch += 1
        with closing(iter(self._loader)) as batches:
            for images, about in batches:
                if failed := about.get("decode_failures", 0):
                    raise MmloadError(f"it gives zeros for {counted(failed, 'image')} that it cannot decode")
                labels = self._labels[torch.as_tensor(about["indices"])]
                yield torch.from_numpy(images).to(self._device), labels.to(self._device)

    def close(self) -> None:
        self._loader.close()


def raw_rows(task: Task, scratch: Path) -> Labeled:
    """Returns TurboLoader's loader of raw rows, with its file in the page cache."""
    from turboloader.tbl import TblRawImageLoader

    folder = converted(task, scratch, f"turboloader-{task.padding}", partial(write_rows, task))
    height, width = (side + 2 * task.padding for side in task.rows.fields["images"].shape[1:])
    share = task.crop**2 / (height * width)
    resized = task.augment == "resized-crop"
    window = {"scale": task.scale} if resized else {"scale": (share, share), "ratio": (1.0, 1.0)}
    loader = TblRawImageLoader(
        str(folder / _RAW),
        task.batch_size,
        mean=task.mean,
        std=task.std,
        seed=task.seed,
        hflip_prob=0.5,
        prefetch_batches=PREFETCH,
        train_aug=True,
        image_size=task.crop,
        **window,
    )
    return Labeled(loader, task.targets * task.repeats, task.device)


def tar_of_jpegs(task: Task, scratch: Path) -> Labeled:
    """Returns TurboLoader's loader of a tar of the photographs, which decodes what it crops."""
    folder = converted(task, scratch, "turboloader-tar", partial(write_tar, task))
    return _from_tar(task, folder, source_dataset(task).targets)


def tar_of_rows(task: Task, scratch: Path) -> Labeled:
    """Returns TurboLoader's loader of a tar of the stored JPEGs."""
    folder = converted(task, scratch, "turboloader-rows", partial(write_tar_of_rows, task))
    return _from_tar(task, folder, task.targets)


def _from_tar(task: Task, folder: Path, targets: Sequence[int]) -> Labeled:
    import turboloader

    loader = turboloader.DataLoader(
        str(folder / _TAR),
        batch_size=task.batch_size,
        num_workers=task.threads,
        shuffle=True,
        seed=task.seed,
        transform=turboloader.Normalize(task.mean, task.std),
        image_size=task.crop,
        output_format="pytorch",
        prefetch_batches=PREFETCH,
        train_aug=True,
        antialias=True,
    )
    return Labeled(loader, [*targets] * task.repeats, task.device)


def turboloader_entries(task: Task) -> list[ContenderEntry]:
    """Returns entries of its raw file and its tar; of variable-size JPEGs also of a tar of the rows."""
    less, absent = [all_cores(task), without(task)], not_installed("turboloader", _INSTALL)
    not_raw = one_size(task) or _no_floats(task) or not_color(task) or unlabeled(task)
    ways = [
        ("raw .tbl", raw_rows, _resize_differs(task), not_raw),
        ("tar of JPEGs", tar_of_jpegs, _tar_differs(task, of_rows=False), _no_tar(task)),
    ]
    if task.rows.fields["images"].encoding == "jpeg":
        not_rows = _no_other_crop(task) or not_color(task) or unlabeled(task)
        ways.append(("tar of the stored JPEGs", tar_of_rows, _tar_differs(task, of_rows=True), not_rows))
    return [
        ContenderEntry(
            name=f"TurboLoader, {name}",
            group="peer",
            differs="; ".join(filter(None, [differs, *less])),
            need=2,
            missing=one_view(task) or missing or absent or no_room(task),  # first what no installation changes
            make=make,
        )
        for name, make, differs, missing in ways
    ]


def write_rows(task: Task, folder: Path) -> None:
    """Writes the task's repeats of the stored rows, with the zeros around them that padding asks for."""
    import turboloader

    rows, around = task.rows, task.padding
    writer = turboloader.TblWriterV2(str(folder / _RAW), enable_compression=False)
    for number in range(task.epoch_images):
        image = rows[number % len(rows)].images.numpy().transpose(1, 2, 0)
        padded = np.pad(image, ((around, around), (around, around), (0, 0)))
        height, width, _ = padded.shape
        writer.add_sample(padded.tobytes(), turboloader.SampleFormat.RAW_U8, width=width, height=height)
    writer.finalize()


def write_tar(task: Task, folder: Path) -> None:
    """Writes the task's repeats of the source's files, in the rows' order."""
    samples = list(source_dataset(task).samples) * task.repeats
    with tarfile.open(folder / _TAR, "w", dereference=True) as tar:
        for number, (path, _) in enumerate(samples):
            tar.add(path, f"{number:09d}.jpg")


def write_tar_of_rows(task: Task, folder: Path) -> None:
    """Writes the task's repeats of the stored JPEGs."""
    reader = task.rows.files.field("images")
    with tarfile.open(folder / _TAR, "w") as tar:
        for number in range(task.epoch_images):
            data = reader.encoded(number % len(task.rows)).tobytes()
            about = tarfile.TarInfo(f"{number:09d}.jpg")
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))


def _no_floats(task: Task) -> str:
    return "it gives floats, the task is uint8 rows" if task.augment == "none" else ""


def _no_tar(task: Task) -> str:
    """Returns why TurboLoader's tar cannot take the place of the task's source, "" if it can."""
    cifar = task.recipe["source"]["kind"] != "imagefolder"
    rows = "it reads tars of JPEGs, the source has rows of pixels" if cifar else ""
    return _no_other_crop(task) or no_source(task) or rows


def _no_other_crop(task: Task) -> str:
    return "" if task.augment == "resized-crop" else "of the photographs in a tar it makes resized crops only"


def _resize_differs(task: Task) -> str:
    if task.augment != "resized-crop":
        return ""
    return "not antialiased" if task.interpolation == "bilinear" else f"bilinear, not {task.interpolation} antialiased"


def _tar_differs(task: Task, *, of_rows: bool) -> str:
    """Returns how TurboLoader's crops from a tar deviate from the task."""
    kind = "" if task.interpolation == "bilinear" else f"bilinear, not {task.interpolation}"
    scale = "" if task.scale == _SCALE else f"of 0.08 to 1 of the area, not {task.scale[0]:g} to {task.scale[1]:g}"
    fraction = "decoded at a fraction of their size"
    whole = fraction if of_rows else f"{FROM_PHOTOGRAPHS}, {fraction}"
    return "; ".join(filter(None, [whole, kind, scale]))
