"""Checks a split against its source: order, classes and labels of all rows; pixels and other fields of some, or all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.datasets.folder import find_classes

from mmload.errors import SampleError, SourceError, StoreError, counted
from mmload.parity.reference import Reference, ReferenceMaker, is_jpeg, jpeg_expected
from mmload.parity.report import Tally, Verdict, apart, unreported
from mmload.records import Progress
from mmload.runtime.files import read_regular
from mmload.runtime.random_words import permuted
from mmload.runtime.resources import in_threads
from mmload.sources import KnowsTargets, SourceSplit
from mmload.sources.imagefolder import SPLIT_NAMES, ImageFolderSplit
from mmload.store.dataset import Split
from mmload.store.manifest import SAMPLES_NAME, SKIPPED_NAME

_OF_EACH_KIND = 8  # lower bound on the checked rows of every file ending
_PIXELS = "pixels of"
_MOVED = ("boxes", "keypoints", "corners", "polygons")
_MOVED_LIMIT = 1e-3  # pixels
_PADDED_LIMIT = 1.001  # pixels, of images that torchvision's CenterCrop pads


def check_lists(split: Split, source: SourceSplit, recipe: Mapping[str, Any]) -> tuple[list[Verdict], list[int]]:
    """Compares order, classes and labels of all rows of a split with its source; decodes nothing.

    Returns:
        The verdicts, and for each row the index of its sample; -1 where the source has no such sample.

    Raises:
        SourceError: if the source has none of the split's samples.
        StoreError: if the dataset cannot be read.
    """
    ordered, found = _check_order(split, source, recipe)
    folder = _class_folder(source, recipe)
    return [ordered, _check_classes(split, source, folder), *_check_labels(split, source, folder, found)], found


def check_rows(
    split: Split,
    source: SourceSplit,
    recipe: Mapping[str, Any],
    found: Sequence[int],
    *,
    rows: int | None,
    seed: int,
    threads: int | None = None,
    progress: Callable[[str], Progress] = unreported,
) -> list[Verdict]:
    """Compares pixels and other fields of some rows, or all, with their samples, decoded again.

    Raises:
        UsageError: if the recipe has no torchvision equivalent.
        StoreError: if the dataset cannot be read.
    """
    chosen = _chosen(source, found, rows, seed)
    references = ReferenceMaker(source, recipe)
    report = progress(f"comparing rows of {split.name} with the photographs, decoded again")
    compared = in_threads(chosen, partial(_compare_row, split, references, found, recipe), threads)
    return _verdicts(split.name, compared, len(chosen), report)


def _check_order(split: Split, source: SourceSplit, recipe: Mapping[str, Any]) -> tuple[Verdict, list[int]]:
    """Finds the source's sample of every row.

    Returns:
        The verdict, and for each row the sample's index; -1 where the source has no such sample.

    Raises:
        SourceError: if the source has none of the samples.
    """
    names = _ids(split, SAMPLES_NAME)
    left_out = set(_ids(split, SKIPPED_NAME)) if split.record.skipped_count else set()
    seed, count = recipe["store"].get("shuffle_seed"), len(source)
    order = range(count) if seed is None else permuted(range(count), count, seed)
    expected = [index for index in order if source.id(index) not in left_out]
    index_of = {source.id(index): index for index in expected}
    found = [index_of.get(name, -1) for name in names]
    if max(found) < 0:
        raise SourceError(
            f"this folder is not what {split.path} was built from: split {split.name!r} has no {names[0]}; give the "
            "folder that it was built from"
        )
    odd = [row for row, (mine, right) in enumerate(zip_longest(found, expected)) if mine != right]
    rows = counted(len(names), "row")
    place = "the source's order" if seed is None else f"the order of shuffle_seed {seed}"
    text = f"{rows} made from the source's samples, in {place}"
    if odd:
        missing = counted(len(set(expected) - set(found)), "sample")
        text = f"{len(odd):,} of {rows} are not in {place}; the first: row {odd[0]}; "
        text += f"{counted(found.count(-1), 'row')} of no sample of the source; {missing} of the source in no row"
    return Verdict.judged(split.name, "rows", not odd, text, rows=len(names), wrong=len(odd)), found


def _check_classes(split: Split, source: SourceSplit, folder: Path | None) -> Verdict:
    """Checks class names and their order; for an ImageFolder, against torchvision's list."""
    is_named = folder is None or (isinstance(source, ImageFolderSplit) and source.is_renamed)
    listed = source.classes if folder is None or is_named else tuple(find_classes(folder)[0])
    owner = "the source's" if is_named else "torchvision's"
    pairs = enumerate(zip_longest(split.classes, listed, fillvalue="missing"))
    wrong = [(at, mine, right) for at, (mine, right) in pairs if mine != right]
    text = classes = counted(len(listed), "class", "classes")
    if wrong:
        at, mine, right = wrong[0]
        text = f"{len(wrong):,} of {classes} are not {owner}; the first: class {at} is {mine}, not {right}"
    else:
        text += f", in {owner} order"
    return Verdict.judged(split.name, "classes", not wrong, text, classes=len(listed), wrong=len(wrong))


def _check_labels(split: Split, source: SourceSplit, folder: Path | None, found: Sequence[int]) -> Iterator[Verdict]:
    """Checks the label of every row of a known sample, if the source has labels without decoding."""
    listed = _listed_labels(source, folder)
    if listed is None or "targets" not in split.fields:
        return
    index = torch.tensor(found, dtype=torch.int64, device="cpu")
    rows = (index >= 0).nonzero().flatten()
    stored, right = split.reader.gather("targets", rows.numpy()), listed[index[rows]]
    if stored.shape != right.shape:
        text = f"labels have the shape {list(stored.shape[1:])}, not {list(right.shape[1:])}"
        yield Verdict.judged(split.name, "labels", False, text)
        return
    wrong = (stored != right).reshape(len(rows), -1).any(1).nonzero().flatten().tolist()
    text = labels = counted(len(rows), "label")
    if wrong:
        first = wrong[0]
        row = _row_text(int(rows[first]), source.id(found[int(rows[first])]))
        text = f"{len(wrong):,} of {labels} are wrong; the first: {row} is {stored[first].tolist()}, "
        text += f"not {right[first].tolist()}"
    else:
        text += " equal"
    yield Verdict.judged(split.name, "labels", not wrong, text, labels=len(rows), wrong=len(wrong))


def _listed_labels(source: SourceSplit, folder: Path | None) -> Tensor | None:
    """Returns the label of every sample if known without decoding; for an ImageFolder, by torchvision's rule."""
    if isinstance(source, ImageFolderSplit) and folder is not None:
        number, depth = find_classes(folder)[1], len(folder.relative_to(source.root).parts)
        return torch.tensor([number[source.id(index).split("/")[depth]] for index in range(len(source))], device="cpu")
    return source.known_targets() if isinstance(source, KnowsTargets) else None


def _class_folder(source: SourceSplit, recipe: Mapping[str, Any]) -> Path | None:
    """Returns the folder of an ImageFolder that contains the class folders of its samples; None for other sources."""
    if not isinstance(source, ImageFolderSplit):
        return None
    top = source.id(0).split("/")[0]
    inside, named = source.root / top, recipe["source"].get("split_folders")
    if named is None:
        named = SPLIT_NAMES if any(entry.is_dir() for entry in inside.iterdir()) else ()
    return inside if top in named else source.root


def _ids(split: Split, name: str) -> list[str]:
    """Returns the ids in one of the split's lists of samples."""
    path = split.path / split.name / split.record.list_name(name)
    try:
        return [json.loads(line)["id"] for line in read_regular(path).decode("utf-8").split("\n") if line]
    except OSError as error:
        raise StoreError(f"cannot read {path} ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is not a list of samples ({error}); run mmload verify") from error


def _chosen(source: SourceSplit, found: Sequence[int], rows: int | None, seed: int) -> list[int]:
    """Selects rows of known samples at random, and some rows of every file ending, in row order."""
    known = [row for row, index in enumerate(found) if index >= 0]
    if rows is None or rows >= len(known):
        return known
    shuffled = np.random.default_rng(seed).permutation(known).tolist()
    chosen, counts = set(shuffled[:rows]), Counter[str]()
    for row in shuffled:
        ending = PurePath(source.id(found[row])).suffix.lower()
        counts[ending] += 1
        if counts[ending] <= _OF_EACH_KIND:
            chosen.add(row)
    return sorted(chosen)


@dataclass(frozen=True, kw_only=True)
class _RowDifferences:
    """Differences of one row from its reference.

    Attributes:
        row: the row and its sample, as text.
        unread: why the sample cannot be read; empty if it can.
        by_design: why torchvision's ImageFolder would have other pixels; empty if it would not.
        differences: (property, difference, limit), without the properties of samples that cannot be read.
    """

    row: str
    unread: str = ""
    by_design: str = ""
    differences: tuple[tuple[str, float, float], ...] = ()


def _verdicts(part: str, compared: Iterable[_RowDifferences], rows: int, progress: Progress) -> list[Verdict]:
    """Returns a verdict per kind of file and per field, for unreadable samples, and a note per difference by design."""
    tallies: dict[str, Tally] = {}
    by_design: Counter[str] = Counter()
    unread = []
    for done, row in enumerate(compared, 1):
        progress(done, rows)
        if row.unread:
            unread.append(row.unread)
        if row.by_design:
            by_design[row.by_design] += 1
        for name, difference, limit in row.differences:
            unit = " levels" if name.startswith(_PIXELS) else " pixels" if name in _MOVED else ""
            tallies.setdefault(name, Tally(unit)).add(difference, row.row, limit)
    names = sorted(tallies, key=lambda name: (not name.startswith(_PIXELS), name))
    verdicts = [tallies[name].verdict(part, name) for name in names]
    if unread:
        text = f"{counted(len(unread), 'row')} cannot be compared; the first: {unread[0]}"
        verdicts.append(Verdict.judged(part, "reading", False, text, rows=len(unread)))
    for reason, count in sorted(by_design.items()):
        text = f"{counted(count, 'row')} unlike torchvision's ImageFolder on purpose: {reason} (docs/images.md)"
        verdicts.append(Verdict(part=part, name="by design", state="note", text=text))
    return verdicts


def _compare_row(
    split: Split, references: ReferenceMaker, found: Sequence[int], recipe: Mapping[str, Any], row: int
) -> _RowDifferences:
    """Compares one row with its reference."""
    stored, text = _stored_row(split, row), _row_text(row, references.split.id(found[row]))
    try:
        reference = references.for_sample(found[row])
    except SampleError as error:
        return _RowDifferences(row=text, unread=str(error))
    differences, by_design = _field_differences(stored, reference), reference.differs
    mine, right = stored.get("images"), reference.images
    if mine is not None and right is not None:
        name = f"{_PIXELS} {reference.kind}"
        if is_jpeg(split, row):
            name, right = f"{name}, stored as JPEG", jpeg_expected(split, row, right, reference.path, recipe["store"])
        if mine.shape != right.shape:
            text += f" has {list(mine.shape)}, the recipe gives {list(right.shape)}"
        differences.append((name, float(apart(mine, right).max()), 0.0))
    return _RowDifferences(row=text, by_design=by_design, differences=tuple(differences))


def _row_text(row: int, sample: str) -> str:
    return f"row {row} ({sample})"


def _stored_row(split: Split, row: int) -> dict[str, Tensor]:
    """Reads the fields of a row; variable-size images and masks are decoded to pixels, lists have no padding."""
    number, reader = np.array([row]), split.reader
    fields = {
        name: torch.from_numpy(reader.rows(name, number)[0]) if spec.variable_size else reader.gather(name, number)[0]
        for name, spec in split.fields.items()
    }
    lists = [name for name, spec in split.record.fields.items() if spec.is_list]
    return fields | {name: fields[name][: reader.lists(name).counts(number)[0]] for name in lists}


def _field_differences(stored: Mapping[str, Tensor], reference: Reference) -> list[tuple[str, float, float]]:
    """Returns (name, largest difference, limit) of each field except the images; infinite for different shapes."""
    real = slice(int(stored["counts"])) if "boxes" in reference.fields else slice(None)
    moved = _PADDED_LIMIT if reference.padded else _MOVED_LIMIT
    differences = []
    for name, right in reference.fields.items():
        mine = stored.get(name, torch.empty(0, device="cpu"))
        mine = mine[real] if name in ("boxes", "labels", "difficult") else mine
        differences.append((name, float(apart(mine, right).max()), moved if name in _MOVED else 0.0))
    return differences
