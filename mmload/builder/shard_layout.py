"""Divides the splits of a source into shards: the fields of a row, its size, and which samples each shard has.

All are functions of the source and the recipe alone, so every process plans the same shards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mmload.builder.chunk_assembly import ChunkAssembly, TriedSamples
from mmload.builder.recipe import VariableLayout
from mmload.builder.transforms import TransformChain
from mmload.errors import BuildError, RecipeError, SampleError
from mmload.records import LIST, VARIABLE, FieldSpec, dtype_name
from mmload.sources import SourceSplit
from mmload.store.variable_rows import VariableRows

PROBES = 32
"""Number of samples for an estimate, evenly spread over a split."""

_PAGES = (65536, 16384, 4096)
_SMALL_SHARE = 0.01  # of a row's bytes
_LOSS = 8  # padding to page boundaries may take an eighth of a shard's rows
_MARGIN = 1.1  # shards are planned for rows that are larger than those of the estimate


@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """One shard: planned rows [start, stop) of a split."""

    split: str
    index: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class ShardLayout:
    """Division of the splits into shards; every attribute is keyed by split.

    Attributes:
        fields: fields of a row.
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


def plan_shards(name: str, samples: int, shard_samples: int, first: int = 0) -> list[ShardPlan]:
    """Divides a split into shards of ``shard_samples`` samples, numbered from ``first`` on."""
    return [
        ShardPlan(split=name, index=index, start=start, stop=min(start + shard_samples, samples))
        for index, start in enumerate(range(0, samples, shard_samples), first)
    ]


def samples_per_shard(samples: int, fields: Mapping[str, FieldSpec], shard_bytes: int) -> int:
    """Returns the samples per shard of a split.

    If there are several shards, files are multiples of a page where that costs at most an eighth of the rows: then they
    can be mapped contiguously (:attr:`mmload.store.dataset.Split.data`). Pages are 4 KiB on most machines, 16 or 64
    KiB on others. Small fields, which are read into memory there, are ignored; if not all large fields can have whole
    pages, the images have priority.
    """
    most = max(1, shard_bytes // row_bytes(fields))
    if most >= samples:
        return most
    fixed = [spec for spec in fields.values() if not spec.is_list]
    large = [spec for spec in fixed if spec.row_bytes > _SMALL_SHARE * row_bytes(fields)]
    for specs in (large, [fields["images"]] if "images" in fields else []):
        for page in _PAGES if specs else ():
            step = max(page // math.gcd(page, spec.row_bytes) for spec in specs)
            if most % step <= most // _LOSS:
                return most - most % step
    return most


def row_bytes(fields: Mapping[str, FieldSpec]) -> int:
    """Returns the bytes of one row, the sum over all fields but lists, and one at least."""
    return max(1, sum(spec.row_bytes for spec in fields.values() if not spec.is_list))


def fields_of(
    split: SourceSplit,
    chain: TransformChain,
    skip: bool,
    variable_layout: VariableLayout | None = None,
    tried: TriedSamples | None = None,
) -> dict[str, FieldSpec]:
    """Derives the fields of every row from the first readable sample; takes it from those that were ``tried`` before.

    Raises:
        SampleError: if the first sample is unreadable and must not be skipped.
        BuildError: if no sample is readable.
        RecipeError: if a store does not support a field.
    """
    read = tried or TriedSamples()
    for index in range(len(split)):
        try:
            sample = read(split, index, chain)
        except SampleError:
            if not skip:
                raise
            continue
        fields = {}
        for name, tensor in sample.fields.items():
            dtype = dtype_name(tensor.dtype)
            if dtype is None:
                raise RecipeError(f"{sample.id}: field {name} is of dtype {tensor.dtype}, which a dataset cannot store")
            if name in sample.lists:
                fields[name] = FieldSpec(dtype=dtype, shape=(VARIABLE, *tensor.shape[1:]), encoding=LIST)
            else:
                fields[name] = FieldSpec(dtype=dtype, shape=tuple(tensor.shape))
        return fields if variable_layout is None else variable_layout.fields(fields)
    raise BuildError("not one sample can be read; run without --on-error skip to see why")


def probes(samples: int, count: int = PROBES) -> list[int]:
    """Chooses samples for an estimate, evenly spread over so many."""
    return sorted(set(np.linspace(0, samples - 1, min(count, samples)).astype(int).tolist()))


def row_size(
    split: SourceSplit,
    chain: TransformChain,
    fields: Mapping[str, FieldSpec],
    variable_layout: VariableLayout | None,
    tried: TriedSamples,
) -> int:
    """Returns the bytes of a row: exact if all rows have one size and no lists, else a mean of :data:`PROBES` samples.

    A function of the source and the recipe alone, as shards are planned by it. Unreadable samples are left out.
    """
    if variable_layout is None and not any(spec.is_list for spec in fields.values()):
        return row_bytes(fields)
    assembly = ChunkAssembly(fields, PROBES, variable_layout)
    for index in probes(len(split)):
        try:
            assembly.add(tried(split, index, chain))
        except SampleError as error:
            assembly.skip(error)
    chunk = assembly.finish()
    if not chunk.samples:
        return 1
    sizes = [rows.bytes.nbytes if isinstance(rows, VariableRows) else rows.nbytes for rows in chunk.fields.values()]
    return max(1, sum(sizes) // len(chunk.samples))


def variable_samples_per_shard(row: int, shard_bytes: int) -> int:
    """Returns the samples per shard of rows of about so many bytes; shards may be larger where some rows are."""
    return max(1, int(shard_bytes / (_MARGIN * row)))
