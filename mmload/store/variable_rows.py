"""Variable-size rows in memory: one array of all bytes, and the offset of each row in it.

A row is a JPEG, raw pixels [H, C, W], or a list of elements. See docs/format.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.errors import DamagedError
from mmload.records import LIST, FieldSpec

RAW, JPEG = 0, 1
"""Encodings of a row."""

MAX_PIXELS = 2**31 // 12
"""178,956,970, twice Pillow's warning level: a larger image is rejected as a decompression bomb."""

Bytes = npt.NDArray[np.uint8]
Pixels = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.int32]


class Index(NamedTuple):
    """Places of the rows of a split, all shards together.

    Of variable size it takes 16 bytes per row, 17 with mixed encodings, and 8 for lists.

    Attributes:
        row_bytes: bytes of each row; 0 if they differ.
        offsets: int64 [rows + 1], counted as if the shards' bytes were one file; empty if rows are of a fixed size.
        sizes: int32 [rows, 2], height and width; [1, 2] if all rows have the same.
        encodings: uint8 [rows]; [1] for a field with one encoding.
    """

    row_bytes: int
    offsets: Offsets
    sizes: Sizes
    encodings: npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, eq=False)
class VariableRows:
    """Rows that differ in size.

    Attributes:
        bytes: uint8 [n], all rows one after another.
        offsets: int64 [rows + 1]; row r is ``bytes[offsets[r] : offsets[r + 1]]``.
        sizes: int32 [rows, 2], height and width of each row.
        encodings: uint8 [rows], :data:`RAW` or :data:`JPEG`.
        channels: number of channels of every row.
    """

    bytes: Bytes
    offsets: Offsets
    sizes: Sizes
    encodings: npt.NDArray[np.uint8]
    channels: int

    def __len__(self) -> int:
        return len(self.sizes)

    def encoded(self, row: int) -> Bytes:
        """Returns the bytes of a row, uint8 [n], not copied."""
        return self.bytes[self.offsets[row] : self.offsets[row + 1]]

    def pixels(self, row: int) -> Pixels:
        """Returns the pixels of a row, uint8 [C, H, W]; for a raw row a view with strides (W, C W, 1).

        Raises:
            DamagedError: if its bytes are not an image of its size.
        """
        height, width = self.sizes[row].tolist()
        return decoded(self.encoded(row), int(self.encodings[row]), height, width, self.channels)


def fault_of(
    offsets: Offsets, sizes: Sizes, encodings: npt.NDArray[np.uint8], spec: FieldSpec, size: int
) -> tuple[int, str] | None:
    """Returns the first row whose offsets, size and encoding are inconsistent, and the reason; None if all are fine.

    It reads no JPEG: headers are compared with the sizes when rows are decoded. It takes them as :class:`VariableRows`
    has them, and the bytes of all rows together. A list has no size.
    """
    begins, ends = offsets[:-1], offsets[1:]
    descends = ends < begins if spec.is_list else ends <= begins  # differences of damaged offsets may overflow
    checks: list[tuple[Any, str]] = [
        (begins[:1] != 0, f"its offset is {offsets[0]}, expected 0"),
        (descends, "its bytes end before they begin"),
        (ends > size, f"its bytes leave the file, which has {size:,}"),
    ]
    if spec.is_list:
        element = spec.padded(1).row_bytes
        checks.append((ends % element != 0, f"its bytes are no elements of {element}"))
    else:
        pixels, lengths = np.prod(sizes, axis=1, dtype=np.int64), np.where(descends, 0, ends - begins)
        checks += [
            ((sizes < 1).any(1), "its height or width is below 1"),
            (pixels > MAX_PIXELS, f"it has more than {MAX_PIXELS:,} pixels"),
            (encodings > JPEG, "its encoding is neither 0 (pixels) nor 1 (JPEG)"),
            (
                (encodings == RAW) & (lengths != pixels * spec.channels),
                "it has another number of bytes than its pixels",
            ),
        ]
    found = [(int(np.argmax(wrong)), reason) for wrong, reason in checks if wrong.any()]
    if not found and offsets[-1] != size:
        found = [(max(0, len(begins) - 1), f"its bytes end at {offsets[-1]:,}, those of the file at {size:,}")]
    if not found:
        return None
    row, reason = min(found, key=lambda fault: fault[0])
    return row, f"{reason} (bytes {' to '.join(map(str, offsets[row : row + 2]))})"


def variable_rows(
    rows: Sequence[Bytes], sizes: Sequence[tuple[int, int]], encodings: Sequence[int], channels: int
) -> VariableRows:
    """Joins the bytes of rows, uint8 [n] each, one after another."""
    return VariableRows(
        bytes=np.concatenate([np.empty(0, np.uint8), *rows]),
        offsets=np.cumsum([0, *map(len, rows)], dtype=np.int64),
        sizes=np.array(sizes, np.int32).reshape(-1, 2),
        encodings=np.array(encodings, np.uint8),
        channels=channels,
    )


def decoded(data: Bytes, encoding: int, height: int, width: int, channels: int) -> Pixels:
    """Decodes a row to its pixels, uint8 [C, H, W], with any memory layout.

    Raises:
        DamagedError: if its bytes are not an image of this size; the message does not name the row.
    """
    if encoding == RAW:
        if len(data) != height * channels * width:
            raise DamagedError(f"it has {len(data):,} bytes, its size is {channels} x {height} x {width}")
        return data.reshape(height, channels, width).transpose(1, 0, 2)
    from simplejpeg import decode_jpeg  # type: ignore[import-untyped]  # not needed for pixels

    check_jpeg(data, (height, width))
    try:
        pixels: Pixels = decode_jpeg(data, "RGB" if channels == 3 else "GRAY")
    except ValueError as error:
        raise DamagedError(f"its JPEG cannot be decoded ({error})") from error
    return pixels.transpose(2, 0, 1)


def check_jpeg(data: Bytes, size: tuple[int, int]) -> None:
    """Checks that a row is a JPEG of this height and width, by its header.

    Raises:
        DamagedError: if it is not one; the message does not name the row.
    """
    from simplejpeg import decode_jpeg_header

    try:
        have = decode_jpeg_header(data)[:2]
    except (ValueError, KeyError) as error:  # KeyError: a subsampling that it does not know
        raise DamagedError(f"its JPEG cannot be decoded ({error})") from error
    if have != size:
        raise DamagedError(f"its JPEG is {have[0]} x {have[1]}, its size is {size[0]} x {size[1]}")


def encoding_of(spec: FieldSpec) -> int | None:
    """Returns the encoding of all rows of a field; None if each has its own."""
    return {"raw": RAW, "jpeg": JPEG, LIST: RAW}.get(spec.encoding or "")
