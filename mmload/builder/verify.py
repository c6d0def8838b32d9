"""Checks a dataset against its manifest and its source, and builds damaged shards again.

A check reads all files and changes none. A repair replaces a shard only if the rebuilt one has the checksums of the
manifest.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mmload.builder.pipeline import LocalEngine
from mmload.builder.planned_build import plan_shards, splits_of
from mmload.builder.previous_version import stored_fields
from mmload.builder.shard_job import ShardJob
from mmload.builder.shards import BuildPaths, Chunk, ShardPlan, bytes_of, join_lists
from mmload.builder.staging import working_folder
from mmload.builder.transforms import TransformChain
from mmload.builder.trust import trusted_recipe
from mmload.errors import BuildError, StoreError, UsageError, counted
from mmload.records import Progress
from mmload.runtime.files import sync_folder
from mmload.runtime.resources import available_cores, check_threads
from mmload.store.checksum import file_crc32
from mmload.store.dataset import Dataset, Split
from mmload.store.dataset_folder import DatasetFile, check_no_links, dataset_files
from mmload.store.manifest import VERSIONS, Manifest, file_name, files_of, read, shard_name
from mmload.store.variable_rows import VariableRows
from mmload.store.versions import read_any, read_version


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of a dataset: the split, the file relative to its folder, and the fault as text.

    The shard's number is None if the file is none of a shard's; the split is :data:`VERSIONS` for an earlier version.
    """

    split: str
    shard: int | None
    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


def verify(path: str | Path, version: int | None = None, *, progress: Progress | None = None) -> list[Fault]:
    """Checks that every file of a dataset exists and has the size and checksum of the manifest.

    Args:
        path: the dataset's folder.
        version: number of one of its versions; None: the current one.
        progress: called with (bytes done, bytes in all).

    Returns:
        The faults, in the order of the files; empty if there are none.

    Raises:
        StoreError: if there is no readable manifest.
    """
    folder = Path(path)
    manifest = read_any(folder, version)
    files = list(dataset_files(manifest))
    total = sum(file.record.bytes for file in files)
    done, faults = 0, list(_lost_versions(folder, read(folder)))
    with ThreadPoolExecutor(available_cores(), thread_name_prefix="mmload-verify") as pool:
        for file, reason in zip(files, pool.map(lambda file: _fault(file, folder), files), strict=True):
            if reason is not None:
                faults.append(Fault(split=file.split, shard=file.shard, file=file.name, reason=reason))
            done += file.record.bytes
            if progress is not None:
                progress(done, total)
    now = read_any(folder, version) if faults else manifest
    if (now.contents, now.versions) != (manifest.contents, manifest.versions):
        raise StoreError(f"{folder} was changed by another command during the check; check it again")
    return faults


def _lost_versions(folder: Path, manifest: Manifest) -> Iterator[Fault]:
    """Yields a fault for each kept version whose manifest cannot be read."""
    for version in manifest.versions[:-1]:
        try:
            read_version(folder, version.number, manifest)
        except StoreError as error:
            name = f"{VERSIONS}/{version.number}.json"
            yield Fault(split=VERSIONS, shard=None, file=name, reason=f"is lost: {error}; mmload gc drops the version")


def _fault(file: DatasetFile, root: Path) -> str | None:
    """Returns the fault of a file, or None."""
    path = root / file.name
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return "is not a file"
        if status.st_size != file.record.bytes:
            return f"has {status.st_size:,} bytes, the manifest says {file.record.bytes:,}"
        crc = file_crc32(path)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if crc != file.record.crc32:
        return f"has the checksum {crc}, the manifest says {file.record.crc32}: its bytes have changed"
    return None


# The source, built again.


def is_updated(manifest: Manifest) -> bool:
    """Returns whether a dataset was updated after its build, so that its shards are not those of one source."""
    return any(record.order is not None for record in manifest.built_splits.values())


def _job_of(
    path: Path, manifest: Manifest, source: str | Path, trust: bool, paths: BuildPaths
) -> tuple[ShardJob, list[ShardPlan]]:
    """Returns the job that built the dataset, over the current source, and its plans.

    Raises:
        UsageError: if the dataset was updated, or requires permissions that only ``trust`` grants.
        BuildError: if the source no longer has the splits, or as many samples in them.
    """
    if is_updated(manifest):
        raise UsageError(
            f"{path} was updated after its build (mmload info {path} --versions), so its shards are not those of the "
            "source in order; compare it with a fresh build, or build it again with --overwrite"
        )
    recipe, plans = trusted_recipe(manifest.recipe, path, trust=trust), list[ShardPlan]()
    splits = splits_of(replace(recipe, root=source))  # type: ignore[arg-type]  # a recipe makes a place of it
    for name, record in manifest.built_splits.items():
        samples, have = record.rows + record.skipped_count, len(splits.get(name, ()))
        planned = plan_shards(name, samples, record.shard_samples)
        if have != samples or len(planned) != len(record.shards):
            raise BuildError(
                f"{source} has {counted(have, 'sample')} of split {name}, the dataset was built from {samples}, in "
                f"{counted(len(record.shards), 'shard')}; give the source that it was built from"
            )
        plans += planned
    return ShardJob(
        splits=splits,
        fields={name: record.built_fields for name, record in manifest.built_splits.items()},
        chain=TransformChain(recipe.transforms),
        paths=paths,
        shuffle_seed=recipe.shuffle_seed,
        skip=True,
        variable_layout=recipe.variable_layout,
    ), plans


def compare(
    path: str | Path,
    source: str | Path,
    *,
    trust: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> list[Fault]:
    """Decodes the source again and compares every stored byte with it.

    Args:
        path: the dataset's folder.
        source: the root of the source that it was built from, or its URL.
        trust: let the dataset's own recipe run code, download, or read outside of the source.
        threads: decoding threads; None takes the cores available.
        progress: called with (samples done, samples in all).

    Returns:
        For each shard that differs, its first differing row; empty if all are equal.

    Raises:
        UsageError: if the dataset was updated, or requires permissions that only ``trust`` grants.
        StoreError: if the dataset cannot be read.
        BuildError: if the source no longer has as many samples as the dataset was built from.
    """
    path = Path(path)
    check_threads(threads)
    dataset, size = Dataset(path), threads or available_cores()
    job, plans = _job_of(path, dataset.manifest, source, trust, BuildPaths(path))
    count, faults = _counter(plans, progress), []
    for plan in plans:
        reason = _difference(dataset[plan.split], plan.index, job.chunks(plan, size))
        if reason is not None:
            file = f"{plan.split}/{shard_name(plan.index)}"
            faults.append(Fault(split=plan.split, shard=plan.index, file=file, reason=reason))
        count(len(plan), 0)
    return faults


def _difference(split: Split, shard: int, chunks: Iterable[Chunk]) -> str | None:
    """Formats the first difference of the rows of a shard from those of the source; None if they are equal."""
    row = first = sum(each.rows for each in split.record.shards[:shard])
    stop = first + split.record.shards[shard].rows
    for chunk in chunks:
        rows = np.arange(row, min(row + len(chunk.samples), stop))
        sources, stored = split.source(rows), stored_fields(split, rows)
        for place, was in enumerate(sources):
            name, size = chunk.samples[place]
            if (name, size) != was:
                return f"row {row + place} is {name!r} of size {size} in the source, and was {was.id!r} of {was.size}"
            for field, fresh in chunk.fields.items():
                if _bytes_of_row(fresh, place) != _bytes_of_row(stored[field], place):
                    return f"{field} of row {row + place} differs from {name} in the source"
        row += len(chunk.samples)
    if row != stop:
        return f"{counted(stop - first, 'row')} stored, the source gives {row - first}"
    return None


def _bytes_of_row(rows: Any, place: int) -> tuple[bytes, Sequence[int]]:
    """Returns the bytes of one of some rows, as they are stored, and the size and encoding of a variable-size one."""
    if isinstance(rows, VariableRows):
        return rows.encoded(place).tobytes(), (*rows.sizes[place].tolist(), int(rows.encodings[place]))
    return bytes_of(rows[place]).tobytes(), ()


def _counter(plans: Sequence[ShardPlan], progress: Progress | None) -> Progress:
    """Returns a function of (samples, skipped) that adds up the samples of some plans and reports them."""
    done, total = 0, sum(map(len, plans))

    def count(samples: int, skipped: int) -> None:
        nonlocal done
        done += samples
        if progress is not None:
            progress(done, total)

    return count


# Repair.


def repair(
    path: str | Path,
    source: str | Path,
    *,
    trust: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> list[Fault]:
    """Rebuilds only the damaged shards. A shard is replaced only if the rebuilt one has the checksums of the manifest.

    Args:
        path: the dataset's folder.
        source: the root of the source that it was built from, or its URL.
        trust: let the dataset's own recipe run code, download, or read outside of the source.
        threads: decoding threads; None takes the cores available.
        progress: called with (samples done, samples needed).

    Returns:
        The repaired faults; empty if there was none.

    Raises:
        UsageError: if the dataset was updated, or requires permissions that only ``trust`` grants.
        StoreError: if there is no readable manifest, or a folder of a damaged file is a link.
        BuildError: if the source has changed, so that some faults could not be repaired; all others are.
    """
    path, failed = Path(path), list[str]()
    read(path)  # it is there
    with working_folder(path.resolve()) as staging:
        faults, manifest = verify(path), read(path)
        if not faults:
            return []
        _check_of_build(path, manifest, faults)
        check_no_links(path, {fault.file.rpartition("/")[0] for fault in faults})
        try:
            job, plans = _job_of(path, manifest, source, trust, staging.paths)
            bad = {(fault.split, fault.shard) for fault in faults}
            needed = [plan for plan in plans if bad & {(plan.split, plan.index), (plan.split, None)}]
            LocalEngine(threads=threads).build_shards(job, needed, _counter(needed, progress))
            for name, files, is_as_stored in _rebuilt(manifest, faults, staging.paths):
                if not is_as_stored:
                    failed.append(name)
                    continue
                for file in files:
                    place = path / file.relative_to(staging.paths.dataset)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    file.replace(place)
                    sync_folder(place.parent)
        except OSError as error:
            raise BuildError(
                f"cannot repair {error.filename2 or error.filename or path} ({error.strerror}); what was repaired "
                "stays repaired: run the repair again"
            ) from error
    if failed:
        raise BuildError(
            f"{', '.join(failed)} could not be repaired: {source} no longer gives what was stored; "
            "restore the source (and the versions that decoded it), or build the dataset again"
        )
    return faults


def _check_of_build(path: Path, manifest: Manifest, faults: Iterable[Fault]) -> None:
    """Rejects to repair subsets, added fields and earlier versions, which are not made from the source."""
    for fault in faults:
        if fault.split == VERSIONS:
            raise BuildError(f"{fault}; then run the repair again")
        fields = manifest.splits[fault.split].fields
        added = {f"{file_name(name, spec)}.memmap": name for name, spec in fields.items() if spec.version}
        if (name := added.get(Path(fault.file).name)) is not None:
            raise BuildError(
                f"{fault} in {path}, of an added field, which no source can repair; add the field {name} again, or "
                f"remove it: mmload add-field {path} {name} --split {fault.split} --remove"
            )
        if fault.split not in manifest.built_splits:
            raise BuildError(
                f"{fault} in {path}, of a subset, which no source can repair; save the subset again, or remove it: "
                f"mmload subset {path} {fault.split} --remove"
            )


def _rebuilt(
    manifest: Manifest, faults: Sequence[Fault], paths: BuildPaths
) -> Iterator[tuple[str, Sequence[Path], bool]]:
    """Yields each damaged shard and list, its rebuilt files, and whether these are the files of the manifest."""
    for split, shard in dict.fromkeys((fault.split, fault.shard) for fault in faults if fault.shard is not None):
        record, summary = manifest.splits[split], paths.sealed(split, shard)
        stored = {name: record.shards[shard].files[name] for name in files_of(record.built_fields)}
        files = sorted(paths.shard(split, shard).iterdir())
        yield f"{split}/{shard_name(shard)}", files, summary is not None and summary.record.files == stored
    for fault in faults:
        if fault.shard is None:
            name, record = Path(fault.file).name, manifest.splits[fault.split]
            joined = join_lists(paths, fault.split, range(len(record.shards)), name)
            yield fault.file, [paths.dataset / fault.file], joined == record.lists[name]
