"""Builds one shard: reads, decodes and transforms samples of a split, and writes them in order.

Takes a plan and returns the summary of the finished shard, whose bytes do not depend on the number of threads. Engines
decide where it runs (:mod:`mmload.builder.engines`). A job is independent of other shards.

Several processes may write the same shard at the same time: each writes it in a folder of its own, then moves it in one
step. Either copy may stay, because its bytes depend on its plan alone; their equality is checked. This
needs only that the file system creates folders exclusively and renames atomically, as seen from every machine; no
locks.
"""

from __future__ import annotations

import secrets
import shutil
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from mmload.builder.chunk_assembly import ChunkAssembly, TriedSamples, chunk_of_block, finished
from mmload.builder.origins import SampleOrigin
from mmload.builder.recipe import VariableLayout
from mmload.builder.shards import LISTS, PARTS, BuildPaths, Chunk, ShardPlan, ShardSummary, ShardWriter
from mmload.builder.transforms import TransformChain
from mmload.errors import BuildError, SampleError
from mmload.records import FieldSpec
from mmload.remote.urls import Location
from mmload.runtime.durable_files import TOKEN_BYTES, sync_folder
from mmload.runtime.resources import single_op_pool
from mmload.sources import FetchesAhead, HasChecksums, ReadsBlocks, SourceSplit, Splittable
from mmload.store.checksum import file_crc32

OnProgress = Callable[[int, int], None]
"""Called with (samples done, of which skipped) after each chunk; an exception that it raises aborts the shard."""

_CHUNK_BYTES = 2 * 2**20
_CHUNK_ROWS = 256
_VARIABLE_CHUNK_ROWS = 4  # variable-size images: each takes milliseconds


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """Everything needed to build any shard, except its plan. Picklable, so that it can be sent to worker processes.

    Attributes:
        splits: the splits to read samples from.
        fields: for each split, the fields of a row.
        chain: the transforms.
        paths: the paths of shards.
        shuffle_seed: None, or the key of the permutation of samples over rows.
        skip: skip unreadable samples instead of aborting the build.
        alone: the splits contain only the samples of one plan, in the order of its rows.
        variable_layout: storage of variable-size images; None: all rows have one size.
        root: root of the source.
        tried: samples that were read before, which are not read again in this process.
    """

    splits: Mapping[str, SourceSplit]
    fields: Mapping[str, Mapping[str, FieldSpec]]
    chain: TransformChain
    paths: BuildPaths
    shuffle_seed: int | None = None
    skip: bool = False
    alone: bool = False
    variable_layout: VariableLayout | None = None
    root: Path | Location | None = None
    tried: TriedSamples = field(default_factory=TriedSamples)

    def without_samples(self) -> ShardJob:
        """Returns the job without the samples that :meth:`samples` returns; every worker process receives it once."""
        unsplittable = {name: split for name, split in self.splits.items() if not isinstance(split, Splittable)}
        return replace(self, splits=unsplittable, tried=TriedSamples())

    def samples(self, plan: ShardPlan) -> SourceSplit | None:
        """Returns the samples of one plan, in the order of its rows; None if they were sent with the job."""
        split = self.splits[plan.split]
        if not isinstance(split, Splittable):
            return None
        return split.part(row_order(plan.start, plan.stop, len(split), self.shuffle_seed))

    def with_samples(self, plan: ShardPlan, samples: SourceSplit) -> ShardJob:
        """Returns the job for this plan alone, over the samples that :meth:`samples` returned for it."""
        return replace(self, splits={plan.split: samples}, alone=True)

    def folders(self) -> tuple[Path, ...]:
        """Returns the folders that must be there on every machine that builds a shard."""
        return (self.root, self.paths.folder) if isinstance(self.root, Path) else (self.paths.folder,)

    def rows_checksum(self, plan: ShardPlan) -> int:
        """Returns the CRC-32 of what :meth:`chunks` gives of a plan; machines that get the same make the same shards.

        Raises:
            MmloadError: as when a shard is built.
        """
        import torch

        crc = 0
        with single_op_pool(1, "mmload-build") as pool:
            for chunk in self.chunks(plan, pool, 1):
                crc = zlib.crc32(repr((chunk.samples, [name for name, _ in chunk.skipped])).encode(), crc)
                for name, rows in sorted(chunk.fields.items()):
                    crc = zlib.crc32((rows.numpy() if isinstance(rows, torch.Tensor) else rows.bytes).tobytes(), crc)
                    crc = zlib.crc32(name.encode(), crc)
        return crc

    def __call__(
        self, plan: ShardPlan, pool: ThreadPoolExecutor, threads: int, on_progress: OnProgress
    ) -> ShardSummary:
        """Builds one shard in a folder of its own, and moves it to its place.

        At most twice as many chunks as threads are in flight, which bounds the memory.

        Raises:
            SampleError: if a sample is unreadable and must not be skipped.
            RecipeError: if a sample's fields or shapes differ from those of the others.
            BuildError: if writing fails.
        """
        fields = self.fields[plan.split]
        with private_paths(self.paths) as own:
            writer = ShardWriter(own, plan.split, plan.index, fields, plan.stop - plan.start)
            try:
                for chunk in self.chunks(plan, pool, threads):
                    writer.write(chunk)
                    on_progress(len(chunk.samples) + len(chunk.skipped), len(chunk.skipped))
            except BaseException:
                writer.abandon()
                raise
            summary = writer.seal()
            publish(own, self.paths, plan.split, plan.index, summary)
        return summary

    def chunks(self, plan: ShardPlan, pool: ThreadPoolExecutor, threads: int) -> Iterator[Chunk]:
        """Yields the rows of a shard in order, decoded but not written."""
        split, fields = self.splits[plan.split], self.fields[plan.split]
        rows = chunk_rows(fields)
        under_way: deque[Future[Chunk]] = deque()
        stopped = threading.Event()
        try:
            for start in range(plan.start, plan.stop, rows):
                stop = min(start + rows, plan.stop)
                numbers = range(start - plan.start, stop - plan.start)
                indices = numbers if self.alone else row_order(start, stop, len(split), self.shuffle_seed)
                if isinstance(split, FetchesAhead):
                    split.fetch_ahead(indices)
                under_way.append(pool.submit(self._chunk, split, indices, fields, stopped))
                if len(under_way) == 2 * threads:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            stopped.set()
            for future in under_way:
                future.cancel()

    def _chunk(
        self, split: SourceSplit, indices: Sequence[int], fields: Mapping[str, FieldSpec], stopped: threading.Event
    ) -> Chunk:
        """Decodes samples; checks for cancellation between samples, so that Ctrl-C waits for one, not for 256."""
        as_stored = not self.chain.steps and self.variable_layout is None
        if as_stored and isinstance(split, ReadsBlocks) and isinstance(indices, range):
            return chunk_of_block(split, split.read_rows(indices.start, indices.stop), indices, fields)
        assembly = ChunkAssembly(fields, len(indices), self.variable_layout)
        for index in indices:
            if stopped.is_set():
                raise CancelledError
            try:
                sample = self.tried.kept(split, index)
                sample = sample or finished(split, index, self.chain, assembly.next_image())
                assembly.add(sample, _origin(split, index, sample.checksum))
            except SampleError as error:
                if not self.skip:
                    raise
                assembly.skip(error)
        return assembly.finish()


def _origin(split: SourceSplit, index: int, checksum: str) -> SampleOrigin | None:
    """Returns what an update must know about a sample; None if its source cannot tell what has changed.

    ``checksum`` is that of :attr:`Sample.checksum`; without it, the sample's files are read once more.
    """
    if not isinstance(split, HasChecksums):
        return None
    return SampleOrigin(revision=split.revision(index), checksum=checksum or split.checksum(index))


def row_order(start: int, stop: int, count: int, shuffle_seed: int | None) -> Sequence[int]:
    """Returns the samples of rows [start, stop) of a split with ``count`` samples."""
    if shuffle_seed is None:
        return range(start, stop)
    import torch

    from mmload.runtime.random_words import permute

    order: list[int] = permute(torch.arange(start, stop, device="cpu"), count, shuffle_seed).tolist()
    return order


def chunk_rows(fields: Mapping[str, FieldSpec]) -> int:
    """Returns the rows per call of a thread: 1 to 256, about 2 MiB, so that the overhead per call is small."""
    if any(spec.variable_size for spec in fields.values()):
        return _VARIABLE_CHUNK_ROWS
    return max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // row_bytes(fields)))


@contextmanager
def private_paths(shared: BuildPaths) -> Iterator[BuildPaths]:
    """Yields the paths of a folder for one shard inside a build's; removes it at the end.

    Raises:
        BuildError: if the folder cannot be created.
    """
    folder = shared.folder / PARTS / secrets.token_hex(TOKEN_BYTES)
    try:
        shared.check_there()
        folder.parent.mkdir(exist_ok=True)
        folder.mkdir()
    except OSError as error:
        raise BuildError(f"cannot write to {folder.parent} ({error.strerror})") from error
    try:
        yield BuildPaths(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(own: BuildPaths, shared: BuildPaths, split: str, index: int, summary: ShardSummary) -> None:
    """Moves a sealed shard to the shared build, its lists after it and its summary last; keeps the one that is there.

    Raises:
        BuildError: if the shared build has gone, or has a shard there whose checksums are not the summary's.
    """
    place, summary_file = shared.shard(split, index), shared.summary_file(split, index)
    try:
        shared.check_there()  # before a later command's shard is compared with this one
    except OSError as error:
        raise BuildError(f"cannot move a shard to {place} ({error.strerror}); run the same command again") from error
    sealed = shared.sealed(split, index)
    if sealed is not None:
        if sealed.record != summary.record:
            raise _unlike(place)
        return
    try:
        shared.make_folders(split)
        _move(own.shard(split, index), place, summary)
        for name in LISTS:
            own.list_file(split, index, name).replace(shared.list_file(split, index, name))
        sync_folder(place.parent)
        own.summary_file(split, index).replace(summary_file)
        sync_folder(summary_file.parent)
    except OSError as error:
        raise BuildError(
            f"cannot move a shard to {place} ({error.strerror}); run the same command again to continue"
        ) from error


def _move(own: Path, place: Path, summary: ShardSummary) -> None:
    try:
        own.rename(place)
    except OSError:
        if not place.is_dir():
            raise
        _check_equal(place, summary)


def _check_equal(place: Path, summary: ShardSummary) -> None:
    """Checks that the shard that is there already, moved by another process, has the bytes of this one."""
    for name, record in summary.record.files.items():
        file = place / f"{name}.memmap"
        if file.stat().st_size != record.bytes or file_crc32(file) != record.crc32:
            raise _unlike(place)


def _unlike(place: Path) -> BuildError:
    return BuildError(
        f"{place} is not the shard that this build makes: a source with other files, or another library, made it; "
        "remove that folder, then run again"
    )


def row_bytes(fields: Mapping[str, FieldSpec]) -> int:
    """Returns the bytes of one row, the sum over all fields but lists, and one at least."""
    return max(1, sum(spec.row_bytes for spec in fields.values() if not spec.is_list))
