"""Lays pictures out in a grid with captions: a contact sheet."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from mmload.pictures.annotations import VOID, color_of, draw_boxes, draw_mask, name_of
from mmload.pictures.pixels import Pixels, fitted, picture
from mmload.pictures.text import cut, font, size_of

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
    """A page of pictures.

    Args:
        cells: at least one, in reading order.
        columns: how many stand side by side.
        title: of the page.
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
    """The picture of a cell with its boxes and its mask, as large as fits into a square.

    Args:
        cell: what is drawn.
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
    """Of a cell: the largest image's, times the least whole number that makes it wide enough and not too wide."""
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


def _legend(cells: Sequence[Cell], classes: Sequence[str], width: int) -> Image.Image | None:
    """The colors of the classes that boxes and masks show; None without them."""
    shown: set[int] = set()
    for cell in cells:
        shown |= set(cell.labels)
        if cell.mask is not None:
            shown |= set(np.unique(cell.mask).tolist()) - {0}
    indices = sorted(shown)[:_MOST_CLASSES]
    if not indices:
        return None
    letters = font(_NAME)
    line = size_of("", letters)[1] + 4
    places, x, y = [], 0, 0
    for index in indices:
        name = cut(
            "void" if index == VOID and len(classes) <= VOID else name_of(index, classes), letters, width - 2 * _LEGEND
        )
        needed = _LEGEND + 4 + size_of(name, letters)[0] + 2 * _GAP
        if x and x + needed > width:
            x, y = 0, y + line
        places.append((index, name, x, y))
        x += needed
    legend = Image.new("RGB", (width, y + line), _PAGE)
    draw = ImageDraw.Draw(legend)
    for index, name, left, top in places:
        color = (255, 255, 255) if index == VOID and len(classes) <= VOID else color_of(index)
        draw.rectangle((left, top + 2, left + _LEGEND, top + 2 + _LEGEND), fill=color, outline=_QUIET)
        draw.text((left + _LEGEND + 4, top), name, font=letters, fill=_TEXT)
    return legend
