"""Checks the store against its source: for some or all rows, every value against the reference.

It returns verdicts by kind of file, and the rows with the largest differences, with the pixels of both. Several threads
decode; only the worst rows are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor

from mmload.errors import SampleError
from mmload.parity.aggregate import RowAggregate, RowComparison
from mmload.parity.known_faults import signature
from mmload.parity.labels import classes_verdict, labels_verdict, rows_verdict
from mmload.parity.pixel_differences import Difference
from mmload.parity.reference import Reference, ReferenceMaker
from mmload.parity.verdict import Verdict, WorstRow
from mmload.parity.whole_rows import jpeg_expected, stored_row
from mmload.runtime.thread_pools import available_cores, single_op_pool
from mmload.sources import SourceSplit
from mmload.store.dataset import Split

Progress = Callable[[int, int], None]
"""Called with (rows done, all rows)."""

_OF_EACH_KIND = 8  # lower bound on the checked rows of every file ending


def check_store(
    split: Split,
    source: SourceSplit,
    recipe: Mapping[str, Any],
    *,
    rows: int | None,
    seed: int,
    threads: int | None = None,
    progress: Progress | None = None,
) -> tuple[list[Verdict], list[WorstRow]]:
    """Compare a split with its source.

    Args:
        split: the stored split.
        source: the current source.
        recipe: the recipe in the manifest.
        rows: number of rows to decode; None: all.
        seed: selects the rows.
        threads: decoding threads; None takes the cores available.
        progress: called with the rows done and all rows.

    Raises:
        UsageError: if the recipe has no torchvision equivalent.
        StoreError: if the store cannot be read.
    """
    ordered, found = rows_verdict(split, source, recipe)
    labels = labels_verdict(split, source, recipe, found)
    verdicts = [ordered, classes_verdict(split, source, recipe), *([labels] if labels else [])]
    matched = [row for row, index in enumerate(found) if index >= 0]
    chosen = _chosen(matched, [PurePath(source.id(found[row])).suffix.lower() for row in matched], rows, seed)
    references = ReferenceMaker(source, recipe)
    size = threads or available_cores()
    pool = single_op_pool(size, "mmload-parity")
    rows_seen = RowAggregate(split, references, recipe["store"].get("quality"))
    try:
        for done, compared in enumerate(_compared(pool, size, split, references, chosen, found, recipe), 1):
            rows_seen.add(compared)
            if progress is not None:
                progress(done, len(chosen))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    worst = rows_seen.worst()
    return verdicts + rows_seen.verdicts(worst), worst


def _chosen(known: Sequence[int], endings: Sequence[str], rows: int | None, seed: int) -> list[int]:
    """Rows selected at random, and some rows of every file ending, in row order."""
    if rows is None or rows >= len(known):
        return list(known)
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed)).tolist()
    chosen = set(order[:rows])
    seen: Counter[str] = Counter()
    for at in order:
        seen[endings[at]] += 1
        if seen[endings[at]] <= _OF_EACH_KIND:
            chosen.add(at)
    return sorted(known[at] for at in chosen)


def _compared(
    pool: ThreadPoolExecutor,
    size: int,
    split: Split,
    references: ReferenceMaker,
    chosen: Sequence[int],
    found: Sequence[int],
    recipe: Mapping[str, Any],
) -> Iterator[RowComparison]:
    """Compare rows in the pool, a few ahead, and yield the comparisons in order."""
    for start in range(0, len(chosen), 4 * size):
        part = chosen[start : start + 4 * size]
        yield from pool.map(lambda row: _compare_row(split, references, row, found[row], recipe), part)


def _compare_row(
    split: Split, references: ReferenceMaker, row: int, index: int, recipe: Mapping[str, Any]
) -> RowComparison:
    """Compare one row with its reference."""
    stored = stored_row(split, row)
    sample = references.split.id(index)
    try:
        reference = references.of(index)
    except SampleError as error:
        return RowComparison(row=row, sample=sample, stored=stored, reference=None, reason=str(error))
    faults = tuple(_fields_apart(stored, reference))
    mine, right = stored.get("images"), reference.images
    if mine is None or right is None:
        return RowComparison(row=row, sample=sample, stored=stored, reference=reference, faults=faults)
    if mine.shape != right.shape:
        reason = f"{sample}: stored as {list(mine.shape)}, the recipe gives {list(right.shape)}"
        return RowComparison(row=row, sample=sample, stored=stored, reference=reference, reason=reason, faults=faults)
    jpeg = jpeg_expected(split, row, reference, recipe["store"])
    pillow = reference.pillow if jpeg is None else None  # which a JPEG's loss would hide
    expected = right if jpeg is None else jpeg
    return RowComparison(
        row=row,
        sample=sample,
        stored=stored,
        reference=replace(reference, images=expected),
        tensor=Difference.of(mine, expected),
        pillow=None if pillow is None else Difference.of(mine, pillow),
        loss=None if jpeg is None else Difference.of(mine, right).psnr,
        signatures=(signature(mine), signature(expected)),
        faults=faults,
    )


def _fields_apart(stored: Mapping[str, Tensor], reference: Reference) -> list[tuple[str, float]]:
    """Every field except the images, and its largest difference from the reference; infinite for different shapes."""
    count = int(stored["counts"]) if "counts" in stored else 0
    boxed = "boxes" in reference.fields
    apart = []
    for name, right in reference.fields.items():
        if name not in stored:
            apart.append((name, float("inf")))
            continue
        real = boxed and name in ("boxes", "labels", "difficult")
        apart.append((name, _greatest(stored[name][:count] if real else stored[name], right)))
    return apart


def _greatest(stored: Tensor, right: Tensor) -> float:
    if stored.shape != right.shape:
        return float("inf")
    if not stored.numel():
        return 0.0
    a, b = stored.to(torch.float64), right.to(torch.float64)
    same = (a == b) | (a.isnan() & b.isnan())
    return float(torch.where(same, 0.0, (a - b).abs().nan_to_num(nan=float("inf"))).max())
