"""Estimates the bytes of rows of their own sizes from a few samples, to plan shards before any is built."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mmload.builder.chunk_assembly import ChunkAssembly
from mmload.builder.shard_job import finished, row_bytes
from mmload.builder.transforms import TransformChain
from mmload.builder.whole_layout import WholeLayout
from mmload.errors import SampleError
from mmload.records import FieldSpec
from mmload.sources import SourceSplit
from mmload.store.whole_rows import WholeRows

PROBES = 32
"""Samples that an estimate is of, evenly spread over a split."""

_MARGIN = 1.1  # shards are planned for rows that are larger than those of the estimate


def probes(samples: int, count: int = PROBES) -> list[int]:
    """Which of so many samples an estimate looks at."""
    return sorted(set(np.linspace(0, samples - 1, min(count, samples)).astype(int).tolist()))


def row_size(
    split: SourceSplit, chain: TransformChain, fields: Mapping[str, FieldSpec], whole: WholeLayout | None
) -> int:
    """Bytes of a row: exact where all rows have one size, else the mean over :data:`PROBES` samples.

    A function of the source and the recipe alone, as shards are planned by it. Unreadable samples are left out.
    """
    if whole is None:
        return row_bytes(fields)
    assembly = ChunkAssembly(fields, PROBES, whole)
    for index in probes(len(split)):
        try:
            assembly.add(finished(split, index, chain))
        except SampleError as error:
            assembly.skip(error)
    chunk = assembly.finish()
    if not chunk.samples:
        return 1
    sizes = [rows.bytes.nbytes if isinstance(rows, WholeRows) else rows.nbytes for rows in chunk.fields.values()]
    return max(1, sum(sizes) // len(chunk.samples))


def whole_samples_per_shard(row: int, shard_bytes: int) -> int:
    """Samples per shard, of rows of about so many bytes; shards may be larger where some rows are."""
    return max(1, int(shard_bytes / (_MARGIN * row)))
