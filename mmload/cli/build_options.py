"""The options of ``mmload build``, by what they are about."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# What is built.

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KIND ROOT OUT",
        help="As in: imagefolder photos photos-256. KIND is imagefolder, voc, cifar10, cifar100, manifest (a list of "
        "files and labels) or python (a dataset in code). With --config: [ROOT] [OUT].",
    ),
]
Config = Annotated[Path | None, typer.Option(help="A recipe, such as configs/imagefolder_256.toml.")]
Size = Annotated[
    str | None,
    typer.Option(
        help="Without --config: the short side is resized to this, then the middle square cut out (for detection: "
        "the whole image fitted into the square). 256 for imagefolder and voc, else rows stay as they are. With "
        "--layout whole: the short side is at most this, or original."
    ),
]
Layout = Annotated[
    str | None, typer.Option(help="Without --config: whole: rows keep the aspect of their photograph; nothing is cut.")
]
Encode = Annotated[
    str | None,
    typer.Option(
        help="With --layout whole: raw (pixels), jpeg, source (the source's own JPEGs where they are within --size), "
        "or mixed."
    ),
]
Quality = Annotated[int | None, typer.Option(help="Of JPEGs, 1 to 100; 90 by default. Colors are subsampled 4:2:0.")]
RawShare = Annotated[
    float | None, typer.Option(help="With --encode mixed: the share of rows that are pixels; 0.25 by default.")
]

# The source.

ValFraction = Annotated[float | None, typer.Option(help="Hold out this share of each class as split val.")]
Seed = Annotated[int | None, typer.Option(help="Which samples --val-fraction holds out.")]
AllowEmpty = Annotated[bool, typer.Option("--allow-empty", help="Class folders may be empty.")]
Task = Annotated[str | None, typer.Option(help="voc: detection, classification, segmentation or single-label.")]
Labels = Annotated[str | None, typer.Option(help="cifar100: fine or coarse.")]
PythonDataset = Annotated[str | None, typer.Option(help="python: package.module:callable.")]
Download = Annotated[bool, typer.Option("--download", help="voc, cifar10, cifar100: fetch it to ROOT first.")]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any other key of a source in docs/recipes.md, as --set year=2007."
    ),
]

# How images are decoded and stored.

ShardSize = Annotated[str | None, typer.Option(help="Bytes of a shard at most; 1GiB by default.")]
ShuffleSeed = Annotated[int | None, typer.Option(help="Shuffle samples over rows, for reading in block order later.")]
ExifOrient = Annotated[bool, typer.Option("--exif-orient", help="Rotate images as their EXIF orientation says.")]
Decode = Annotated[
    str | None, typer.Option(help="Where JPEGs are decoded: cpu, or cuda, which gives slightly other pixels.")
]

# How the build runs.

Advise = Annotated[
    bool,
    typer.Option(
        "--advise", help="Build nothing: try each layout with 64 images, and show what all images would cost here."
    ),
]

Processes = Annotated[int | None, typer.Option(help="Processes over shards; one for every 8 cores by default.")]
Engine = Annotated[
    str,
    typer.Option(help="Where shards are built: local, or ray, on the nodes of a Ray cluster; see docs/clusters.md."),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="With --engine ray: the cluster, or auto for the one that this machine is part of. By default that of "
        "RAY_ADDRESS, else a new one on this machine, for this build.",
    ),
]
Part = Annotated[
    str | None,
    typer.Option(
        metavar="K/N",
        help="Build only the Kth of N parts of the shards. They may run at once, on one file system; the last commits.",
    ),
]
Commit = Annotated[bool, typer.Option("--commit", help="Build nothing: commit what parts have built.")]
OnError = Annotated[str, typer.Option(help="A sample that cannot be read: fail, or skip it.")]
MaxErrors = Annotated[str | None, typer.Option(help="With --on-error skip: the most to leave out, as 20 or 1%.")]
Exclude = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A list of samples to leave out, one a line; see mmload browse.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the dataset at OUT.")]
