"""Builds one shard: reads, decodes and transforms samples of a split, and writes them in order.

Takes a plan and returns the summary of the finished shard, whose bytes do not depend on the number of threads. Engines
decide where it runs (:class:`Engine`). A job is independent of other shards. It cuts its plan into
chunks, each of which a thread assembles from its samples.

Several processes may write the same shard at the same time: each writes it in a folder of its own, then moves it in one
step. Either copy may stay, because its bytes depend on its plan alone; their equality is checked. This
needs only that the file system creates folders exclusively and renames atomically, as seen from every machine; no
locks.
"""

from __future__ import annotations

import hashlib
import io
import math
import secrets
import shutil
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from mmload.builder.recipe import VariableLayout
from mmload.builder.shards import (
    LISTS,
    PARTS,
    BuildPaths,
    Chunk,
    SampleOrigin,
    ShardPlan,
    ShardSummary,
    ShardWriter,
    array_of,
    bytes_of,
    copy_and_sum,
    reported,
    stored_dtype,
)
from mmload.builder.transforms import Pixels, TransformChain
from mmload.errors import BuildError, RecipeError, SampleError
from mmload.records import (
    BOXES,
    BOXES_CUT,
    BOXES_DROPPED,
    IMAGES_EMPTIED,
    ONLY_VOID,
    VOID,
    FieldSpec,
    ObjectsRecord,
    Sample,
    dtype_name,
    has_images,
)
from mmload.remote.urls import Location
from mmload.runtime.files import TOKEN_BYTES, sync_folder
from mmload.runtime.resources import in_threads
from mmload.sources import FetchesAhead, HasChecksums, HasObjects, ReadsBlocks, SourceSplit, Splittable
from mmload.store.checksum import crc32, file_crc32
from mmload.store.variable_rows import JPEG, RAW, Bytes, variable_rows

if TYPE_CHECKING:
    from mmload.records import FieldValue
    from mmload.runtime.host_memory import MemoryPool

OnProgress = Callable[[int, int], None]
"""Called with (samples done, of which skipped) after each chunk; an exception that it raises aborts the shard."""

JPEG_SIDE = 65_500
"""The most pixels of a side of a JPEG, as libjpeg has it."""

_CHUNK_BYTES = 2 * 2**20
_CHUNK_ROWS = 256
_VARIABLE_CHUNK_ROWS = 4  # variable-size images: each takes milliseconds
_TRIED_BYTES = 64 * 2**20
_HASH_BYTES = 6  # fewer bits than a float has
_SUBSAMPLING_420 = 2


class TriedSamples:
    """Samples that a build reads before their shards, to find fields and the sizes of rows; few enough are kept."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], Sample] = {}
        self._room = _TRIED_BYTES

    def __call__(self, split: SourceSplit, index: int, chain: TransformChain) -> Sample:
        """Returns what :func:`finished` does."""
        sample = self.kept(split, index)
        if sample is None:
            sample = finished(split, index, chain)
            self._room -= sum(tensor.nbytes for tensor in sample.fields.values()) + len(sample.encoded or b"")
            if self._room > 0:
                self._kept[id(split), index] = sample
        return sample

    def kept(self, split: SourceSplit, index: int) -> Sample | None:
        """Returns a sample that was kept, else None."""
        return self._kept.get((id(split), index))


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """Everything needed to build any shard, except its plan. Picklable, so that it can be sent to worker processes.

    Attributes:
        splits: the splits to read samples from.
        fields: for each split, the fields of a row: those of its samples, and of an update those that were added.
        chain: the transforms.
        paths: the paths of shards.
        shuffle_seed: None, or the key of the permutation of samples over rows.
        skip: skip unreadable samples instead of aborting the build.
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
        return split.part(self.rows_of(plan)[1]) if isinstance(split, Splittable) else None

    def rows_of(self, plan: ShardPlan, samples: SourceSplit | None = None) -> tuple[SourceSplit, Sequence[int]]:
        """Returns a split and the numbers of its samples in the order of a plan's rows.

        ``samples`` are those of :meth:`samples`, if the job came without them.
        """
        if samples is not None:
            return samples, range(len(samples))
        split = self.splits[plan.split]
        return split, row_order(plan.start, plan.stop, len(split), self.shuffle_seed)

    def folders(self) -> tuple[Path, ...]:
        """Returns the folders that must be there on every machine that builds a shard."""
        return (self.root, self.paths.folder) if isinstance(self.root, Path) else (self.paths.folder,)

    def build_shard(
        self, plan: ShardPlan, threads: int, on_progress: OnProgress, samples: SourceSplit | None = None
    ) -> ShardSummary:
        """Builds one shard in a folder of its own, and moves it to its place.

        At most twice as many chunks as threads are in flight, which bounds the memory. ``samples`` are those of
        :meth:`samples`, if the job came without them.

        Raises:
            SampleError: if a sample is unreadable and must not be skipped.
            RecipeError: if a sample's fields or shapes differ from those of the others.
            BuildError: if writing fails.
        """
        return write_shard(self.paths, plan, self.fields[plan.split], self.chunks(plan, threads, samples), on_progress)

    def chunks(self, plan: ShardPlan, threads: int, samples: SourceSplit | None = None) -> Generator[Chunk]:
        """Returns the rows of a shard in order, decoded but not written."""
        stopped, fields = threading.Event(), self.fields[plan.split]
        split, order = self.rows_of(plan, samples)
        make = partial(self._chunk, split, fields, stopped)
        return in_threads(_parts(split, order, chunk_rows(fields)), make, threads, stopped)

    def _chunk(
        self, split: SourceSplit, fields: Mapping[str, FieldSpec], stopped: threading.Event, indices: Sequence[int]
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
                sample = self.tried.kept(split, index) or finished(split, index, self.chain, assembly.next_image())
                assembly.add(sample, *_origin(split, index, sample.checksum))
            except SampleError as error:
                if not self.skip:
                    raise
                assembly.skip(error)
        return assembly.finish()


class Engine(Protocol):
    """Runs shards. Duties: run every plan once, in any order and place; leave nothing running on return.

    A shard may be begun again while a worker that was given up still writes it: each is written apart.
    """

    def build_shards(self, job: ShardJob, plans: Sequence[ShardPlan], on_progress: OnProgress) -> None:
        """Builds the shards.

        ``on_progress`` is called in this thread with the progress; an exception that it raises ends the run.
        """


def _parts(split: SourceSplit, order: Sequence[int], rows: int) -> Iterator[Sequence[int]]:
    """Yields the samples of each chunk; those that take long to come are fetched from then on."""
    for start in range(0, len(order), rows):
        if isinstance(split, FetchesAhead):
            split.fetch_ahead(order[start : start + rows])
        yield order[start : start + rows]


def _origin(split: SourceSplit, index: int, checksum: str) -> tuple[str, str]:
    """Returns revision and checksum of a sample; "" if its source cannot tell what has changed.

    ``checksum`` is that of :attr:`Sample.checksum`; without it, the sample's files are read once more.
    """
    if not isinstance(split, HasChecksums):
        return "", ""
    return split.revision(index), checksum or split.checksum(index)


def objects_of(split: SourceSplit) -> ObjectsRecord | None:
    """Returns the description of the objects in a split's images; None if it has none."""
    return split.objects() if isinstance(split, HasObjects) else None


def row_order(start: int, stop: int, count: int, shuffle_seed: int | None) -> Sequence[int]:
    """Returns the samples of rows [start, stop) of a split with ``count`` samples."""
    if shuffle_seed is None:
        return range(start, stop)
    from mmload.runtime.random_words import permuted

    return permuted(range(start, stop), count, shuffle_seed)


def chunk_rows(fields: Mapping[str, FieldSpec]) -> int:
    """Returns the rows per call of a thread: 1 to 256, about 2 MiB, so that the overhead per call is small."""
    if any(spec.variable_size for spec in fields.values()):
        return _VARIABLE_CHUNK_ROWS
    return max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // row_bytes(fields)))


# A chunk: samples to rows.


@cache
def _memory() -> MemoryPool:
    """Returns the pool of chunks, as the page faults of a fresh chunk cost more than its copies."""
    from mmload.runtime.host_memory import MemoryPool

    return MemoryPool(spare=64)


def fill_value(spec: FieldSpec) -> float:
    """Returns the value of an added field in new rows: NaN, -1 of signed integers, 0 of others."""
    if "float" in spec.dtype:
        return math.nan
    return -1 if spec.dtype.startswith("int") else 0


def no_values(spec: FieldSpec, rows: int) -> npt.NDArray[Any]:
    """Returns so many rows of an added field that have no value yet."""
    import torch  # which has bfloat16

    return array_of(torch.full((rows, *spec.shape), fill_value(spec), dtype=spec.torch_dtype, device="cpu"))


class ChunkAssembly:
    """The rows of a chunk under construction, at most ``capacity``."""

    def __init__(self, fields: Mapping[str, FieldSpec], capacity: int, variable_layout: VariableLayout | None) -> None:
        self._fields = {name: spec for name, spec in fields.items() if not spec.version}
        alike = {name: spec for name, spec in self._fields.items() if spec.encoding is None}
        self._variable: dict[str, list[tuple[Bytes, int, tuple[int, int]]]] = {  # bytes, encoding, (height, width)
            name: [] for name in self._fields if name not in alike
        }
        self._rows = {name: _memory().array((capacity, *of.shape), of.array_dtype) for name, of in alike.items()}
        self._images = self._rows["images"] if has_images(alike) else None
        self._channels = fields["images"].channels if has_images(fields) else 0
        self._added = {name: no_values(spec, capacity) for name, spec in fields.items() if spec.version}
        self._chunk, self._variable_layout = Chunk(fields={}), variable_layout

    def next_image(self) -> Pixels | None:
        """Returns the memory for the next image, uint8 [C, H, W]: a transform that writes to it saves a copy."""
        return None if self._images is None else self._images[len(self._chunk.samples)]

    def add(self, sample: Sample, revision: str = "", checksum: str = "") -> None:
        """Appends a sample as the next row.

        Raises:
            RecipeError: if its fields or shapes differ from those of the others.
            SampleError: if its image cannot be encoded.
        """
        self._check(sample)
        others = dict(sample.fields)
        sums = self._add_image(sample, others.pop("images")) if self._channels else {}  # first: it may fail
        for name, values in others.items():
            if name in self._rows:
                self._rows[name][len(self._chunk.samples)] = values
            elif name in self._variable:
                size = (0, 0) if self._fields[name].is_list else (values.shape[-2], values.shape[-1])
                self._variable[name].append((bytes_of(values), RAW, size))
        self._chunk.samples.append((sample.id, sample.size))
        losses = {loss: count for loss, count in sample.losses.items() if count}
        self._chunk.origins.append(SampleOrigin(revision=revision, checksum=checksum, losses=losses, **sums))

    def _check(self, sample: Sample) -> None:
        for name, spec in self._fields.items():
            array, own = sample.fields.get(name), slice(1, None) if spec.is_list else slice(len(spec.fixed_shape))
            got = None if array is None else (array.dtype, array.ndim, array.shape[own])
            if got != (spec.array_dtype, len(spec.shape), spec.fixed_shape):
                has = "missing" if array is None else f"{stored_dtype(array)} {list(array.shape)}"
                advice = ", so end the transforms with a CenterCrop, a Letterbox or an exact Resize"
                raise RecipeError(
                    f"{sample.id}: field {name} is {has}, the first sample's is {spec.dtype} {list(spec.shape)}; "
                    f"every row has one shape and dtype{advice if name in ('images', 'masks') else ''}"
                )

    def _add_image(self, sample: Sample, image: Pixels) -> dict[str, Any]:
        """Copies an image to its row, or encodes one of its own size; returns its sums, without a border."""
        layout, sums = self._variable_layout, np.zeros((2, self._channels), np.int64)
        height, width = image.shape[-2:]
        inside = sample.inside or (0, 0, height, width)
        row = self.next_image()
        if row is None:
            row = np.empty((height, self._channels, width), np.uint8)
        copy_and_sum(image.ctypes.data, *image.strides, row, sums, layout is not None, *inside)
        if layout is not None:
            self._variable["images"].append((*encoded(sample, row, layout), (height, width)))
        return {"sums": sums[0].tolist(), "squares": sums[1].tolist(), "pixels": inside[2] * inside[3]}

    def skip(self, error: SampleError) -> None:
        """Skips a sample that is unreadable."""
        self._chunk.skipped.append((error.sample, error.reason))

    def finish(self) -> Chunk:
        """Returns the chunk of all appended rows."""
        memory = {**self._rows, **self._added}
        rows = {name: array[: len(self._chunk.samples)] for name, array in memory.items()}
        variable = {}
        for name, own in self._variable.items():
            sizes, encodings = [size for *_, size in own], [encoding for _, encoding, _ in own]
            variable[name] = variable_rows([row for row, *_ in own], sizes, encodings, self._fields[name].channels)
        return replace(self._chunk, fields={**rows, **variable}, memory=[*memory.values()])


def encoded(sample: Sample, lines: Pixels, layout: VariableLayout) -> tuple[Bytes, int]:
    """Returns the bytes of a sample's image, whose pixels are ``lines`` uint8 [H, C, W], and their encoding.

    Raises:
        SampleError: if it is too large for a JPEG.
    """
    if layout.encode == "raw" or (layout.encode == "mixed" and is_raw(sample.id, layout.raw_share)):
        return lines.reshape(-1), RAW
    if layout.encode == "source" and sample.encoded is not None:
        return np.frombuffer(sample.encoded, np.uint8), JPEG
    height, _, width = lines.shape
    if max(height, width) > JPEG_SIDE:
        raise SampleError(
            sample.id, f"it is {width} x {height}, and a JPEG has at most {JPEG_SIDE:,} pixels a side; use --encode raw"
        )
    return jpeg_of(lines, layout.quality), JPEG


def jpeg_of(lines: Pixels, quality: int) -> Bytes:
    """Returns a baseline JPEG with 4:2:0 subsampling and a restart marker after each line of blocks.

    Pillow reads ``lines``, uint8 [H, C, W] of 1 or 3 channels, as they are ("RGB;L"): pixels are not interleaved first.
    """
    height, channels, width = lines.shape
    mode, order = ("RGB", "RGB;L") if channels == 3 else ("L", "L")
    image, file = Image.frombytes(mode, (width, height), lines.data, "raw", order), io.BytesIO()
    image.save(file, "JPEG", quality=quality, subsampling=_SUBSAMPLING_420, restart_marker_rows=1)
    return np.frombuffer(file.getbuffer(), np.uint8)


def is_raw(sample: str, share: float) -> bool:
    """Returns whether a row of a mixed field is pixels: a hash of the sample's id, below the share of all hashes."""
    digest = hashlib.blake2b(sample.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES).digest()
    return int.from_bytes(digest, "little") < share * 256.0**_HASH_BYTES


def finished(split: SourceSplit, index: int, chain: TransformChain, out: Pixels | None = None) -> Sample:
    """Returns a sample, read and transformed; its image is in ``out`` if the last transform can write to it.

    Raises:
        SampleError: if it is unreadable, or a transform does not support it.
    """
    sample = _in_arrays(split.read(index))
    _check_sizes(sample)
    try:
        done = chain(sample, out)
        if done.encoded is not None and done.fields["images"] is not sample.fields["images"]:
            done = replace(done, encoded=None)
        return _with_counts(sample, done)
    except (ValueError, RuntimeError) as error:
        raise SampleError(sample.id, f"cannot be transformed ({str(error).partition(chr(10))[0]})") from error


def samples_checksum(split: SourceSplit, samples: Iterable[int], chain: TransformChain) -> int:
    """Returns the CRC-32 of the ids of samples and, of those that can be read, their fields and own JPEGs.

    Machines that get the same make the same shards, if their libraries are the same, too.
    """
    crc = 0
    for index in samples:
        crc = crc32(split.id(index).encode("utf-8", "surrogatepass"), crc)
        with suppress(SampleError):  # its shard reports it
            sample = finished(split, index, chain)
            for name, array in sorted(sample.fields.items()):
                crc = crc32(bytes_of(array), crc32(f"{name} {array.dtype} {[*array.shape]}".encode(), crc))
            crc = crc32(sample.encoded or b"", crc)
    return crc


def _in_arrays(sample: Sample) -> Sample:
    """Returns a sample whose fields are arrays; raises RecipeError for a dtype that a dataset cannot store."""
    for name, values in sample.fields.items():
        if dtype_name(values.dtype) is None:
            raise RecipeError(f"{sample.id}: field {name} is of dtype {values.dtype}, which a dataset cannot store")
    return replace(sample, fields={name: array_of(values) for name, values in sample.fields.items()})


def _with_counts(read: Sample, done: Sample) -> Sample:
    """Returns a transformed sample with all losses: those of its source, dropped boxes, and a mask without class."""
    losses = dict(read.losses)
    if "boxes" in read.fields and "counts" in read.fields:
        before, after = int(read.fields["counts"]), int(done.fields["counts"])
        losses |= {
            BOXES: before,
            BOXES_DROPPED: before - after,
            BOXES_CUT: 0 if done.cut is None else int(done.cut.sum()),
            IMAGES_EMPTIED: int(before > 0 and after == 0),
        }
    if "masks" in read.fields:
        mask = read.fields["masks"]
        background, void = int((mask == 0).sum()), int((mask == VOID).sum())
        losses[ONLY_VOID] = int(void > 0 and background + void == mask.size)
    return replace(done, losses=losses) if losses else done


def _check_sizes(sample: Sample) -> None:
    """Checks that no field is empty, boxes are a list, and a mask has its image's size: else crops would not match."""
    for name, array in sample.fields.items():
        if not array.size and name not in sample.lists:
            raise SampleError(sample.id, f"{name} is empty, of shape {list(array.shape)}")
    if "boxes" in sample.fields and "boxes" not in sample.lists:
        raise SampleError(sample.id, "boxes is not among the lists of its source; give boxes without padding as a list")
    images, masks = sample.fields.get("images"), sample.fields.get("masks")
    if images is not None and masks is not None and masks.shape[-2:] != images.shape[-2:]:
        (height, width), (rows, columns) = images.shape[-2:], masks.shape[-2:]
        raise SampleError(sample.id, f"its mask is {columns} x {rows}, the image {width} x {height}; make them equal")


def chunk_of_block(
    split: SourceSplit, block: Mapping[str, FieldValue], indices: range, fields: Mapping[str, FieldSpec]
) -> Chunk:
    """Returns a chunk of rows that the source itself has finished.

    Raises:
        BuildError: if they differ from the samples that the source returned individually.
    """
    rows, origins = {name: np.ascontiguousarray(array_of(block[name])) for name in fields}, list[SampleOrigin]()
    for name, spec in fields.items():
        if rows[name].shape != (len(indices), *spec.shape) or rows[name].dtype != spec.array_dtype:
            raise BuildError(f"the source's read_rows gives another {name} than its read; use another source")
    size: Any = tuple(fields["images"].shape[-2:]) if "images" in fields else None
    if has_images(fields):
        sums = np.zeros((2, fields["images"].channels), np.int64)
        for image in rows["images"]:
            copy_and_sum(image.ctypes.data, *image.strides, image, sums, False, 0, 0, *size)
        own, squares = sums.tolist()
        pixels = len(indices) * math.prod(size)
        origins.append(SampleOrigin(revision="", sums=own, squares=squares, pixels=pixels))  # one for all rows
    return Chunk(fields=rows, samples=[(split.id(index), size) for index in indices], origins=origins)


def row_bytes(fields: Mapping[str, FieldSpec]) -> int:
    """Returns the bytes of one row, the sum over all fields but lists, and one at least."""
    return max(1, sum(spec.row_bytes for spec in fields.values() if not spec.is_list))


# Shards of several processes in one folder.


def write_shard(
    paths: BuildPaths,
    plan: ShardPlan,
    fields: Mapping[str, FieldSpec],
    chunks: Generator[Chunk],
    on_progress: OnProgress = lambda samples, skipped: None,
) -> ShardSummary:
    """Writes one shard in a folder of its own, and moves it to its place.

    Raises:
        BuildError: if writing fails.
    """
    with closing(chunks), private_paths(paths) as own:
        with closing(ShardWriter(own, plan.split, plan.index, fields)) as writer:
            for chunk in chunks:
                writer.write(chunk)
                on_progress(len(chunk.samples) + len(chunk.skipped), len(chunk.skipped))
            summary = writer.seal()
        publish(own, paths, plan.split, plan.index, summary)
    return summary


@contextmanager
def private_paths(shared: BuildPaths) -> Iterator[BuildPaths]:
    """Yields the paths of a folder for one shard inside a build's; removes it at the end.

    Raises:
        BuildError: if the folder cannot be created.
    """
    folder = shared.folder / PARTS / secrets.token_hex(TOKEN_BYTES)
    with reported(folder.parent):
        shared.check_there()
        folder.parent.mkdir(exist_ok=True)
        folder.mkdir()
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
    with reported(place):
        shared.check_there()  # before a later command's shard is compared with this one
        if (sealed := shared.sealed(split, index)) is not None:
            if sealed.record != summary.record:
                raise _unlike(place)
            return
        shared.make_folders(split)
        try:
            own.shard(split, index).rename(place)
        except OSError:
            if not place.is_dir():
                raise
            _check_equal(place, summary)
        for name in LISTS:
            own.list_file(split, index, name).replace(shared.list_file(split, index, name))
        sync_folder(place.parent)
        own.summary_file(split, index).replace(summary_file)
        sync_folder(summary_file.parent)


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
