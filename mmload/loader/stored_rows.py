"""The pixels of whole photographs as they are stored: rows of pixels as they are, of JPEGs the lines that are needed.

It takes the rows that a tier has read, and gives their lines to the renderer. It reads no files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mmload.render.image_lines import COUNT, FIRST, HEIGHT, LAYOUT, PIXELS, SHRINK, START, WIDTH, ImageLines
from mmload.render.scratch_memory import scratch
from mmload.store.field_rows import Rows

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


class StoredRows(NamedTuple):
    """Rows as they are stored, in memory.

    Attributes:
        rows: int64 [B], their numbers.
        jpeg: bool [B], which of them are JPEGs.
        needed: int64 [B, 3], the lines that are needed: the first, and the one after the last; and how many times
            smaller a JPEG is decoded.
        memory: uint8 [n].
        places: int64 [B, 7], as :class:`~mmload.render.image_lines.ImageLines` has them, of pixels; a JPEG begins
            where its lines would.
        lengths: int64 [B], bytes of each row in ``memory``.
    """

    rows: Numbers
    jpeg: npt.NDArray[np.bool_]
    needed: Numbers
    memory: Bytes
    places: Numbers
    lengths: Numbers

    def of(self, chosen: Numbers) -> StoredRows:
        """Some of the rows."""
        rows, jpeg, needed, memory, places, lengths = self
        return StoredRows(rows[chosen], jpeg[chosen], needed[chosen], memory, places[chosen], lengths[chosen])

    @property
    def pixels(self) -> ImageLines:
        """Of the rows that are no JPEGs, the lines."""
        return ImageLines(self.memory, self.places)

    def data(self, k: int) -> Bytes:
        """The bytes of the row at place ``k``, a JPEG."""
        start = self.places[k, START]
        return self.memory[start : start + self.lengths[k]]


def all_lines(sizes: npt.NDArray[np.integer]) -> Numbers:
    """What is needed of whole images of these heights and widths [B, 2]: int64 [B, 3]."""
    height = sizes[:, 0].astype(np.int64)
    return np.stack((np.zeros_like(height), height, np.ones_like(height)), 1)


def lines_of(stored: StoredRows, reader: Rows) -> ImageLines:
    """The lines of rows, of which the JPEGs are decoded; valid until the next call in this thread.

    Args:
        stored: the rows.
        reader: where they come from: names a damaged row.

    Raises:
        DamagedError: if a JPEG is broken, or has another size.
    """
    if not stored.jpeg.any():
        return stored.pixels
    if not stored.jpeg.all():
        return _together(stored, reader)
    from mmload.loader.jpeg_strips import decode_lines  # its kernel is not needed for pixels

    channels, places = reader.spec.channels, stored.places.copy()
    room = places[:, HEIGHT] * places[:, WIDTH] * channels
    pixels = scratch("decoded rows", (int(room.sum()),), torch.uint8).numpy()
    spare = scratch("strip", (int(stored.lengths.max()) + 2,), torch.uint8).numpy()
    starts, sizes = places[:, START].tolist(), places[:, HEIGHT : WIDTH + 1].tolist()
    at, made = 0, []
    for row, start, length, (height, width), (begin, stop, shrink) in zip(
        stored.rows.tolist(), starts, stored.lengths.tolist(), sizes, stored.needed.tolist(), strict=True
    ):
        data = stored.memory[start : start + length]
        try:
            first, count = decode_lines(data, (height, width), channels, (begin, stop), shrink, spare, pixels[at:])
        except ValueError as error:
            raise reader.damaged(row, str(error)) from error
        made.append((at, first, count))
        at += count * -(-width // shrink) * channels
    places[:, START : COUNT + 1], places[:, LAYOUT], places[:, SHRINK] = made, PIXELS, stored.needed[:, 2]
    return ImageLines(pixels, places)


def _together(stored: StoredRows, reader: Rows) -> ImageLines:
    """:func:`lines_of` where only some rows are JPEGs: the lines of the others are copied beside them."""
    chosen, others = np.flatnonzero(stored.jpeg), np.flatnonzero(~stored.jpeg)
    decoded, places, needed = lines_of(stored.of(chosen), reader), stored.places, stored.needed
    width = places[:, WIDTH] * reader.spec.channels
    parts: Sequence[Bytes] = [
        stored.memory[start : start + size]
        for start, size in zip(
            (places[others, START] + (needed[others, 0] - places[others, FIRST]) * width[others]).tolist(),
            ((needed[others, 1] - needed[others, 0]) * width[others]).tolist(),
            strict=True,
        )
    ]
    smaller = -(-places[chosen, WIDTH] // decoded.places[:, SHRINK]) * reader.spec.channels
    used = int(decoded.places[:, COUNT] @ smaller)
    both = scratch("both kinds of rows", (used + sum(map(len, parts)),), torch.uint8).numpy()
    both[:used] = decoded.memory[:used]
    made = places.copy()
    made[chosen] = decoded.places
    for k, part in zip(others.tolist(), parts, strict=True):
        both[used : used + len(part)] = part
        made[k, [START, FIRST, COUNT]] = used, needed[k, 0], needed[k, 1] - needed[k, 0]
        used += len(part)
    return ImageLines(both, made)
