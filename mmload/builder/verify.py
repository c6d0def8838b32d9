"""Checks a dataset against its manifest and its source.

Takes a dataset's folder and, to compare, the source that it was built from. Returns the faults of each shard.
Files are read completely and never changed; :mod:`mmload.builder.repair` repairs them.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mmload.builder.planned_build import plan_shards, splits_of
from mmload.builder.recipe import BuildRecipe
from mmload.builder.shard_job import ShardJob
from mmload.builder.shards import BuildPaths, Chunk, ShardPlan, file_blocks, samples_lines
from mmload.builder.transforms import TransformChain
from mmload.builder.trust import trusted_recipe
from mmload.errors import BuildError, DamagedError, StoreError, UsageError, counted
from mmload.runtime.regular_files import open_regular
from mmload.runtime.resources import available_cores, check_threads, single_op_pool
from mmload.store.checksum import file_crc32
from mmload.store.dataset_folder import DatasetFile, dataset_files
from mmload.store.manifest import SAMPLES_NAME, VERSIONS, Manifest, SplitRecord, read, shard_name
from mmload.store.shard_table import BYTES, files_of
from mmload.store.variable_rows import VariableRows
from mmload.store.versions import read_any, read_version

Progress = Callable[[int, int], None]
"""Called with (bytes or samples done, all of them)."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of a dataset: the split, the file relative to its folder, and the fault as text.

    The shard's number is None if the file is a list of samples.
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


def check_trust(path: str | Path, trust: bool) -> None:
    """Checks that a dataset's recipe requires no further permissions; :func:`compare` and repair check this first.

    Raises:
        UsageError: if the dataset requires permissions that only ``trust`` grants.
        StoreError: if there is no readable manifest.
    """
    trusted_recipe(read(path).recipe, Path(path), trust=trust)


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
        For each shard that differs, its first differing sample; empty if all are equal.

    Raises:
        UsageError: if the dataset requires permissions that only ``trust`` grants.
        StoreError: if the dataset cannot be read.
        BuildError: if the source no longer has as many samples as the dataset was built from.
    """
    path = Path(path)
    manifest = read(path)
    check_built(manifest, path)
    job, plans = job_of(manifest, recipe_at(manifest, path, source, trust), BuildPaths(path))
    total = sum(plan.stop - plan.start for plan in plans)
    done, faults = 0, []
    check_threads(threads)
    size = threads or available_cores()
    pool = single_op_pool(size, "mmload-verify")
    lines = {name: _lines(path / name / SAMPLES_NAME) for name in manifest.splits}
    try:
        for plan in plans:
            stored = _StoredShard(path, manifest.splits[plan.split], plan, lines[plan.split])
            reasons = [stored.differs(chunk) for chunk in job.chunks(plan, pool, size)]
            reason = next((reason for reason in [*reasons, stored.left_over()] if reason), None)
            if reason is not None:
                faults.append(Fault(split=plan.split, shard=plan.index, file=stored.name, reason=reason))
            done += plan.stop - plan.start
            if progress is not None:
                progress(done, total)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return faults


def is_updated(manifest: Manifest) -> bool:
    """Returns whether a dataset was updated after its build, so that its shards are not those of one source."""
    return any(record.order is not None for record in manifest.built_splits.values())


def check_built(manifest: Manifest, path: Path) -> None:
    """Checks that the rows of a dataset are those of its build, one shard after another.

    Raises:
        UsageError: if it was updated.
    """
    if is_updated(manifest):
        raise UsageError(
            f"{path} was updated after its build (mmload info {path} --versions), so its shards are not those of the "
            "source in order; compare it with a fresh build, or build it again with --overwrite"
        )


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


class _StoredShard:
    """A stored shard, compared with chunks in the order of its rows."""

    def __init__(self, root: Path, record: SplitRecord, plan: ShardPlan, lines: Iterator[bytes]) -> None:
        self.name = f"{plan.split}/{shard_name(plan.index)}"
        self.folder, self.fields = root / self.name, record.built_fields
        files = files_of(self.fields)
        self.compared = {name: file.more * file.spec.row_bytes for name, file in files.items()}
        self.rows = record.shards[plan.index].rows
        self.lines = [next(lines, b"") for _ in range(self.rows)]
        self.row = 0

    def differs(self, chunk: Chunk) -> str | None:
        """Formats the difference of the rows of the chunk from the stored ones; None if they are equal."""
        first, self.row = self.row, self.row + len(chunk.samples)
        for row, line in enumerate(samples_lines(chunk).splitlines(keepends=True), first):
            if row >= self.rows or line != self.lines[row]:
                was = self.lines[row].decode("utf-8", "replace").strip() if row < self.rows else "not there"
                return f"row {row} is {line.decode().strip()} in the source, and was {was} at the build"
        found: dict[str, int] = {}
        for file, block in file_blocks(chunk, self.fields, self.compared).items():
            name = file.partition(".")[0]
            stored, fresh = self._read(file, len(block)), np.frombuffer(block, np.uint8)
            if len(stored) != len(fresh):
                return f"{name} ends before row {self.row}"
            different = np.flatnonzero(stored != fresh)
            if len(different):
                row = _row_of_byte(chunk, file, int(different[0]), len(block))
                found[name] = min(found.get(name, row), row)
        for name, row in found.items():
            return f"{name} of row {first + row} differs from {chunk.samples[row][0]} in the source"
        return None

    def left_over(self) -> str | None:
        """Returns a message if rows are stored that the source no longer has, else None."""
        return f"{counted(self.rows, 'row')} stored, the source gives {self.row}" if self.row < self.rows else None

    def _read(self, name: str, size: int) -> npt.NDArray[np.uint8]:
        """Reads the next bytes of a file."""
        path, offset = self.folder / f"{name}.memmap", self.compared[name]
        self.compared[name] += size
        try:
            with open(path, "rb", opener=open_regular) as file:
                return np.fromfile(file, np.uint8, count=size, offset=offset)
        except OSError as error:
            raise StoreError(f"cannot read {path} ({error.strerror})") from error


def _row_of_byte(chunk: Chunk, file: str, place: int, size: int) -> int:
    """Returns the row of a chunk that a byte belongs to, of those that the chunk appends to a file."""
    rows = chunk.fields[file.partition(".")[0]]
    if isinstance(rows, VariableRows) and file.endswith(f".{BYTES}"):
        return int(np.searchsorted(rows.offsets[1:], place, "right"))
    return place // (size // len(chunk.samples))


def recipe_at(manifest: Manifest, path: Path, source: str | Path, trust: bool) -> BuildRecipe:
    """Returns the recipe of a dataset with the source's root, restricted to trusted operations."""
    return replace(trusted_recipe(manifest.recipe, path, trust=trust), root=source)


def job_of(manifest: Manifest, recipe: BuildRecipe, paths: BuildPaths) -> tuple[ShardJob, list[ShardPlan]]:
    """Returns the job that built the dataset, over the current source, and its plans.

    Raises:
        BuildError: if the source no longer has the splits, or as many samples in them.
    """
    splits = splits_of(recipe)
    plans: list[ShardPlan] = []
    for name, record in manifest.built_splits.items():
        samples = record.rows + record.skipped_count
        if name not in splits or len(splits[name]) != samples:
            have = counted(len(splits[name]), "sample") if name in splits else "no samples"
            raise BuildError(
                f"{recipe.root} has {have} of split {name}, the dataset was built from {samples}; "
                "give the source that it was built from"
            )
        planned = plan_shards(name, samples, record.shard_samples)
        if len(planned) != len(record.shards):
            have = counted(len(record.shards), "shard")
            raise DamagedError(f"split {name} has {have}, {len(planned)} were planned")
        plans += planned
    fields = {name: record.built_fields for name, record in manifest.built_splits.items()}
    chain, seed = TransformChain(recipe.transforms), recipe.shuffle_seed
    job = ShardJob(
        splits=splits,
        fields=fields,
        chain=chain,
        paths=paths,
        shuffle_seed=seed,
        skip=True,
        variable_layout=recipe.variable_layout,
    )
    return job, plans


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with open(path, "rb", opener=open_regular) as file:
            yield from file
    except OSError as error:
        raise StoreError(f"cannot read {path} ({error.strerror})") from error
