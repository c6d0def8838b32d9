"""Makes the cells of a contact sheet from rows, and chooses the rows that one wants to see first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.pictures.annotations import name_of
from mmload.pictures.contact_sheet import Cell
from mmload.pictures.pixels import levels

Array = npt.NDArray[Any]

SHOWN = ("images", "targets", "boxes", "labels", "counts", "masks", "ids")
"""The fields of a batch that a cell shows."""


def cells_of(
    fields: Mapping[str, Array],
    classes: Sequence[str] = (),
    *,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
) -> list[Cell]:
    """A cell for each row: its image with boxes and mask, the names of its classes, its number.

    Args:
        fields: ``images`` [B, C, H, W], and what there is of ``targets``, ``boxes``, ``labels``, ``counts``, ``masks``
            and ``ids``, as :class:`~mmload.batch.Batch` has them.
        classes: names by index.
        mean: see :func:`~mmload.pictures.pixels.levels`.
        std: the same.

    Raises:
        ValueError: if there are no images, or they cannot be shown.
    """
    if "images" not in fields:
        raise ValueError("there are no images to show")
    images = levels(fields["images"], mean, std)
    return [_cell(row, image, fields, classes) for row, image in enumerate(images)]


def _cell(row: int, image: npt.NDArray[np.uint8], fields: Mapping[str, Array], classes: Sequence[str]) -> Cell:
    boxes = labels = None
    if "boxes" in fields and "labels" in fields:
        count = int(fields["counts"][row]) if "counts" in fields else len(fields["boxes"][row])
        boxes, labels = fields["boxes"][row, :count], fields["labels"][row, :count].tolist()
    return Cell(
        image=image,
        name=name_of_target(fields["targets"][row], classes) if "targets" in fields else "",
        detail=f"row {int(fields['ids'][row]):,}" if "ids" in fields else "",
        boxes=boxes,
        labels=tuple(labels or ()),
        mask=fields["masks"][row] if "masks" in fields else None,
    )


def name_of_target(target: Array, classes: Sequence[str]) -> str:
    """The class of an index; the classes of a vector, those of a mixture with their shares."""
    if target.ndim == 0:
        return name_of(int(target), classes) if np.issubdtype(target.dtype, np.integer) else f"{target:g}"
    shares = [(index, float(share)) for index, share in enumerate(target.tolist()) if share > 0]
    whole = all(share == 1 for _, share in shares)
    shares.sort(key=lambda one: -one[1])
    return ", ".join(name_of(index, classes) + ("" if whole else f" {share:.2f}") for index, share in shares)


def first_to_see(targets: Array | None, rows: int, count: int, seed: int) -> Array:
    """Rows that one wants to see first: as many of each class as can be, drawn at random.

    Args:
        targets: the class of each row, integers [N]; None: rows have no single class.
        rows: N.
        count: how many are wanted.
        seed: of the draw.

    Returns:
        int64 [min(count, N)], sorted by class.
    """
    order = np.random.default_rng(seed).permutation(rows)
    if targets is None:
        return np.sort(order[:count])
    drawn = targets[order]
    by_class = np.argsort(drawn, kind="stable")
    starts = np.flatnonzero(np.diff(drawn[by_class], prepend=drawn[by_class][:1] - 1)) if rows else by_class
    turn = np.empty(rows, np.int64)  # whether a row is the first, second ... of its class, in the drawn order
    turn[by_class] = np.arange(rows) - np.repeat(starts, np.diff(np.append(starts, rows)))
    chosen = np.argsort(turn, kind="stable")[:count]
    return order[chosen[np.lexsort((turn[chosen], drawn[chosen]))]]
