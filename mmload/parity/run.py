"""Runs the complete check: the dataset against its source, and the loader against torchvision.

Takes a dataset, the folder that it was built from, and optionally a collate, and returns a report. It never prints and
never writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mmload.augment import CenterCrop, Normalize, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from mmload.augment.collate import Collate
from mmload.augment.views import Views
from mmload.builder.planned_build import splits_of
from mmload.builder.trust import trusted_recipe
from mmload.errors import SourceError, UsageError, choices
from mmload.parity.load import check_equal, shape_of
from mmload.parity.report import ParityReport, Verdict, unreported
from mmload.parity.store import check_lists, check_rows
from mmload.records import Progress, has_images
from mmload.runtime.resources import check_threads
from mmload.sources import SourceSplit
from mmload.store.dataset import Dataset, Split

DEFAULT_ROWS = 256
"""Default number of rows of each split to decode again."""


def run(
    dataset: Dataset | str | Path,
    source: str | Path,
    *,
    trust: bool = False,
    split: str | None = None,
    rows: int | None = DEFAULT_ROWS,
    seed: int = 0,
    collate: Collate | Views | None = None,
    threads: int | None = None,
    progress: Callable[[str], Progress] | None = None,
) -> ParityReport:
    """Compares a dataset with Pillow and torchvision: the stored rows, and the batches for training.

    The batches are compared for equal draws. That draws are distributed as torchvision's does not depend on the
    dataset: mmload's own tests check it (tests/augment/test_draw_distributions.py).

    Args:
        dataset: the dataset, or its folder.
        source: the root of the source that it was built from.
        trust: let the dataset's own recipe run code, download, or read outside of the source.
        split: check only this split; None: all but subsets, and the load side with the first that has images.
        rows: number of rows of each split to decode; None: all. Labels and order are always checked for every row.
        seed: selects the rows and the draws of the batches.
        collate: the collate for the load side, or several as views; None: the usual crops, a flip and Normalize.
        threads: decoding threads; None takes the cores available.
        progress: called with what is compared; its result is called with (rows done, rows in all).

    Returns:
        A verdict per property.

    Raises:
        UsageError: if the dataset requires permissions that only ``trust`` grants, the split does not exist, a number
            is invalid, or the recipe or collate has no torchvision equivalent.
        ValueError: if the collate cannot be applied to the images.
        SourceError: if the source is missing, lacks a split or has none of its samples.
        StoreError: if the dataset cannot be read.
    """
    if rows is not None and (type(rows) is not int or rows < 1):
        raise UsageError(f"rows is {rows!r}; use an integer from 1")
    check_threads(threads)
    opened = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
    chosen = [opened[split]] if split is not None else list(opened.built_splits.values())
    if (owner := chosen[0].record.subset_of) is not None:
        raise UsageError(f"split {split!r} is a subset of {owner!r}, whose rows it shares; check split {owner!r}")
    recipe = trusted_recipe(opened.manifest.recipe, opened.path, trust=trust)
    resolved, sources = recipe.resolved(), splits_of(replace(recipe, root=Path(source)))
    with torch.device("cpu"):  # torchvision's own functions take the default device
        # What may refuse the source or the collate comes before the minutes of decoding.
        lists = [_lists(each, sources, resolved, Path(source)) for each in chosen]
        batches = _load_side(chosen, collate, seed, progress or unreported)
        verdicts = list[Verdict]()
        for each, (of_lists, found) in zip(chosen, lists, strict=True):
            verdicts += of_lists
            if found:
                verdicts += check_rows(
                    each,
                    sources[each.name],
                    resolved,
                    found,
                    rows=rows,
                    seed=seed,
                    threads=threads,
                    progress=progress or unreported,
                )
    settings = {
        "dataset": opened.path.name,
        "splits": [each.name for each in chosen],
        "rows": rows or "all",
        "seed": seed,
        "collate": "usual" if collate is None else repr(collate),
    }
    return ParityReport(settings=settings, verdicts=(*verdicts, *batches), contents=opened.manifest.contents)


def _lists(
    split: Split, sources: Mapping[str, SourceSplit], recipe: Mapping[str, Any], root: Path
) -> tuple[list[Verdict], list[int]]:
    """Checks order, classes and labels of a split, as :func:`check_lists`; raises SourceError for another source."""
    if not len(split):
        return [Verdict(part=split.name, name="rows", state="note", text="the split has no rows")], []
    if split.name not in sources:
        raise SourceError(
            f"{root} has no split {split.name!r}, it has {choices(sources)}; give the folder that it was built from"
        )
    return check_lists(split, sources[split.name], recipe)


def _load_side(
    splits: list[Split], collate: Collate | Views | None, seed: int, progress: Callable[[str], Progress]
) -> list[Verdict]:
    """Checks batches of the first split that has images."""
    split = next((each for each in splits if len(each) and has_images(each.fields)), None)
    if split is None:
        return [Verdict(part="load", name="images", state="note", text="no split has uint8 images to augment")]
    if collate is None:
        collates = usual_collates(split)
    elif isinstance(collate, Collate):
        collates = {"collate": collate}
    else:
        collates = {f"view {number}": view for number, view in enumerate(dict.fromkeys(collate.collates))}
    return [
        verdict
        for name, each in collates.items()
        for verdict in check_equal(name, each, split, seed=seed, progress=progress)
    ]


def usual_collates(split: Split) -> dict[str, Collate]:
    """Returns the collates that most trainings use, for the size of a split's images."""
    channels, height, width = shape_of(split)
    if split.fields["images"].variable_size:
        return _variable_size_collates(split, channels, min(height, width))
    size = max(1, height * 7 // 8), max(1, width * 7 // 8)
    margin = [max(1, width // 8), max(1, height // 8)]
    crops = {
        "crop": RandomCrop(size),
        "padded crop": RandomCrop((height, width), margin),
        "resized crop": RandomResizedCrop(size),
    }
    return {name: Collate(crop, RandomHorizontalFlip(), _normalize(split, channels)) for name, crop in crops.items()}


def _variable_size_collates(split: Split, channels: int, short: int) -> dict[str, Collate]:
    size = max(1, min(224, short * 7 // 8))
    normalize = _normalize(split, channels)
    return {
        "resized crop": Collate(RandomResizedCrop(size), RandomHorizontalFlip(), normalize),
        "evaluation": Collate(Resize(short), CenterCrop(size), normalize),
    }


def _normalize(split: Split, channels: int) -> Normalize:
    mean, std = split.mean or (0.5,) * channels, split.std or (0.25,) * channels
    return Normalize(mean, [value or 1.0 for value in std])
