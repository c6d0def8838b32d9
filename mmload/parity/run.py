"""Runs the complete check: the store against its source, and the loader against torchvision.

Takes a dataset, the folder that it was built from, and optionally a collate, and returns a report. It never prints and
never writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mmload.augment import CenterCrop, Normalize, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from mmload.augment.collate import Collate
from mmload.augment.views import Views
from mmload.builder.planned_build import splits_of
from mmload.builder.recipe import BuildRecipe
from mmload.builder.trust import recipe_of
from mmload.errors import SourceError, UsageError, choices
from mmload.loader.arguments import check_collate
from mmload.parity.load import check_equal, check_scaled, shape_of
from mmload.parity.report import ParityReport, Verdict, WorstRow
from mmload.parity.row_differences import WORST
from mmload.parity.store import Progress, check_store
from mmload.records import has_images
from mmload.runtime.resources import check_threads
from mmload.sources import SourceSplit
from mmload.store.dataset import Dataset, Split
from mmload.store.split_views import view_of

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
    progress: Progress | None = None,
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
        progress: called with the number of rows of a split that are done.

    Returns:
        A verdict per property, and the rows with the largest differences.

    Raises:
        UsageError: if the dataset requires permissions that only ``trust`` grants, the split does not exist, a number
            is invalid, or the recipe or collate has no torchvision equivalent or cannot be done to these rows.
        SourceError: if the source is missing or lacks a split.
        StoreError: if the dataset cannot be read.
    """
    if rows is not None and (type(rows) is not int or rows < 1):
        raise UsageError(f"rows is {rows!r}; use an integer from 1")
    check_threads(threads)
    opened = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
    chosen = [opened[split]] if split is not None else list(opened.built_splits.values())
    if (owner := chosen[0].record.subset_of) is not None:
        raise UsageError(f"split {split!r} is a subset of {owner!r}, whose rows it shares; check split {owner!r}")
    recipe = recipe_of(opened.manifest.recipe, opened.path, trust=trust)
    if collate is not None:
        _check_collate(collate, chosen)
    with torch.device("cpu"):  # torchvision makes tensors on the default device
        verdicts, worst = _store_side(
            chosen, recipe, Path(source), rows=rows, seed=seed, threads=threads, progress=progress
        )
        verdicts += _load_side(chosen, collate, seed=seed)
    settings: dict[str, Any] = {
        "dataset": opened.path.name,
        "splits": [each.name for each in chosen],
        "rows": rows or "all",
        "seed": seed,
        "collate": "usual" if collate is None else repr(collate),
    }
    return ParityReport(
        settings=settings, verdicts=tuple(verdicts), worst=tuple(worst), contents=opened.manifest.contents
    )


def _store_side(
    splits: list[Split],
    recipe: BuildRecipe,
    root: Path,
    *,
    rows: int | None,
    seed: int,
    threads: int | None,
    progress: Progress | None,
) -> tuple[list[Verdict], list[WorstRow]]:
    """Checks the stored rows of each split; returns the verdicts and the rows with the largest differences."""
    resolved = recipe.resolved()
    decode = {key: value for key, value in resolved["decode"].items() if key != "device"}  # the check needs no device
    sources = splits_of(replace(recipe, root=root, decode=decode))
    for split in splits:
        if len(split):
            _check_fits(split, _source_of(split, sources, root), root)
    verdicts: list[Verdict] = []
    worst: list[WorstRow] = []
    for split in splits:
        if not len(split):
            verdicts.append(Verdict.note(split.name, "rows", "the split has no rows"))
            continue
        source = _source_of(split, sources, root)
        found, differing = check_store(
            split, source, resolved, rows=rows, seed=seed, threads=threads, progress=progress
        )
        verdicts += found
        worst += differing
    worst.sort(key=lambda row: (row.greatest > 0, row.mean), reverse=True)
    return verdicts, worst[:WORST]


def _load_side(splits: list[Split], collate: Collate | Views | None, *, seed: int) -> list[Verdict]:
    """Checks batches of the first split that has images."""
    split = _first_with_images(splits)
    if split is None:
        return [Verdict.note("load", "images", "no split has uint8 images to augment")]
    collates = usual_collates(split) if collate is None else _collates_by_name(collate)
    verdicts = check_scaled(split) if split.fields["images"].variable_size else []
    for name, each in collates.items():
        verdicts += check_equal(name, each, split, seed=seed)
    return verdicts


def usual_collates(split: Split) -> dict[str, Collate]:
    """Returns the steps of common training recipes, for the size of a split's images."""
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


def _first_with_images(splits: list[Split]) -> Split | None:
    """Returns the first split that has images to augment."""
    return next((each for each in splits if len(each) and has_images(each.fields)), None)


def _check_collate(collate: Collate | Views, splits: list[Split]) -> None:
    """Checks before any row is compared that the collate can be applied to the images.

    Raises:
        UsageError: if a step rejects them; the message is that of the step.
    """
    split = _first_with_images(splits)
    if split is None:
        return
    try:
        check_collate(collate, view_of(split), tuple(split.fields))
    except (ValueError, TypeError) as error:
        raise UsageError(f"the collate cannot be applied to split {split.name!r}: {error}") from error


def _collates_by_name(collate: Collate | Views) -> dict[str, Collate]:
    """Returns the collates by name; a collate of several views has the name of its first view."""
    if isinstance(collate, Collate):
        return {"collate": collate}
    names: dict[Collate, str] = {}
    for number, view in enumerate(collate.collates):
        names.setdefault(view, f"view {number}")
    return {name: view for view, name in names.items()}


def _check_fits(split: Split, source: SourceSplit, root: Path) -> None:
    """Checks before any row is compared that the source contains one of three samples of the split.

    Raises:
        SourceError: if it contains none; the message names one of them.
    """
    last = len(split) - 1
    wanted = [split.source(row).id for row in sorted({0, last // 2, last})]
    if not any(source.id(index) in wanted for index in range(len(source))):
        raise SourceError(
            f"{root} is not what {split.path} was built from: split {split.name!r} has no {wanted[0]}; give the folder "
            "that it was built from"
        )


def _source_of(split: Split, sources: Mapping[str, SourceSplit], root: Path) -> SourceSplit:
    if split.name not in sources:
        raise SourceError(
            f"{root} has no split {split.name!r}, it has {choices(sources)}; give the folder that it was built from"
        )
    return sources[split.name]
