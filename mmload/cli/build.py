"""The ``mmload build`` command."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmload.builder import recipe as recipes
from mmload.builder.whole_layout import layout_of
from mmload.cli import build_options as given
from mmload.cli.build_advice import show_advice
from mmload.cli.info import show_splits
from mmload.cli.interrupt import interruptible
from mmload.cli.options import DecodingThreads
from mmload.cli.terminal import note, progress_bar, show
from mmload.cloud.urls import place
from mmload.errors import UsageError, counted
from mmload.runtime.byte_sizes import parse_bytes

if TYPE_CHECKING:
    from mmload.builder.pipeline import BuildReport


def build(
    words: given.Words = None,
    config: given.Config = None,
    size: given.Size = None,
    layout: given.Layout = None,
    encode: given.Encode = None,
    quality: given.Quality = None,
    raw_share: given.RawShare = None,
    val_fraction: given.ValFraction = None,
    seed: given.Seed = None,
    allow_empty: given.AllowEmpty = False,
    task: given.Task = None,
    labels: given.Labels = None,
    dataset: given.PythonDataset = None,
    download: given.Download = False,
    setting: given.Setting = None,
    threads: DecodingThreads = None,
    processes: given.Processes = None,
    shard_size: given.ShardSize = None,
    shuffle_seed: given.ShuffleSeed = None,
    exif_orient: given.ExifOrient = False,
    decode: given.Decode = None,
    on_error: given.OnError = "fail",
    max_errors: given.MaxErrors = None,
    exclude: given.Exclude = None,
    overwrite: given.Overwrite = False,
    advise: given.Advise = False,
    engine: given.Engine = "local",
    address: given.Address = None,
    part: given.Part = None,
    commit: given.Commit = False,
) -> None:
    """Build a dataset: decode and transform every image once, and store the rows."""
    named = {
        "val_fraction": val_fraction,
        "seed": seed,
        "allow_empty": allow_empty or None,
        "task": task,
        "labels": labels,
        "dataset": dataset,
        "download": download or None,
    }
    options = {key: value for key, value in named.items() if value is not None} | _settings(setting or [])
    if advise and words and len(words) == 2:
        words = [*words, "DATASET"]
    store = {"layout": layout, "encode": encode, "quality": quality, "raw_share": raw_share}
    recipe = _recipe(words or [], config, size, store, options)
    recipe = _with_options(recipe, shard_size, shuffle_seed, exif_orient, decode)
    if advise:
        show_advice(recipe, size, store, threads)
        return
    _check_parts(part, commit, overwrite)
    how: dict[str, Any] = {
        "on_error": on_error,
        "max_errors": max_errors,
        "exclude": exclude,
        "command": sys.argv[1:],
        **_where(engine, address, threads, processes, in_parts=part is not None or commit),
    }
    with interruptible("run the same command again to go on"), progress_bar("build", "img") as progress:
        if part is not None or commit:
            from mmload.builder.parts import build_part

            built_part = build_part(recipe, part, progress=progress, **how)
        else:
            from mmload.builder.pipeline import build as run

            report = run(recipe, overwrite=overwrite, progress=progress, **how)
    if part is not None or commit:
        from mmload.cli import summary

        show(summary.of_part(built_part))
        if built_part.manifest is not None:
            show_splits(built_part.out)
    else:
        _show_build(report, recipe)


def _check_parts(part: str | None, commit: bool, overwrite: bool) -> None:
    """Refuse options that exclude each other."""
    if part is not None and commit:
        raise UsageError("--part builds and --commit does not; give one of them")
    if overwrite and (part is not None or commit):
        raise UsageError(
            "--overwrite with --part or --commit would remove what other parts have built; remove OUT first, once"
        )


def _where(
    engine: str, address: str | None, threads: int | None, processes: int | None, *, in_parts: bool
) -> dict[str, Any]:
    """The arguments that say where shards are built."""
    if engine == "local":
        if address is not None:
            raise UsageError("--address is of a Ray cluster; add --engine ray, or leave it out")
        return {"threads": threads, "processes": processes}
    if engine != "ray":
        raise UsageError(f"--engine is {engine!r}; use local or ray")
    if in_parts or processes is not None:
        other = "--part and --commit build" if in_parts else "--processes builds"
        raise UsageError(f"{other} without a cluster; leave it out with --engine ray, which divides the shards itself")
    from mmload.builder.ray_engine import RayEngine

    made = RayEngine(address=address, threads=1 if threads is None else threads)
    note(made.note)
    return {"engine": made}


def _recipe(
    words: list[str],
    config: Path | None,
    size: str | None,
    store: Mapping[str, object],
    options: Mapping[str, object],
) -> recipes.BuildRecipe:
    """The recipe of a file, or of words, with the source's options."""
    for key, value in {"size": size, **store}.items():
        if config and value is not None:
            name = key.replace("_", "-")
            raise UsageError(f"--{name} and --config are both given; {config} says what happens to the images")
    recipe = _recipe_of_config(config, words) if config else _recipe_of_words(words, size, store, options)
    return replace(recipe, options={**recipe.options, **options})


def _settings(pairs: list[str]) -> dict[str, object]:
    """KEY=VALUE words; a value is TOML where it can be (2007, true, ["a", "b"]), else the text itself."""
    settings: dict[str, object] = {}
    for pair in pairs:
        key, found, text = pair.partition("=")
        if not found or not key:
            raise UsageError(f"--set is {pair!r}; write KEY=VALUE, as in --set year=2007")
        try:
            body = tomllib.loads(f"value = {text}")
        except (ValueError, RecursionError):  # ValueError also of integers with thousands of digits
            body = {}
        settings[key] = body["value"] if len(body) == 1 else text
    return settings


def _recipe_of_words(
    words: list[str], size: str | None, store: Mapping[str, object], options: Mapping[str, object]
) -> recipes.BuildRecipe:
    if len(words) != 3:
        raise UsageError(
            f"build got {counted(len(words), 'argument')}, expected 3: KIND ROOT OUT, "
            "as in: mmload build imagefolder photos photos-256 --size 256"
        )
    kind, root, out = words
    whole = layout_of(store)
    pixels = int(size) if size is not None and re.fullmatch("[0-9]{1,9}", size) else size
    transforms = recipes.usual(kind, pixels, options, whole=whole is not None)
    return recipes.BuildRecipe(kind=kind, root=place(root), out=Path(out), transforms=transforms, whole=whole)


def _recipe_of_config(config: Path, words: list[str]) -> recipes.BuildRecipe:
    recipe = recipes.load(config)
    if len(words) > 2:
        raise UsageError(f"build --config got {counted(len(words), 'argument')}, expected at most 2: [ROOT] [OUT]")
    if words:
        recipe = replace(recipe, root=place(words[0]))
    if len(words) == 2:
        recipe = replace(recipe, out=Path(words[1]))
    for name in ("root", "out"):
        if getattr(recipe, name) is None:
            raise UsageError(f"{config} names no {name}: add it after --config {config}, as in: ROOT OUT")
    return recipe


def _with_options(
    recipe: recipes.BuildRecipe,
    shard_size: str | None,
    shuffle_seed: int | None,
    exif_orient: bool,
    decode: str | None,
) -> recipes.BuildRecipe:
    """The recipe with what the command line says on top."""
    if shard_size is not None:
        recipe = replace(recipe, shard_bytes=parse_bytes(shard_size))
    if shuffle_seed is not None:
        recipe = replace(recipe, shuffle_seed=shuffle_seed)
    if exif_orient:
        recipe = replace(recipe, decode={**recipe.decode, "exif_orient": True})
    if decode is not None:
        recipe = replace(recipe, decode={**recipe.decode, "device": decode})
    return recipe


def _show_build(report: BuildReport, recipe: recipes.BuildRecipe) -> None:
    from mmload.cli import summary

    show(summary.of_build(report))
    if report.left is not None:
        show(f"{report.left} has what was in the replaced dataset's folder and was not its own: look, and remove it")
    show_splits(report.out)
    show("next:")
    first = next(iter(report.manifest.splits))
    loaded = f'{json.dumps(str(report.out), ensure_ascii=False)}, split="{first}"'
    if recipe.whole is not None:
        show("  collate = mmload.Collate(mmload.augment.RandomResizedCrop(224))  # one size a batch")
        show(f"  for batch in mmload.Loader({loaded}, batch_size=64, shuffle=True, collate=collate): ...")
        return
    if recipe.kind == "imagefolder" and isinstance(recipe.root, Path):
        show(f"  {shlex.join(['mmload', 'bench', str(report.out), '--source', str(recipe.root)])}")
    show(f"  for batch in mmload.Loader({loaded}, batch_size=64, shuffle=True): ...")
