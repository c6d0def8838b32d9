"""Makes cells from rows, and lays them out in a grid with captions: a contact sheet."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from mmload.pictures.drawing import (
    VOID_COLOR,
    Color,
    Pixels,
    color_of,
    cut,
    draw_boxes,
    draw_keypoints,
    draw_mask,
    draw_outlines,
    fitted,
    font,
    levels,
    name_of,
    picture,
    size_of,
)
from mmload.pictures.instance_masks import parts_of, rectangles_of_runs, without_padding
from mmload.records import SEGMENTS, VOID

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

MOST_CELLS = 1024
"""A sheet of so many takes two seconds and 90 MB of memory; nobody looks at more of them at once."""

_OBJECTS = ("keypoints", "corners", *(name for pair in SEGMENTS for name in pair))

SHOWN = ("images", "targets", "boxes", "labels", "counts", "masks", "ids", *_OBJECTS)
"""The fields of a batch that a cell shows."""

_POINTS = {"keypoints": (3,), "corners": (2,)}  # -> numbers of each point, in rows [boxes, points, numbers]

_PAGE, _TEXT, _QUIET, _EDGE = (255, 255, 255), (34, 34, 34), (95, 95, 95), (200, 200, 200)
_TITLE, _NAME, _SMALL = 16, 13, 11
_GAP, _MARGIN, _LEGEND, _LEGEND_COLUMN = 8, 12, 12, 180
_MOST_CLASSES = 60  # in the legend
_LEAST, _MOST = 128, 192
"""Pixels of a cell: small images grow by whole factors, larger ones shrink. In fewer than 128 few names have room."""

_MANY = 200  # cells: more get the least size, as no screen has room for them, and a sheet takes half the time


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One picture of a sheet.

    Attributes:
        image: uint8 [C, H, W].
        name: below it, such as the class.
        detail: below that, smaller, such as the row.
        boxes: float32 [N, 4], xyxy in its pixels.
        labels: the class of each box.
        mask: uint8 [H, W], a class for each pixel; None: it has none.
        outlines: polygons of the boxes' masks: the box of each, and its points, float32 [n, 2].
        corners: float32 [N, 4, 2], corners of the boxes if they are rotated; none if they are not.
        keypoints: float32 [N, K, 3], x, y and visibility.
        skeleton: pairs of keypoints that a line joins.
    """

    image: Pixels
    name: str = ""
    detail: str = ""
    boxes: Floats = field(default_factory=lambda: np.empty((0, 4), np.float32))
    labels: tuple[int, ...] = ()
    mask: Pixels | None = None
    outlines: tuple[tuple[int, Floats], ...] = ()
    corners: Floats = field(default_factory=lambda: np.empty((0, 4, 2), np.float32))
    keypoints: Floats = field(default_factory=lambda: np.empty((0, 0, 3), np.float32))
    skeleton: tuple[tuple[int, int], ...] = ()


def contact_sheet(cells: Sequence[Cell], columns: int, *, title: str = "", classes: Sequence[str] = ()) -> Image.Image:
    """Draws a page of pictures in reading order, each fitted into a square whose side suits the largest of them.

    Raises:
        TypeError: if the number of columns is not an integer.
        ValueError: if it is below 1, there is no cell, or there are more than :data:`MOST_CELLS`.
    """
    if not 1 <= len(cells) <= MOST_CELLS:
        raise ValueError(f"there are {len(cells):,} pictures; show from 1 to {MOST_CELLS:,}")
    columns, side = min(operator.index(columns), len(cells)), _side(cells)
    if columns < 1:
        raise ValueError(f"columns is {columns}; give at least 1")
    lines = any(cell.name for cell in cells), any(cell.detail for cell in cells)
    text = lines[0] * size_of("", font(_NAME))[1] + lines[1] * size_of("", font(_SMALL))[1]
    head = size_of(title, font(_TITLE))[1] + _GAP if title else 0
    width = 2 * _MARGIN + columns * (side + _GAP) - _GAP
    legend = _legend(cells, classes, width - 2 * _MARGIN)
    count = -(-len(cells) // columns)
    height = 2 * _MARGIN + head + count * (side + text + _GAP) - _GAP + legend.height
    page = Image.new("RGB", (width, height), _PAGE)
    draw = ImageDraw.Draw(page)
    if title:
        draw.text((_MARGIN, _MARGIN), cut(title, font(_TITLE), width - 2 * _MARGIN), font=font(_TITLE), fill=_TEXT)
    for number, cell in enumerate(cells):
        x = _MARGIN + number % columns * (side + _GAP)
        y = _MARGIN + head + number // columns * (side + text + _GAP)
        _draw_cell(page, draw, cell, annotated(cell, side, classes), (x, y), side, lines[0])
    page.paste(legend, (_MARGIN, height - _MARGIN - legend.height))
    return page


def annotated(cell: Cell, side: int, classes: Sequence[str] = ()) -> Image.Image:
    """Draws the picture of a cell with its boxes, masks and keypoints, as large as fits into a square."""
    image, factor = fitted(picture(cell.image), side)
    if cell.mask is not None:
        image = draw_mask(image, cell.mask)
    draw_outlines(image, cell.outlines, cell.labels, factor)
    draw_outlines(image, list(enumerate(cell.corners)), cell.labels, factor)
    draw_boxes(image, cell.boxes, cell.labels, factor, classes, framed=not len(cell.corners))
    draw_keypoints(image, cell.keypoints, cell.skeleton, factor)
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
    """Returns the classes that boxes and masks of the cells show, in order."""
    of_boxes = {label for cell in cells for label in cell.labels}
    of_masks = {level for cell in cells if cell.mask is not None for level in np.unique(cell.mask).tolist()}
    return sorted(of_boxes | of_masks - {0})


def name_in_legend(index: int, classes: Sequence[str]) -> tuple[str, Color]:
    """Returns the name and the color of a class; 255 is void where no class has that number."""
    if index == VOID and len(classes) <= VOID:
        return "void", VOID_COLOR
    return name_of(index, classes), color_of(index)


def _legend(cells: Sequence[Cell], classes: Sequence[str], width: int) -> Image.Image:
    """Draws the colors of the classes that boxes and masks show, in columns below a gap; of height 0 without them."""
    indices = shown_classes(cells)[:_MOST_CLASSES]
    if not indices:
        return Image.new("RGB", (width, 0))
    letters, column = font(_NAME), min(_LEGEND_COLUMN, width)
    line, columns = size_of("", letters)[1] + 4, width // column
    legend = Image.new("RGB", (width, _GAP + -(-len(indices) // columns) * line), _PAGE)
    draw = ImageDraw.Draw(legend)
    for number, index in enumerate(indices):
        left, top = number % columns * column, _GAP + number // columns * line
        name, color = name_in_legend(index, classes)
        draw.rectangle((left, top + 2, left + _LEGEND, top + 2 + _LEGEND), fill=color, outline=_QUIET)
        draw.text((left + _LEGEND + 4, top), cut(name, letters, column - 3 * _LEGEND), font=letters, fill=_TEXT)
    return legend


def cells_of(
    fields: Mapping[str, Array],
    classes: Sequence[str] = (),
    *,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    skeleton: tuple[tuple[int, int], ...] = (),
) -> list[Cell]:
    """Makes a cell of each row: its image with boxes, masks and keypoints, the names of its classes, its number.

    Fields are ``images`` [B, C, H, W], and what there is of the others of :data:`SHOWN`, as a
    :class:`~mmload.batch.Batch` and its ``extra`` have them. Mean and std per channel are those that ``Normalize`` had,
    if it had any.

    Raises:
        ValueError: if there are no images, or they cannot be shown.
    """
    if "images" not in fields:
        raise ValueError("there are no images to show")
    images = levels(fields["images"], mean, std)
    rows = ({name: values[row] for name, values in fields.items() if name in SHOWN} for row in range(len(images)))
    return [_cell(image, own, classes, skeleton) for image, own in zip(images, rows, strict=True)]


def _cell(
    image: Pixels, fields: Mapping[str, Array], classes: Sequence[str], skeleton: tuple[tuple[int, int], ...]
) -> Cell:
    """Makes the cell of one row of the fields."""
    return Cell(
        image=image,
        name=name_of_target(fields["targets"], classes) if "targets" in fields else "",
        detail=f"row {int(fields['ids']):,}" if "ids" in fields else "",
        mask=fields.get("masks"),
        **_boxes(fields),
        **_objects(fields, image.shape[1]),
        skeleton=skeleton,
    )


def _boxes(fields: Mapping[str, Array]) -> dict[str, Any]:
    """Returns the boxes of a row and their classes; nothing without both."""
    if not {"boxes", "labels"} <= fields.keys():
        return {}
    count = int(fields.get("counts", len(fields["boxes"])))
    return {"boxes": fields["boxes"][:count], "labels": tuple(fields["labels"][:count].tolist())}


def _objects(fields: Mapping[str, Array], height: int) -> dict[str, Any]:
    """Returns what a cell has of the objects of a row; fields of these names with other values are left out."""
    if "counts" not in fields:
        return {}
    real = without_padding(fields)
    points = {name: real[name] for name in _POINTS if name in real and real[name].shape[2:] == _POINTS[name]}
    polygons = [(box, corners) for box, corners in parts_of(real, *SEGMENTS[0]) if box >= 0]
    masks = [(box, runs) for box, runs in parts_of(real, *SEGMENTS[1]) if box >= 0]
    polygons += [(box, corners) for box, runs in masks for corners in rectangles_of_runs(runs, height)]
    return {**points, "outlines": tuple(polygons)}


def name_of_target(target: Array, classes: Sequence[str]) -> str:
    """Names the class of an index, or the classes of a vector, those of a mixture with their shares."""
    if target.ndim == 0:
        return name_of(int(target), classes) if np.issubdtype(target.dtype, np.integer) else f"{target:g}"
    shares = [(index, float(share)) for index, share in enumerate(target.tolist()) if share > 0]
    whole = all(share == 1 for _, share in shares)
    shares.sort(key=lambda one: -one[1])
    return ", ".join(name_of(index, classes) + ("" if whole else f" {share:.2f}") for index, share in shares)


def first_to_see(targets: Array | None, rows: int, count: int, seed: int) -> Array:
    """Chooses at most ``count`` rows to show first: as many of each class as can be, drawn at random, sorted by class.

    Targets are integers [N], the class of each row; None: rows have no single class.
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
