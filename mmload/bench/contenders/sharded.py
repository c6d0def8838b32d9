"""LitData over the stored rows as uint8 tensors: https://github.com/Lightning-AI/litData.

The rows are first converted to chunks, which LitData maps in place from the local disk. torchvision transforms the
images in worker processes.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate
from torchvision.transforms import v2

from mmload.bench.contenders.entry import (
    Batches,
    ContenderEntry,
    converted,
    no_recipe,
    no_room,
    not_installed,
    one_size,
    unlabeled,
)
from mmload.bench.contenders.source import (
    composed,
    float_steps,
    no_source,
    random_steps,
    recipe_steps,
    shrinks,
    source_dataset,
)
from mmload.bench.task import Task
from mmload.errors import counted
from mmload.runtime.regular_files import read_regular

CHUNK_BYTES = 64 * 2**20


class LitData(Batches):
    """LitData's StreamingDataset, shuffled, under its own loader."""

    def __init__(self, task: Task, scratch: Path) -> None:
        from litdata import StreamingDataLoader, StreamingDataset

        folder = converted(task, scratch, "litdata", partial(write_chunks, task))
        dataset: Any = StreamingDataset(
            str(folder),
            shuffle=True,
            drop_last=False,
            seed=task.seed,
            item_shuffle_window="full",
            transform=partial(_transformed, composed([*random_steps(task), *float_steps(task)])),
        )
        loader = StreamingDataLoader(
            dataset,
            batch_size=task.batch_size,
            num_workers=task.threads,
            persistent_workers=True,
            pin_memory=task.device == "cuda",
        )
        super().__init__(loader, task.device)


def litdata_entries(task: Task) -> list[ContenderEntry]:
    """Returns the single LitData entry, with one worker for each thread of other contenders."""
    return [
        ContenderEntry(
            name=f"LitData, uint8 rows, {counted(task.threads, 'worker')}",
            group="peer",
            differs="shuffled by chunks and within them; each worker's last batch is smaller",
            need=2,
            missing=no_recipe(task)
            or one_size(task)
            or not_installed("litdata", "pip install litdata")
            or unlabeled(task)
            or no_room(task),
            make=LitData,
        )
    ]


def write_chunks(task: Task, folder: Path) -> None:
    """Writes the task's repeats of the stored rows as LitData chunks, with its writer in this process."""
    from litdata.streaming.cache import Cache

    rows, targets = task.rows, task.targets
    cache: Any = Cache(str(folder), chunk_bytes=CHUNK_BYTES)
    for number in range(task.epoch_images):
        index = number % len(rows)
        cache[number] = (rows[index].images, targets[index])
    cache.done()
    cache.merge()


def _transformed(steps: Any, item: tuple[Tensor, int]) -> tuple[Tensor, Tensor]:
    image, target = item
    return steps(image), torch.as_tensor(target)


BUFFER = 1000
"""Size of the shuffle buffer in samples, as in WebDataset's own examples."""
SHARD_BYTES = 64 * 2**20
_SHARDS_A_WORKER = 4
_IMAGE = "jpg"  # any extension that WebDataset accepts for an image; Pillow detects the format from the bytes
_DIFFERS = f"shuffled by shards and in a buffer of {BUFFER:,}; each worker's last batch is smaller"


class Tars(Batches):
    """WebDataset's own pipeline: shuffled shards, a shuffle buffer, batches assembled in the workers."""

    def __init__(self, task: Task, scratch: Path) -> None:
        import webdataset

        shards = _SHARDS_A_WORKER * task.threads
        folder = converted(task, scratch, f"tars-{shards}", partial(write_tars, task, shards))
        steps = composed([*recipe_steps(task), *random_steps(task), v2.PILToTensor(), *float_steps(task)])
        samples: Any = webdataset.WebDataset(
            sorted(str(path) for path in folder.glob("*.tar")), shardshuffle=shards, empty_check=False
        )
        samples = samples.shuffle(BUFFER).decode("pilrgb").to_tuple(_IMAGE, "cls").map_tuple(steps)
        loader = webdataset.WebLoader(
            samples.batched(task.batch_size, collation_fn=default_collate, partial=True),
            batch_size=None,
            num_workers=task.threads,
            persistent_workers=True,
            pin_memory=task.device == "cuda",
        )
        super().__init__(loader, task.device)


def webdataset_entries(task: Task) -> list[ContenderEntry]:
    """Returns the single WebDataset entry, with one worker for each thread of other contenders."""
    return [
        ContenderEntry(
            name=f"WebDataset, tars, {counted(task.threads, 'worker')}",
            group="peer",
            differs="; ".join(filter(None, [_DIFFERS, shrinks(task)])),
            need=3,
            missing=no_recipe(task)
            or not_installed("webdataset", "pip install webdataset")
            or no_source(task)
            or no_room(task),
            make=Tars,
        )
    ]


def write_tars(task: Task, shards: int, folder: Path) -> None:
    """Writes the task's repeats of the source as tar shards of equally many samples, in the rows' order."""
    import webdataset

    source = source_dataset(task)
    encoded = _encoded(source)
    count = max(1, -(-task.epoch_images // shards))
    pattern = str(folder / "%06d.tar")
    with webdataset.ShardWriter(pattern, maxcount=count, maxsize=SHARD_BYTES, verbose=0) as writer:
        for number in range(task.epoch_images):
            index = number % len(source)
            sample = {"__key__": f"{number:09d}", _IMAGE: encoded(index), "cls": str(source.targets[index]).encode()}
            writer.write(sample)


def _encoded(source: Any) -> Callable[[int], bytes]:
    """Returns a function from an item's index to the bytes of an image file."""

    def png(index: int) -> bytes:
        stream = io.BytesIO()
        source[index][0].save(stream, "PNG")
        return stream.getvalue()

    def file(index: int) -> bytes:
        return read_regular(source.samples[index][0])

    return png if hasattr(source, "data") else file
