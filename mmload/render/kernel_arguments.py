"""Arguments of the compiled kernels: lines of images, windows and more, and their types in signatures.

A kernel checks nothing; whoever calls it does. Shapes: B samples of N images with C channels, H rows and W columns;
outputs have h rows and w columns.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.runtime.kernels import RecordArray, inlined
from mmload.runtime.resident_pages import FileRanges

PADDING_MODES = ("constant", "edge", "reflect", "symmetric")
"""Names of the ways in which padding is filled."""

Bytes = Annotated[npt.NDArray[np.uint8], "uint8[::1]"]
Images = Annotated[npt.NDArray[np.uint8], "uint8[:, :, :, ::1]"]
Flags = Annotated[npt.NDArray[np.bool_], "boolean[::1]"]
Floats = Annotated[npt.NDArray[np.float32], "float32[::1]"]
Numbers = Annotated[npt.NDArray[np.int64], "int64[::1]"]
Addresses = Annotated[npt.NDArray[np.uintp], "uintp[::1]"]
Address = Annotated[Any, "uintp"]
"""Types of arguments, for checkers of types and for kernels; other arrays of these have other dimensions."""

Words = npt.NDArray[np.uint32]
Pixels = npt.NDArray[Any]
Records = npt.NDArray[np.void]
Places = npt.NDArray[np.void]

PLACE = np.dtype(
    [(name, np.int64) for name in ("start", "first", "count", "height", "width", "layout", "shrink")], align=True
)
"""Dtype of :attr:`Lines.places`.

``start`` is the byte at which an image's lines begin, ``first`` the number of the first line there, ``count`` the
number of lines. ``height`` and ``width`` are those of the complete image. ``layout`` is one of those below. The image
in memory, whose lines are counted, is ``shrink`` times smaller than the original.
"""

NEEDED = np.dtype([(name, np.int64) for name in ("first", "stop", "shrink")])
"""Dtype of what a window needs of its image: its lines from ``first`` to before ``stop``, and an image that is at most
``shrink`` times smaller."""

PLANES, LINES, PIXELS = range(3)
"""Layouts: [C, H, W] of fixed-size rows; [H, C, W] of variable-size pixels; [H, W, C] of decoded JPEGs."""


@inlined
def steps_of(layout: int, lines: int, width: int, channels: int) -> tuple[int, int, int]:
    """Returns the bytes from channel to channel, line to line, and pixel to pixel of an image in a layout."""
    if layout == PLANES:
        return lines * width, width, 1
    return (width, channels * width, 1) if layout == LINES else (1, channels * width, channels)


UNREADABLE, REFUSED = 1, 2
"""Why a row has not arrived: its file cannot be read; TurboJPEG refuses it."""

NOWHERE: Bytes = np.empty(0, np.uint8)
"""No memory."""


class Lines(NamedTuple):
    """Lines of some images, as kernels take them.

    Attributes:
        memory: uint8 [n], contiguous.
        places: :data:`PLACE` [B]. In the layout :data:`PLANES` all lines are there, and in the original size. Those of
            JPEGs get their start, lines and layout when they arrive.
        decoded: uint8 [m], contiguous: where images of the layout :data:`PIXELS` are.
    """

    memory: Bytes
    places: Annotated[Places, RecordArray(PLACE)]
    decoded: Bytes = NOWHERE


class Arrival(NamedTuple):
    """How rows arrive in memory, for :func:`mmload.render.arrival.arrive`.

    Attributes:
        ranges: files that the memory of the rows maps.
        files: int64 [B], the file of each row.
        absent: int64 [B], what :func:`~mmload.runtime.resident_pages.prefetch` returns: 0: a row is in memory.
        jpeg: bool [B], which rows are JPEGs.
        starts: int64 [B], the first byte of each row in memory.
        lengths: int64 [B], the bytes of each row.
        needed: :data:`NEEDED` [B], the lines that are decoded at least, and how many times smaller.
        rooms: int64 [B], the first byte of ``decoded`` that each JPEG is decoded to.
        channels: number of channels.
        spare: uint8, two bytes more than a JPEG has: working memory.
        decoder: uintp, a :attr:`mmload.runtime.turbojpeg.TurboDecoder.state`.
        failed: int64 [2], the row that cannot arrive, or -1; and :data:`UNREADABLE` or :data:`REFUSED`. No later row is
            rendered.
    """

    ranges: FileRanges
    files: Numbers
    absent: Numbers
    jpeg: Flags
    starts: Numbers
    lengths: Numbers
    needed: Annotated[Places, RecordArray(NEEDED)]
    rooms: Numbers
    channels: int
    spare: Bytes
    decoder: Addresses
    failed: Numbers


FLIPPED_X, FLIPPED_Y = 1, 2
"""Bits of a sample's flips: left to right, upside down."""

WINDOW = np.dtype([("index", np.int64), ("top", np.int64), ("left", np.int64), ("flips", np.uint8)], align=True)
"""Window of a sample that keeps its size.

``index`` is the number of its image; ``top`` and ``left`` are its first row and column, inside or outside of the image.
"""

RESIZED = np.dtype(
    [(name, np.int64) for name in ("top", "left", "rows", "columns", "high", "wide", "down", "right")], align=True
)
"""Window of a sample that is resized and placed on a canvas.

``top``, ``left``, ``rows`` and ``columns`` are the window, inside or outside of the image; ``high`` and ``wide`` its
size after the resize; ``down`` and ``right`` the line and column of the canvas where it begins, which may be negative.
"""

_TILE_PLACES = ("layer", "begins", "top", "left", "bottom", "right")
_TILE_NUMBERS = ("a", "b", "c", "d", "e", "f", "g", "h", "i", "u0", "u1", "v0", "v1")

TILE = np.dtype(
    [(name, np.int64) for name in _TILE_PLACES] + [(name, np.float64) for name in _TILE_NUMBERS], align=True
)
"""Part of an image on a canvas, seen through a map.

``layer`` is the canvas, and ``begins`` is 1 for its first tile. ``top``, ``left``, ``bottom`` and ``right`` are the
part of the image that shows. The point (x, y) of the canvas is ((a x + b y + c) / n, (d x + e y + f) / n) of the image,
with n = g x + h y + i above 0; the centers of pixels are at halves. ``u0``, ``u1``, ``v0`` and ``v1`` are the tile's
limits in the image: left, right, top and bottom.
"""

NEAR = 1e-6
"""Least divisor n of a point that is seen: others are behind the point of view."""

HOLE = np.dtype([(name, np.int64) for name in ("top", "left", "height", "width", "noise")], align=True)
"""Rectangle of a sample that is overwritten; ``noise`` is the key of its noise. A height of 0: there is none."""


class Crops(NamedTuple):
    """Windows of images.

    Attributes:
        images: uint8 [N, C, H, W].
        windows: :data:`WINDOW` [B].
        fill: uint8 [C], the constant outside of the image.
        mode: padding outside of the image, an index of :data:`~mmload.render.kernel_arguments.PADDING_MODES`.
    """

    images: Images
    windows: Annotated[Records, RecordArray(WINDOW)]
    fill: Bytes
    mode: int


class Holes(NamedTuple):
    """Rectangles that are overwritten.

    Attributes:
        sides: :data:`HOLE` [B, n].
        values: float32 [n, C], what they are overwritten with; NaN: noise.
    """

    sides: Annotated[Records, RecordArray(HOLE, 2)]
    values: Annotated[npt.NDArray[np.float32], "float32[:, ::1]"]


class Paint(NamedTuple):
    """Color map of pixels, and what is overwritten after it.

    Attributes:
        shift: float32 [C]; a value becomes (x - shift) * scale.
        scale: float32 [C].
        holes: holes of the samples.
        streamed: whether lines bypass the caches, as :data:`~mmload.runtime.intrinsics.stream` writes them.
    """

    shift: Floats
    scale: Floats
    holes: Holes
    streamed: bool


class Operations(NamedTuple):
    """Operations on levels, K per sample, as :class:`~mmload.render.plan.Program` describes them.

    Attributes:
        codes: int64 [B, K].
        numbers: float32 [B, K, 8].
        fills: int64 [K, C], outside of a warped image; -1: none.
    """

    codes: Annotated[npt.NDArray[np.int64], "int64[:, ::1]"]
    numbers: Annotated[npt.NDArray[np.float32], "float32[:, :, ::1]"]
    fills: Annotated[npt.NDArray[np.int64], "int64[:, ::1]"]


class Resizes(NamedTuple):
    """Windows of images in another size.

    Attributes:
        windows: :data:`RESIZED` [B]. All lines that they need of their images are there. In an image smaller than the
            original the window is inside, and shrinks as much at least.
        fill: uint8 [C], the constant outside of the image.
        mode: padding outside of the image, an index of :data:`~mmload.render.kernel_arguments.PADDING_MODES`.
        ground: uint8 [C], the canvas beside the resized window.
        reach: one of :data:`~mmload.render.antialiased_resize.REACHES`.
    """

    windows: Annotated[Records, RecordArray(RESIZED)]
    fill: Bytes
    mode: int
    ground: Bytes
    reach: int


class Composed(NamedTuple):
    """Tiles of some samples, in order, perhaps with some of the next sample: one for each image.

    Attributes:
        tiles: :data:`TILE` [T]. All lines that they need of their images are there.
        ground: uint8 [C], the canvas beside the tiles.
        canvases: uint8 [L, C, H, W], a canvas for each layer of one sample after the other.
        shares: float32 [T], the share of the first of two layers, at the last tile of a sample; NaN: nothing is
            blended.
    """

    tiles: Annotated[Records, RecordArray(TILE)]
    ground: Bytes
    canvases: Images
    shares: Floats


OUTPUTS = {np.dtype(kind): f"{kind}[:, :, :, ::1]" for kind in ("float32", "uint8", "int16", "uint16")}
"""Types of the outputs that kernels write, by dtype."""

BYTES = np.dtype(np.uint8)
"""Dtype of levels."""
