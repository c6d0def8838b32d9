"""Makes rows of samples: reads, transforms and encodes them, and adds up their statistics.

:mod:`mmload.builder.shard_job` decides which samples are in a chunk.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from operator import sub
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from mmload.builder.origins import SampleOrigin
from mmload.builder.recipe import VariableLayout
from mmload.builder.shards import Chunk, first_names, total_losses
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
    Sample,
    has_images,
)
from mmload.sources import SourceSplit
from mmload.store.variable_rows import JPEG, RAW, Bytes, VariableRows, variable_rows

if TYPE_CHECKING:
    from torch import Tensor

    from mmload.runtime.memory_pool import MemoryPool

JPEG_SIDE = 65_500
"""The most pixels of a side of a JPEG, as libjpeg has it."""

_TRIED_BYTES = 64 * 2**20
_HASH_BYTES = 6  # fewer bits than a float has
_HASHES = 2.0**48
_SUBSAMPLING_420 = 2


@cache
def _memory() -> MemoryPool:
    """Returns the pool of chunks, as the page faults of a fresh chunk cost more than its copies."""
    from mmload.runtime.memory_pool import MemoryPool

    return MemoryPool(spare=64)


class ChunkAssembly:
    """The rows of a chunk under construction, at most ``capacity``."""

    def __init__(self, fields: Mapping[str, FieldSpec], capacity: int, variable_layout: VariableLayout | None) -> None:
        from mmload.builder import row_statistics

        self._fields, self._statistics, self._variable_layout = fields, row_statistics, variable_layout
        alike = {name: spec for name, spec in fields.items() if spec.encoding is None}
        self._variable = {
            name: VariableRowsAssembly(spec.channels) for name, spec in fields.items() if spec.encoding is not None
        }
        self._tensors = {name: _memory().empty((capacity, *of.shape), of.torch_dtype) for name, of in alike.items()}
        self._arrays = {name: _array(rows) for name, rows in self._tensors.items()}
        self._images = self._arrays["images"] if has_images(alike) else None
        self._summed = has_images(fields)
        self._sums = row_statistics.no_sums(fields["images"].channels if self._summed else 0)
        self._pixels = 0
        self._samples: list[tuple[str, tuple[int, int] | None]] = []
        self._skipped: list[tuple[str, str]] = []
        self._losses: list[tuple[str, Mapping[str, int]]] = []
        self._origins: list[SampleOrigin] = []

    def next_image(self) -> Pixels | None:
        """Returns the memory for the next image, uint8 [C, H, W]: a transform that writes to it saves a copy."""
        return None if self._images is None else self._images[len(self._samples)]

    def add(self, sample: Sample, origin: SampleOrigin | None = None) -> None:
        """Appends a sample as the next row; its origin, if given, is recorded with its statistics.

        Raises:
            RecipeError: if its fields or shapes differ from those of the others.
        """
        place, pixels, sums = len(self._samples), self._pixels, self._sums.tolist()
        self._check(sample)
        for name, own in self._variable.items():  # first, as a sample may still be left out here
            self._add_variable_size(name, own, sample)
        for name, rows in self._arrays.items():
            tensor = sample.fields[name]
            if name == "images" and self._images is not None:
                self._add_image(_array(tensor), rows[place], sample.inside)
            else:
                rows[place] = _array(tensor)
        self._samples.append((sample.id, sample.size))
        if sample.losses:
            self._losses.append((sample.id, sample.losses))
        if origin is not None:
            added = [[*map(sub, *channels)] for channels in zip(self._sums.tolist(), sums, strict=True)]
            self._origins.append(
                msgspec.structs.replace(
                    origin,
                    sums=added[0],
                    squares=added[1],
                    pixels=self._pixels - pixels,
                    losses={name: count for name, count in sample.losses.items() if count},
                )
            )

    def _check(self, sample: Sample) -> None:
        for name, spec in self._fields.items():
            tensor = sample.fields.get(name)
            fits = tensor is not None and tensor.dtype == spec.torch_dtype and tensor.ndim == len(spec.shape)
            own = slice(1, None) if spec.is_list else slice(len(spec.fixed_shape))
            if tensor is None or not fits or tuple(tensor.shape[own]) != spec.fixed_shape:
                raise _misfit(sample, name, spec)

    def _add_variable_size(self, name: str, own: VariableRowsAssembly, sample: Sample) -> None:
        """Appends an image or mask of its own size, or a list; raises SampleError if it cannot be encoded."""
        pixels = _array(sample.fields[name])
        if self._fields[name].is_list:
            own.add(np.ascontiguousarray(pixels).reshape(-1).view(np.uint8), RAW, 0, 0)
            return
        if self._variable_layout is None or name != "images":
            height, width = pixels.shape[-2:]
            own.add(np.ascontiguousarray(pixels).reshape(-1), RAW, height, width)
            return
        channels, height, width = pixels.shape
        lines, sums = np.empty((height, channels, width), np.uint8), np.zeros_like(self._sums)
        inside = sample.inside or (0, 0, height, width)
        self._statistics.copy_lines_and_sum(pixels, lines, sums, *inside)
        own.add(*encoded(sample, lines, self._variable_layout), height, width)
        self._sums += sums
        self._pixels += inside[2] * inside[3]

    def _add_image(self, image: Pixels, row: Pixels, inside: tuple[int, int, int, int] | None) -> None:
        """Copies an image; a border, outside of ``inside``, is excluded from the sums."""
        if inside is None:
            self._statistics.copy_and_sum(image, row, self._sums)
            self._pixels += image.shape[1] * image.shape[2]
        else:
            self._statistics.copy_and_sum_part(image, row, self._sums, *inside)
            self._pixels += inside[2] * inside[3]

    def skip(self, error: SampleError) -> None:
        """Skips a sample that is unreadable."""
        self._skipped.append((error.sample, error.reason))

    def finish(self) -> Chunk:
        """Returns the chunk of all appended rows."""
        import torch

        rows = {name: tensor[: len(self._samples)] for name, tensor in self._tensors.items()}
        return Chunk(
            fields={**rows, **{name: own.finish() for name, own in self._variable.items()}},
            samples=self._samples,
            skipped=self._skipped,
            sums=torch.from_numpy(self._sums) if self._summed else None,
            class_counts=_class_counts(rows),
            pixels=self._pixels,
            origins=self._origins,
            losses=total_losses(losses for _, losses in self._losses),
            first=first_names((name, [id_]) for id_, losses in self._losses for name, count in losses.items() if count),
        )


class VariableRowsAssembly:
    """Variable-size rows or lists of one field, as they are added."""

    def __init__(self, channels: int) -> None:
        self._channels = channels
        self._rows: list[Bytes] = []
        self._sizes: list[tuple[int, int]] = []
        self._encodings: list[int] = []

    def add(self, row: Bytes, encoding: int, height: int, width: int) -> None:
        """Appends a row."""
        self._rows.append(row)
        self._encodings.append(encoding)
        self._sizes.append((height, width))

    def finish(self) -> VariableRows:
        """All rows, one after another."""
        return variable_rows(self._rows, self._sizes, self._encodings, self._channels)


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
    return int.from_bytes(digest, "little") < share * _HASHES


def finished(split: SourceSplit, index: int, chain: TransformChain, out: Pixels | None = None) -> Sample:
    """Returns a sample, read and transformed; its image is in ``out`` if the last transform can write to it.

    Raises:
        SampleError: if it is unreadable, or a transform does not support it.
    """
    sample = split.read(index)
    _check_sizes(sample)
    try:
        done = chain(sample, out)
        if done.encoded is not None and done.fields["images"] is not sample.fields["images"]:
            done = replace(done, encoded=None)
        return _with_counts(sample, done)
    except (ValueError, RuntimeError) as error:
        raise SampleError(sample.id, f"cannot be transformed ({str(error).partition(chr(10))[0]})") from error


class TriedSamples:
    """Samples that a build reads before their shards, to find fields, sizes and its probe; few enough are kept."""

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

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Returns the (height, width) of the images of all kept samples in their files, by id."""
        return {sample.id: sample.size for sample in self._kept.values() if sample.size is not None}

    def kept(self, split: SourceSplit, index: int) -> Sample | None:
        """Returns a sample that was kept, else None."""
        return self._kept.get((id(split), index))


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
        losses[ONLY_VOID] = int(void > 0 and background + void == mask.numel())
    return replace(done, losses=losses) if losses else done


def _check_sizes(sample: Sample) -> None:
    """Checks that no field is empty, and that a mask has its image's size: else the crops would not match."""
    for name, tensor in sample.fields.items():
        if not tensor.numel() and name not in sample.lists:
            raise SampleError(sample.id, f"{name} is empty, of shape {list(tensor.shape)}")
    images, masks = sample.fields.get("images"), sample.fields.get("masks")
    if images is not None and masks is not None and masks.shape[-2:] != images.shape[-2:]:
        (height, width), (rows, columns) = images.shape[-2:], masks.shape[-2:]
        raise SampleError(sample.id, f"its mask is {columns} x {rows}, the image {width} x {height}; make them equal")


def chunk_of_block(
    split: SourceSplit, block: Mapping[str, Tensor], indices: range, fields: Mapping[str, FieldSpec]
) -> Chunk:
    """Returns a chunk of rows that the source itself has finished.

    Raises:
        BuildError: if they differ from the samples that the source returned individually.
    """
    from mmload.builder.row_statistics import channel_sums

    for name, spec in fields.items():
        if block[name].shape != (len(indices), *spec.shape) or block[name].dtype != spec.torch_dtype:
            raise BuildError(f"the source's read_rows gives another {name} than its read; use another source")
    size: Any = tuple(fields["images"].shape[-2:]) if "images" in fields else None
    rows = {name: block[name].contiguous() for name in fields}
    summed = has_images(fields)
    return Chunk(
        fields=rows,
        samples=[(split.id(index), size) for index in indices],
        skipped=[],
        sums=channel_sums(rows["images"]) if summed else None,
        class_counts=_class_counts(rows),
        pixels=len(indices) * math.prod(fields["images"].shape[1:]) if summed else 0,
    )


def _class_counts(rows: Mapping[str, Tensor]) -> dict[int, int]:
    import torch

    targets = rows.get("targets")
    if targets is None or targets.ndim != 1 or targets.dtype != torch.int64:
        return {}
    return dict(Counter(targets.tolist()))


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    """Views a tensor as numpy's, whose operations take a third of the time; bfloat16 is viewed as plain 16 bits."""
    import torch

    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy(force=True)


def _misfit(sample: Sample, name: str, spec: FieldSpec) -> RecipeError:
    tensor = sample.fields.get(name)
    got = "missing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    advice = ", so end the transforms with a CenterCrop, a Letterbox or an exact Resize"
    return RecipeError(
        f"{sample.id}: field {name} is {got}, the first sample's is {spec.dtype} {list(spec.shape)}; "
        f"every row has one shape and dtype{advice if name in ('images', 'masks') else ''}"
    )
