"""One bench from a dataset and its source to a record: the story of ``mmload bench``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mmload.bench.contenders import Contender, Fill, MapStyle, Mmload, Stock, Task
from mmload.bench.measure import measure
from mmload.bench.report import Record
from mmload.dataset import Dataset
from mmload.errors import UsageError

AUGMENTS = ("crop", "resized-crop", "none")


def run(
    dataset: Dataset,
    source: Path,
    split: str,
    *,
    augment: str = "crop",
    crop: int | None = None,
    padding: int = 0,
    batch_size: int = 64,
    images: int = 2000,
    epochs: int = 3,
    workers: Sequence[int] = (0, 2, 4),
    threads: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Record:
    """Measure the stock DataLoader at several worker counts, mmload, and the ceiling.

    Args:
        dataset: the store.
        source: the folder that it was built from.
        split: which split.
        augment: "crop", "resized-crop" or "none"; see :class:`~mmload.bench.contenders.Task`.
        crop: pixels of the square that comes out; None: 7/8 of the stored side (224 of 256), all of it with padding.
        padding: pixels around the image before a random crop.
        batch_size: images a batch.
        images: images an epoch at least; smaller splits are repeated.
        epochs: measured epochs of each.
        workers: worker processes of the stock DataLoader, one contender for each number.
        threads: mmload's threads; None: the cores available.
        progress: told what runs next.

    Raises:
        UsageError: if the split has no images, or the crop does not fit them.
        SourceError: if the source is missing or is another.
    """
    spec = dataset[split].fields.get("images")
    if spec is None:
        raise UsageError(f"split {split!r} of {dataset.path} stores no images; there is nothing to measure against")
    if augment not in AUGMENTS:
        raise UsageError(f"--augment is {augment!r}; use one of {', '.join(AUGMENTS)}")
    if crop is None:
        crop = min(spec.shape[1:]) if padding else min(spec.shape[1:]) * 7 // 8
    if not 1 <= crop <= min(spec.shape[1:]):
        raise UsageError(
            f"--crop is {crop}, the stored images are {spec.shape[1]} x {spec.shape[2]}; use 1 to {min(spec.shape[1:])}"
        )
    for name, value in (("--batch-size", batch_size), ("--epochs", epochs), ("--images", images)):
        if value < 1:
            raise UsageError(f"{name} is {value}; use at least 1")
    task = Task(
        dataset=dataset,
        split=split,
        source=source,
        augment=augment,
        crop=crop,
        padding=padding,
        batch_size=batch_size,
        images=images,
        threads=threads,
    )
    contenders: list[Contender] = [Stock(task, count) for count in workers]
    contenders += [MapStyle(task, 0), Mmload(task), Fill(task)]
    settings = {
        "split": split,
        "stored": list(spec.shape),
        "augment": augment,
        "crop": crop,
        "padding": padding,
        "batch_size": batch_size,
        "images": len(task.rows) * task.repeats,
        "epochs": epochs,
        "output": "uint8 as stored, shuffled"
        if augment == "none"
        else "float32 contiguous, flip + normalise, shuffled",
        "cache": "warm",
    }
    return Record(settings=settings, measurements=measure(contenders, epochs, progress))
