"""The options of ``mmload bench``, grouped by topic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmload.cli.options import dataset_on_a_disk, on_a_disk

# What is measured.

Dataset = Annotated[
    Path | None, typer.Argument(help="A built dataset; write ./build for one called build.", callback=dataset_on_a_disk)
]
Source = Annotated[
    Path | None,
    typer.Option(
        help="The folder it was built from. Without DATASET: estimate the gain of a build of it.", callback=on_a_disk
    ),
]
Compare = Annotated[
    tuple[Path, Path] | None,
    typer.Option(metavar="A.json B.json", help="Show two records side by side; measures nothing."),
]

# The task.

Split = Annotated[str | None, typer.Option(help="Split to measure; the first by default.")]
Augment = Annotated[str, typer.Option(help="crop, resized-crop, or none (the stored rows).")]
Recipe = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="A training recipe of mmload.presets in place of --augment, such as simclr; or your own MODULE:FUNCTION.",
    ),
]
Crop = Annotated[int | None, typer.Option(help="Pixels of the square crop; 7/8 of the stored side.")]
Padding = Annotated[int, typer.Option(help="Pixels around the image before a random crop, as for CIFAR.")]
Size = Annotated[int | None, typer.Option(help="Without DATASET: pixels of the stored square; 256 for image folders.")]
BatchSize = Annotated[int, typer.Option(help="Images per batch.")]
Epochs = Annotated[
    int | None, typer.Option(help="Measured epochs of each loader, after a warm-up epoch; 3, or 1 with --quick.")
]
Images = Annotated[
    int | None,
    typer.Option(help="Least number of images per epoch; a smaller split is repeated. 2000, or 500 with --quick."),
]

# The loaders.

Workers = Annotated[str, typer.Option(help="Worker processes of the stock DataLoader, as a list.")]
Threads = Annotated[int | None, typer.Option(help="Loader threads; the cores available by default.")]
Device = Annotated[str | None, typer.Option(help="Device of the batches: cpu or cuda; cuda if available.")]

# What else is measured, and for how long.

Cold = Annotated[
    bool, typer.Option("--cold", help="Evict all files from the page cache before every epoch, and prove it.")
]
Beside = Annotated[
    bool | None,
    typer.Option(
        "--beside/--no-beside",
        help="Measure also beside a thread of Python and one of small torch operations; not with --quick or --cold.",
    ),
]
Train = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="Train this torchvision model, or small, with each loader; measure its steps and their wait for data.",
    ),
]
TimeBudget = Annotated[
    float | None,
    typer.Option(help="Seconds for all measurements and starts; 600, 300 with --no-beside, 60 with --quick."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer images, one epoch: a first look.")]

# Where results go.

JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the record here, too.")]
KeepRecord = Annotated[bool, typer.Option("--record", help="Record the results in the dataset's card.")]
Plot = Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw a chart; needs matplotlib.")]
