"""Masks of instances as they are stored: polygons and run lengths, in lists per image.

Two list fields hold all polygons of an image: ``polygons`` float64 [n, 2], the points x, y of one after another, and
``rings`` int32 [m, 2], for each polygon the index of its box and its number of points. A box may have several polygons,
whose union is its mask. float32 would move points off the ties of pycocotools' grid of fifths of a pixel.

Masks that are no polygons, such as COCO's crowds, are run lengths: ``runs`` int32 [n] and ``run_boxes`` int32 [m, 2],
for each mask the index of its box and its number of runs. Runs follow COCO: columns from left to right, first the
number of zeros, then of ones, and so on; they cover the whole image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.records import PER_BOX, SEGMENTS

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

_NO_ENTRIES = np.empty((0, 2), np.int32)


def mask_of_runs(runs: Array, height: int, width: int) -> Mask:
    """Decodes run lengths to a mask, bool [H, W].

    Raises:
        ValueError: if they are not those of such an image.
    """
    columns, first = _columns_of_runs(runs, height, width)
    mask = np.zeros((width, height), np.bool_)
    mask[first : first + len(columns)] = columns
    return mask.T


def _columns_of_runs(runs: Array, height: int, width: int) -> tuple[Mask, int]:
    """Returns the columns that run lengths show in, bool [columns, H], and the number of the first."""
    ends = np.cumsum(runs, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    if (runs < 0).any() or total != height * width:
        raise ValueError(f"its runs cover {total:,} pixels, the image has {height * width:,}")
    return _columns_between(ends[: len(ends) // 2 * 2], height)


def _columns_between(ends: Array, height: int) -> tuple[Mask, int]:
    """Returns the columns that spans of pixels show in, bool [columns, H], and the number of the first.

    ``ends`` are int64 [n], ascending: where spans begin and end, in turn, counted column by column.
    """
    if not len(ends):
        return np.zeros((0, height), np.bool_), 0
    first, stop = int(ends[0]) // height, -(-int(ends[-1]) // height)
    is_shown = np.arange(len(ends) + 1) % 2 == 1
    is_shown[-1] = False
    lengths = np.diff(ends, prepend=first * height, append=stop * height)
    return np.repeat(is_shown, lengths).reshape(stop - first, height), first  # a hundredth of the time of sums


def runs_of_mask(mask: Mask) -> npt.NDArray[np.int32]:
    """Encodes a mask, bool [H, W], as run lengths."""
    height, columns = len(mask), np.flatnonzero(mask.any(0))
    first, stop = (int(columns[0]), int(columns[-1]) + 1) if len(columns) else (0, 0)
    flat = np.pad(mask[:, first:stop].T.reshape(-1), 1)  # the other columns are zeros
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + first * height
    edges = np.concatenate([[0], changes, [mask.size] if not len(changes) or changes[-1] < mask.size else []])
    return np.diff(edges).astype(np.int32)


def of_boxes(fields: Mapping[str, Array], keep: Mask) -> dict[str, Array]:
    """Returns the masks of the boxes that remain, by ``keep`` bool [boxes], with the boxes' new indexes."""
    numbers, remaining = np.cumsum(keep) - 1, {}
    for owners, values in SEGMENTS:
        if owners in fields:
            box, count = fields[owners].reshape(-1, 2).T
            stays = keep[box]
            remaining[owners] = np.stack([numbers[box[stays]], count[stays]], 1).astype(np.int32)
            remaining[values] = fields[values][np.repeat(stays, count)]
    return remaining


def parts_of(fields: Mapping[str, Array], owners: str, values: str) -> list[tuple[int, Array]]:
    """Returns the box and the values of each polygon or mask of one image without padding, in their order.

    ``owners`` and ``values`` are a pair of names of :data:`SEGMENTS`; an image without these fields has none.
    """
    box, count = fields.get(owners, _NO_ENTRIES).reshape(-1, 2).T
    ends = np.cumsum(count).tolist()
    starts = [0, *ends[:-1]]
    return [(number, fields[values][start:end]) for number, start, end in zip(box.tolist(), starts, ends, strict=False)]


def without_padding(fields: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the fields of one image as a batch has them, boxes and all that belongs to them without padding."""
    count = int(fields["counts"])
    real = {name: values[:count] for name, values in fields.items() if name == "boxes" or name in PER_BOX}
    for owners, values in SEGMENTS:
        if owners in fields:
            entries = fields[owners]
            real[owners] = entries[entries[:, 1] > 0]
            real[values] = fields[values][: int(entries[:, 1].sum())]
    return {**fields, **real}


def parts_fault(entries: Array, values: Array, lengths: Array, boxes: Array, pixels: Array) -> tuple[int, str] | None:
    """Returns the first of B rows whose polygons or run lengths fit neither its boxes nor its image, and the reason.

    Args:
        entries: int [B, m, 2], index of the box and number of values of each polygon or mask, with zeros behind.
        values: points [B, n, 2] or runs [B, n], with zeros behind.
        lengths: int64 [B], number of values of each row.
        boxes: int64 [B], number of boxes.
        pixels: int64 [B], number of pixels of the image.
    """
    box, count = np.moveaxis(entries.astype(np.int64), 2, 0)
    wrong = {
        "it has other numbers of values than its polygons or masks": (count < 0).any(1) | (count.sum(1) != lengths),
        "a polygon or mask is of a box that the row does not have": (
            (count > 0) & ((box < 0) | (box >= boxes[:, None]))
        ).any(1),
    }
    if values.ndim == 2:
        covered = np.pad(values.cumsum(1, dtype=np.int64), ((0, 0), (1, 0)))
        ends = np.minimum(count.clip(0, values.shape[1]).cumsum(1), values.shape[1])
        sums = np.diff(np.take_along_axis(covered, ends, 1), prepend=0)
        wrong["its runs do not cover the image"] = ((values < 0) | (values > pixels[:, None])).any(1) | (
            (count > 0) & (sums != pixels[:, None])
        ).any(1)
    return next(((int(where.argmax()), reason) for reason, where in wrong.items() if where.any()), None)


_SCALE = 5  # points per pixel along a boundary, as in pycocotools


def _columns_of_polygon(points: Array, height: int, width: int) -> tuple[Mask, int]:
    """Returns the columns that a polygon shows in, bool [columns, H], and the number of the first.

    Its pixels are pycocotools', of which rleFrPoly of COCO's API (BSD) has the rule: points along the boundary, five a
    pixel, decide between which pixels of a column it passes. A polygon may reach out of the image.
    """
    side = max(height, width)
    near = np.clip(np.nan_to_num(points.astype(np.float64)), -16 * side, 17 * side)  # bounds time and memory
    ends = np.trunc(_SCALE * near + 0.5).astype(np.int64)
    starts, stops = ends, np.roll(ends, -1, 0)
    size = np.abs(stops - starts)
    is_flat = size[:, 0] >= size[:, 1]
    step = np.where(is_flat, 0, 1)
    rows = np.arange(len(ends))
    flip = starts[rows, step] > stops[rows, step]
    starts, stops = np.where(flip[:, None], stops, starts), np.where(flip[:, None], starts, stops)
    length = size[rows, step]
    slope = (stops - starts)[rows, 1 - step] / np.maximum(length, 1)
    edge = np.repeat(rows, length + 1)
    place = np.arange(len(edge)) - np.repeat(np.cumsum(length + 1) - length - 1, length + 1)
    place = np.where(flip[edge], length[edge] - place, place)
    along = starts[edge, step[edge]] + place
    across = np.trunc(starts[edge, 1 - step[edge]] + slope[edge] * place + 0.5).astype(np.int64)
    x, y = np.where(is_flat[edge], along, across), np.where(is_flat[edge], across, along)
    crossing = np.flatnonzero(x[1:] != x[:-1]) + 1
    left = np.where(x[crossing] < x[crossing - 1], x[crossing], x[crossing] - 1)
    inside = (left % _SCALE == _SCALE // 2) & (left >= 0) & (left <= _SCALE * (width - 1) + _SCALE // 2)
    crossing, column = crossing[inside], left[inside] // _SCALE
    top = (np.minimum(y[crossing], y[crossing - 1]) + 0.5) / _SCALE - 0.5
    flat = column * height + np.ceil(np.clip(top, 0, height)).astype(np.int64)
    return _columns_between(np.sort(flat), height)


def masks_of_boxes(fields: Mapping[str, Array], height: int, width: int) -> npt.NDArray[np.uint8]:
    """Renders the masks of an image's boxes, uint8 [n, H, W] of 0 and 1, with pycocotools' pixels.

    Fields are ``counts``, ``rings``, ``polygons``, and perhaps ``run_boxes`` and ``runs`` of the image, as a batch has
    them; entries of box -1 are skipped.
    """
    masks = np.zeros((int(fields["counts"]), height, width), np.uint8)
    real = without_padding(fields)
    for pair, columns_of in zip(SEGMENTS, (_columns_of_polygon, _columns_of_runs), strict=True):
        for box, values in parts_of(real, *pair):
            if box >= 0:  # only where it shows: a tenth of the time of whole masks
                columns, first = columns_of(values, height, width)
                rows = np.flatnonzero(columns.any(0))
                shown = slice(rows[0], rows[-1] + 1) if len(rows) else slice(0)
                masks[box, shown, first : first + len(columns)] |= columns[:, shown].T
    return masks


def rectangles_of_runs(runs: Array, height: int) -> npt.NDArray[np.float32]:
    """Returns polygons that cover the pixels of run lengths exactly: float32 [n, 4, 2], a rectangle per run and column.

    Equal runs of neighboring columns become one rectangle. Memory is of the size of the runs, whatever they cover.
    """
    ends = np.cumsum(runs, dtype=np.int64)
    starts, ends = ends[: len(ends) // 2 * 2].reshape(-1, 2).T
    starts, ends = starts[ends > starts], ends[ends > starts]
    first, last = starts // height, (ends - 1) // height
    begins = np.stack([first, starts - first * height, first + 1, np.minimum(ends - first * height, height)], 1)
    middles = np.stack([first + 1, 0 * first, last, 0 * first + height], 1)[last > first + 1]
    rests = np.stack([last, 0 * last, last + 1, ends - last * height], 1)[last > first]
    parts = np.concatenate([begins, middles, rests])  # x0, y0, x1, y1: part of a column, whole columns, part of one
    parts = parts[np.lexsort((parts[:, 0], parts[:, 3], parts[:, 1]))]
    is_first = np.ones(len(parts) + 1, np.bool_)
    is_first[1:-1] = (parts[1:, [1, 3]] != parts[:-1, [1, 3]]).any(1) | (parts[1:, 0] != parts[:-1, 2])
    x0, y0, _, y1 = parts[is_first[:-1]].T
    x1 = parts[is_first[1:], 2]
    corners = np.stack([x0, y0, x1, y0, x1, y1, x0, y1], 1).reshape(-1, 4, 2)
    return corners.astype(np.float32)
