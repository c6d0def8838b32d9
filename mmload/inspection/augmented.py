"""Shows what training sees: several draws of each of some rows, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from PIL import Image

from mmload.augment import Normalize, Views
from mmload.augment.collate import Collate
from mmload.augment.draws import sample_seeds
from mmload.batch import Batch
from mmload.errors import UsageError
from mmload.pictures.cells import SHOWN, cells_of
from mmload.pictures.contact_sheet import Cell, contact_sheet
from mmload.store.row_cells import cells_of_rows
from mmload.store.row_numbers import row_numbers

if TYPE_CHECKING:
    from mmload.store.dataset import Rows, Split


def augmented_sheet(
    split: Split, collate: Collate | Views, rows: Rows, *, draws: int = 7, seed: int = 0, side: int | None = None
) -> Image.Image:
    """A contact sheet with a line for each row: as it is stored, then as it is drawn.

    Args:
        split: where the rows are.
        collate: what training renders them with; of views each line has all, one after the other.
        rows: which rows.
        draws: how many draws of each row, as many as epochs would give.
        side: of the square that each picture is fitted into; None: as suits the largest.
        seed: the loader's; draw ``k`` is that of epoch ``k``.

    Raises:
        UsageError: if the collate cannot render these rows.
    """
    stored = cells_of_rows(split, rows)
    drawn = drawn_cells(split, collate, rows, draws=draws, seed=seed)
    lines = [[cell, *line] for cell, line in zip(stored, drawn, strict=True)]
    title = f"{split.path.name}, {split.name}: as stored, and as drawn"
    return contact_sheet(
        [cell for line in lines for cell in line], len(lines[0]), title=title, classes=split.classes, side=side
    )


def drawn_cells(split: Split, collate: Collate | Views, rows: Rows, *, draws: int, seed: int = 0) -> list[list[Cell]]:
    """What training sees of some rows: for each row, its draws in the order of the epochs.

    Args:
        split: where the rows are.
        collate: see :func:`augmented_sheet`.
        rows: which rows, as one batch; steps that mix samples mix these.
        draws: how many epochs; of views each gives all.
        seed: the loader's.

    Raises:
        UsageError: if the collate cannot render these rows.
    """
    collates = collate.collates if isinstance(collate, Views) else (collate,)
    ids = row_numbers(rows, len(split), f"split {split.name!r}")
    batch = split.rows(ids)
    own_sizes = any(spec.own_sizes for spec in split.fields.values())
    lines: list[list[Cell]] = [[] for _ in range(len(ids))]
    for epoch in range(draws):
        seeds = sample_seeds(seed, epoch, ids)
        collate.set_epoch(epoch)
        try:
            if own_sizes:
                made = collate([batch[number].replace(seeds=seeds[number]) for number in range(len(ids))])
            else:
                made = collate(batch.replace(seeds=seeds))
        except (ValueError, TypeError) as error:
            raise UsageError(f"these steps cannot render split {split.name!r} of {split.path}: {error}") from error
        views = made if isinstance(made, tuple) else (made,)
        for number, (view, one) in enumerate(zip(views, collates, strict=True)):
            name = f"draw {epoch + 1}" + (f", view {number + 1}" if len(views) > 1 else "")
            for line, cell in zip(lines, _cells(view, one, split.classes), strict=True):
                line.append(
                    Cell(
                        image=cell.image,
                        name=cell.name,
                        detail=name,
                        boxes=cell.boxes,
                        labels=cell.labels,
                        mask=cell.mask,
                    )
                )
    return lines


def _cells(batch: Batch, collate: Collate, classes: Sequence[str]) -> list[Cell]:
    """The cells of a rendered batch, with Normalize undone."""
    mean, std = _normalization(collate)
    fields = {name: getattr(batch, name) for name in SHOWN}
    arrays = {}
    for name, value in fields.items():
        if value is not None:
            arrays[name] = (value.float() if value.is_floating_point() else value).cpu().numpy()
    return cells_of(arrays, classes, mean=mean, std=std)


def _normalization(collate: Collate) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What all Normalize together do: mean and std per channel; empty without one."""
    normalizations = [step for step in collate.steps if isinstance(step, Normalize)]
    if not normalizations:
        return (), ()
    mean, std = torch.zeros(1), torch.ones(1)
    for step in normalizations:  # each takes what the one before it gives
        mean, std = mean + std * step.mean.cpu(), std * step.std.cpu()
    return tuple(mean.tolist()), tuple(std.tolist())
