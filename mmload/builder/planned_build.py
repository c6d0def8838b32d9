"""A build whose source is listed: the layout of its shards, building some of them, and the manifest of all.

Takes a checked recipe. Where the shards are written, and what stands at the destination, is up to the callers.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import mmload
from mmload.builder.destination import check_apart
from mmload.builder.engines import Engine
from mmload.builder.error_limit import ErrorLimit
from mmload.builder.recipe import BuildRecipe
from mmload.builder.shard_job import ShardJob, ShardPlan, fields_of, finished, plan_shards, samples_per_shard
from mmload.builder.source_splits import fingerprint, remaining_splits
from mmload.builder.split_records import split_notes, split_record
from mmload.builder.transforms import TransformChain
from mmload.builder.whole_sizes import probes, row_size, whole_samples_per_shard
from mmload.errors import BuildError, RecipeError, SampleError
from mmload.records import FieldSpec
from mmload.sources import FetchesAhead, SourceSplit
from mmload.store.checksum import crc32
from mmload.store.manifest import Manifest
from mmload.store.shard_writer import BuildPaths, ShardSummary, bytes_of
from mmload.store.unfinished import COMMAND

Progress = Callable[[int, int], None]
"""Called with (samples done, samples in all) during a build; samples of shards sealed by an earlier run are done."""

Summaries = dict[tuple[str, int], ShardSummary]
"""(split, number) of a finished shard -> its summary."""

_PACKAGES = ("torch", "torchvision", "pillow", "simplejpeg", "numba", "numpy")
_PROBES = 16  # samples of all splits together
_LINE_BYTES = 200  # generous estimate for a row of samples.jsonl, stored twice: in the notes and joined


@dataclass(frozen=True, kw_only=True)
class ShardLayout:
    """How the splits are divided into shards; each attribute is by split.

    Attributes:
        fields: of a row.
        sizes: bytes of a row.
        shard_samples: planned samples per shard.
        plans: the shards, in order.
    """

    fields: Mapping[str, dict[str, FieldSpec]]
    sizes: Mapping[str, int]
    shard_samples: Mapping[str, int]
    plans: Mapping[str, list[ShardPlan]]

    @property
    def all_plans(self) -> list[ShardPlan]:
        """The shards of all splits, in order."""
        return [plan for plans in self.plans.values() for plan in plans]


class PlannedBuild:
    """A build whose source is listed, and the counts of one run over its shards. Arguments as for :func:`build`.

    Raises:
        UsageError: if the recipe or an argument is invalid.
        SourceError: if the source cannot be read.
    """

    def __init__(
        self,
        recipe: BuildRecipe,
        on_error: str,
        max_errors: int | str | None,
        exclude: str | Path | None,
        progress: Progress | None,
        command: Sequence[str],
    ) -> None:
        if recipe.root is None or recipe.out is None:
            raise RecipeError("the recipe has no root or no out; give both")
        check_apart(recipe.kind, recipe.root, recipe.out)
        self.recipe, self.out, self.progress, self.command = recipe, recipe.out, progress, command
        self.chain = TransformChain(recipe.transforms)
        self.splits, excluded = remaining_splits(recipe, exclude)
        self.total = sum(len(split) for split in self.splits.values())
        self.errors = ErrorLimit(on_error, max_errors, self.total)
        resolved = replace(recipe, exclude=excluded).resolved()
        self.plan: dict[str, Any] = {"recipe": resolved, "fingerprint": fingerprint(self.splits), "versions": made_by()}
        self.done = self.built = self.skipped = 0

    def probed_plan(self) -> dict[str, Any]:
        """Returns the plan with ``probe``, the CRC-32 of what a few samples of each split become.

        The fingerprint has names, sizes and times. What builds one dataset together must also get the same pixels.
        """
        crc, most = 0, max(1, _PROBES // len(self.splits))
        for split in self.splits.values():
            samples = probes(len(split), most)
            if isinstance(split, FetchesAhead):
                split.fetch_ahead(samples)
            for index in samples:
                crc = self._crc_of_sample(split, index, crc)
        return {**self.plan, "probe": f"{crc:08x}"}

    def _crc_of_sample(self, split: SourceSplit, index: int, crc: int) -> int:
        """Continues a CRC-32 with a sample's id and, if it can be read, its fields and its own JPEG."""
        crc = crc32(split.id(index).encode("utf-8", "surrogatepass"), crc)
        with suppress(SampleError):  # its shard reports it
            sample = finished(split, index, self.chain)
            for name, tensor in sorted(sample.fields.items()):
                crc = crc32(bytes_of(tensor), crc32(f"{name} {tensor.dtype} {[*tensor.shape]}".encode(), crc))
            crc = crc32(sample.encoded or b"", crc)
        return crc

    def layout(self) -> ShardLayout:
        """Divide the splits into shards.

        Raises:
            SampleError: if the first sample is unreadable and must not be skipped.
        """
        whole = self.recipe.whole
        with _advised():
            fields = {
                name: fields_of(split, self.chain, self.errors.skip, whole) for name, split in self.splits.items()
            }
            sizes = {name: row_size(split, self.chain, fields[name], whole) for name, split in self.splits.items()}
        shard_samples = {
            name: samples_per_shard(len(split), fields[name], self.recipe.shard_bytes)
            if whole is None
            else whole_samples_per_shard(sizes[name], self.recipe.shard_bytes)
            for name, split in self.splits.items()
        }
        plans = {name: plan_shards(name, len(split), shard_samples[name]) for name, split in self.splits.items()}
        return ShardLayout(fields=fields, sizes=sizes, shard_samples=shard_samples, plans=plans)

    def build_shards(
        self, layout: ShardLayout, plans: Sequence[ShardPlan], paths: BuildPaths, engine: Engine, *, apart: bool = False
    ) -> Summaries:
        """Build those of the shards that are not sealed yet.

        Args:
            layout: of all shards.
            plans: some of them.
            paths: of the build.
            engine: runs the unfinished ones.
            apart: see :class:`mmload.builder.shard_job.ShardJob`.

        Returns:
            The summaries of these shards.
        """
        finished = self.sealed(plans, paths)
        for plan in plans:
            if summary := finished.get((plan.split, plan.index)):
                self._count(plan.stop - plan.start, summary.skipped)
        missing = [plan for plan in plans if (plan.split, plan.index) not in finished]
        _check_room(paths, missing, layout.sizes)
        job = ShardJob(
            splits=self.splits,
            fields=layout.fields,
            chain=self.chain,
            paths=paths,
            shuffle_seed=self.recipe.shuffle_seed,
            skip=self.errors.skip,
            apart=apart or engine.apart,
            whole=self.recipe.whole,
            root=self.recipe.root,
        )
        with _advised():
            for plan, summary in zip(missing, engine.run(job, missing, self._on_progress), strict=True):
                finished[plan.split, plan.index] = summary
        return finished

    def sealed(self, plans: Iterable[ShardPlan], paths: BuildPaths) -> Summaries:
        """The shards that are finished. Ignores shards with skipped samples if this run may not skip any."""
        finished = {}
        for plan in plans:
            summary = paths.sealed(plan.split, plan.index)
            if summary is not None and (self.errors.skip or not summary.skipped):
                finished[plan.split, plan.index] = summary
        return finished

    def _on_progress(self, samples: int, skipped: int) -> None:
        self.built += samples
        self.skipped += skipped
        self._count(samples, skipped)

    def _count(self, samples: int, skipped: int) -> None:
        self.errors.add(skipped)
        self.done += samples
        if self.progress is not None:
            self.progress(self.done, self.total)

    def manifest(self, layout: ShardLayout, finished: Summaries, paths: BuildPaths) -> Manifest:
        """The manifest of a dataset whose shards are all finished; writes the splits' lists of samples.

        Raises:
            BuildError: if a split has no row, or writing fails.
        """
        records, notes = {}, {}
        for name, split in self.splits.items():
            summaries = [finished[name, plan.index] for plan in layout.plans[name]]
            if not any(summary.record.rows for summary in summaries):
                raise BuildError(f"not one sample of split {name} can be read; run with --on-error fail to see why")
            records[name] = split_record(name, split, layout.fields[name], layout.shard_samples[name], summaries, paths)
            if found := split_notes(split, summaries):
                notes[name] = found
        return Manifest(
            recipe=self.plan["recipe"], fingerprint=self.plan["fingerprint"], splits=records, card={"notes": notes}
        )


@contextmanager
def _advised() -> Iterator[None]:
    """Adds to the error of a sample how the build can go on."""
    try:
        yield
    except SampleError as error:
        raise SampleError(
            error.sample,
            f"{error.reason}; repair or remove it and build again with --overwrite, or add --on-error skip "
            "(which goes on from the sealed shards)",
        ) from error


def made_by() -> dict[str, str]:
    """Package -> version, for the packages that influence the stored bytes besides the recipe and the source."""
    found = {"mmload": mmload.__version__}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def asked(command: Sequence[str]) -> dict[str, Any]:
    """What a plan notes down of how the build was asked for."""
    return {COMMAND: {"words": list(command), "folder": os.getcwd()}} if command else {}


def difference(begun: Mapping[str, Any], plan: Mapping[str, Any], advice: str) -> str:
    """How an unfinished build differs from this one, and how to proceed: ``advice`` says how to drop it."""
    if begun.get("recipe") != plan["recipe"]:
        return f"of another recipe; {advice} to drop it"
    if begun.get("fingerprint") != plan["fingerprint"]:
        return f"of a source that has changed since; {advice} to drop it"
    versions = begun.get("versions")
    was, now = versions if isinstance(versions, dict) else {}, plan["versions"]
    changed = [name for name in sorted({*was, *now}) if was.get(name) != now.get(name)]
    if not changed:
        return (
            "of a source with other pixels in files of equal names, sizes and times; "
            f"go on with that source, or {advice} to drop it"
        )
    before = ", ".join(f"{name} {was.get(name, 'unknown')}" for name in changed)
    after = ", ".join(f"{name} {now.get(name, 'none')}" for name in changed)
    return (
        f"by {before}, and here is {after}, which may make other pixels; "
        f"go on with those versions, or {advice} to drop it and start again"
    )


def _check_room(paths: BuildPaths, plans: Iterable[ShardPlan], row_sizes: Mapping[str, int]) -> None:
    """Check the disk space for all remaining writes before the first one; ``row_sizes`` are bytes of a row by split."""
    need = sum((plan.stop - plan.start) * (row_sizes[plan.split] + 2 * _LINE_BYTES) for plan in plans)
    free = shutil.disk_usage(paths.folder).free + _partial_bytes(paths)
    if need > free:
        raise BuildError(
            f"the dataset needs {need:,} more bytes at {paths.folder.parent}, {free:,} are free; "
            "make room, build elsewhere, or store smaller images"
        )


def _partial_bytes(paths: BuildPaths) -> int:
    """Bytes of unfinished shards of an earlier run, which will be overwritten."""
    return sum(file.stat().st_size for file in paths.dataset.glob("*/*.partial/*"))
