"""Makes cells from rows, and lays them out in a grid with captions: a contact sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from mmload.pictures.drawing import (
    VOID,
    VOID_COLOR,
    Color,
    Pixels,
    color_of,
    cut,
    draw_boxes,
    draw_mask,
    fitted,
    font,
    levels,
    name_of,
    picture,
    size_of,
)

_PAGE, _TEXT, _QUIET, _EDGE = (255, 255, 255), (34, 34, 34), (95, 95, 95), (200, 200, 200)
_TITLE, _NAME, _SMALL = 16, 13, 11
_GAP, _MARGIN, _LEGEND = 8, 12, 12
_MOST_CLASSES = 60  # in the legend
_LEAST, _MOST = 128, 192
"""Pixels of a cell: small images grow by whole factors, larger ones shrink. In fewer than 128 few names have room."""
_MANY = 200  # cells: more get the least size, as no screen has room for them, and a sheet takes half the time
MOST_CELLS = 1024
"""A sheet of so many takes two seconds and 90 MB of memory; nobody looks at more of them at once."""
_THREADS = 2


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One picture of a sheet.

    Attributes:
        image: uint8 [C, H, W].
        name: below it, such as the class.
        detail: below that, smaller, such as the row.
        boxes: float32 [N, 4], xyxy in its pixels; None: it has none.
        labels: the class of each box.
        mask: uint8 [H, W], a class for each pixel; None: it has none.
    """

    image: Pixels
    name: str = ""
    detail: str = ""
    boxes: npt.NDArray[np.float32] | None = None
    labels: tuple[int, ...] = ()
    mask: Pixels | None = None


def contact_sheet(
    cells: Sequence[Cell], columns: int, *, title: str = "", classes: Sequence[str] = (), side: int | None = None
) -> Image.Image:
    """Draws a page of pictures.

    Args:
        cells: at least one, in reading order.
        columns: number of columns.
        title: title of the page.
        classes: names by index, for boxes and masks.
        side: pixels of the square that each picture is fitted into; None: as suits the largest.

    Raises:
        ValueError: if there is no cell, or there are more than :data:`MOST_CELLS`.
    """
    if not 1 <= len(cells) <= MOST_CELLS:
        raise ValueError(f"there are {len(cells):,} pictures; show from 1 to {MOST_CELLS:,}")
    columns, side = min(columns, len(cells)), side or _side(cells)
    lines = any(cell.name for cell in cells), any(cell.detail for cell in cells)
    text = lines[0] * size_of("", font(_NAME))[1] + lines[1] * size_of("", font(_SMALL))[1]
    head = size_of(title, font(_TITLE))[1] + _GAP if title else 0
    width = 2 * _MARGIN + columns * (side + _GAP) - _GAP
    legend = _legend(cells, classes, width - 2 * _MARGIN)
    count = -(-len(cells) // columns)
    height = 2 * _MARGIN + head + count * (side + text + _GAP) - _GAP + (legend.height + _GAP if legend else 0)
    page = Image.new("RGB", (width, height), _PAGE)
    draw = ImageDraw.Draw(page)
    if title:
        draw.text((_MARGIN, _MARGIN), cut(title, font(_TITLE), width - 2 * _MARGIN), font=font(_TITLE), fill=_TEXT)
    with ThreadPoolExecutor(min(len(cells), _THREADS)) as pool:  # resizing takes longest, and runs beside the rest
        for number, image in enumerate(pool.map(lambda cell: annotated(cell, side, classes), cells)):
            x = _MARGIN + number % columns * (side + _GAP)
            y = _MARGIN + head + number // columns * (side + text + _GAP)
            _draw_cell(page, draw, cells[number], image, (x, y), side, lines[0])
    if legend:
        page.paste(legend, (_MARGIN, height - _MARGIN - legend.height))
    return page


def annotated(cell: Cell, side: int, classes: Sequence[str] = ()) -> Image.Image:
    """Draws the picture of a cell with its boxes and its mask, as large as fits into a square.

    Args:
        cell: cell to draw.
        side: pixels of the square.
        classes: names by index, for boxes.
    """
    image, factor = fitted(picture(cell.image), side)
    if cell.mask is not None:
        image = draw_mask(image, cell.mask)
    if cell.boxes is not None:
        draw_boxes(image, cell.boxes, cell.labels, factor, classes)
    return image


def _side(cells: Sequence[Cell]) -> int:
    """Returns the side of a cell: the largest image's, times the least whole number that makes it wide enough."""
    largest: int = max(max(cell.image.shape[1:]) for cell in cells)
    grown, most = largest * -(-_LEAST // largest), _LEAST if len(cells) > _MANY else _MOST
    return min(grown, most) if grown <= most or largest >= _LEAST else _LEAST


def _draw_cell(
    page: Image.Image,
    draw: ImageDraw.ImageDraw,
    cell: Cell,
    image: Image.Image,
    corner: tuple[int, int],
    side: int,
    named: bool,
) -> None:
    x, y = corner
    left, top = x + (side - image.width) // 2, y + (side - image.height) // 2
    draw.rectangle((left - 1, top - 1, left + image.width, top + image.height), outline=_EDGE)  # of white pictures, too
    page.paste(image, (left, top))
    below = y + side
    if named:
        draw.text((x, below), cut(cell.name, font(_NAME), side), font=font(_NAME), fill=_TEXT)
        below += size_of("", font(_NAME))[1]
    draw.text((x, below), cut(cell.detail, font(_SMALL), side), font=font(_SMALL), fill=_QUIET)


def shown_classes(cells: Sequence[Cell]) -> list[int]:
    """Returns the first classes that boxes and masks of the cells show, in order."""
    shown: set[int] = set()
    for cell in cells:
        shown |= set(cell.labels)
        if cell.mask is not None:
            shown |= set(np.unique(cell.mask).tolist()) - {0}
    return sorted(shown)[:_MOST_CLASSES]


def name_in_legend(index: int, classes: Sequence[str]) -> tuple[str, Color]:
    """Returns the name and the color of a class; 255 is void where no class has that number."""
    if index == VOID and len(classes) <= VOID:
        return "void", VOID_COLOR
    return name_of(index, classes), color_of(index)


def _legend(cells: Sequence[Cell], classes: Sequence[str], width: int) -> Image.Image | None:
    """Draws the colors of the classes that boxes and masks show; None without them."""
    indices = shown_classes(cells)
    if not indices:
        return None
    letters = font(_NAME)
    line = size_of("", letters)[1] + 4
    places, x, y = [], 0, 0
    for index in indices:
        named, color = name_in_legend(index, classes)
        name = cut(named, letters, width - 2 * _LEGEND)
        needed = _LEGEND + 4 + size_of(name, letters)[0] + 2 * _GAP
        if x and x + needed > width:
            x, y = 0, y + line
        places.append((color, name, x, y))
        x += needed
    legend = Image.new("RGB", (width, y + line), _PAGE)
    draw = ImageDraw.Draw(legend)
    for color, name, left, top in places:
        draw.rectangle((left, top + 2, left + _LEGEND, top + 2 + _LEGEND), fill=color, outline=_QUIET)
        draw.text((left + _LEGEND + 4, top), name, font=letters, fill=_TEXT)
    return legend


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
    """Makes a cell of each row: its image with boxes and mask, the names of its classes, its number.

    Args:
        fields: ``images`` [B, C, H, W], and what there is of ``targets``, ``boxes``, ``labels``, ``counts``, ``masks``
            and ``ids``, as :class:`~mmload.batch.Batch` has them.
        classes: names by index.
        mean: per channel, as ``Normalize`` had it; empty: images are not normalized.
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
    """Names the class of an index, or the classes of a vector, those of a mixture with their shares."""
    if target.ndim == 0:
        return name_of(int(target), classes) if np.issubdtype(target.dtype, np.integer) else f"{target:g}"
    shares = [(index, float(share)) for index, share in enumerate(target.tolist()) if share > 0]
    whole = all(share == 1 for _, share in shares)
    shares.sort(key=lambda one: -one[1])
    return ", ".join(name_of(index, classes) + ("" if whole else f" {share:.2f}") for index, share in shares)


def first_to_see(targets: Array | None, rows: int, count: int, seed: int) -> Array:
    """Chooses the rows to show first: as many of each class as can be, drawn at random.

    Args:
        targets: the class of each row, integers [N]; None: rows have no single class.
        rows: N.
        count: upper bound on the rows.
        seed: seed of the draw.

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
