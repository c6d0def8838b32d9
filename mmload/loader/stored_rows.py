"""Rows of a batch as they are stored: where their bytes are in memory, and the lines of pixels that they hold.

A tier says where the rows are; their lines go to the renderer, decoded if they are JPEGs. Nothing is read here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mmload.errors import DamagedError
from mmload.render.image_lines import LINES, NEEDED, PIXELS, PLACE, PLANES, ImageLines
from mmload.runtime.memory_pool import scratch
from mmload.store.row_reader import Numbers, Places, Rows
from mmload.store.variable_rows import JPEG

Bytes = npt.NDArray[np.uint8]


class StoredRows(NamedTuple):
    """Rows as they are stored, in memory.

    Attributes:
        memory: uint8 [n].
        rows: int64 [B], their numbers.
        jpeg: bool [B], which of them are JPEGs.
        needed: :data:`~mmload.render.image_lines.NEEDED` [B], of each image, with how many times smaller a JPEG is
            decoded.
        places: :data:`~mmload.render.image_lines.PLACE` [B], where the lines of pixels are; a JPEG begins where its
            lines would.
        lengths: int64 [B], bytes of each row in ``memory``.
    """

    memory: Bytes
    rows: Numbers
    jpeg: npt.NDArray[np.bool_]
    needed: Places
    places: Places
    lengths: Numbers

    def part(self, group: slice) -> StoredRows:
        """Returns some of the rows."""
        _, rows, jpeg, needed, places, lengths = self
        return StoredRows(self.memory, rows[group], jpeg[group], needed[group], places[group], lengths[group])

    def data(self, k: int) -> Bytes:
        """Returns the bytes of the row at place ``k``, a JPEG."""
        start = self.places["start"][k]
        return self.memory[start : start + self.lengths[k]]


def all_lines(heights: npt.NDArray[np.integer]) -> Places:
    """Returns the need for all lines of images of these heights, [B]: :data:`NEEDED` [B]."""
    needed = np.empty(len(heights), NEEDED)
    needed["first"], needed["stop"], needed["shrink"] = 0, heights, 1
    return needed


def locate_rows(field: Rows, numbers: Numbers, needed: Places | None = None) -> tuple[Places, StoredRows]:
    """Locates rows of images and describes the lines that they hold.

    Args:
        field: the images.
        numbers: int64 [B].
        needed: needed lines of variable-size images; None: all.

    Returns:
        Where the rows are in their files, of rows of pixels the lines that are needed; and the rows as they will be
        there, with no memory yet, each beginning at 0.
    """
    located, variable = field.located(numbers), field.spec.variable_size
    places, jpeg = np.zeros(len(numbers), PLACE), located["encoding"] == JPEG
    places["height"], places["width"], places["shrink"] = located["height"], located["width"], 1
    places["layout"] = LINES if variable else PLANES
    needed = all_lines(places["height"]) if needed is None else needed.copy()
    np.minimum(needed["stop"], places["height"], out=needed["stop"])
    places["first"], places["count"] = needed["first"], needed["stop"] - needed["first"]
    if variable:
        line = np.where(jpeg, 0, places["width"] * field.spec.channels)
        located["offset"] += needed["first"] * line
        located["bytes"] = np.where(jpeg, located["bytes"], places["count"] * line)
    lengths = np.ascontiguousarray(located["bytes"])
    return located, StoredRows(np.empty(0, np.uint8), numbers, jpeg, needed, places, lengths)


def pixel_bytes(places: Places, channels: int) -> Numbers:
    """Returns the bytes of the pixels of complete images, int64 [B], for located or stored rows."""
    sizes: Numbers = places["height"].astype(np.int64) * places["width"] * channels
    return sizes


def split_by_size(room: Numbers, most: int) -> list[slice]:
    """Splits rows in order into groups that need at most ``most`` bytes together, or are one row."""
    ends, groups, first = np.cumsum(room), [], 0
    while first < len(room):
        used = ends[first - 1] if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, used + most, "right")))
        groups.append(slice(first, stop))
        first = stop
    return groups


def lines_of(stored: StoredRows, field: Rows) -> ImageLines:
    """Returns the lines of rows, with JPEGs decoded; valid until the next call in this thread.

    If some rows are JPEGs, the lines of the others are copied next to theirs.

    Args:
        stored: rows as they are stored.
        field: the images: names a damaged row.

    Raises:
        DamagedError: if a JPEG is broken, or has another size.
    """
    jpeg, places = stored.jpeg, stored.places
    if not jpeg.any():
        return ImageLines(stored.memory, places)
    from mmload.loader.jpeg_strips import decode_lines  # its kernel is not needed for pixels
    from mmload.loader.row_loops import copy_ranges

    channels, lengths, decoded = field.spec.channels, stored.lengths, places.copy()
    room = np.where(jpeg, pixel_bytes(places, channels), lengths)
    decoded["start"] = np.cumsum(room) - room
    decoded["layout"][jpeg], decoded["shrink"][jpeg] = PIXELS, stored.needed["shrink"][jpeg]
    pixels = scratch("decoded rows", (int(room.sum()),), torch.uint8).numpy()
    spare = scratch("strip", (int(lengths[jpeg].max()) + 2,), torch.uint8).numpy()
    raw = np.flatnonzero(~jpeg)
    copy_ranges(stored.memory, places["start"][raw], lengths[raw], pixels, decoded["start"][raw])
    for k in np.flatnonzero(jpeg).tolist():  # a call of the decoder for each image, of which none does several
        start, size = decoded["start"][k], (int(places["height"][k]), int(places["width"][k]))
        first, stop, shrink = stored.needed[k].tolist()
        try:
            decoded["first"][k], decoded["count"][k] = decode_lines(
                stored.data(k), size, channels, (first, stop), shrink, spare, pixels[start:]
            )
        except DamagedError as error:
            raise field.damaged(int(stored.rows[k]), str(error)) from error
    return ImageLines(pixels, decoded)
