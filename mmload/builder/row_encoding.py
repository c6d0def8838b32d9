"""Makes the bytes of rows of their own sizes: pixels line by line, or a JPEG."""

from __future__ import annotations

import hashlib
import io

import numpy as np
import numpy.typing as npt
from PIL import Image

from mmload.builder.whole_layout import WholeLayout
from mmload.errors import SampleError
from mmload.records import Sample
from mmload.store.whole_rows import JPEG, RAW, Bytes, WholeRows, whole_rows

Pixels = npt.NDArray[np.uint8]

JPEG_SIDE = 65_500
"""The most pixels of a side of a JPEG, as libjpeg has it."""

_HASH_BYTES = 6  # fewer bits than a float has
_HASHES = 2.0**48
_SUBSAMPLING_420 = 2


class OwnRows:
    """Rows of their own sizes, of one field, as they are added."""

    def __init__(self, channels: int) -> None:
        self._channels = channels
        self._rows: list[Bytes] = []
        self._sizes: list[tuple[int, int]] = []
        self._encodings: list[int] = []

    def add(self, row: Bytes, encoding: int, height: int, width: int) -> None:
        """Append a row."""
        self._rows.append(row)
        self._encodings.append(encoding)
        self._sizes.append((height, width))

    def finish(self) -> WholeRows:
        """All rows, one after another."""
        return whole_rows(self._rows, self._sizes, self._encodings, self._channels)


def encoded(sample: Sample, lines: Pixels, layout: WholeLayout) -> tuple[Bytes, int]:
    """The bytes of a sample's image, and their encoding.

    Args:
        sample: with its id, and the source's own JPEG if its pixels are the image.
        lines: its pixels, uint8 [H, C, W].
        layout: how they are stored.

    Raises:
        SampleError: if it is too large for a JPEG.
    """
    if layout.encode == "raw" or (layout.encode == "mixed" and is_raw(sample.id, layout.raw_share)):
        return lines.reshape(-1), RAW
    if layout.encode == "source" and sample.encoded is not None:
        return np.frombuffer(sample.encoded, np.uint8), JPEG
    height, _, width = lines.shape
    if max(height, width) > JPEG_SIDE:
        raise SampleError(
            sample.id, f"it is {width} x {height}, and a JPEG has at most {JPEG_SIDE:,} pixels a side; use --encode raw"
        )
    return jpeg_of(lines, layout.quality), JPEG


def jpeg_of(lines: Pixels, quality: int) -> Bytes:
    """A baseline JPEG with 4:2:0 subsampling and a restart marker after each line of blocks.

    Pillow reads lines of channels as they are ("RGB;L"), so pixels are not interleaved first.

    Args:
        lines: uint8 [H, C, W], of 1 or 3 channels.
        quality: 1 to 100.
    """
    height, channels, width = lines.shape
    mode, order = ("RGB", "RGB;L") if channels == 3 else ("L", "L")
    image, file = Image.frombytes(mode, (width, height), lines.data, "raw", order), io.BytesIO()
    image.save(file, "JPEG", quality=quality, subsampling=_SUBSAMPLING_420, restart_marker_rows=1)
    return np.frombuffer(file.getbuffer(), np.uint8)


def is_raw(sample: str, share: float) -> bool:
    """Whether a row of a mixed field is pixels: a hash of the sample's id, below the share of all hashes."""
    digest = hashlib.blake2b(sample.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES).digest()
    return int.from_bytes(digest, "little") < share * _HASHES
