"""Assembles the samples of a chunk into rows, with their statistics.

Takes samples that are read and transformed; :mod:`mmload.builder.shard_job` decides which.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.builder.row_encoding import OwnRows, encoded
from mmload.builder.sample_geometry import Pixels
from mmload.builder.whole_layout import WholeLayout
from mmload.errors import BuildError, RecipeError, SampleError
from mmload.records import FieldSpec, Sample
from mmload.runtime.memory_pool import MemoryPool
from mmload.sources import SourceSplit
from mmload.store.losses import first_names, total_losses
from mmload.store.shard_writer import Chunk
from mmload.store.whole_rows import RAW

_MEMORY = MemoryPool(spare=64)
"""Reused, because the page faults of a fresh chunk cost more than its copies."""


class ChunkAssembly:
    """The rows of a chunk under construction.

    Args:
        fields: of every row.
        capacity: upper bound on the rows.
        whole: how images of their own sizes are stored; None: all rows have one size.
    """

    def __init__(self, fields: Mapping[str, FieldSpec], capacity: int, whole: WholeLayout | None) -> None:
        # Imports numba, which a build with workers does not need, and neither does a scan.
        from mmload.builder import row_statistics

        self._fields, self._statistics, self._whole = fields, row_statistics, whole
        alike = {name: spec for name, spec in fields.items() if not spec.own_sizes}
        self._own = {name: OwnRows(spec.channels) for name, spec in fields.items() if spec.own_sizes}
        self._tensors = {name: _MEMORY.empty((capacity, *of.shape), of.torch_dtype) for name, of in alike.items()}
        self._arrays = {name: _array(rows) for name, rows in self._tensors.items()}
        self._images = self._arrays["images"] if has_images(alike) else None
        self._summed = has_images(fields)
        self._sums = row_statistics.no_sums(fields["images"].channels if self._summed else 0)
        self._pixels = 0
        self._samples: list[tuple[str, tuple[int, int] | None]] = []
        self._skipped: list[tuple[str, str]] = []
        self._losses: list[tuple[str, Mapping[str, int]]] = []

    def next_image(self) -> Pixels | None:
        """The memory for the next sample's image, uint8 [C, H, W]: a transform that writes to it saves a copy."""
        return None if self._images is None else self._images[len(self._samples)]

    def add(self, sample: Sample) -> None:
        """Append a sample as the next row.

        Raises:
            RecipeError: if its fields or shapes differ from those of the others.
        """
        place = len(self._samples)
        self._check(sample)
        for name, own in self._own.items():  # first, as a sample may still be left out here
            self._add_own(name, own, sample)
        for name, rows in self._arrays.items():
            tensor = sample.fields[name]
            if name == "images" and self._images is not None:
                self._add_image(_array(tensor), rows[place], sample.inside)
            else:
                rows[place] = _array(tensor)
        self._samples.append((sample.id, sample.size))
        if sample.losses:
            self._losses.append((sample.id, sample.losses))

    def _check(self, sample: Sample) -> None:
        for name, spec in self._fields.items():
            tensor = sample.fields.get(name)
            fixed = len(spec.shape) - (2 if spec.own_sizes else 0)
            fits = tensor is not None and tensor.dtype == spec.torch_dtype and tensor.ndim == len(spec.shape)
            if tensor is None or not fits or tuple(tensor.shape[:fixed]) != spec.shape[:fixed]:
                raise _misfit(sample, name, spec)

    def _add_own(self, name: str, own: OwnRows, sample: Sample) -> None:
        """Append an image or mask of its own size.

        Raises:
            SampleError: if it cannot be encoded.
        """
        pixels = _array(sample.fields[name])
        if self._whole is None or name != "images":
            height, width = pixels.shape[-2:]
            own.add(np.ascontiguousarray(pixels).reshape(-1), RAW, height, width)
            return
        channels, height, width = pixels.shape
        lines, sums = np.empty((height, channels, width), np.uint8), np.zeros_like(self._sums)
        inside = sample.inside or (0, 0, height, width)
        self._statistics.copy_lines_and_sum(pixels, lines, sums, *inside)
        own.add(*encoded(sample, lines, self._whole), height, width)
        self._sums += sums
        self._pixels += inside[2] * inside[3]

    def _add_image(self, image: Pixels, row: Pixels, inside: tuple[int, int, int, int] | None) -> None:
        """Copy an image; a border, outside of ``inside``, is excluded from the sums."""
        if inside is None:
            self._statistics.copy_and_sum(image, row, self._sums)
            self._pixels += image.shape[1] * image.shape[2]
        else:
            self._statistics.copy_and_sum_part(image, row, self._sums, *inside)
            self._pixels += inside[2] * inside[3]

    def skip(self, error: SampleError) -> None:
        """Skip a sample that is unreadable."""
        self._skipped.append((error.sample, error.reason))

    def finish(self) -> Chunk:
        """The chunk of all appended rows."""
        rows = {name: tensor[: len(self._samples)] for name, tensor in self._tensors.items()}
        return Chunk(
            fields={**rows, **{name: own.finish() for name, own in self._own.items()}},
            samples=self._samples,
            skipped=self._skipped,
            sums=torch.from_numpy(self._sums) if self._summed else None,
            class_counts=_class_counts(rows),
            pixels=self._pixels,
            losses=total_losses(losses for _, losses in self._losses),
            first=first_names((name, [id_]) for id_, losses in self._losses for name, count in losses.items() if count),
        )


def chunk_of_block(
    split: SourceSplit, block: Mapping[str, Tensor], indices: range, fields: Mapping[str, FieldSpec]
) -> Chunk:
    """A chunk of rows that the source itself has finished.

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
    targets = rows.get("targets")
    if targets is None or targets.ndim != 1 or targets.dtype != torch.int64:
        return {}
    return dict(Counter(targets.tolist()))


def has_images(fields: Mapping[str, FieldSpec]) -> bool:
    """Whether rows have images, for which statistics are stored."""
    return "images" in fields and fields["images"].dtype == "uint8" and len(fields["images"].shape) == 3


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    """A numpy view, whose operations take a third of the time of torch's; bfloat16 is viewed as plain 16 bits."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy(force=True)


def _misfit(sample: Sample, name: str, spec: FieldSpec) -> RecipeError:
    tensor = sample.fields.get(name)
    got = "missing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    return RecipeError(
        f"{sample.id}: field {name} is {got}, the first sample's is {spec.dtype} {list(spec.shape)}; "
        "every row has one shape, so end the transforms with a CenterCrop, a Letterbox or an exact Resize"
    )
