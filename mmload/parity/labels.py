"""Checks that the rows are the source's samples in the source's order, with its classes and labels.

It checks every row, because it does not decode images.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.datasets.folder import find_classes

from mmload.errors import StoreError, counted
from mmload.parity.verdict import Verdict
from mmload.runtime.permutation import permute
from mmload.runtime.regular_files import read_regular
from mmload.sources import SourceSplit
from mmload.sources.columns import Arrays
from mmload.sources.imagefolder import SPLIT_NAMES, ImageFolderSplit
from mmload.store.dataset import Split
from mmload.store.manifest import SAMPLES_NAME, SKIPPED_NAME


def rows_verdict(split: Split, source: SourceSplit, recipe: Mapping[str, Any]) -> tuple[Verdict, list[int]]:
    """Finds the source's sample of every row.

    Returns:
        The verdict, and for each row the sample's index; -1 where the source has no such sample.
    """
    names = _ids(split.path / split.name / SAMPLES_NAME)
    left_out = set(_ids(split.path / split.name / SKIPPED_NAME)) if split.record.skipped_count else set()
    count = len(source)
    seed = recipe["store"].get("shuffle_seed")
    order = range(count) if seed is None else permute(torch.arange(count), count, seed).tolist()
    expected = [index for index in order if source.id(index) not in left_out]
    index_of = {source.id(index): index for index in expected}
    found = [index_of.get(name, -1) for name in names]
    if found == expected:
        how = "the source's order" if seed is None else f"the order of shuffle_seed {seed}"
        return _line(split, "rows", True, f"{counted(len(names), 'row')} made of the source's samples, in {how}"), found
    lost = sum(index < 0 for index in found)
    odd = sum(mine != theirs for mine, theirs in zip(found, expected, strict=False)) + abs(len(found) - len(expected))
    text = (
        f"{odd:,} of {counted(len(names), 'row')} are not of the sample in their place; {lost:,} of none in the source"
    )
    missing = len(set(expected) - set(found))
    looks = f"{counted(missing, 'sample')} of the source in no row" if missing else "the same samples in another order"
    return _line(split, "rows", False, text, looks, rows=len(names), odd=odd, lost=lost), found


def classes_verdict(split: Split, source: SourceSplit, recipe: Mapping[str, Any]) -> Verdict:
    """Check class names and their order; for an ImageFolder, against torchvision's list."""
    folder = class_folder(source, recipe)
    listed = source.classes if folder is None else tuple(find_classes(folder)[0])
    by = "the source's" if folder is None else "torchvision's"
    if split.classes == listed:
        return _line(
            split, "classes", True, f"{counted(len(listed), 'class', 'classes')}, in {by} order", classes=len(listed)
        )
    odd = [name for name in dict.fromkeys((*listed, *split.classes)) if (name in listed) != (name in split.classes)]
    if odd:
        text, looks = f"{counted(len(odd), 'class', 'classes')} only in one of both: {_first_of(odd)}", ""
    else:
        wrong = [name for name, other in zip(split.classes, listed, strict=True) if name != other]
        text, looks = (
            f"{len(wrong)} of {counted(len(listed), 'class', 'classes')} are at another index: {_first_of(wrong)}",
            "class order is permuted",
        )
    return _line(split, "classes", False, text, looks, classes=len(listed))


def labels_verdict(
    split: Split, source: SourceSplit, recipe: Mapping[str, Any], found: Sequence[int]
) -> Verdict | None:
    """Check every row's label, if the source provides labels without decoding and has a row's sample; else None.

    Args:
        split: the split as stored.
        source: the current source.
        recipe: the recipe in the manifest.
        found: each row's sample index, from :func:`rows_verdict`.
    """
    listed = listed_labels(source, recipe)
    if listed is None or "targets" not in split.fields:
        return None
    rows = torch.tensor([row for row, index in enumerate(found) if index >= 0], dtype=torch.int64)
    if not len(rows):  # the verdict on rows fails already
        return None
    stored = split.reader.gather("targets", rows)
    right = listed[torch.tensor([index for index in found if index >= 0], dtype=torch.int64)]
    if stored.shape != right.shape:
        return _line(split, "labels", False, f"labels have the shape {list(stored.shape)}, not {list(right.shape)}")
    wrong = (stored != right).flatten(1).any(1) if stored.dim() > 1 else stored != right
    if not wrong.any():
        return _line(split, "labels", True, f"{counted(len(rows), 'label')} equal", labels=len(rows), wrong=0)
    first = int(wrong.nonzero()[0])
    text = (
        f"{int(wrong.sum()):,} of {counted(len(rows), 'label')} are wrong; the first: row {int(rows[first])} "
        f"({source.id(found[int(rows[first])])}) is {stored[first].tolist()}, not {right[first].tolist()}"
    )
    looks = labels_look_like(stored, right, len(source.classes)) if stored.dtype == torch.int64 else ""
    return _line(split, "labels", False, text, looks, labels=len(rows), wrong=int(wrong.sum()))


def labels_look_like(stored: Tensor, right: Tensor, classes: int) -> str:
    """The known fault that explains wrong class indices; empty if there is none.

    Args:
        stored: int64 [N].
        right: int64 [N].
        classes: number of classes.
    """
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
    """The label of every sample if known without decoding; for an ImageFolder, by torchvision's rule."""
    folder = class_folder(source, recipe)
    if isinstance(source, ImageFolderSplit) and folder is not None:
        number = find_classes(folder)[1]
        depth = len(folder.relative_to(source.root).parts)
        return torch.tensor([number[source.id(index).split("/")[depth]] for index in range(len(source))])
    targets = getattr(source, "targets", None)
    if isinstance(targets, Arrays):
        return torch.from_numpy(np.array([*targets]))
    return targets if isinstance(targets, Tensor) else None


def class_folder(source: SourceSplit, recipe: Mapping[str, Any]) -> Path | None:
    """The folder of an ImageFolder that contains the class folders of its samples; None for other sources."""
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


def _first_of(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f", and {len(names) - most} more" if len(names) > most else "")


def _line(
    split: Split, name: str, right: bool, text: str, diagnosis: str = "", **numbers: float | int | str
) -> Verdict:
    state = "pass" if right else "fail"
    return Verdict(part=split.name, name=name, state=state, text=text, diagnosis=diagnosis, numbers=numbers)
