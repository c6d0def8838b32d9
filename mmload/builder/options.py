"""Every option of a build, declared once: its flag of ``mmload build``, its help text, its key in a recipe file.

The command line and the keys that a recipe file may have derive from :class:`BuildOptions`. Options of other
commands are declared in the same way. Imports neither torch nor typer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mmload.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Name and help text of an option: the metadata of a field of a dataclass such as :class:`BuildOptions`.

    Attributes:
        help: the help text of its flag.
        flag: its flag; "": it is a key of recipe files alone, or an argument without a name.
        table: the table of recipe files that it is in; "": recipes do not have it.
        key: its key there.
        metavar: how the help shows its value; "": as its type.
    """

    help: str
    flag: str
    table: str = ""
    key: str = ""
    metavar: str = ""


def option(help: str, default: Any = None, **more: str) -> Any:
    """Returns a field with its declaration; flag and key are the field's name, unless ``more`` says otherwise."""
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How shards are built, by a build or an update, as it is written; None and False: not given.

    Raises:
        UsageError: if options exclude each other.
    """

    threads: int | None = option("Decoding threads; the cores available by default.")
    processes: int | None = option("Processes over shards; one for every 8 cores by default.")
    on_error: str = option("A sample that cannot be read: fail, or skip it.", "fail")
    max_errors: str | None = option("With --on-error skip: the most to leave out, as 20 or 1%.")
    exclude: Path | None = option("A list of samples to leave out, one a line; see mmload browse.", metavar="FILE")
    engine: str = option(
        "Where shards are built: local, or ray, on the nodes of a Ray cluster; see docs/clusters.md.", "local"
    )
    address: str | None = option(
        "With --engine ray: the cluster, or auto for the one that this machine is part of. By default that of "
        "RAY_ADDRESS, else a new one on this machine, for this build.",
        metavar="HOST:PORT",
    )
    part: str | None = option(
        "Build only the Kth of N parts of the shards. They may run at once, on one file system; the last commits.",
        metavar="K/N",
    )
    commit: bool = option("Build nothing: commit what parts have built.", False)

    def __post_init__(self) -> None:
        if self.part is not None and self.commit:
            raise UsageError("--part and --commit are both given; give one of them")
        if self.engine not in ("local", "ray"):
            raise UsageError(f"--engine is {self.engine!r}; use local or ray")
        if self.engine == "local" and self.address is not None:
            raise UsageError("--address names a Ray cluster; add --engine ray, or leave it out")
        if self.engine == "ray" and (self.in_parts or self.processes is not None):
            other = "--part and --commit build" if self.in_parts else "--processes builds"
            raise UsageError(
                f"{other} without a cluster; leave it out with --engine ray, which divides the shards itself"
            )

    @property
    def in_parts(self) -> bool:
        """Whether other processes build the same dataset."""
        return self.part is not None or self.commit


@dataclass(frozen=True, kw_only=True)
class BuildOptions(RunOptions):
    """The options of ``mmload build``, as they are written; None and False: not given.

    Raises:
        UsageError: if options exclude each other.
    """

    words: list[str] | None = option(
        "As in: imagefolder photos photos-256. KIND is imagefolder, voc, coco, yolo, cifar10, cifar100, list (a list "
        "of files and labels) or python (a dataset in code). With --config: [ROOT] [OUT].",
        flag="",
        metavar="KIND ROOT OUT",
    )
    config: Path | None = option("A recipe, such as configs/imagefolder_256.toml.")

    # What is built.
    size: str | None = option(
        "Without --config: the short side is resized to this, then the center square is cropped (for detection: the "
        "image is fitted into the square). Default: 256 for imagefolder and voc, 640 for coco and yolo, no resize for "
        "others. With --layout variable: the short side is at most this; or original."
    )
    layout: str | None = option(
        "Without --config: variable: images keep their aspect ratio and differ in size; nothing is cut.", table="store"
    )
    encode: str | None = option(
        "With --layout variable: raw (pixels), jpeg, source (the source's own JPEGs where they are within --size), or "
        "mixed.",
        table="store",
    )
    quality: int | None = option("Of JPEGs, 1 to 100; 90 by default. Colors are subsampled 4:2:0.", table="store")
    raw_share: float | None = option(
        "With --encode mixed: the share of rows that are pixels; 0.25 by default.", table="store"
    )

    # The source.
    val_fraction: float | None = option("Hold out this share of each class as split val.", table="source")
    seed: int | None = option("Which samples --val-fraction holds out.", table="source")
    allow_empty: bool = option("Class folders may be empty.", False, table="source")
    task: str | None = option(
        "voc: detection, classification, segmentation or single-label. coco: detection, instances, keypoints or "
        "panoptic.",
        table="source",
    )
    labels: str | None = option("cifar100: fine or coarse.", table="source")
    dataset: str | None = option("python: package.module:callable.", table="source")
    download: bool = option("voc, cifar10, cifar100: fetch it to ROOT first.", False, table="source")
    setting: list[str] | None = option(
        "Any other key of a source in docs/recipes.md, as --set year=2007.", flag="--set", metavar="KEY=VALUE"
    )

    # How images are decoded and stored.
    shard_size: str | None = option("Bytes of a shard at most; 1GiB by default.", table="store")
    shuffle_seed: int | None = option("Shuffle samples over rows, for reading in block order later.", table="store")
    mode: str | None = option("RGB, or L for gray levels.", flag="", table="decode")
    background: Any = option(
        "Background color of transparent pixels: a gray level or [red, green, blue].", flag="", table="decode"
    )
    exif_orient: bool = option("Rotate images as their EXIF orientation says.", False, table="decode")

    overwrite: bool = option("Replace the dataset at OUT.", False)
    advise: bool = option(
        "Build nothing: try each layout with 64 images, and show what all images would cost here.", False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_layout()
        if self.overwrite and self.in_parts:
            raise UsageError(
                "--overwrite with --part or --commit would remove what other parts have built; remove OUT first, once"
            )

    def table(self, name: str) -> dict[str, Any]:
        """Returns the given keys of a table of recipe files, "source", "decode" or "store", with their values."""
        values = {
            its.key: getattr(self, option) for option, its in declarations(BuildOptions).items() if its.table == name
        }
        return {key: value for key, value in values.items() if value is not None and value is not False}

    def _check_layout(self) -> None:
        """Checks that images are described once: by a recipe, by options, or not at all where all ways are compared."""
        for name in ("size", "layout", "encode", "quality", "raw_share"):
            if getattr(self, name) is None:
                continue
            flag = declarations(BuildOptions)[name].flag
            if self.config is not None:
                raise UsageError(f"{flag} and --config are both given; leave {flag} out and set it in {self.config}")
            if self.advise and name != "size":
                raise UsageError(f"--advise compares all layouts, and {flag} is given; give one of them")


def declarations(options: type[Any]) -> dict[str, Declaration]:
    """Returns the name of each declared option of a dataclass -> its declaration."""
    return {
        option.name: Declaration(
            **{"flag": f"--{option.name.replace('_', '-')}", "key": option.name, **option.metadata}
        )
        for option in fields(options)
        if option.metadata
    }


def recipe_keys(table: str) -> set[str]:
    """Returns the keys that a table of recipe files may have; ``[source]`` has those of its kind in addition."""
    return {its.key for its in declarations(BuildOptions).values() if its.table == table}
