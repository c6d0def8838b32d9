"""Decodes the lines of a JPEG that a window needs by simplejpeg: where TurboJPEG's own library is not found."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from simplejpeg import decode_jpeg  # type: ignore[import-untyped]

from mmload.errors import DamagedError
from mmload.render.jpeg_strips import WORTH, cut_strip
from mmload.store.variable_rows import check_jpeg

Bytes = npt.NDArray[np.uint8]


def decode_lines(
    data: Bytes, size: tuple[int, int], channels: int, needed: tuple[int, int], shrink: int, spare: Bytes, out: Bytes
) -> tuple[int, int]:
    """Decodes the lines of a JPEG that are needed, and perhaps others.

    Smaller, libjpeg computes fewer pixels of each block of frequencies, which are nearly the averages of those that
    they stand for.

    Args:
        data: uint8 [n], the JPEG.
        size: the height and width that it must have.
        channels: 3 or 1 of the pixels.
        needed: the first line, and the one after the last.
        shrink: factor by which the decoded image is smaller: 1, 2 or 4.
        spare: uint8, at least n + 2 bytes of working memory.
        out: uint8, at least as many bytes as the whole image has: pixels are written from its beginning on.

    Returns:
        The first line that is there, and how many there are, in the smaller image.

    Raises:
        DamagedError: if it is no sound JPEG of this size; the message does not name the row.
    """
    check_jpeg(data, size)
    used, part = 0, np.empty(2, np.int64)
    if needed[1] - needed[0] < WORTH * size[0]:
        used = cut_strip(data, *needed, spare, part)
    jpeg = spare[:used] if used else data
    first, lines = part.tolist() if used else (0, size[0])
    try:
        sides = -(-lines // shrink), -(-size[1] // shrink)
        least = {} if shrink == 1 else {"min_height": sides[0], "min_width": sides[1], "min_factor": shrink}
        pixels = decode_jpeg(jpeg, "RGB" if channels == 3 else "GRAY", buffer=out, **least)
    except ValueError as error:
        raise DamagedError(f"its JPEG cannot be decoded ({error})") from error
    if pixels.shape != (*sides, channels):
        raise DamagedError(f"its JPEG decodes to {pixels.shape}, expected {(*sides, channels)}")
    return first // shrink, sides[0]
