"""The writer's story: scan the source, plan the shards, run those that are not sealed, commit.

Comes in: a checked recipe. Goes out: a dataset folder. What is written depends on the source and the recipe alone,
never on threads, processes or interruptions: a build that was killed goes on from its sealed shards. Never prints.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mmload import decode_cuda
from mmload.decode import Decoder
from mmload.engines import Engine, LocalEngine
from mmload.errors import BuildError, RecipeError, SampleError, StoreError, UsageError
from mmload.manifest import (
    FILE_NAME,
    SAMPLES_NAME,
    SKIPPED_NAME,
    SKIPPED_SHOWN,
    Manifest,
    SplitRecord,
    loads,
)
from mmload.recipe import BuildRecipe
from mmload.records import FieldSpec
from mmload.shards import ShardJob, ShardPlan, fields_of, plan_shards, row_bytes
from mmload.sources import Noted, SourceSplit, make_source
from mmload.staging import Staging, killed_at_its_end
from mmload.stats import mean_std
from mmload.store import Seal, Site
from mmload.transforms import Chain

Progress = Callable[[int, int], None]
"""Called with (samples done, samples in all) as a build goes on; those that an earlier run sealed count as done."""

ON_ERROR = ("fail", "skip")
_LINE_BYTES = 200  # of samples.jsonl for a row, generously, and twice: in the notes and joined


@dataclass(frozen=True, kw_only=True)
class BuildReport:
    """What a build did.

    Attributes:
        out: the dataset's folder.
        manifest: what is in it.
        seconds: how long it took.
        built: samples read by this run; fewer than all when it went on from an earlier one, 0 when all was there.
    """

    out: Path
    manifest: Manifest
    seconds: float
    built: int


def build(
    recipe: BuildRecipe,
    *,
    overwrite: bool = False,
    on_error: str = "fail",
    max_errors: int | str | None = None,
    threads: int | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Build a dataset, or go on with one that was interrupted.

    A KeyboardInterrupt passes through within a second and leaves the sealed shards.

    Args:
        recipe: what to build; its root and out must be set.
        overwrite: replace a finished dataset, or an unfinished one of another recipe or source.
        on_error: "fail" ends the build at the first sample that cannot be read; "skip" leaves it out and lists it.
        max_errors: with "skip", the most samples that may be left out: a number, or a share of all as "1%".
        threads: decoding threads of each process; None shares out the cores available, or takes 64 where a CUDA
            device decodes, whose batches are made of what they wait for.
        processes: processes over shards; None takes one for every 8 cores.
        progress: told how far it is.

    Raises:
        UsageError: if the recipe or an argument cannot be meant.
        SourceError: if the source cannot be read; SampleError names the sample.
        BuildError: if the destination is taken, or cannot be written.
    """
    if recipe.root is None or recipe.out is None:
        raise RecipeError("the recipe has no root or no out; give both")
    began = time.perf_counter()
    on_cuda = Decoder(**recipe.decode).device == "cuda"
    if on_cuda:
        decode_cuda.check()
    engine = LocalEngine(threads=decode_cuda.BATCH if on_cuda and threads is None else threads, processes=processes)
    chain = Chain(recipe.transforms)
    splits = splits_of(recipe)
    errors = _Errors(on_error, max_errors, sum(len(split) for split in splits.values()))
    plan = {"recipe": recipe.resolved(), "fingerprint": fingerprint(splits)}
    out = recipe.out.resolve()
    done = None if (ending := killed_at_its_end(out, plan)) else _finished(out, plan, overwrite, errors)
    if done is None:
        with Staging(out) as staging:
            done = _finished(out, plan, overwrite and not staging.committed(plan), errors) if ending else None
            if done is None:
                work = _Work(recipe, plan, splits, chain, staging, errors, progress)
                manifest = work.run(engine, overwrite)
                return BuildReport(
                    out=recipe.out, manifest=manifest, seconds=time.perf_counter() - began, built=work.built
                )
            staging.discard()
    return BuildReport(out=recipe.out, manifest=done, seconds=time.perf_counter() - began, built=0)


def splits_of(recipe: BuildRecipe) -> Mapping[str, SourceSplit]:
    """The splits that a recipe's source finds at its root.

    Raises:
        RecipeError: if the recipe has no root, or its options cannot be meant.
        SourceError: if the source cannot be read.
    """
    if recipe.root is None:
        raise RecipeError("the recipe has no root; give one")
    return make_source(recipe.kind, recipe.root, Decoder(**recipe.decode), recipe.options).splits()


def fingerprint(splits: Mapping[str, SourceSplit]) -> str:
    """SHA-256 over every sample's id and stamp, in order: it changes when the source does."""
    digest = hashlib.sha256()
    for name, split in splits.items():
        digest.update(_text_bytes(f"{name}\0{len(split)}\0{split.classes!r}\n"))
        for index in range(len(split)):
            digest.update(_text_bytes(f"{split.id(index)}\0{split.stamp(index)}\n"))
    return digest.hexdigest()


class _Errors:
    """What to do about samples that cannot be read, and how many there were."""

    def __init__(self, on_error: str, most: int | str | None, samples: int) -> None:
        if on_error not in ON_ERROR:
            raise UsageError(f"on-error is {on_error!r}; use one of {', '.join(ON_ERROR)}")
        if most is not None and on_error != "skip":
            raise UsageError("max-errors is for --on-error skip; add that, or leave it out")
        self.skip = on_error == "skip"
        self.shown = most
        self.limit = samples if most is None else _limit(most, samples)
        self.count = 0

    def add(self, skipped: int) -> None:
        self.count += skipped
        if self.count > self.limit:
            raise BuildError(
                f"{self.count} samples could not be read, more than --max-errors {self.shown} allows; "
                "run with --on-error fail to see the first, or allow more"
            )


class _Work:
    """One run over all splits; holds what is counted on the way."""

    def __init__(
        self,
        recipe: BuildRecipe,
        plan: dict[str, Any],
        splits: Mapping[str, SourceSplit],
        chain: Chain,
        staging: Staging,
        errors: _Errors,
        progress: Progress | None,
    ) -> None:
        self.recipe, self.plan, self.splits, self.chain = recipe, plan, splits, chain
        self.staging, self.errors, self.progress = staging, errors, progress
        self.total = sum(len(split) for split in splits.values())
        self.done = self.built = 0

    def run(self, engine: Engine, overwrite: bool) -> Manifest:
        try:
            return self._build(engine, overwrite)
        except SampleError as error:
            raise SampleError(
                error.sample,
                f"{error.reason}; mend or remove it and build anew with --overwrite, or add --on-error skip "
                "(which goes on from the sealed shards)",
            ) from error

    def _build(self, engine: Engine, overwrite: bool) -> Manifest:
        _begin(self.staging, self.plan, overwrite)
        fields = {name: fields_of(split, self.chain, self.errors.skip) for name, split in self.splits.items()}
        plans = {
            name: plan_shards(name, len(split), fields[name], self.recipe.shard_bytes)
            for name, split in self.splits.items()
        }
        seals = self._sealed(plans)
        missing = [plan for shards in plans.values() for plan in shards if (plan.split, plan.index) not in seals]
        _check_room(self.staging.site, missing, fields)
        job = ShardJob(
            splits=self.splits,
            fields=fields,
            chain=self.chain,
            site=self.staging.site,
            shuffle_seed=self.recipe.shuffle_seed,
            skip=self.errors.skip,
        )
        for plan, seal in zip(missing, engine.run(job, missing, self._told), strict=True):
            seals[plan.split, plan.index] = seal
        return self._commit(fields, plans, seals)

    def _sealed(self, plans: Mapping[str, list[ShardPlan]]) -> dict[tuple[str, int], Seal]:
        """What an earlier run finished. A shard that left samples out does not count where none may be left out."""
        seals = {}
        for plan in (plan for shards in plans.values() for plan in shards):
            seal = self.staging.site.sealed(plan.split, plan.index)
            if seal is not None and (self.errors.skip or not seal.skipped):
                seals[plan.split, plan.index] = seal
                self._count(plan.stop - plan.start, seal.skipped)
        return seals

    def _told(self, samples: int, skipped: int) -> None:
        self.built += samples
        self._count(samples, skipped)

    def _count(self, samples: int, skipped: int) -> None:
        self.errors.add(skipped)
        self.done += samples
        if self.progress is not None:
            self.progress(self.done, self.total)

    def _commit(
        self,
        fields: Mapping[str, dict[str, FieldSpec]],
        plans: Mapping[str, list[ShardPlan]],
        seals: Mapping[tuple[str, int], Seal],
    ) -> Manifest:
        records = {}
        for name, split in self.splits.items():
            shards = [seals[name, plan.index] for plan in plans[name]]
            if not any(seal.record.rows for seal in shards):
                raise BuildError(f"not one sample of split {name} can be read; run with --on-error fail to see why")
            records[name] = self._record(name, split, fields[name], shards)
        notes = {name: list(split.notes()) for name, split in self.splits.items() if isinstance(split, Noted)}
        manifest = Manifest(
            recipe=self.plan["recipe"],
            fingerprint=self.plan["fingerprint"],
            splits=records,
            card={"notes": {name: said for name, said in notes.items() if said}},
        )
        self.staging.commit(manifest)
        return manifest

    def _record(self, name: str, split: SourceSplit, fields: dict[str, FieldSpec], seals: list[Seal]) -> SplitRecord:
        site, numbers = self.staging.site, range(len(seals))
        rows = sum(seal.record.rows for seal in seals)
        counted = [seal for seal in seals if seal.sums]
        sums, squares = (_columns(getattr(seal, key) for seal in counted) for key in ("sums", "squares"))
        mean, std = mean_std(sums, squares, rows * _image_pixels(fields) if counted else 0)
        skipped_count = sum(seal.skipped for seal in seals)
        skipped_file = self.staging.join(site.skipped_file, name, numbers, SKIPPED_NAME) if skipped_count else None
        return SplitRecord(
            rows=rows,
            fields=fields,
            classes=split.classes,
            class_counts=tuple(sum(s.class_counts.get(i, 0) for s in seals) for i in range(len(split.classes))),
            mean=mean,
            std=std,
            skipped_count=skipped_count,
            skipped=tuple(islice(_skipped(site, name, numbers), SKIPPED_SHOWN)),
            skipped_file=skipped_file,
            samples=self.staging.join(site.samples_file, name, numbers, SAMPLES_NAME),
            shards=tuple(seal.record for seal in seals),
        )


def _limit(most: int | str, samples: int) -> int:
    text = str(most).strip()
    share = text.endswith("%")
    try:
        value = float(text[:-1]) if share else int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= (100 if share else 2**62):
        raise UsageError(f"max-errors is {most!r}; use a whole number, or a share such as 1%")
    return int(samples * value / 100) if share else int(value)


def _finished(out: Path, plan: Mapping[str, object], overwrite: bool, errors: _Errors) -> Manifest | None:
    """The manifest of an equal dataset that is already there; an error if something else is."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    file = out / FILE_NAME
    if not file.is_file():
        raise BuildError(f"{out} exists and is not a dataset; choose another place, or remove it")
    if overwrite:
        return None
    try:
        manifest = loads(file.read_text(encoding="utf-8"), str(file))
    except (StoreError, OSError, ValueError) as error:
        raise BuildError(f"{out} exists and cannot be read ({error}); add --overwrite to replace it") from error
    if manifest.recipe != plan["recipe"]:
        raise BuildError(f"{out} exists and was built by another recipe; add --overwrite to replace it")
    if manifest.fingerprint != plan["fingerprint"]:
        raise BuildError(f"{out} exists and its source has changed since; add --overwrite to build it again")
    skipped = sum(split.skipped_count for split in manifest.splits.values())
    if skipped and not errors.skip:
        raise BuildError(
            f"{out} exists and left out {skipped} samples that could not be read; "
            "add --on-error skip to accept that, or --overwrite to build it again"
        )
    return manifest


def _begin(staging: Staging, plan: Mapping[str, object], overwrite: bool) -> None:
    """Go on with an unfinished build of the same plan, or start anew."""
    begun = staging.plan()
    if begun == plan:
        return
    if begun is not None and not overwrite:
        what = "another recipe" if begun.get("recipe") != plan["recipe"] else "a source that has changed since"
        raise BuildError(f"{staging.site.folder} holds an unfinished build of {what}; add --overwrite to drop it")
    try:
        staging.begin(plan)
    except OSError as error:
        raise BuildError(f"cannot write to {staging.site.folder} ({error.strerror}); choose another place") from error


def _check_room(site: Site, plans: Iterable[ShardPlan], fields: Mapping[str, Mapping[str, FieldSpec]]) -> None:
    """All that is still to be written has to fit, before any of it is."""
    need = sum((plan.stop - plan.start) * (row_bytes(fields[plan.split]) + 2 * _LINE_BYTES) for plan in plans)
    free = shutil.disk_usage(site.folder).free + _partial_bytes(site)
    if need > free:
        raise BuildError(
            f"the dataset needs {need:,} more bytes at {site.folder.parent}, {free:,} are free; "
            "make room, build elsewhere, or store smaller images"
        )


def _partial_bytes(site: Site) -> int:
    """What unsealed shards of an earlier run take up; they are written anew."""
    return sum(file.stat().st_size for file in site.dataset.glob("*/*.partial/*"))


def _columns(rows: Iterable[list[int]]) -> list[int]:
    return [sum(column) for column in zip(*rows, strict=True)]


def _image_pixels(fields: Mapping[str, FieldSpec]) -> int:
    """Pixels of one channel of a row."""
    _, height, width = fields["images"].shape
    return height * width


def _skipped(site: Site, split: str, shards: Iterable[int]) -> Iterator[tuple[str, str]]:
    for index in shards:
        with open(site.skipped_file(split, index), encoding="utf-8") as lines:
            for line in lines:
                item = json.loads(line)
                yield item["id"], item["reason"]


def _text_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
