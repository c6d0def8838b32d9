"""Arguments of the compiled kernels: lines of images, windows and more, and their types in signatures; a list of calls.

A kernel checks nothing; whoever calls it does. Shapes: B samples of N images with C channels, H rows and W columns;
outputs have h rows and w columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.runtime.intrinsics import Arena
from mmload.runtime.kernels import USED, CallC, KernelCall, RecordArray, inlined, numba_compiled
from mmload.runtime.resident_pages import FileRanges

if TYPE_CHECKING:  # builds do without torch
    from torch import Tensor

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
"""Dtype of :attr:`ImageLines.places`.

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


class ImageLines(NamedTuple):
    """Lines of some images, and how they arrive.

    Attributes:
        memory: as :class:`Lines` has it, like the next two.
        places: where the lines are.
        decoded: memory of decoded images.
        arrival: what brings the images there; None: all are there.
    """

    memory: Bytes
    places: Places
    decoded: Bytes = NOWHERE
    arrival: Arrival | None = None

    @property
    def stored(self) -> Lines:
        """The lines, as kernels take them."""
        return Lines(self.memory, self.places, self.decoded)

    @classmethod
    def of_batch(cls, images: Tensor, indices: Numbers) -> ImageLines:
        """Returns all lines of some of ``images``, contiguous uint8 [N, C, H, W]."""
        _, channels, height, width = images.shape
        places = np.array([(0, 0, height, height, width, PLANES, 1)], PLACE).repeat(len(indices))
        np.multiply(indices, channels * height * width, out=places["start"])
        return cls(images.numpy().reshape(-1), places)

    @classmethod
    def of_images(cls, images: Sequence[Tensor]) -> ImageLines:
        """Returns all lines of variable-size images, uint8 [C, h, w], copied into one memory."""
        import torch

        places, start = np.empty(len(images), PLACE), 0
        for k, image in enumerate(images):
            _, height, width = image.shape
            places[k] = start, 0, height, height, width, PLANES, 1
            start += image.numel()
        return cls(torch.cat([torch.from_numpy(NOWHERE), *(image.reshape(-1) for image in images)]).numpy(), places)

    def batch(self, shape: tuple[int, int, int]) -> tuple[Bytes, Numbers]:
        """Returns images of one shape as a batch: all in memory, uint8 [N, C, H, W], and their indices, int64 [B]."""
        size = math.prod(shape)
        images = self.memory[: len(self.memory) // size * size].reshape(-1, *shape)
        return images, self.places["start"] // size

    def image(self, k: int, channels: int) -> Tensor:
        """Returns the lines of image ``k`` as a view, uint8 [C, lines, W]."""
        import torch

        start, _, count, _, width, layout, shrink = self.places[k].tolist()
        width = -(-width // shrink)
        memory = self.decoded if layout == PIXELS else self.memory
        flat = torch.from_numpy(memory[start : start + count * channels * width])
        return flat.as_strided((channels, count, width), steps_of(layout, count, width, channels))


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

    def part(self, samples: slice) -> Operations:
        """Returns the operations of some samples."""
        return self._replace(codes=self.codes[samples], numbers=self.numbers[samples])


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


_step = CallC("int64(uintp)")

# Samples that arrive, are made of other pixels or change their levels, are rendered by one call: one after the other.
# Calls from Python for each of these steps, four samples at a time, took 50 us per image where levels change and a
# tenth of the time of a batch of resized crops, as the loops evict the interpreter from the caches. The levels of one
# sample stay in the L2 cache. Kernels are called by their addresses, so that none is compiled anew into this loop.


@numba_compiled("uintp[:, ::1], int64, int64, int64[::1], int64[::1], int64[::1], int64[::1], arena")
def _run_steps(
    steps: Addresses,
    of_rows: int,
    count: int,
    ends: Numbers,
    rows: Numbers,
    samples: Numbers,
    failed: Numbers,
    arena: Arena,
) -> None:
    """Runs the steps of each row, and those of the sample that it ends, until a row cannot arrive."""
    begun = arena[USED]
    for row in range(count):
        sample = ends[row] if len(ends) else row
        rows[0], rows[1], samples[0], samples[1] = row, row + 1, sample, sample + 1
        for s in range(len(steps) if sample >= 0 else of_rows):
            arena[USED] = begun
            _step(steps[s, 0], (steps[s, 1],))
            if failed[0] >= 0:
                return


EACH: Numbers = np.empty(0, np.int64)
"""Ends of samples where each row is one."""


class RenderingSteps:
    """Steps of rendering, each a kernel that does rows or samples.

    Attributes:
        rows: int64 [2], the first row that a step does when it is called, and the one after the last.
        samples: int64 [2], the same of samples.
        of_rows: steps of a row: it arrives, is resized or painted.
        of_samples: steps of a sample after those of its rows: it is cut out, its levels change, it is colored.
        failed: :attr:`Arrival.failed` of rows that arrive; the first that cannot is the last.
    """

    def __init__(self) -> None:
        self.rows, self.samples = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self.of_rows: list[KernelCall] = []
        self.of_samples: list[KernelCall] = []
        self.failed: Numbers = np.array([-1, 0])

    def run(self, count: int, ends: Numbers = EACH) -> None:
        """Runs the steps of so many rows.

        Args:
            count: number of rows.
            ends: int64 [R], the sample whose last row each is, or -1.
        """
        if not self.of_rows and len(self.of_samples) == 1:
            self.samples[1] = count
            self.of_samples[0].run()
            return
        steps = np.array([step.words for step in (*self.of_rows, *self.of_samples)], np.uintp)
        _run_steps(steps, len(self.of_rows), count, ends, self.rows, self.samples, self.failed)
