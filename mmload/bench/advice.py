"""Compares layouts of rows: builds a sample of a source in each, in a temporary folder, and loads it.

The source is only read.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from mmload.bench.contender_server import ContenderServer
from mmload.bench.contenders.ours import own_entries
from mmload.bench.options import BenchOptions
from mmload.bench.task import task_of
from mmload.builder.planned_build import fields_of, has_boxes, probes, splits_of
from mmload.builder.recipe import ORIGINAL, BuildRecipe, VariableLayout, default_side
from mmload.builder.shard_job import ShardJob
from mmload.builder.shards import BuildPaths, ShardPlan
from mmload.builder.transforms import TransformChain
from mmload.errors import BuildError, UsageError
from mmload.runtime.resources import available_cores
from mmload.sources import SourceSplit
from mmload.sources.listed_split import only
from mmload.store.checksum import crc32
from mmload.store.dataset import Dataset
from mmload.store.manifest import SAMPLES_NAME, FileRecord, Manifest, SplitRecord

SAMPLES = 64
"""Images that each layout is tried with, evenly spread over the largest split."""

CROP = 224
"""Pixels of a side of the resized crops that are loaded, at most those of the squares."""

_EPOCH = 512  # rows; samples are read several times
_FIRST = 4  # samples that are built before the time is taken
_LEAST_SECONDS = 0.4
_SPLIT = "sample"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A layout of rows: options of ``mmload build``, and what a dataset in it would cost.

    Attributes:
        options: options of the command, as a user types them.
        bytes: number of bytes of all images of the source.
        build_seconds: duration of a build with all cores.
        images_per_second: that a loader gives from memory with all cores, as flipped and normalized resized crops.
        never_seen: share of the photographs' area that is cut off, 0 to 1.
        tried: number of samples read.
        unreadable: number of samples that could not be read; the other numbers do not include them.
    """

    options: str
    bytes: int
    build_seconds: float
    images_per_second: float
    never_seen: float
    tried: int
    unreadable: int


def seconds_text(seconds: float) -> str:
    """Formats seconds as ``8 s``, ``27 min``, ``3.2 hours``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:,.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} hours"


def layouts(size: int) -> dict[str, tuple[int | str, VariableLayout | None]]:
    """Returns the options of each layout -> (size, layout); the first are the squares of a build by default."""
    return {
        f"--size {size}": (size, None),
        f"--layout variable --size {size}": (size, VariableLayout()),
        f"--layout variable --size {size} --encode mixed": (size, VariableLayout(encode="mixed")),
        f"--layout variable --size {size} --encode jpeg": (size, VariableLayout(encode="jpeg")),
        f"--layout variable --size {ORIGINAL} --encode source": (ORIGINAL, VariableLayout(encode="source")),
    }


def advise(recipe: BuildRecipe, size: int = 256, *, threads: int | None = None) -> list[Layout]:
    """Returns what each layout would cost, of a recipe's source decoded as it says, for a short side of ``size``.

    Raises:
        UsageError: if a sample has no image.
        SourceError: if the source cannot be read.
    """
    splits = splits_of(recipe)
    largest = max(splits.values(), key=len)
    chosen = only(largest, np.array(probes(len(largest), SAMPLES)))
    images = sum(map(len, splits.values()))
    with tempfile.TemporaryDirectory(prefix="mmload-advise-") as folder:
        return [
            _tried(Path(folder) / str(number), recipe, chosen, options, *layout, images, threads or available_cores())
            for number, (options, layout) in enumerate(layouts(size).items())
        ]


def _tried(
    folder: Path,
    recipe: BuildRecipe,
    chosen: SourceSplit,
    options: str,
    size: int | str,
    layout: VariableLayout | None,
    images: int,
    threads: int,
) -> Layout:
    """Builds the sample in one layout, and loads it."""
    side = default_side(recipe.kind, size, variable_size=layout is not None)
    built = replace(recipe, transforms=(), variable_layout=layout, side=side)
    built = built.with_default_transforms(boxes=has_boxes({_SPLIT: chosen}))
    few = only(chosen, np.array(probes(len(chosen), _FIRST)))
    build_sample(folder / "first", built, few, threads)  # compiles and imports
    began = time.perf_counter()
    record = build_sample(folder, built, chosen, threads)
    seconds = time.perf_counter() - began
    share = images / record.rows
    return Layout(
        options=options,
        bytes=round(record.bytes * share),
        build_seconds=seconds * share,
        images_per_second=_rate(folder / "dataset", min(CROP, size if isinstance(size, int) else CROP), threads),
        never_seen=_never_seen(built.transforms, folder / "dataset"),
        tried=len(chosen),
        unreadable=len(chosen) - record.rows,
    )


def build_sample(folder: Path, recipe: BuildRecipe, chosen: SourceSplit, threads: int) -> SplitRecord:
    """Builds a dataset of one shard at ``folder/dataset``, without the safety of a build."""
    chain, paths = TransformChain(recipe.transforms), BuildPaths(folder)
    paths.folder.mkdir(parents=True, exist_ok=True)
    try:
        fields = fields_of(_SPLIT, chosen, chain, True, recipe.variable_layout)
    except BuildError:  # not one can be read: say why
        fields = fields_of(_SPLIT, chosen, chain, False, recipe.variable_layout)
    if "images" not in fields:
        raise UsageError("the samples have no images, so there are no layouts to compare; build without --advise")
    job = ShardJob(
        splits={_SPLIT: chosen},
        fields={_SPLIT: fields},
        chain=chain,
        paths=paths,
        skip=True,
        variable_layout=recipe.variable_layout,
    )
    plan = ShardPlan(split=_SPLIT, index=0, start=0, stop=len(chosen))
    summary = job.build_shard(plan, threads, lambda samples, skipped: None)
    lines = paths.dataset / _SPLIT / SAMPLES_NAME
    os.replace(paths.list_file(_SPLIT, 0, SAMPLES_NAME), lines)
    content = lines.read_bytes()
    record = SplitRecord(
        rows=summary.record.rows,
        fields=fields,
        samples=FileRecord(bytes=len(content), crc32=f"{crc32(content):08x}"),
        shard_samples=len(chosen),
        shards=(summary.record,),
    )
    manifest = Manifest(recipe={}, fingerprint="", splits={_SPLIT: record})
    (paths.dataset / "dataset.json").write_text(manifest.dumps(), encoding="utf-8")
    return record


def _rate(dataset: Path, crop: int, threads: int) -> float:
    """Measures the images per second of a loader from memory as a bench does."""
    options = BenchOptions(steps="resized-crop", size=crop, batch_size=32, threads=threads)
    task = replace(task_of(options, dataset, None), images=_EPOCH, device="cpu")
    *_, in_memory = own_entries(task)
    server = ContenderServer(in_memory, task, dataset)
    server.epoch(least=0.0, most=inf)
    return server.epoch(least=_LEAST_SECONDS, most=inf).rate


def _never_seen(transforms: Sequence[Mapping[str, Any]], dataset: Path) -> float:
    """Returns the mean share of a photograph that a center square leaves out; 0 where nothing is cut."""
    if not any(step["step"] == "CenterCrop" for step in transforms):
        return 0.0
    sources = Dataset(dataset)[_SPLIT].source(slice(None))
    shares = [1 - min(source.size) / max(source.size) for source in sources if source.size]
    return sum(shares) / max(1, len(shares))
