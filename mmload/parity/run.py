"""Runs the complete check: the store against its source, and the loader against torchvision.

Takes a dataset, the folder that it was built from, and optionally a collate, and returns a report. It never prints and
never writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmload.augment.collate import Collate
from mmload.augment.views import Views
from mmload.builder.recipe import BuildRecipe
from mmload.builder.source_splits import splits_of
from mmload.builder.trust import recipe_of
from mmload.errors import SourceError, UsageError, choices
from mmload.loader.arguments import refuse_collate
from mmload.parity.aggregate import WORST
from mmload.parity.equal import ROWS, check_equal
from mmload.parity.load import ALPHA, DRAWS, check_draws, usual_collates
from mmload.parity.scaled_decoding import check_scaled
from mmload.parity.store import Progress, check_store
from mmload.parity.verdict import Report, Verdict, WorstRow
from mmload.parity.whole_rows import check_photographs
from mmload.runtime.thread_pools import check_threads
from mmload.sources import SourceSplit
from mmload.store.dataset import Dataset, Split
from mmload.store.dataset import open as open_dataset
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
    draws: int = DRAWS,
    alpha: float = ALPHA,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Compare a dataset with Pillow and torchvision: the stored rows, and the batches for training.

    Args:
        dataset: the store, or its folder.
        source: the root of the source that it was built from.
        trust: let the dataset's own recipe run code, download, or read outside of the source.
        split: check only this split; None: all, and the load side with the first that has images.
        rows: number of rows of each split to decode; None: all. Labels and order are always checked for every row.
        seed: selects the rows and the draws.
        collate: the collate for the load side, or several as views; None: the usual crops, a flip and Normalize.
        draws: number of draws of each property.
        alpha: probability that a correct store fails any test.
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
    for name, value in (("rows", rows), ("draws", draws)):
        if value is not None and (type(value) is not int or value < 1):
            raise UsageError(f"{name} is {value!r}; use an integer from 1")
    check_threads(threads)
    opened = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    chosen = [opened[split]] if split is not None else list(opened.values())
    recipe = recipe_of(opened.manifest.recipe, opened.path, trust=trust)
    if collate is not None:
        _refuse_impossible(collate, chosen)
    verdicts, worst = _store_side(
        chosen, recipe, Path(source), rows=rows, seed=seed, threads=threads, progress=progress
    )
    verdicts += _load_side(chosen, collate, recipe.resolved(), seed=seed, draws=draws, alpha=alpha)
    settings: dict[str, Any] = {
        "dataset": opened.path.name,
        "splits": [each.name for each in chosen],
        "rows": rows or "all",
        "seed": seed,
        "draws": draws,
        "alpha": alpha,
        "collate": "usual" if collate is None else repr(collate),
    }
    return Report(settings=settings, verdicts=tuple(verdicts), worst=tuple(worst), contents=opened.manifest.contents)


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
    """Check the stored rows of each split; returns the verdicts and the rows with the largest differences."""
    resolved = recipe.resolved()
    decode = {key: value for key, value in resolved["decode"].items() if key != "device"}  # the check needs no device
    sources = splits_of(replace(recipe, root=root, decode=decode))
    verdicts: list[Verdict] = []
    worst: list[WorstRow] = []
    for split in splits:
        if not len(split):
            verdicts.append(Verdict(part=split.name, name="rows", state="note", text="there are none"))
            continue
        source = _source_of(split, sources, root)
        found, differing = check_store(
            split, source, resolved, rows=rows, seed=seed, threads=threads, progress=progress
        )
        verdicts += found
        worst += differing
    worst.sort(key=lambda row: (row.greatest > 0, row.mean), reverse=True)
    return verdicts, worst[:WORST]


def _load_side(
    splits: list[Split],
    collate: Collate | Views | None,
    recipe: Mapping[str, Any],
    *,
    seed: int,
    draws: int,
    alpha: float,
) -> list[Verdict]:
    """Check draws and batches, for the first split that has images."""
    split = _augmented(splits)
    if split is None:
        return [Verdict(part="load", name="images", state="note", text="no split has uint8 images to augment")]
    collates = usual_collates(split) if collate is None else _named(collate)
    verdicts = check_draws(collates, split, seed=seed, draws=draws, alpha=alpha)
    if split.fields["images"].own_sizes:
        verdicts += check_photographs(collates, split, recipe, seed=seed, draws=draws, alpha=alpha)
        verdicts += check_scaled(split)
    for name, each in collates.items():
        verdicts += check_equal(name, each, split, rows=ROWS, seed=seed)
    return verdicts


def _augmented(splits: list[Split]) -> Split | None:
    """The first split that has images to augment."""
    return next((each for each in splits if len(each) and _has_pictures(each)), None)


def _refuse_impossible(collate: Collate | Views, splits: list[Split]) -> None:
    """Refuses steps that cannot be done to the images, before rows are compared.

    Raises:
        UsageError: with what the step says.
    """
    split = _augmented(splits)
    if split is None:
        return
    try:
        refuse_collate(collate, view_of(split), tuple(split.fields))
    except (ValueError, TypeError) as error:
        raise UsageError(f"the collate cannot be done to split {split.name!r}: {error}") from error


def _named(collate: Collate | Views) -> dict[str, Collate]:
    """Each collate by its name; one that makes several views by the first of them."""
    if isinstance(collate, Collate):
        return {"collate": collate}
    names: dict[Collate, str] = {}
    for number, view in enumerate(collate.collates):
        names.setdefault(view, f"view {number}")
    return {name: view for view, name in names.items()}


def _has_pictures(split: Split) -> bool:
    images = split.fields.get("images")
    return images is not None and images.dtype == "uint8" and len(images.shape) == 3


def _source_of(split: Split, sources: Mapping[str, SourceSplit], root: Path) -> SourceSplit:
    if split.name not in sources:
        raise SourceError(
            f"{root} has no split {split.name!r}, it has {choices(sources)}; give the folder that it was built from"
        )
    return sources[split.name]
