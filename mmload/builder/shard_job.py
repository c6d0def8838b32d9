"""Builds one shard: reads, decodes and transforms samples of a split, and writes them in order.

Takes a plan and returns the summary of the finished shard, whose bytes do not depend on the number of threads. Engines
decide where it runs (:mod:`mmload.builder.engines`). A job is independent of other shards.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import torch

from mmload.builder.chunk_assembly import ChunkAssembly, chunk_of_block
from mmload.builder.private_shards import private_paths, publish
from mmload.builder.sample_geometry import Pixels
from mmload.builder.staging import attend
from mmload.builder.transforms import TransformChain
from mmload.builder.whole_layout import WholeLayout
from mmload.cloud.urls import Location
from mmload.errors import BuildError, RecipeError, SampleError
from mmload.records import FieldSpec, Sample, dtype_name
from mmload.runtime.permutation import permute
from mmload.runtime.thread_pools import single_op_pool
from mmload.sources import FetchesAhead, ReadsBlocks, SourceSplit, Splittable
from mmload.store.losses import with_box_losses
from mmload.store.shard_writer import BuildPaths, Chunk, ShardSummary, ShardWriter

OnProgress = Callable[[int, int], None]
"""Called with (samples done, of which skipped) after each chunk; an exception that it raises aborts the shard."""

_CHUNK_BYTES = 2 * 2**20
_CHUNK_ROWS = 256
_OWN_CHUNK_ROWS = 4  # of their own sizes, each of which takes milliseconds
_PAGES = (65536, 16384, 4096)
_SMALL_SHARE = 0.01  # of a row's bytes
_LOSS = 8  # padding to whole pages may take an eighth of a shard's rows


@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """One shard: planned rows [start, stop) of a split."""

    split: str
    index: int
    start: int
    stop: int


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
        apart: write each shard in a folder of its own, then move it, as other processes may build the same one.
        whole: how images of their own sizes are stored; None: all rows have one size.
        root: where the source is.
    """

    splits: Mapping[str, SourceSplit]
    fields: Mapping[str, Mapping[str, FieldSpec]]
    chain: TransformChain
    paths: BuildPaths
    shuffle_seed: int | None = None
    skip: bool = False
    alone: bool = False
    apart: bool = False
    whole: WholeLayout | None = None
    root: Path | Location | None = None

    def common(self) -> ShardJob:
        """The job without the samples that :meth:`samples` returns; every worker process receives it once."""
        unsplittable = {name: split for name, split in self.splits.items() if not isinstance(split, Splittable)}
        return replace(self, splits=unsplittable)

    def samples(self, plan: ShardPlan) -> SourceSplit | None:
        """The samples of one plan, in the order of its rows; None if they were sent with the job."""
        split = self.splits[plan.split]
        if not isinstance(split, Splittable):
            return None
        return split.part(self._samples(len(split), plan.start, plan.stop))

    def of(self, plan: ShardPlan, samples: SourceSplit) -> ShardJob:
        """The job for this plan alone, over the samples that :meth:`samples` returned for it."""
        return replace(self, splits={plan.split: samples}, alone=True)

    def folders(self) -> tuple[Path, ...]:
        """The folders that must be there on every machine that builds a shard."""
        return (self.root, self.paths.folder) if isinstance(self.root, Path) else (self.paths.folder,)

    def rehearse(self, plan: ShardPlan) -> int:
        """The CRC-32 of what :meth:`chunks` gives of a plan; machines that get the same make the same shards.

        Raises:
            MmloadError: as when a shard is built.
        """
        crc = 0
        with single_op_pool(1, "mmload-build") as pool:
            for chunk in self.chunks(plan, pool, 1):
                crc = zlib.crc32(repr((chunk.samples, [name for name, _ in chunk.skipped])).encode(), crc)
                for name, rows in sorted(chunk.fields.items()):
                    crc = zlib.crc32((rows.numpy() if isinstance(rows, torch.Tensor) else rows.bytes).tobytes(), crc)
                    crc = zlib.crc32(name.encode(), crc)
        return crc

    def attend(self) -> BinaryIO:
        """A lock that a worker process holds while it is alive. See :func:`mmload.builder.staging.attend`."""
        return attend(self.paths)

    def __call__(
        self, plan: ShardPlan, pool: ThreadPoolExecutor, threads: int, on_progress: OnProgress
    ) -> ShardSummary:
        """Build one shard.

        Args:
            plan: the shard to build.
            pool: the decoding threads.
            threads: number of threads; at most twice as many chunks are in flight, which bounds the memory.
            on_progress: called after each chunk.

        Raises:
            SampleError: if a sample is unreadable and must not be skipped.
            RecipeError: if a sample's fields or shapes differ from those of the others.
            BuildError: if writing fails.
        """
        if self.apart:
            with private_paths(self.paths) as own:
                summary = replace(self, paths=own, apart=False)(plan, pool, threads, on_progress)
                publish(own, self.paths, plan.split, plan.index, summary)
            return summary
        fields = self.fields[plan.split]
        writer = ShardWriter(self.paths, plan.split, plan.index, fields, plan.stop - plan.start)
        try:
            for chunk in self.chunks(plan, pool, threads):
                writer.write(chunk)
                on_progress(len(chunk.samples) + len(chunk.skipped), len(chunk.skipped))
        except BaseException:
            writer.abandon()
            raise
        return writer.seal()

    def chunks(self, plan: ShardPlan, pool: ThreadPoolExecutor, threads: int) -> Iterator[Chunk]:
        """The rows of a shard in order, decoded but not written."""
        split, fields = self.splits[plan.split], self.fields[plan.split]
        rows = chunk_rows(fields)
        under_way: deque[Future[Chunk]] = deque()
        stopped = threading.Event()
        try:
            for start in range(plan.start, plan.stop, rows):
                stop = min(start + rows, plan.stop)
                numbers = range(start - plan.start, stop - plan.start)
                indices = numbers if self.alone else self._samples(len(split), start, stop)
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

    def _samples(self, count: int, start: int, stop: int) -> Sequence[int]:
        """The sample index of each planned row."""
        if self.shuffle_seed is None:
            return range(start, stop)
        order: list[int] = permute(torch.arange(start, stop), count, self.shuffle_seed).tolist()
        return order

    def _chunk(
        self, split: SourceSplit, indices: Sequence[int], fields: Mapping[str, FieldSpec], stopped: threading.Event
    ) -> Chunk:
        """Decode samples; checks for cancellation between samples, so that Ctrl-C waits for one, not for 256."""
        blocks = isinstance(indices, range) and not self.chain.steps and self.whole is None
        if blocks and isinstance(split, ReadsBlocks) and isinstance(indices, range):
            return chunk_of_block(split, split.read_rows(indices.start, indices.stop), indices, fields)
        assembly = ChunkAssembly(fields, len(indices), self.whole)
        for index in indices:
            if stopped.is_set():
                raise CancelledError
            try:
                assembly.add(finished(split, index, self.chain, assembly.next_image()))
            except SampleError as error:
                if not self.skip:
                    raise
                assembly.skip(error)
        return assembly.finish()


def plan_shards(name: str, samples: int, shard_samples: int) -> list[ShardPlan]:
    """Divide a split into shards of ``shard_samples`` samples."""
    return [
        ShardPlan(split=name, index=index, start=start, stop=min(start + shard_samples, samples))
        for index, start in enumerate(range(0, samples, shard_samples))
    ]


def most_samples(fields: Mapping[str, FieldSpec], shard_bytes: int) -> int:
    """Number of samples that fit into a shard of ``shard_bytes``, at least one."""
    return max(1, shard_bytes // row_bytes(fields))


def samples_per_shard(samples: int, fields: Mapping[str, FieldSpec], shard_bytes: int) -> int:
    """Samples per shard of a split.

    If there are several shards, files are whole pages where that costs at most an eighth of the rows: then they can be
    mapped contiguously (:attr:`mmload.store.dataset.Split.data`). Pages are 4 KiB on most machines, 16 or 64
    KiB on others. Small fields, which are read into memory there, are ignored; if not all large fields can have whole
    pages, the images have priority.
    """
    most = most_samples(fields, shard_bytes)
    if most >= samples:
        return most
    large = [spec for spec in fields.values() if spec.row_bytes > _SMALL_SHARE * row_bytes(fields)]
    for specs in (large, [fields["images"]] if "images" in fields else []):
        for page in _PAGES if specs else ():
            step = max(page // math.gcd(page, spec.row_bytes) for spec in specs)
            if most % step <= most // _LOSS:
                return most - most % step
    return most


def row_bytes(fields: Mapping[str, FieldSpec]) -> int:
    """Bytes of one row, the sum over all fields."""
    return sum(spec.row_bytes for spec in fields.values())


def chunk_rows(fields: Mapping[str, FieldSpec]) -> int:
    """Rows decoded per call of a thread: 1 to 256, about 2 MiB, so that the overhead per call is small."""
    if any(spec.own_sizes for spec in fields.values()):
        return _OWN_CHUNK_ROWS
    return max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // row_bytes(fields)))


def finished(split: SourceSplit, index: int, chain: TransformChain, out: Pixels | None = None) -> Sample:
    """A sample, read and transformed; its image is in ``out`` if the last transform can write to it.

    Raises:
        SampleError: if it is unreadable, or a transform does not support it.
    """
    sample = split.read(index)
    _check_sizes(sample)
    try:
        done = chain(sample, out)
        if done.encoded is not None and done.fields["images"] is not sample.fields["images"]:
            done = replace(done, encoded=None)
        return with_box_losses(sample, done)
    except (ValueError, RuntimeError) as error:
        raise SampleError(sample.id, f"cannot be transformed ({str(error).partition(chr(10))[0]})") from error


def _check_sizes(sample: Sample) -> None:
    """Check that no field is empty, and that a mask has its image's size: else the crops would not match."""
    for name, tensor in sample.fields.items():
        if not tensor.numel():
            raise SampleError(sample.id, f"{name} is empty, of shape {list(tensor.shape)}")
    images, masks = sample.fields.get("images"), sample.fields.get("masks")
    if images is not None and masks is not None and masks.shape[-2:] != images.shape[-2:]:
        (height, width), (rows, columns) = images.shape[-2:], masks.shape[-2:]
        raise SampleError(sample.id, f"its mask is {columns} x {rows}, the image {width} x {height}; make them equal")


def fields_of(
    split: SourceSplit, chain: TransformChain, skip: bool, whole: WholeLayout | None = None
) -> dict[str, FieldSpec]:
    """The fields of every row, derived from the first readable sample.

    Raises:
        SampleError: if the first sample is unreadable and must not be skipped.
        BuildError: if no sample is readable.
        RecipeError: if a store does not support a field.
    """
    for index in range(len(split)):
        try:
            sample = finished(split, index, chain)
        except SampleError:
            if not skip:
                raise
            continue
        fields = {}
        for name, tensor in sample.fields.items():
            dtype = dtype_name(tensor.dtype)
            if dtype is None:
                raise RecipeError(f"{sample.id}: field {name} is of dtype {tensor.dtype}, which a store cannot hold")
            fields[name] = FieldSpec(dtype=dtype, shape=tuple(tensor.shape))
        return fields if whole is None else whole.fields(fields)
    raise BuildError("not one sample can be read; run without --on-error skip to see why")
