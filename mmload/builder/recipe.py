"""Options of a build, and the checked :class:`BuildRecipe` that they, or a TOML file, become. Builds nothing.

Every option is declared once: its type and range, its flag of ``mmload build``, its help text, its key in a recipe
file. The command line and the keys that a recipe file may have derive from :class:`BuildOptions`. Options of other
commands are declared in the same way. A recipe contains everything that the stored bytes depend on besides the source
itself. Imports neither torch nor typer.
"""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from msgspec import Meta, structs

from mmload.errors import RecipeError, UsageError, choices, counted, parse_bytes
from mmload.records import VARIABLE, FieldSpec, checked, has_images
from mmload.remote.urls import Location, is_url, place
from mmload.runtime.files import read_regular

_WITHOUT_EFFECT = ("download", "concurrent")  # source options that do not affect the stored bytes
_DECODE: Mapping[str, Any] = {"mode": "RGB", "exif_orient": False, "background": 255}


# Values: their types and ranges.


def check_values(given: object) -> None:
    """Checks the values of a dataclass against the types of its fields; raises RecipeError as :func:`checked` does."""
    for name, kind in get_type_hints(type(given), include_extras=True).items():
        checked(getattr(given, name), kind, name)


# Options of a command.


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Name and help text of an option: the metadata of a field of a dataclass such as :class:`BuildOptions`.

    Attributes:
        help: the help text of its flag.
        flag: its flag; "": it is a key of recipe files alone, or an argument without a name.
        table: the table of recipe files that has a key of its name; "": recipes do not have it.
        metavar: how the help shows its value; "": as its type.
        group: heading of the help that it stands under; "": Options.
    """

    help: str
    flag: str
    table: str = ""
    metavar: str = ""
    group: str = ""


def option(help: str, default: Any = None, **more: str) -> Any:
    """Returns a field with its declaration; the flag is the field's name, unless ``more`` says otherwise."""
    return field(default=default, metadata={"help": help, **more})


_what = partial(option, group="What to build")
_how = partial(option, group="How to build")
_cluster = partial(option, group="Clusters")


OnError = Annotated[Literal["fail", "skip"], Meta(description="fail or skip")]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How shards are built, by a build or an update, as it is written; None and False: not given.

    Raises:
        UsageError: if options exclude each other.
    """

    threads: int | None = _how("Decoding threads; the cores available by default.")
    processes: int | None = _how("Processes over shards; one for every 8 cores by default.")
    on_error: OnError = _how("A sample that cannot be read: fail, or skip it.", "fail")
    max_errors: str | None = _how("With --on-error skip: the most to leave out, as 20 or 1%.")
    exclude: Path | None = _what("A list of samples to leave out, one per line; see mmload browse.", metavar="FILE")
    engine: Literal["local", "ray"] = _cluster(
        "Where shards are built: local, or ray, on the nodes of a Ray cluster; see docs/clusters.md.", "local"
    )
    address: str | None = _cluster(
        "With --engine ray: the cluster, or auto for the one that this machine is part of. By default that of "
        "RAY_ADDRESS, else a new one on this machine, for this build.",
        metavar="HOST:PORT",
    )
    part: str | None = _cluster(
        "Build only the Kth of N parts of the shards. They may run at once, on one file system; the last commits.",
        metavar="K/N",
    )
    commit: bool = _cluster("Build nothing: commit what parts have built.", False)

    def __post_init__(self) -> None:
        if self.part is not None and self.commit:
            raise UsageError("--part and --commit are both given; give one of them")
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
        "As in: imagefolder photos photos-256. KIND is imagefolder, voc, coco, yolo, cifar10, cifar100, webdataset, "
        "huggingface, list (of files and labels) or python (a dataset in code). With --config: [ROOT] [OUT].",
        flag="",
        metavar="KIND ROOT OUT",
    )
    config: Path | None = _what("A recipe, such as configs/imagefolder_256.toml.")

    # What is built.
    size: str | None = _what(
        "Without --config: the short side is resized to this, then the center square is cropped (for detection: the "
        "image is fitted into the square). Default: the size of the images if all that are tried have one, else 256, "
        "640 for coco and yolo. With --layout variable: the short side is at most this; or original."
    )
    layout: str | None = _what(
        "Without --config: variable: images keep their aspect ratio and differ in size; nothing is cut.", table="store"
    )
    encode: str | None = _what(
        "With --layout variable: raw (pixels), jpeg, source (the source's own JPEGs where they are within --size), or "
        "mixed.",
        table="store",
    )
    quality: int | None = _what("Of JPEGs, 1 to 100; 90 by default. Colors are subsampled 4:2:0.", table="store")
    raw_share: float | None = _what(
        "With --encode mixed: the share of rows that are pixels; 0.25 by default.", table="store"
    )

    # The source.
    val_fraction: float | None = _what("Hold out this share of each class as split val.", table="source")
    seed: int | None = _what("Which samples --val-fraction holds out.", table="source")
    allow_empty: bool = _what("Class folders may be empty.", False, table="source")
    task: str | None = _what(
        "voc: detection, classification, segmentation or single-label. coco: detection, instances, keypoints or "
        "panoptic. yolo: detection, instances, keypoints or rotated.",
        table="source",
    )
    labels: str | None = _what("cifar100: fine or coarse.", table="source")
    dataset: str | None = _what("python: package.module:callable.", table="source")
    split: str | None = _what("huggingface: a split, perhaps with a slice as in train[:10%].", table="source")
    download: bool = _what("voc, cifar10, cifar100: fetch it to ROOT first.", False, table="source")
    setting: list[str] | None = _what(
        "Any other option of a source in docs/sources.md, as --set year=2007.", flag="--set", metavar="KEY=VALUE"
    )

    # How images are decoded and stored.
    shard_size: str | None = _what("Bytes of a shard at most; 1GiB by default.", table="store")
    shuffle_seed: int | None = _what("Shuffle samples over rows, for reading in block order later.", table="store")
    mode: str | None = option("RGB, or L for gray levels.", flag="", table="decode")
    background: Any = option(
        "Background color of transparent pixels: a gray level or [red, green, blue].", flag="", table="decode"
    )
    exif_orient: bool = _what("Rotate images as their EXIF orientation says.", False, table="decode")

    overwrite: bool = _how("Replace the dataset at OUT.", False)
    advise: bool = _how(
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
        values = {key: getattr(self, key) for key in recipe_keys(name)}
        return {key: value for key, value in values.items() if value is not None and value is not False}

    def _check_layout(self) -> None:
        """Checks that images are described once: by a recipe, by options, or not at all where all ways are compared."""
        described = ("size", "layout", "encode", "quality", "raw_share")
        given = [declarations(BuildOptions)[name].flag for name in described if getattr(self, name) is not None]
        if given and self.config is not None:
            raise UsageError(
                f"{given[0]} and --config are both given; leave {given[0]} out and set it in {self.config}"
            )
        if self.advise and given not in ([], ["--size"]):
            raise UsageError(f"--advise compares all layouts, and {given[-1]} is given; give one of them")


def declarations(options: type[Any]) -> dict[str, Declaration]:
    """Returns the name of each declared option of a dataclass -> its declaration."""
    return {
        option.name: Declaration(**{"flag": f"--{option.name.replace('_', '-')}", **option.metadata})
        for option in fields(options)
        if option.metadata
    }


def recipe_keys(table: str) -> list[str]:
    """Returns the keys that a table of recipe files may have; ``[source]`` has those of its kind in addition."""
    return [name for name, its in declarations(BuildOptions).items() if its.table == table]


# A recipe.


_PathText = Annotated[str, Meta(pattern=r"^[^\x00]+\Z", description="a path")]


def _root(value: object, where: str) -> Path | Location | None:
    if isinstance(value, Location):
        return value
    return place(value) if isinstance(value, str) and is_url(value) else _path(value, where)


def _path(value: object, where: str) -> Path | None:
    if value is None or isinstance(value, Path):
        return value
    return Path(os.path.expanduser(checked(value, _PathText, where)))


LAYOUT = "variable"
"""The value of ``layout`` in a recipe's ``[store]``; without the key, all rows have one size."""

ENCODES: Mapping[str, str] = {"raw": "raw", "jpeg": "jpeg", "source": "jpeg", "mixed": "mixed"}
"""Value of ``encode`` -> the encoding of the field."""

_TAKES = {"raw": (), "jpeg": ("quality",), "source": ("quality",), "mixed": ("quality", "raw_share")}
"""Value of ``encode`` -> its further options."""

_Layout = Annotated[Literal["variable"] | None, Meta(description=f"{LAYOUT!r}, or leave it out for rows of one size")]
_Seed = Annotated[Annotated[int, Meta(ge=0, le=2**63 - 1)] | None, Meta(description="an integer from 0 to 2**63 - 1")]
_Kind = Annotated[str, Meta(description='the kind of a source, such as "imagefolder"')]
_Steps = Annotated[list[dict[str, Any]], Meta(description="[[transforms]] for each step, a list of tables")]
_Table = Annotated[dict[str, Any], Meta(description="a table of keys and values")]
_Excluded = Annotated[
    dict[str, tuple[str, ...]], Meta(description="a table of splits, each with a list of its samples' names")
]


@dataclass(frozen=True, kw_only=True)
class VariableLayout:
    """Storage of variable-size images; their masks are always stored as pixels.

    Attributes:
        encode: "raw": pixels; "jpeg"; "source": the source's own JPEG where the transforms leave an image as it is,
            else a new one; "mixed": some rows are pixels, the others JPEGs.
        quality: quality of JPEGs, 1 to 100.
        raw_share: with "mixed", the share of rows that are pixels, between 0 and 1; a hash of a sample's id decides.

    Raises:
        RecipeError: if an option is invalid.
    """

    encode: Annotated[Literal["raw", "jpeg", "source", "mixed"], Meta(description=f"one of {choices(ENCODES)}")] = "raw"
    quality: Annotated[int, Meta(ge=1, le=100, description="an integer from 1 to 100")] = 90
    raw_share: Annotated[float, Meta(gt=0, lt=1, description="a number between 0 and 1, for example 0.25")] = 0.25

    def __post_init__(self) -> None:
        check_values(self)

    def resolved(self) -> dict[str, Any]:
        """Returns the keys of a recipe's ``[store]``: those that the bytes depend on."""
        return {"layout": LAYOUT, "encode": self.encode, **{key: getattr(self, key) for key in _TAKES[self.encode]}}

    def fields(self, fields: Mapping[str, FieldSpec]) -> dict[str, FieldSpec]:
        """Fields of a row as they are stored: images and masks are variable-size.

        Raises:
            RecipeError: if there are no such images.
        """
        if not has_images(fields):
            have = fields.get("images", "no images")
            raise RecipeError(f"--layout variable stores uint8 images [C, H, W], the samples have {have}; leave it out")
        made = dict(fields)
        try:
            for name, encoding in (("images", ENCODES[self.encode]), ("masks", "raw")):
                if name in fields:
                    shape = (*fields[name].shape[:-2], VARIABLE, VARIABLE)
                    made[name] = structs.replace(fields[name], shape=shape, encoding=encoding)
        except ValueError as error:
            raise RecipeError(f"--layout variable cannot store {name}: {error}; try --encode raw") from error
        return made


def layout_of(store: Mapping[str, Any]) -> VariableLayout | None:
    """Returns the layout in a recipe's ``[store]``; None: all rows have one size.

    Raises:
        RecipeError: if a value is invalid, or an option of variable-size images is set without layout.
    """
    options = {key: store[key] for key in ("encode", "quality", "raw_share") if store.get(key) is not None}
    if checked(store.get("layout"), _Layout, "layout") is None:
        for option in options:
            raise RecipeError(f"{option} is given without layout; it needs layout = {LAYOUT!r}")
        return None
    layout, encode = VariableLayout(**options), options.get("encode", "raw")
    for key in sorted(options.keys() - {"encode", *_TAKES[encode]}):
        takes = choices(other for other, keys in _TAKES.items() if key in keys)
        raise RecipeError(f"{key} is given, and encode is {encode!r}; it is an option of {takes}")
    return layout


@dataclass(frozen=True, kw_only=True)
class BuildRecipe:
    """A checked description of a build.

    Attributes:
        kind: the source's kind, a name of :data:`mmload.sources.SOURCES`.
        root: the source's folder, as a path, or the URL where it lies in object storage; None until it is set.
        options: further ``[source]`` keys, checked by the source.
        decode: arguments of :class:`mmload.sources.decode.Decoder`.
        transforms: arguments of :class:`mmload.builder.transforms.TransformChain`, in order.
        shard_bytes: upper bound on the bytes of a shard, which holds at least one row.
        shuffle_seed: None keeps the source's order; an integer shuffles the samples of each split over its rows.
        exclude: split -> ids of its samples to leave out; see :mod:`mmload.sources.listed_split` for lists of them.
        out: the dataset's folder, as a path or text; None until it is set.
        variable_layout: storage of variable-size images; None: all rows have one size.
        side: pixels of a side that the default transforms give; they are chosen when the source is open, by
            :meth:`with_default_transforms`. None: ``transforms`` are all.
        is_side_given: whether ``side`` holds for images of one size, too.
    """

    kind: str
    root: Path | Location | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    decode: Mapping[str, Any] = field(default_factory=lambda: dict(_DECODE))
    transforms: tuple[Mapping[str, Any], ...] = ()
    shard_bytes: int = 2**30
    shuffle_seed: int | None = None
    exclude: Mapping[str, Sequence[str]] = field(default_factory=dict)
    out: Path | None = None
    variable_layout: VariableLayout | None = None
    side: int | None = None
    is_side_given: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", _root(self.root, "root"))
        object.__setattr__(self, "out", _path(self.out, "out"))
        checked(self.shuffle_seed, _Seed, "shuffle_seed")
        named = checked(self.exclude, _Excluded, "exclude")
        ordered = {split: tuple(sorted(set(named[split]))) for split in sorted(named) if named[split]}
        object.__setattr__(self, "exclude", ordered)  # the same samples make the same recipe

    @property
    def absolute_root(self) -> Path | Location | None:
        """The root, absolute if it is a path."""
        is_name = self.kind == "huggingface" and isinstance(self.root, Path) and not self.root.exists()  # of a hub
        return self.root if is_name or not isinstance(self.root, Path) else Path(os.path.abspath(self.root))

    def with_default_transforms(self, *, boxes: bool, sizes: Collection[tuple[int, int] | None] = ()) -> BuildRecipe:
        """Returns the recipe with the default transforms for ``side``; itself without one.

        Args:
            boxes: whether the samples have boxes: no default loses any.
            sizes: (height, width) of some images, None of a sample without an image; none if the side is given. Rows
                have the size of the images if that is the same, and nothing is resized without images.
        """
        side, exact = self.side, set(sizes)
        if side is None or None in exact:
            return replace(self, side=None)
        size: int | list[int] = side
        if len(exact) == 1 and self.variable_layout is None:
            (one,) = exact
            if one is not None and math.prod(one) <= _MOST_PIXELS_KEPT:
                size, side = list(one), min(one)
        fit: tuple[Mapping[str, Any], ...] = ({"step": "Resize", "size": side}, {"step": "CenterCrop", "size": size})
        if self.variable_layout is not None:
            fit = ({"step": "Shrink", "size": side},)
        elif boxes:
            fit = ({"step": "Letterbox", "size": size},)
        return replace(self, transforms=(*self.transforms, *fit), side=None)

    def resolved(self) -> dict[str, Any]:
        """Returns the recipe for the manifest: everything that the bytes depend on, and no path of this machine.

        :func:`from_mapping` converts it back to an equal recipe, without root and out.

        Raises:
            RecipeError: if an option is not JSON-serializable.
        """
        body: dict[str, Any] = {
            "source": {"kind": self.kind, **{k: v for k, v in self.options.items() if k not in _WITHOUT_EFFECT}},
            "decode": {**_DECODE, **self.decode},
            "transforms": [dict(step) for step in self.transforms],
            "store": {
                "shard_size": self.shard_bytes,
                **({} if self.shuffle_seed is None else {"shuffle_seed": self.shuffle_seed}),
                **(self.variable_layout.resolved() if self.variable_layout else {}),
            },
            **({"exclude": self.exclude} if self.exclude else {}),
        }
        try:
            plain: dict[str, Any] = json.loads(json.dumps(body, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise RecipeError(f"the recipe has a value that JSON cannot represent ({error})") from error
        return canonical(plain)


def canonical(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a resolved recipe without source options at their defaults: equal builds have equal recipes."""
    from mmload.sources import without_defaults  # imports torch, which showing a recipe does not need

    source = resolved.get("source")
    if not isinstance(source, dict) or not isinstance(source.get("kind"), str):
        return dict(resolved)
    options = {key: value for key, value in source.items() if key != "kind"}
    return {**resolved, "source": {"kind": source["kind"], **without_defaults(source["kind"], options)}}


def unlike(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Formats the keys in which two resolved recipes differ, with both values; long values are cut."""
    before, after = _keys(was), _keys(now)
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return "; ".join(f"{name} is {_shown(after, name)}, was {_shown(before, name)}" for name in names)


def _keys(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of a recipe's tables as "[table] key", and its other keys, with their values."""
    keys: dict[str, Any] = {}
    for name, value in recipe.items():
        keys |= {f"[{name}] {key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
    return keys


def _shown(keys: Mapping[str, Any], name: str) -> str:
    text = json.dumps(keys[name]) if name in keys else "not given"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


_MOST_SHOWN = 100
_SIDES = {
    "imagefolder": 256,
    "voc": 256,
    "list": 256,
    "webdataset": 256,
    "huggingface": 256,
    "python": 256,
    "coco": 640,
    "yolo": 640,
}
_MOST_PIXELS_KEPT = 2**20  # of an image that is stored in its own size without being asked

ORIGINAL = "original"
"""A size: photographs as large as they are."""


def default_side(kind: str, size: int | str | None, *, variable_size: bool = False) -> int | None:
    """Returns the side that a build's default transforms give, from the requested size.

    Args:
        kind: the source's kind.
        size: pixels of a side; None: 640 for coco and yolo, 256 for the other kinds of :data:`_SIDES`, no transforms
            for CIFAR and other packages' sources; :data:`ORIGINAL`: none.
        variable_size: rows vary in size: the short side is shrunk to ``size``.

    Raises:
        RecipeError: if the size is invalid.
    """
    if size is None:
        return _SIDES.get(kind)
    if size == ORIGINAL and variable_size:
        return None
    if size == ORIGINAL:
        raise RecipeError(f"--size is {ORIGINAL}, and rows have one size; add --layout variable, or give pixels")
    if not isinstance(size, int) or size < 1:
        raise RecipeError(f"--size is {size!r}; use pixels, as in --size 256, or {ORIGINAL} with --layout variable")
    return size


def square(size: int) -> tuple[dict[str, Any], ...]:
    """Returns the transforms for classification: resize the short side to ``size``, then crop the center square."""
    return ({"step": "Resize", "size": size}, {"step": "CenterCrop", "size": size})


def recipe_of(options: BuildOptions) -> BuildRecipe:
    """Returns the recipe of a file or of the positional arguments, overridden by the options.

    Raises:
        RecipeError: if a value is invalid.
        UsageError: if an argument is missing or invalid.
    """
    source = {**options.table("source"), **_settings(options.setting or {})}
    recipe = _recipe_of_config(options, options.config) if options.config else _recipe_of_arguments(options)
    return with_tables(recipe, source, options.table("decode"), options.table("store"))


def _settings(pairs: Sequence[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    """Parses KEY=VALUE; a value that is valid TOML (2007, true, ["a", "b"]) is parsed, any other is a string."""
    if isinstance(pairs, Mapping):
        return pairs
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, found, text = pair.partition("=")
        if not found or not key:
            raise UsageError(f"--set is {pair!r}; write KEY=VALUE, as in --set year=2007")
        try:
            body = tomllib.loads(f"value = {text}")
        except (ValueError, RecursionError):  # an integer with thousands of digits raises ValueError
            body = {}
        settings[key] = body["value"] if len(body) == 1 else text
    return settings


def _recipe_of_arguments(options: BuildOptions) -> BuildRecipe:
    words, size = options.words or [], options.size
    if options.advise and len(words) == 2:
        words = [*words, "DATASET"]
    if len(words) != 3:
        raise UsageError(
            f"build got {counted(len(words), 'argument')}, expected 3: KIND ROOT OUT, "
            "as in: mmload build imagefolder photos photos-256 --size 256"
        )
    kind, root, out = words
    layout = layout_of(options.table("store"))
    pixels = int(str(size)) if re.fullmatch("[0-9]{1,9}", str(size)) else size
    side = default_side(kind, pixels, variable_size=layout is not None)
    return BuildRecipe(
        kind=kind,
        root=place(root),
        out=Path(out),
        variable_layout=layout,
        side=side,
        is_side_given=pixels is not None,
    )


def _recipe_of_config(options: BuildOptions, config: str | Path) -> BuildRecipe:
    words, recipe = options.words or [], load(config)
    if len(words) > 2:
        raise UsageError(f"build --config got {counted(len(words), 'argument')}, expected at most 2: [ROOT] [OUT]")
    given: dict[str, Any] = dict(zip(("root", "out"), words, strict=False))
    return replace(recipe, **given)


_MOST = 2**20
"""Upper bound on the bytes of a recipe: a larger file is no recipe."""


def load(path: str | Path) -> BuildRecipe:
    """Reads a recipe from a TOML file.

    Raises:
        RecipeError: if the file is missing, is not TOML, or contains an unknown key or an invalid value.
    """
    try:
        body = tomllib.loads(read_regular(path, most=_MOST).decode("utf-8-sig"))
    except OSError as error:
        raise RecipeError(f"cannot read the recipe {path} ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"the recipe {path} is not TOML: {error}") from error
    try:
        return from_mapping(body)
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from error


def from_mapping(body: Mapping[str, Any]) -> BuildRecipe:
    """Creates a recipe from a file's ``source``, ``decode``, ``transforms``, ``store``, ``exclude`` and ``out``.

    Raises:
        RecipeError: naming the invalid key or value, and the valid ones.
    """
    _known(body, {"source", "decode", "transforms", "store", "exclude", "out"}, "the recipe")
    source = dict(_table(body, "source"))
    kind, root = checked(source.pop("kind", None), _Kind, "[source] kind"), source.pop("root", None)
    store = _table(body, "store")
    _known(store, recipe_keys("store"), "[store]")
    decode = _table(body, "decode")
    _known(decode, recipe_keys("decode"), "[decode]")
    recipe = BuildRecipe(
        kind=kind,
        root=_root(root, "[source] root"),
        transforms=tuple(checked(body.get("transforms", []), _Steps, "transforms")),
        exclude=_table(body, "exclude"),
        out=_path(body.get("out"), "out"),
        variable_layout=layout_of(store),
    )
    return with_tables(recipe, source, decode, store)


def with_tables(
    recipe: BuildRecipe, source: Mapping[str, Any], decode: Mapping[str, Any], store: Mapping[str, Any]
) -> BuildRecipe:
    """Returns a recipe with keys of its tables replaced, except those of variable-size images in ``[store]``.

    Raises:
        RecipeError: if a value is invalid.
    """
    return replace(
        recipe,
        options={**recipe.options, **source},
        decode={**recipe.decode, **decode},
        shard_bytes=parse_bytes(store.get("shard_size", recipe.shard_bytes), "shard_size"),
        shuffle_seed=store.get("shuffle_seed", recipe.shuffle_seed),
    )


def _known(table: Mapping[str, Any], names: Collection[str], where: str) -> None:
    for key in table:
        if key not in names:
            raise RecipeError(f"{where} has no key {key!r}; it has {choices(names)}")


def _table(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table: Mapping[str, Any] = checked(body.get(name, {}), _Table, f"[{name}]")
    return table
