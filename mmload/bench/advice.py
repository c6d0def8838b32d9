"""Compares the layouts that a source can be built in: a sample of it is built in each, and read by a loader.

Takes a recipe's source and returns what each layout would cost. Samples are built in a temporary folder; the source is
only read.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmload.augment import RandomHorizontalFlip, RandomResizedCrop
from mmload.augment.collate import Collate
from mmload.builder.recipe import ORIGINAL, BuildRecipe, usual
from mmload.builder.shard_job import ShardJob, ShardPlan, fields_of
from mmload.builder.source_splits import splits_of
from mmload.builder.transforms import TransformChain
from mmload.builder.whole_layout import WholeLayout
from mmload.builder.whole_sizes import probes
from mmload.errors import BuildError, UsageError
from mmload.loader import Loader
from mmload.records import Sample
from mmload.runtime.thread_pools import available_cores, single_op_pool
from mmload.sources import SourceSplit
from mmload.store.checksum import crc32
from mmload.store.dataset import open as open_dataset
from mmload.store.manifest import SAMPLES_NAME, Manifest, SplitRecord
from mmload.store.shard_table import FileRecord, ShardTable
from mmload.store.shard_writer import BuildPaths

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
        options: as words of the command.
        bytes: of all images of the source.
        build_seconds: with all cores.
        images_per_second: that a loader gives from memory with all cores, as resized crops with flips.
        never_seen: share of the photographs' area that is cut off, 0 to 1.
        tried: how many samples were read.
        unreadable: how many of these could not be read, and are left out of the numbers.
    """

    options: str
    bytes: int
    build_seconds: float
    images_per_second: float
    never_seen: float
    tried: int
    unreadable: int


def layouts(size: int) -> dict[str, tuple[int | str, WholeLayout | None]]:
    """The options of each layout -> (size, layout); the first are the squares that a build makes by default."""
    return {
        f"--size {size}": (size, None),
        f"--layout whole --size {size}": (size, WholeLayout()),
        f"--layout whole --size {size} --encode mixed": (size, WholeLayout(encode="mixed")),
        f"--layout whole --size {size} --encode jpeg": (size, WholeLayout(encode="jpeg")),
        f"--layout whole --size {ORIGINAL} --encode source": (ORIGINAL, WholeLayout(encode="source")),
    }


def advise(recipe: BuildRecipe, size: int = 256, *, samples: int = SAMPLES, threads: int | None = None) -> list[Layout]:
    """What each layout would cost.

    Args:
        recipe: its source and decoding are used; its transforms and layout are not.
        size: pixels of the short side.
        samples: how many images each layout is tried with.
        threads: for decoding and loading; None: the cores available.

    Raises:
        UsageError: if a sample has no image.
        SourceError: if the source cannot be read.
    """
    splits = splits_of(recipe)
    largest = max(splits.values(), key=len)
    chosen = _Chosen(largest, probes(len(largest), samples))
    images = sum(len(split) for split in splits.values())
    with tempfile.TemporaryDirectory(prefix="mmload-advise-") as folder:
        return [
            _tried(Path(folder) / str(number), recipe, chosen, options, *layout, images, threads or available_cores())
            for number, (options, layout) in enumerate(layouts(size).items())
        ]


class _Chosen:
    """Some samples of a split; unreadable ones are left out by the build."""

    def __init__(self, split: SourceSplit, indices: Sequence[int]) -> None:
        self._split, self._indices, self.classes = split, indices, split.classes

    def __len__(self) -> int:
        return len(self._indices)

    def id(self, index: int) -> str:
        return self._split.id(self._indices[index])

    def revision(self, index: int) -> str:
        return self._split.revision(self._indices[index])

    def read(self, index: int) -> Sample:
        return self._split.read(self._indices[index])


def _tried(
    folder: Path,
    recipe: BuildRecipe,
    chosen: _Chosen,
    options: str,
    size: int | str,
    whole: WholeLayout | None,
    images: int,
    threads: int,
) -> Layout:
    """Build the sample in one layout, and load it."""
    transforms = usual(recipe.kind, size, recipe.options, whole=whole is not None)
    built = replace(recipe, transforms=transforms, whole=whole)
    _build(folder / "first", built, _Chosen(chosen, probes(len(chosen), _FIRST)), threads)  # compiles and imports
    began = time.perf_counter()
    record = _build(folder, built, chosen, threads)
    seconds = time.perf_counter() - began
    share = images / record.rows
    return Layout(
        options=options,
        bytes=round(record.bytes * share),
        build_seconds=seconds * share,
        images_per_second=_rate(folder / "dataset", min(CROP, size if isinstance(size, int) else CROP), threads),
        never_seen=_never_seen(transforms, folder / "dataset"),
        tried=len(chosen),
        unreadable=len(chosen) - record.rows,
    )


def _build(folder: Path, recipe: BuildRecipe, chosen: _Chosen, threads: int) -> SplitRecord:
    """A dataset of one shard at ``folder/dataset``, without the safety of a build."""
    chain, paths = TransformChain(recipe.transforms), BuildPaths(folder)
    paths.folder.mkdir(parents=True, exist_ok=True)
    try:
        fields = fields_of(chosen, chain, True, recipe.whole)
    except BuildError:  # not one can be read: say why
        fields = fields_of(chosen, chain, False, recipe.whole)
    if "images" not in fields:
        raise UsageError("the samples have no images, so there are no layouts to compare; build without --advise")
    job = ShardJob(
        splits={_SPLIT: chosen}, fields={_SPLIT: fields}, chain=chain, paths=paths, skip=True, whole=recipe.whole
    )
    pool = single_op_pool(threads, "mmload-advise")
    try:
        plan = ShardPlan(split=_SPLIT, index=0, start=0, stop=len(chosen))
        summary = job(plan, pool, threads, lambda samples, skipped: None)
    finally:
        pool.shutdown(wait=True)
    lines = paths.dataset / _SPLIT / SAMPLES_NAME
    os.replace(paths.samples_file(_SPLIT, 0), lines)
    content = lines.read_bytes()
    record = SplitRecord(
        rows=summary.record.rows,
        fields=fields,
        samples=FileRecord(bytes=len(content), crc32=f"{crc32(content):08x}"),
        shards=ShardTable.of([summary.record]),
    )
    manifest = Manifest(recipe={}, fingerprint="", splits={_SPLIT: record})
    (paths.dataset / "dataset.json").write_text(manifest.dumps(), encoding="utf-8")
    return record


def _rate(dataset: Path, crop: int, threads: int) -> float:
    """Images per second of a loader from memory: the best of some epochs, as anything else takes time, too."""
    split = open_dataset(dataset)[_SPLIT]
    rows = (list(range(len(split))) * (_EPOCH // len(split) + 1))[: max(_EPOCH, len(split))]
    collate = Collate(RandomResizedCrop(crop), RandomHorizontalFlip())
    best, spent = 0.0, 0.0
    with Loader(
        split, batch_size=32, sampler=rows, collate=collate, tier="memory", threads=threads, fields=["images"]
    ) as loader:
        for _ in loader:
            pass
        while not best or spent < _LEAST_SECONDS:
            began = time.perf_counter()
            for _ in loader:
                pass
            seconds = time.perf_counter() - began
            best, spent = max(best, len(rows) / seconds), spent + seconds
    return best


def _never_seen(transforms: Sequence[Mapping[str, Any]], dataset: Path) -> float:
    """The mean share of a photograph that a square of its middle leaves out; 0 where nothing is cut."""
    if not any(step["step"] == "CenterCrop" for step in transforms):
        return 0.0
    sources = open_dataset(dataset)[_SPLIT].source(slice(None))
    shares = [1 - min(source.size) / max(source.size) for source in sources if source.size]
    return sum(shares) / max(1, len(shares))
