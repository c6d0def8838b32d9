"""Is a dataset what its manifest says, and what its source says? And the way back where it is not.

Comes in: a dataset's folder, and for the second question and for repairs the source it was built from. Goes out: what
is wrong, shard by shard, or the shards rebuilt. Files are read to the last byte; nothing is changed but by
:func:`repair`.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mmload.build import splits_of
from mmload.checksum import crc32
from mmload.engines import LocalEngine
from mmload.errors import BuildError, DamagedError, StoreError
from mmload.manifest import SAMPLES_NAME, SKIPPED_NAME, FileRecord, Manifest, SplitRecord, read, shard_name
from mmload.recipe import from_mapping
from mmload.shards import ShardJob, ShardPlan, plan_shards
from mmload.staging import Staging
from mmload.store import META_NAME, Chunk, Seal, Site, bytes_of, remove, samples_lines, tensordict_meta
from mmload.threads import available_cores, check_threads, single_op_pool
from mmload.transforms import Chain

Progress = Callable[[int, int], None]
"""Called with (bytes or samples done, all of them)."""

_BLOCK = 4 * 2**20


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        split: the split's name.
        shard: the shard's number; None for the split's lists of samples.
        file: the file, relative to the dataset's folder.
        reason: what is wrong with it.
    """

    split: str
    shard: int | None
    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


def verify(path: Path, *, progress: Progress | None = None) -> list[Fault]:
    """Hold every file of a dataset against its manifest: is it there, has it its size, its checksum.

    Args:
        path: the dataset's folder.
        progress: told how many bytes of all are done.

    Returns:
        What is wrong, in the order of the files; empty if nothing is.

    Raises:
        StoreError: if there is no manifest that can be read.
    """
    files = list(_files(read(path)))
    total = sum(file.record.bytes for file in files)
    done, faults = 0, []
    with ThreadPoolExecutor(available_cores(), thread_name_prefix="mmload-verify") as pool:
        for file, reason in zip(files, pool.map(lambda file: file.check(path), files), strict=True):
            if reason is not None:
                faults.append(Fault(split=file.split, shard=file.shard, file=file.name, reason=reason))
            done += file.record.bytes
            if progress is not None:
                progress(done, total)
    return faults


def compare(path: Path, source: Path, *, threads: int | None = None, progress: Progress | None = None) -> list[Fault]:
    """Decode the source again and hold every stored byte against it.

    Args:
        path: the dataset's folder.
        source: the root of what it was built from.
        threads: decoding threads; None takes the cores available.
        progress: told how many samples of all are done.

    Returns:
        For each shard that differs, the first sample that does; empty if all is equal.

    Raises:
        StoreError: if the dataset cannot be read.
        BuildError: if the source no longer has as many samples as the dataset was built from.
    """
    manifest = read(path)
    job, plans = _job(manifest, source, Site(path))
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


def repair(path: Path, source: Path, *, threads: int | None = None, progress: Progress | None = None) -> list[Fault]:
    """Build exactly the bad shards again. A shard is replaced only by one with the manifest's own checksums.

    Args:
        path: the dataset's folder.
        source: the root of what it was built from.
        threads: decoding threads; None takes the cores available.
        progress: told how many samples of those needed are done.

    Returns:
        What was wrong and is mended; empty if nothing was.

    Raises:
        StoreError: if there is no manifest that can be read.
        BuildError: if the source has changed, so that something could not be mended; the rest is.
    """
    faults = verify(path)
    if not faults:
        return []
    manifest = read(path)
    with Staging(path.resolve()) as staging:
        if staging.plan() is not None:
            raise BuildError(f"{staging.site.folder} holds an unfinished build; finish it, or remove the folder")
        try:
            failed = _rebuild(path, manifest, faults, source, staging, LocalEngine(threads=threads), progress)
        except OSError as error:
            raise BuildError(
                f"cannot mend {error.filename or path} ({error.strerror}); what was mended stays"
            ) from error
        finally:
            staging.discard()
    if failed:
        raise BuildError(
            f"{', '.join(failed)} could not be mended: {source} no longer gives what was stored; "
            "find the source as it was, or build the dataset again with --overwrite"
        )
    return faults


@dataclass(frozen=True, kw_only=True)
class _File:
    """A file that has to be there: its checksum from the manifest, or its whole text."""

    split: str
    shard: int | None
    name: str
    record: FileRecord

    def check(self, root: Path) -> str | None:
        """What is wrong with it, if anything."""
        path = root / self.name
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                return "is not a file"
            if status.st_size != self.record.bytes:
                return f"has {status.st_size:,} bytes, the manifest says {self.record.bytes:,}"
            crc = _crc32(path)
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        if crc != self.record.crc32:
            return f"has the checksum {crc}, the manifest says {self.record.crc32}: its bytes have changed"
        return None


class _StoredShard:
    """A shard as it lies on disk, compared with chunks that come in its order."""

    def __init__(self, root: Path, record: SplitRecord, plan: ShardPlan, lines: Iterator[bytes]) -> None:
        self.name = f"{plan.split}/{shard_name(plan.index)}"
        self.folder = root / self.name
        self.fields = record.fields
        self.rows = record.shards[plan.index].rows
        self.lines = [next(lines, b"") for _ in range(self.rows)]
        self.row = 0

    def differs(self, chunk: Chunk) -> str | None:
        """How the rows of the chunk differ from those stored, if they do."""
        first, self.row = self.row, self.row + len(chunk.samples)
        for row, line in enumerate(samples_lines(chunk).splitlines(keepends=True), first):
            if row >= self.rows or line != self.lines[row]:
                was = self.lines[row].decode("utf-8", "replace").strip() if row < self.rows else "not there"
                return f"row {row} is {line.decode().strip()} in the source, and was {was} at the build"
        for name, spec in self.fields.items():
            fresh = np.frombuffer(bytes_of(chunk.fields[name]), np.uint8).reshape(-1, spec.row_bytes)
            stored = self._read(name, first, spec.row_bytes, len(fresh))
            if stored.size != fresh.size:
                return f"{name} ends before row {first + len(fresh)}"
            rows = np.flatnonzero((stored.reshape(fresh.shape) != fresh).any(1))
            if rows.size:
                sample = chunk.samples[int(rows[0])][0]
                return f"{name} of row {first + int(rows[0])} differs from {sample} in the source"
        return None

    def left_over(self) -> str | None:
        """Rows that are stored and that the source does not give any more."""
        return f"{self.rows} rows are stored, the source gives {self.row}" if self.row < self.rows else None

    def _read(self, name: str, first: int, size: int, rows: int) -> np.ndarray:
        path = self.folder / f"{name}.memmap"
        try:
            return np.fromfile(path, np.uint8, count=rows * size, offset=first * size)
        except OSError as error:
            raise StoreError(f"cannot read {path} ({error.strerror})") from error


def _rebuild(
    path: Path,
    manifest: Manifest,
    faults: list[Fault],
    source: Path,
    staging: Staging,
    engine: LocalEngine,
    progress: Progress | None,
) -> list[str]:
    """Mend what can be mended; returns the names of what cannot."""
    for leftover in (staging.site.dataset, staging.site.folder / "notes"):
        remove(leftover)
    listless = {fault.split for fault in faults if fault.shard is None}
    bad = {(fault.split, fault.shard) for fault in faults}
    job, plans = _job(manifest, source, staging.site)
    needed = [plan for plan in plans if plan.split in listless or (plan.split, plan.index) in bad]
    seals = engine.run(job, needed, _counter(sum(plan.stop - plan.start for plan in needed), progress))
    failed = []
    for plan, seal in zip(needed, seals, strict=True):
        if (plan.split, plan.index) in bad and not _replace_shard(path, manifest, plan, seal, staging.site):
            failed.append(f"{plan.split}/{shard_name(plan.index)}")
    for fault in (fault for fault in faults if fault.shard is None):
        name, record = Path(fault.file).name, manifest.splits[fault.split]
        lines = staging.site.samples_file if name == SAMPLES_NAME else staging.site.skipped_file
        if staging.join(lines, fault.split, range(len(record.shards)), name) == _lists(record)[name]:
            _put(staging.site.dataset / fault.file, path / fault.file)
        else:
            failed.append(fault.file)
    return failed


def _replace_shard(path: Path, manifest: Manifest, plan: ShardPlan, seal: Seal, site: Site) -> bool:
    """Put a rebuilt shard in the bad one's place, if it is what the manifest says."""
    if seal.record != manifest.splits[plan.split].shards[plan.index]:
        return False
    _put(site.shard(plan.split, plan.index), path / plan.split / shard_name(plan.index))
    return True


def _put(new: Path, place: Path) -> None:
    """Move a file or folder to its place in a split's folder, whatever is there instead of either."""
    if not place.parent.is_dir():
        remove(place.parent)
        place.parent.mkdir()
    remove(place)
    new.rename(place)


def _counter(total: int, progress: Progress | None) -> Callable[[int, int], None]:
    done = 0

    def told(samples: int, skipped: int) -> None:
        nonlocal done
        done += samples
        if progress is not None:
            progress(done, total)

    return told


def _files(manifest: Manifest) -> Iterator[_File]:
    for name, split in manifest.splits.items():
        for index, shard in enumerate(split.shards):
            folder = f"{name}/{shard_name(index)}"
            meta = tensordict_meta(split.fields, shard.rows).encode()
            record = FileRecord(bytes=len(meta), crc32=f"{crc32(meta):08x}")
            yield _File(split=name, shard=index, name=f"{folder}/{META_NAME}", record=record)
            for field, record in shard.files.items():
                yield _File(split=name, shard=index, name=f"{folder}/{field}.memmap", record=record)
        for file, record in _lists(split).items():
            yield _File(split=name, shard=None, name=f"{name}/{file}", record=record)


def _lists(split: SplitRecord) -> dict[str, FileRecord]:
    """The split's lists of samples, by name."""
    skipped = {} if split.skipped_file is None else {SKIPPED_NAME: split.skipped_file}
    return {SAMPLES_NAME: split.samples, **skipped}


def _job(manifest: Manifest, source: Path, site: Site) -> tuple[ShardJob, list[ShardPlan]]:
    """What built the dataset, over the source as it is now, and its plans.

    Raises:
        BuildError: if the source no longer has the splits, or as many samples in them.
    """
    recipe = replace(from_mapping(manifest.recipe), root=source)
    splits = splits_of(recipe)
    plans: list[ShardPlan] = []
    for name, record in manifest.splits.items():
        samples = record.rows + record.skipped_count
        if name not in splits or len(splits[name]) != samples:
            have = len(splits[name]) if name in splits else "no"
            raise BuildError(
                f"{source} has {have} samples of split {name}, the dataset was built from {samples}; "
                "give the source as it was then"
            )
        planned = plan_shards(name, samples, record.fields, recipe.shard_bytes)
        if len(planned) != len(record.shards):
            raise DamagedError(f"split {name} has {len(record.shards)} shards, its recipe plans {len(planned)}")
        plans += planned
    fields = {name: record.fields for name, record in manifest.splits.items()}
    chain, seed = Chain(recipe.transforms), recipe.shuffle_seed
    job = ShardJob(splits=splits, fields=fields, chain=chain, site=site, shuffle_seed=seed, skip=True)
    return job, plans


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            yield from file
    except OSError as error:
        raise StoreError(f"cannot read {path} ({error.strerror})") from error


def _crc32(path: Path) -> str:
    block, crc = bytearray(_BLOCK), 0
    view = memoryview(block)
    with open(path, "rb", buffering=0) as file:
        while got := file.readinto(block):
            crc = crc32(view[:got], crc)
    return f"{crc:08x}"
