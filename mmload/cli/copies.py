"""The commands that copy a dataset: ``mmload push``, ``mmload pull`` and ``mmload export``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mmload.cli import options
from mmload.cli.terminal import interruptible, progress, show, warn
from mmload.errors import UsageError, bytes_text, counted

if TYPE_CHECKING:
    from mmload.export import Exported
    from mmload.remote.copies import Copied
    from mmload.store.dataset import Dataset

Format = Literal["imagefolder", "coco", "yolo", "huggingface", "fiftyone"]

Parallel = Annotated[int, typer.Option(help="Concurrent requests.")]
_ADVICE = "run the same command again to continue"


def push(
    dataset: options.Dataset,
    url: Annotated[str, typer.Argument(help="Destination, such as s3://BUCKET/NAME; also gs://, az://, file://.")],
    version: options.Version = None,
    parallel: Parallel = 16,
) -> None:
    """Copy a dataset to object storage.

    It copies what is missing there, and the manifest last.
    """
    from mmload.remote.copies import push as run

    with interruptible(_ADVICE):
        copied = run(dataset, url, version=version, parallel=parallel, progress=progress("push", "B"))
    show(f"{url}: {_copied_text(copied)}")


def pull(
    url: Annotated[str, typer.Argument(help="URL of a dataset that was pushed.")],
    out: Annotated[Path, typer.Argument(help="Destination folder.")],
    version: options.Version = None,
    parallel: Parallel = 16,
) -> None:
    """Copy a dataset from object storage.

    It copies what is missing here, and checks it against the manifest.
    """
    from mmload.remote.copies import pull as run

    with interruptible(_ADVICE):
        copied = run(url, out, version=version, parallel=parallel, progress=progress("pull", "B"))
    show(f"{out}: {_copied_text(copied)}")


def _copied_text(copied: Copied) -> str:
    present = f"; {counted(copied.present, 'file')} were there already" if copied.present else ""
    return f"{counted(copied.files, 'file')} copied, {bytes_text(copied.bytes)}{present}"


def export(
    dataset: options.Dataset,
    out: Annotated[Path, typer.Argument(help="Destination folder.")],
    to: Annotated[
        Format | None,
        typer.Option(
            help="imagefolder (one class per row), coco or yolo (boxes, masks of instances, keypoints), huggingface "
            "(any rows) or fiftyone; default: what fits."
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
    of_class: Annotated[str | None, typer.Option("--class", help="Only rows of the class of this name.")] = None,
    limit: Annotated[int | None, typer.Option(help="Largest number of rows per split.")] = None,
    name: Annotated[str | None, typer.Option(help="fiftyone: the dataset's name there; OUT's by default.")] = None,
    threads: Annotated[int | None, typer.Option(help="Encoding threads; the cores available by default.")] = None,
) -> None:
    """Write a dataset as other programs read it.

    PNGs by class, COCO, YOLO, Hugging Face datasets, FiftyOne.
    """
    if name is not None and to != "fiftyone":
        raise UsageError("--name is for --to fiftyone")
    from mmload.store.dataset import Dataset

    opened = Dataset(dataset)
    to = to or _usual(opened)
    from mmload import export as exports

    writers: dict[Format, Callable[..., Exported]] = {
        "imagefolder": exports.to_imagefolder,
        "coco": exports.to_coco,
        "yolo": exports.to_yolo,
        "huggingface": exports.save_huggingface,
        "fiftyone": partial(exports.to_fiftyone, name=name),
    }
    with interruptible("nothing was exported"):
        made = writers[to](
            opened,
            out,
            exports.Choice(split=split, of_class=of_class, limit=limit),
            threads=threads,
            progress=progress("export"),
        )
    show(f"{made.out}: {counted(made.rows, 'row')} as {to}")
    warn(made.notes)
    if made.next:
        show("next:", *(f"  {line}" for line in made.next))


def _usual(dataset: Dataset) -> Format:
    """Returns the format that suits the rows."""
    split = next(iter(dataset.values()))
    targets = split.fields.get("targets")
    if "boxes" in split.fields:
        return "coco"
    return "huggingface" if targets is None or targets.shape != () else "imagefolder"
