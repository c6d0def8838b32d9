"""Checks the store against its source: order, classes, labels and proportions of all rows, every value of some or all.

It returns verdicts by kind of file, and the rows with the largest differences, with the pixels of both. Several threads
decode; only the worst rows stay in memory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.datasets.folder import find_classes

from mmload.errors import SampleError, StoreError, counted
from mmload.parity.known_faults import signature
from mmload.parity.reference import Reference, ReferenceMaker, jpeg_expected
from mmload.parity.report import Verdict, WorstRow
from mmload.parity.row_differences import Difference, RowAggregate, RowComparison
from mmload.runtime.random_words import permute
from mmload.runtime.regular_files import read_regular
from mmload.runtime.resources import available_cores, single_op_pool
from mmload.sources import SourceSplit
from mmload.sources.imagefolder import SPLIT_NAMES, ImageFolderSplit
from mmload.store.dataset import Split
from mmload.store.manifest import SAMPLES_NAME, SKIPPED_NAME

_KEEP_PROPORTIONS = ("Shrink", "Resize", "Grayscale", "RGB")


def rows_verdict(split: Split, source: SourceSplit, recipe: Mapping[str, Any]) -> tuple[Verdict, list[int]]:
    """Finds the source's sample of every row.

    Returns:
        The verdict, and for each row the sample's index; -1 where the source has no such sample.
    """
    verdict = partial(Verdict.judged, split.name, "rows")
    folder, record = split.path / split.name, split.record
    names = _ids(folder / record.list_name(SAMPLES_NAME))
    left_out = set(_ids(folder / record.list_name(SKIPPED_NAME))) if record.skipped_count else set()
    count = len(source)
    seed = recipe["store"].get("shuffle_seed")
    order = range(count) if seed is None else permute(torch.arange(count, device="cpu"), count, seed).tolist()
    expected = [index for index in order if source.id(index) not in left_out]
    index_of = {source.id(index): index for index in expected}
    found = [index_of.get(name, -1) for name in names]
    if found == expected:
        expected_order = "the source's order" if seed is None else f"the order of shuffle_seed {seed}"
        return verdict(True, f"{counted(len(names), 'row')} made from the source's samples, in {expected_order}"), found
    lost = sum(index < 0 for index in found)
    odd = sum(mine != theirs for mine, theirs in zip(found, expected, strict=False)) + abs(len(found) - len(expected))
    text = (
        f"{odd:,} of {counted(len(names), 'row')} are not of the sample in their place; {lost:,} of none in the source"
    )
    missing = len(set(expected) - set(found))
    looks = f"{counted(missing, 'sample')} of the source in no row" if missing else "the same samples in another order"
    return verdict(False, text, looks, rows=len(names), odd=odd, lost=lost), found


def classes_verdict(split: Split, source: SourceSplit, recipe: Mapping[str, Any]) -> Verdict:
    """Checks class names and their order; for an ImageFolder, against torchvision's list."""
    verdict = partial(Verdict.judged, split.name, "classes")
    folder = class_folder(source, recipe)
    listed = source.classes if folder is None else tuple(find_classes(folder)[0])
    by = "the source's" if folder is None else "torchvision's"
    if split.classes == listed:
        return verdict(True, f"{counted(len(listed), 'class', 'classes')}, in {by} order", classes=len(listed))
    odd = [name for name in dict.fromkeys((*listed, *split.classes)) if (name in listed) != (name in split.classes)]
    if odd:
        text, looks = f"{counted(len(odd), 'class', 'classes')} only in one of both: {_first_of(odd)}", ""
    else:
        wrong = [name for name, other in zip(split.classes, listed, strict=True) if name != other]
        text, looks = (
            f"{len(wrong)} of {counted(len(listed), 'class', 'classes')} are at another index: {_first_of(wrong)}",
            "class order is permuted",
        )
    return verdict(False, text, looks, classes=len(listed))


def labels_verdict(
    split: Split, source: SourceSplit, recipe: Mapping[str, Any], found: Sequence[int]
) -> Verdict | None:
    """Checks every row's label, if the source provides labels without decoding and has a row's sample; else None."""
    verdict = partial(Verdict.judged, split.name, "labels")
    listed = listed_labels(source, recipe)
    if listed is None or "targets" not in split.fields:
        return None
    rows = torch.tensor([row for row, index in enumerate(found) if index >= 0], dtype=torch.int64, device="cpu")
    if not len(rows):  # the verdict on rows fails already
        return None
    stored = split.reader.gather("targets", rows)
    right = listed[torch.tensor([index for index in found if index >= 0], dtype=torch.int64, device="cpu")]
    if stored.shape != right.shape:
        return verdict(False, f"labels have the shape {list(stored.shape)}, not {list(right.shape)}")
    wrong = (stored != right).flatten(1).any(1) if stored.dim() > 1 else stored != right
    if not wrong.any():
        return verdict(True, f"{counted(len(rows), 'label')} equal", labels=len(rows), wrong=0)
    first = int(wrong.nonzero()[0])
    text = (
        f"{int(wrong.sum()):,} of {counted(len(rows), 'label')} are wrong; the first: row {int(rows[first])} "
        f"({source.id(found[int(rows[first])])}) is {stored[first].tolist()}, not {right[first].tolist()}"
    )
    looks = labels_look_like(stored, right, len(source.classes)) if stored.dtype == torch.int64 else ""
    return verdict(False, text, looks, labels=len(rows), wrong=int(wrong.sum()))


def proportions_verdict(split: Split, recipe: Mapping[str, Any]) -> Verdict | None:
    """Checks that every variable-size row has its photograph's proportions, so that its crops cover the photograph.

    Returns:
        None if rows have one size, the recipe cuts or distorts images, or the sizes of the photographs are unknown.
    """
    verdict = partial(Verdict.judged, split.name, "proportions")
    images = split.fields.get("images")
    if images is None or not images.variable_size or not all(map(_keeps_proportions, recipe["transforms"])):
        return None
    sizes = [source.size for source in split.source(slice(None))]
    if any(size is None for size in sizes):
        return None
    stored = split.files.field("images").sizes.astype(np.int64)
    photographs = np.array(sizes, np.int64)
    rotated = (photographs[:, 0] > photographs[:, 1]) != (stored[:, 0] > stored[:, 1])
    photographs[rotated] = photographs[rotated][:, ::-1]  # as the file says, and turned when it was decoded
    # With proportions kept exactly the products are equal; a side that is rounded by a pixel moves one of them by the
    # other side.
    difference = np.abs(stored[:, 0] * photographs[:, 1] - stored[:, 1] * photographs[:, 0])
    wrong = np.flatnonzero(difference > photographs.max(1))
    rows = len(stored)
    if not len(wrong):
        text = f"{counted(rows, 'row')} as wide for their height as their photographs"
        return verdict(True, text, rows=rows, wrong=0)
    first = int(wrong[0])
    (high, wide), (height, width) = stored[first].tolist(), photographs[first].tolist()
    text = (
        f"{len(wrong):,} of {counted(rows, 'row')} are cut or distorted; the first: row {first} has "
        f"{high} x {wide} pixels, its original {height} x {width}"
    )
    return verdict(False, text, rows=rows, wrong=len(wrong))


def _keeps_proportions(step: Mapping[str, Any]) -> bool:
    """Returns whether a step of a recipe neither cuts nor distorts images."""
    return step["step"] in _KEEP_PROPORTIONS and not isinstance(step.get("size"), list | tuple)


def labels_look_like(stored: Tensor, right: Tensor, classes: int) -> str:
    """Returns the known fault that explains wrong class indices, int64 [N]; empty if there is none."""
    shift = (stored - right) % max(classes, 1)
    if bool((stored - right == stored[0] - right[0]).all()):
        return f"labels are shifted by {int(stored[0] - right[0]):+d}"
    if bool((shift == shift[0]).all()):
        return f"labels are shifted by {int(shift[0]):+d}, round {classes} classes"
    pairs = sorted(set(zip(right.tolist(), stored.tolist(), strict=True)))
    if len({a for a, _ in pairs}) == len(pairs) == len({b for _, b in pairs}):
        moved = [f"{a} is stored as {b}" for a, b in pairs if a != b]
        return f"class order is permuted: {_first_of(moved)}"
    for step, neighbor in ((1, "before"), (-1, "after")):
        if bool((stored == right.roll(step)).all()):
            return f"labels are those of the row {neighbor}"
    return "all labels are the same" if bool((stored == stored[0]).all()) else ""


def listed_labels(source: SourceSplit, recipe: Mapping[str, Any]) -> Tensor | None:
    """Returns the label of every sample if known without decoding; for an ImageFolder, by torchvision's rule."""
    folder = class_folder(source, recipe)
    if isinstance(source, ImageFolderSplit) and folder is not None:
        number = find_classes(folder)[1]
        depth = len(folder.relative_to(source.root).parts)
        return torch.tensor([number[source.id(index).split("/")[depth]] for index in range(len(source))], device="cpu")
    targets = getattr(source, "targets", None)
    return targets if isinstance(targets, Tensor) else None


def class_folder(source: SourceSplit, recipe: Mapping[str, Any]) -> Path | None:
    """Returns the folder of an ImageFolder that contains the class folders of its samples; None for other sources."""
    if not isinstance(source, ImageFolderSplit):
        return None
    top = source.id(0).split("/")[0]
    named = recipe["source"].get("split_folders")
    inside = source.root / top
    if named is None:
        named = [top] if top in SPLIT_NAMES and any(entry.is_dir() for entry in inside.iterdir()) else []
    return inside if top in named else source.root


def _ids(path: Path) -> list[str]:
    try:
        return [json.loads(line)["id"] for line in read_regular(path).decode("utf-8").split("\n") if line]
    except OSError as error:
        raise StoreError(f"cannot read {path} ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is not a list of samples ({error}); run mmload verify") from error


def _first_of(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f", and {len(names) - 4} more" if len(names) > 4 else "")


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
    """Compares a split with its source: decodes some rows, or all, and looks at order, classes and labels of all.

    Raises:
        UsageError: if the recipe has no torchvision equivalent.
        StoreError: if the store cannot be read.
    """
    ordered, found = rows_verdict(split, source, recipe)
    optional = labels_verdict(split, source, recipe, found), proportions_verdict(split, recipe)
    verdicts = [ordered, classes_verdict(split, source, recipe), *(verdict for verdict in optional if verdict)]
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
    """Selects rows at random, and some rows of every file ending, in row order."""
    if rows is None or rows >= len(known):
        return list(known)
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed)).tolist()
    chosen = set(order[:rows])
    counts: Counter[str] = Counter()
    for at in order:
        counts[endings[at]] += 1
        if counts[endings[at]] <= _OF_EACH_KIND:
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
    """Compares rows in the pool, a few ahead, and yields the comparisons in order."""
    for start in range(0, len(chosen), 4 * size):
        part = chosen[start : start + 4 * size]
        yield from pool.map(lambda row: _compare_row(split, references, row, found[row], recipe), part)


def _compare_row(
    split: Split, references: ReferenceMaker, row: int, index: int, recipe: Mapping[str, Any]
) -> RowComparison:
    """Compares one row with its reference."""
    stored = _stored_row(split, row)
    sample = references.split.id(index)
    try:
        reference = references.for_sample(index)
    except SampleError as error:
        return RowComparison(row=row, sample=sample, stored=stored, reference=None, reason=str(error))
    faults = tuple(_field_differences(stored, reference))
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
        tensor=Difference.between(mine, expected),
        pillow=None if pillow is None else Difference.between(mine, pillow),
        loss=None if jpeg is None else Difference.between(mine, right).psnr,
        signatures=(signature(mine), signature(expected)),
        faults=faults,
    )


def _stored_row(split: Split, row: int) -> dict[str, Tensor]:
    """Reads the fields of a row; variable-size images and masks are decoded to pixels, lists have no padding."""
    number, reader = torch.tensor([row], device="cpu"), split.reader
    fields = {
        name: torch.from_numpy(reader.rows(name, number.numpy())[0])
        if spec.variable_size
        else reader.gather(name, number)[0]
        for name, spec in split.fields.items()
    }
    lists = [name for name, spec in split.record.fields.items() if spec.is_list]
    return fields | {name: fields[name][: reader.lists(name).counts(number.numpy())[0]] for name in lists}


def _field_differences(stored: Mapping[str, Tensor], reference: Reference) -> list[tuple[str, float]]:
    """Returns the largest difference of each field except the images; infinite for different shapes."""
    count = int(stored["counts"]) if "counts" in stored else 0
    boxed = "boxes" in reference.fields
    differences = []
    for name, right in reference.fields.items():
        if name not in stored:
            differences.append((name, float("inf")))
            continue
        real = boxed and name in ("boxes", "labels", "difficult")
        differences.append((name, _greatest(stored[name][:count] if real else stored[name], right)))
    return differences


def _greatest(stored: Tensor, right: Tensor) -> float:
    if stored.shape != right.shape:
        return float("inf")
    if not stored.numel():
        return 0.0
    a, b = stored.to(torch.float64), right.to(torch.float64)
    same = (a == b) | (a.isnan() & b.isnan())
    return float(torch.where(same, 0.0, (a - b).abs().nan_to_num(nan=float("inf"))).max())
