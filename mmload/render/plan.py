"""Description of what a list of steps does to each sample of a batch, made before any pixel is touched.

A :class:`Plan` has one source, perhaps a canvas of several rows, one window of it, one optional resize, one flip per
axis, a list of operations on levels, one color map, holes, and a mixing of samples, in that order. Each step adds its
draws by one call; :mod:`mmload.render.rendering` carries out the result in a single pass. A step that does not fit into
that order starts a new plan. No pixel is read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.errors import counted
from mmload.render.kernel_arguments import HOLE, Holes, Numbers, Operations, Places, Records
from mmload.render.level_operations import FLIP_X, GRAY, MOST_NUMBERS, MOVES, NONE, WARPS, Array
from mmload.runtime.host_memory import zeros
from mmload.runtime.kernels import numba_compiled


@dataclass(frozen=True, kw_only=True)
class Canvas:
    """Canvases that the images of a plan are composed on: T tiles of B samples, each a part of an image.

    Attributes:
        height: rows of a canvas.
        width: columns of a canvas.
        samples: int64 [T], sample of each tile, in order.
        tiles: :data:`~mmload.render.kernel_arguments.TILE` [T].
        needed: :data:`~mmload.render.kernel_arguments.NEEDED` [T], lines of each tile's image that show.
        fill: value of a canvas beside its tiles per channel, or one for all.
        shares: float32 [B], weight of layer 0, in which layer 1 is blended; NaN: the sample has one layer.
    """

    height: int
    width: int
    samples: Numbers
    tiles: Records
    needed: Places
    fill: tuple[float, ...]
    shares: npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Padding outside of the image; boxes are never repeated or mirrored.

    Attributes:
        mode: one of :data:`~mmload.render.kernel_arguments.PADDING_MODES`.
        fill: value of the constant per channel, or one for all.
        mask_fill: value of the constant in masks; 255 is void.
        margin: rows and columns by which windows may reach outside; (0, 0): they lie inside.
    """

    mode: str = "constant"
    fill: tuple[float, ...] = (0.0,)
    mask_fill: int = 255
    margin: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class Resampling:
    """Resize of windows, each to a place on the output, before flips: a part of it may be cut off, or be beside it.

    Attributes:
        rows: height of the resized window: one number for all samples, or int64 [B].
        cols: width of it, as rows.
        mode: ``nearest``, ``nearest-exact``, ``bilinear`` or ``bicubic``.
        antialias: whether shrinking averages over all source pixels.
        top: row of the output where it begins, one number or int64 [B]; if negative, rows are cut off. A place that has
            a size for each sample, and no output yet, is the image itself: a crop must follow.
        left: column of the output where it begins, as top.
        fill: value of the output beside it per channel, or one for all.
        mask_fill: value of a mask beside it.
        exact_masks: whether masks take ``nearest-exact``; else ``nearest``.
        mirror_x: bool [B], whether the window is mirrored left to right before the resize, which ``flip_x`` of the plan
            does after it: nearest pixels of masks are counted from one side, so they depend on the order. False: none.
        mirror_y: bool [B], the same upside down.
    """

    rows: Array | int
    cols: Array | int
    mode: str
    antialias: bool
    top: Array | int = 0
    left: Array | int = 0
    fill: tuple[float, ...] = (0.0,)
    mask_fill: int = 255
    exact_masks: bool = False
    mirror_x: Array | bool = False
    mirror_y: Array | bool = False


@dataclass(frozen=True, kw_only=True)
class Hole:
    """Rectangle that is overwritten after everything else.

    Attributes:
        top: int64 [B], first row in output pixels.
        left: int64 [B], first column.
        height: int64 [B]; 0 if the sample has no hole.
        width: int64 [B].
        value: one number, or one per channel; None: ``noise``.
        noise: int64 [B], keys of standard normal noise per pixel; 0 where there is a value.
    """

    top: Array
    left: Array
    height: Array
    width: Array
    value: tuple[float, ...] | None
    noise: Array = 0


def holes_of(holes: Sequence[Hole], count: int, channels: int) -> Holes:
    """Returns the holes of ``count`` samples, each of which has all of them, as kernels take them."""
    sides = zeros((count, len(holes)), HOLE)
    values = np.full((len(holes), channels), np.nan, np.float32)
    for n, hole in enumerate(holes):
        for name in ("top", "left", "height", "width", "noise"):
            sides[name][:, n] = getattr(hole, name)
        if hole.value is not None:
            values[n] = hole.value
    return Holes(sides, values)


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """Mixing of every sample with the one before it in the batch, the first with the last: a blend, then a paste.

    Attributes:
        share: float32 [B], weight of the sample in share * own + (1 - share) * other; 1: it is not blended. None: no
            sample is blended.
        boxes: int64 [B, 4], x1 y1 x2 y2 of the rectangle that is pasted from the other; empty: none is. None: nothing
            is pasted in any sample.
        classes: number of classes of targets that are class indices; None: targets are soft already.
    """

    share: Array | None = None
    boxes: Array | None = None
    classes: int | None = None

    def target_share(self, height: int, width: int) -> Array:
        """Returns the weight of every sample's own target: float32 [B]."""
        share = np.float32(1) if self.share is None else self.share
        if self.boxes is None:
            return share
        x1, y1, x2, y2 = self.boxes.T
        return share * (np.float32(1) - ((x2 - x1) * (y2 - y1)).astype(np.float32) / np.float32(width * height))


@dataclass(frozen=True, kw_only=True)
class OperationSlot:
    """Settings that all samples share at one position of a program.

    Attributes:
        operations: codes that may occur at this position. On a device, each of them is computed for the whole batch.
        fill: values outside of a warped image, per channel or one for all; None: 0, as torchvision has it without one.
        mask_fill: value outside of a warped mask; 255 is void.
        blur_radius: radius of the largest blur kernel, in pixels.
    """

    operations: frozenset[int]
    fill: tuple[float, ...] | None = None
    mask_fill: int = 255
    blur_radius: int = 0


@dataclass(frozen=True, kw_only=True)
class Program:
    """Operations of B samples, K per sample.

    Attributes:
        codes: int64 [B, K]; :data:`NONE` if a sample has no operation at a position.
        numbers: float32 [B, K, 8], numbers of the operations.
        slots: settings of the K positions.
    """

    codes: Array
    numbers: Array
    slots: tuple[OperationSlot, ...]

    def for_kernels(self, channels: int) -> Operations:
        """Returns the operations as kernels take them; a missing fill is -1."""
        fills = [
            (-1.0,) * channels if slot.fill is None else slot.fill * (channels // len(slot.fill)) for slot in self.slots
        ]
        codes, numbers = np.ascontiguousarray(self.codes), np.ascontiguousarray(self.numbers)
        return Operations(codes, numbers, np.array(fills, np.int64).reshape(-1, channels))

    @classmethod
    def single_operation(
        cls,
        operation: int,
        count: int,
        *numbers: Array | float,
        apply_mask: Array | None = None,
        **settings: Any,
    ) -> Program:
        """Returns a program of one operation.

        Args:
            operation: its code.
            count: number of samples.
            numbers: its numbers, arrays [B] or one for all.
            apply_mask: bool [B], samples that have it; None: all.
            settings: settings of its :class:`OperationSlot`.
        """
        codes = np.full((count, 1), operation, np.int64)
        values = zeros((count, 1, MOST_NUMBERS), np.float32)
        for place, number in enumerate(numbers):
            values[:, 0, place] = number
        slot = OperationSlot(operations=frozenset({operation}) - {NONE}, **settings)
        program = cls(codes=codes, numbers=values, slots=(slot,))
        return program if apply_mask is None else program.masked(apply_mask)

    @classmethod
    def empty(cls, count: int, slots: tuple[OperationSlot, ...]) -> Program:
        """Returns a program that does nothing."""
        length = len(slots)
        numbers = zeros((count, length, MOST_NUMBERS), np.float32)
        return cls(codes=zeros((count, length), np.int64), numbers=numbers, slots=slots)

    def masked(self, apply_mask: Array) -> Program:
        """Returns a copy that does nothing for samples outside ``apply_mask`` (bool [B])."""
        out = Program.empty(len(self.codes), self.slots)
        _copy_slots(self.codes, self.numbers, apply_mask, 0, out.codes, out.numbers)
        return out

    @property
    def operations(self) -> frozenset[int]:
        """Codes that may occur at any position."""
        return frozenset().union(*(slot.operations for slot in self.slots))


def chain(programs: Iterable[Program]) -> Program:
    """Concatenates programs of the same samples."""
    parts = list(programs)
    out, first = Program.empty(len(parts[0].codes), tuple(slot for part in parts for slot in part.slots)), 0
    for part in parts:
        _copy_slots(part.codes, part.numbers, _EVERY, first, out.codes, out.numbers)
        first += len(part.slots)
    return out


def one_of(programs: Sequence[Program], chosen: Array) -> Program:
    """Selects one of several programs for each sample, by its number in ``chosen`` (int64 [B]).

    The result is as long as the longest of them; as all together if their warps have different fills, as a position
    has one fill.
    """
    if len(_fills(slot for program in programs for slot in program.slots)) > 1:
        return chain(program.masked(chosen == place) for place, program in enumerate(programs))
    slots = tuple(
        _merge_slots(alternatives)
        for alternatives in zip_longest(*(program.slots for program in programs), fillvalue=_NO_SLOT)
    )
    out = Program.empty(len(chosen), slots)
    for place, program in enumerate(programs):
        _copy_slots(program.codes, program.numbers, chosen == place, 0, out.codes, out.numbers)
    return out


def ordered(programs: Sequence[Program], order: Array) -> Program:
    """Concatenates programs in an order per sample, int64 [B, N]: the numbers of the programs."""
    return chain(one_of(programs, order[:, place]) for place in range(len(programs)))


_EVERY = np.ones(0, np.bool_)
_NO_SLOT = OperationSlot(operations=frozenset())

NO_PROGRAM = Program.empty(0, ())
"""The program without operations, of any number of samples."""


@numba_compiled(
    "int64[:, ::1], float32[:, :, ::1], boolean[::1], int64, int64[:, ::1], float32[:, :, ::1]", nogil=False
)
def _copy_slots(
    codes: Array, numbers: Array, apply_mask: Array, first: int, to_codes: Array, to_numbers: Array
) -> None:
    """Copies the operations of the samples in ``apply_mask``, bool [B] or [0] for all, to positions from ``first``."""
    for k in range(len(codes)):
        if len(apply_mask) == 0 or apply_mask[k]:
            for place in range(codes.shape[1]):
                to_codes[k, first + place] = codes[k, place]
                for number in range(numbers.shape[2]):
                    to_numbers[k, first + place, number] = numbers[k, place, number]


def _merge_slots(slots: Sequence[OperationSlot]) -> OperationSlot:
    """Merges the slots of alternative programs."""
    operations: frozenset[int] = frozenset().union(*(slot.operations for slot in slots))
    fill, mask_fill = next(iter(_fills(slots)), (None, 255))
    radius = max(slot.blur_radius for slot in slots)
    return OperationSlot(operations=operations, fill=fill, mask_fill=mask_fill, blur_radius=radius)


def _fills(slots: Iterable[OperationSlot]) -> set[tuple[tuple[float, ...] | None, int]]:
    """Returns the different fills and mask fills of slots with warps."""
    return {(slot.fill, slot.mask_fill) for slot in slots if slot.operations & WARPS}


def check_fill(fill: tuple[float, ...], channels: int, peak: float) -> None:
    """Checks that images of so many channels, of which ``peak`` is white, can be filled with values.

    Raises:
        ValueError: if they are neither one nor one per channel, or no levels of uint8 images.
    """
    if len(fill) not in (1, channels):
        raise ValueError(f"fill has {counted(len(fill), 'number')} and the images {counted(channels, 'channel')}")
    if peak > 1:
        check_levels("fill", fill)


def check_levels(name: str, values: tuple[float, ...] | None) -> None:
    """Checks that values can be written into uint8 images; None stands for noise, which cannot.

    Raises:
        ValueError: if they are not integers from 0 to 255.
    """
    if values is None or any(not (0 <= one <= 255 and one == int(one)) for one in values):
        got = "'random'" if values is None else ", ".join(f"{one:g}" for one in values)
        raise ValueError(
            f"{name} is {got}, and the images are uint8 there: give integers from 0 to 255, or put the step after "
            "Normalize"
        )


class DoesNotFit(Exception):
    """A step cannot be done in the pass that a plan describes: another pass begins."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Description of one pass over a batch.

    A method that adds something raises :class:`DoesNotFit` where it cannot be done after the rest in one pass.

    Attributes:
        count: B.
        source: (C, H, W) of the images that come in; (C, 0, 0) if they are variable-size.
        peak: value of white: 255 for uint8 images, 1 for floats.
        height: rows of the output; 0: images are variable-size so far, so that there is no output.
        width: columns of the output.
        canvas: what the images that come in are composed of; None: they are rows as they are stored.
        first_program: operations on the levels of images before their windows, which move no pixel.
        top: int64 [B], first row of the source window; may lie outside the image. 0: the window is the image.
        left: int64 [B], first column of it.
        rows: int64 [B] or one number, rows of the window.
        cols: int64 [B] or one number, columns of the window.
        padding: padding outside the image.
        resampling: how the window is resized, and where it lies on the output; None: it is the output.
        flip_x: bool [B], mirrored left to right, after the resize; False: none is.
        flip_y: bool [B], upside down.
        program: operations on the levels after that.
        shift: float32 [C]; with ``scale`` the color map (x - shift) * scale. None: values stay.
        scale: float32 [C].
        holes: rectangles that are overwritten after that.
        mixing: how samples are mixed at the end; None: they are not. Nothing follows it.
        dropped: bool [B, M], boxes that are dropped even if they are visible; None: none.
        sizes: int64 [B, 2], height and width of each image; None: all have those of ``source``.
        is_framed: whether complete images lie at the top left of a canvas with room for the largest: see
            :meth:`framed`. Flips and crops of the canvas end that.
    """

    count: int
    source: tuple[int, int, int]
    peak: float
    height: int
    width: int
    canvas: Canvas | None = None
    first_program: Program = NO_PROGRAM
    top: Array | int = 0
    left: Array | int = 0
    rows: Array | int = 0
    cols: Array | int = 0
    padding: Padding = Padding()
    resampling: Resampling | None = None
    flip_x: Array | bool = False
    flip_y: Array | bool = False
    program: Program = NO_PROGRAM
    shift: Array | None = None
    scale: Array | None = None
    holes: tuple[Hole, ...] = ()
    mixing: Mixing | None = None
    dropped: Array | None = None
    sizes: Array | None = None
    is_framed: bool = False

    @classmethod
    @lru_cache(maxsize=64)  # to make it takes 7 us a batch
    def unchanged(cls, count: int, source: tuple[int, int, int], peak: float) -> Plan:
        """Returns the plan that changes nothing."""
        _, height, width = source
        return cls(
            count=count,
            source=source,
            peak=peak,
            height=height,
            width=width,
            rows=height,
            cols=width,
        )

    @classmethod
    def unchanged_sizes(cls, sizes: Array, channels: int) -> Plan:
        """Returns the plan that changes nothing of variable-size uint8 images; later steps must give them one size.

        Args:
            sizes: int64 [B, 2], height and width of each image.
            channels: number of channels of all images.
        """
        return cls(
            count=len(sizes),
            source=(channels, 0, 0),
            peak=255.0,
            height=0,
            width=0,
            rows=np.ascontiguousarray(sizes[:, 0]),
            cols=np.ascontiguousarray(sizes[:, 1]),
            sizes=sizes,
        )

    @classmethod
    def composed(cls, count: int, channels: int, canvas: Canvas) -> Plan:
        """Returns the plan that changes nothing of images composed on canvases of uint8 rows."""
        source = channels, canvas.height, canvas.width
        return cls.unchanged(count, source, 255.0)._with(canvas=canvas)

    def _with(self, **changes: Any) -> Plan:
        """Returns a copy with other values of some attributes: dataclasses.replace takes ten times as long."""
        copied = object.__new__(Plan)
        vars(copied).update(vars(self), **changes)
        return copied

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[B, C, H, W] of the output."""
        return self.count, self.source[0], self.height, self.width

    @property
    def is_variable_size(self) -> bool:
        """Whether images are variable-size so far, so that there is no output."""
        return self.height == 0

    @property
    def frame(self) -> tuple[Array | int, Array | int]:
        """Height and width of the images so far, one number or int64 [B] each."""
        if not self.is_variable_size:
            return self.height, self.width
        shown = self.resampling or self
        return shown.rows, shown.cols

    @property
    def moves(self) -> bool:
        """Whether the plan changes pixel positions."""
        moved = self.is_cropped or self.resampling is not None or self.is_flipped
        return moved or bool(self.program.operations & MOVES)

    @property
    def is_cropped(self) -> bool:
        """Whether windows are cut out of images."""
        return not isinstance(self.top, int)

    @property
    def is_flipped(self) -> bool:
        """Whether samples may be mirrored."""
        return self.flip_x is not False or self.flip_y is not False

    @property
    def ends(self) -> bool:
        """Whether only holes or mixing may follow."""
        return bool(self.holes) or self.mixing is not None

    @property
    def blends(self) -> bool:
        """Whether the output has values between two levels, which uint8 cannot hold."""
        return self.mixing is not None and self.mixing.share is not None

    def per_sample(self, value: Array | int) -> Array:
        """Returns one number per sample, int64 [B], of one for all or one each."""
        return np.full(self.count, value, np.int64) if isinstance(value, int) else value

    @property
    def _takes_windows(self) -> bool:
        """Whether a crop can still be composed."""
        return not self.ends and self._is_linear

    @property
    def _is_linear(self) -> bool:
        """Whether operations on levels give the same, within a level, before windows are cut out and resized."""
        return self.program.operations <= {GRAY}

    @property
    def _takes_levels(self) -> bool:
        """Whether values are still levels, and all of them the image's."""
        return self.shift is None and not self.ends

    @property
    def _is_stored(self) -> bool:
        """Whether pixels are those of the image as it is stored: at most its windows are cut out and mirrored."""
        return self.canvas is None and self.resampling is None and not self.program.slots and self._takes_levels

    @property
    def _is_whole(self) -> bool:
        """Whether nothing is cropped so far, either, so that padding is outside of the image."""
        return not self.is_cropped and self._is_stored

    def _takes_resize(self, mode: str) -> bool:
        """Returns whether a resize can still be composed.

        A bicubic one cannot after a change of colors: it overshoots, and is clipped to levels before they change. A
        nearest one cannot after a flip: which of two pixels is nearest depends on the side from which it counts.
        """
        if not self._is_linear or self.canvas is not None:
            return False
        colored = bool(self.program.slots) or self.shift is not None
        other = (mode == "bicubic" and colored) or (mode.startswith("nearest") and self.is_flipped)
        padded = any(self.padding.margin) and not self.is_variable_size
        return self.resampling is None and not padded and not self.ends and not other

    def check_levels(self, *, moves: bool) -> None:
        """Raises :class:`DoesNotFit` unless operations on levels, of which some may move pixels, can be added."""
        _require(self._takes_levels and not (self.is_variable_size and (moves or not self._is_whole)))

    def cropped(self, top: Array, left: Array, height: int, width: int, padding: Padding | None = None) -> Plan:
        """Adds a crop of height x width at (top, left) [B] of the output so far.

        Variable-size images are cropped by a resize to the same size, which copies pixels; or, if they were resized to
        a size per sample, by placing them on a canvas. Padding must be around the whole image, or on such a canvas.
        """
        on_canvas = self.resampling is not None and self.is_variable_size and self._takes_windows
        if padding is None:
            _require(self._takes_windows)
        else:
            _require(self._is_whole or (on_canvas and padding.mode == "constant"))
        top, left = self._before_flips(self.frame, top, left, height, width)
        resampling = self.resampling
        if resampling is None:
            copy = Resampling(rows=height, cols=width, mode="bilinear", antialias=True)
            within = self._within(top, left, height, width)
            copied, around = copy if self.is_variable_size else None, padding or self.padding
            return self._with(**within, height=height, width=width, padding=around, resampling=copied)
        part = replace(resampling, top=resampling.top - top, left=resampling.left - left)
        if padding is not None:
            part = replace(part, fill=padding.fill, mask_fill=padding.mask_fill)
        return self._with(resampling=part, height=height, width=width, is_framed=False)

    def resized(
        self, window: tuple[Array, Array, Array, Array] | None, resampling: Resampling, size: tuple[int, int]
    ) -> Plan:
        """Adds the crop of a window (top, left, rows, cols: int64 [B]) and its resize.

        The output has this size; (0, 0): images are variable-size, too.
        """
        _require(self._takes_resize(resampling.mode) and (not self.first_program.slots or resampling.antialias))
        narrowed = {} if window is None else self._narrowed(*window)
        resampling = replace(resampling, mirror_x=self.flip_x, mirror_y=self.flip_y)
        return self._with(**narrowed, resampling=resampling, height=size[0], width=size[1])

    def windowed(
        self,
        window: tuple[Array, Array, Array, Array],
        padding: Padding | None = None,
        dropped: Array | None = None,
    ) -> Plan:
        """Adds windows (top, left, rows, cols: int64 [B]), to be resized later; padding is around the whole image."""
        _require(self._is_stored if padding is None else self._is_whole)
        both = dropped if self.dropped is None or dropped is None else self.dropped | dropped
        around = padding or self.padding
        return self._with(**self._narrowed(*window), height=0, width=0, padding=around, dropped=both)

    def _narrowed(self, top: Array, left: Array, rows: Array, cols: Array) -> dict[str, Any]:
        """Returns the fields that change when the output so far is narrowed to windows of it."""
        return self._within(*self._before_flips(self.frame, top, left, rows, cols), rows, cols)

    def _before_flips(
        self, frame: Sequence[Array | int], top: Array | int, left: Array | int, rows: Array | int, cols: Array | int
    ) -> tuple[Array, Array]:
        """Returns where a window of a frame (height, width) begins before the flips so far."""
        return _mirrored(top, self.flip_y, frame[0] - rows), _mirrored(left, self.flip_x, frame[1] - cols)

    def _within(self, top: Array, left: Array, rows: Array | int, cols: Array | int) -> dict[str, Any]:
        """Returns the fields that change when the source window is narrowed to a window inside of it."""
        if self.is_cropped:
            top, left = self.top + top, self.left + left
        return {"top": top, "left": left, "rows": rows, "cols": cols}

    def placed(self, resampling: Resampling, canvas: tuple[int, int]) -> Plan:
        """Adds a resize to a size per sample, at its place on a canvas of (height, width).

        Flips before it are done to the images: they turn the canvas, too, on which the place is mirrored before. A
        change of colors before it would change the fill of the canvas.
        """
        _require(not self.program.slots and self.shift is None)
        top, left = self._before_flips(canvas, resampling.top, resampling.left, resampling.rows, resampling.cols)
        return self.resized(None, replace(resampling, top=top, left=left), canvas)

    def framed(self) -> Plan:
        """Puts variable-size images at the top left of a black canvas that is as large as the largest.

        Only holes and mixing may follow, in the same pass.
        """
        rows, cols = (self.per_sample(side) for side in self.frame)
        height, width = (int(side.max()) if len(side) else 1 for side in (rows, cols))
        copy = Resampling(rows=rows, cols=cols, mode="bilinear", antialias=True)  # to the same size: it copies pixels
        top, left = self._before_flips((height, width), 0, 0, rows, cols)
        placed = replace(self.resampling or copy, top=top, left=left)
        return self._with(resampling=placed, height=height, width=width, is_framed=True)

    def flipped(self, code: int, flips: Array) -> Plan:
        """Adds a flip, FLIP_X or FLIP_Y, of the samples in ``flips``, bool [B].

        It is done before operations on levels, which give the same pixels unless some move them.
        """
        _require(not self.ends and (not self.program.slots or self.shift is None))
        if self.program.operations & MOVES:
            return self.followed_by(Program.single_operation(code, self.count, apply_mask=flips))
        name = "flip_x" if code == FLIP_X else "flip_y"
        before = getattr(self, name)
        return self._with(**{name: flips if before is False else before ^ flips}, is_framed=False)

    def followed_by(self, program: Program) -> Plan:
        """Adds operations on levels: of complete images, whose windows may follow, if they move no pixel."""
        _require(self._takes_levels)
        if self._is_whole and not program.operations & MOVES:
            return self._with(first_program=_chained(self.first_program, program))
        both = _chained(self.program, program)
        return self._with(program=both, is_framed=self.is_framed and not both.operations & MOVES)

    def scaled(self, shift: Array, scale: Array) -> Plan:
        """Adds the color map (x - shift) * scale, float32 [C] each."""
        _require(not self.ends)
        if self.shift is None or self.scale is None:
            return self._with(shift=shift, scale=scale)
        return self._with(shift=self.shift + shift / self.scale, scale=self.scale * scale)

    def with_hole(self, hole: Hole) -> Plan:
        """Adds a hole."""
        _require(self.mixing is None)
        return self._with(holes=(*self.holes, hole))

    def mixed(self, mixing: Mixing) -> Plan:
        """Adds the mixing of samples; holes cannot be written into uint8 images that are not blended."""
        uint8_holes = bool(self.holes) and self.peak > 1 and self.shift is None and mixing.share is None
        _require(self.mixing is None and not uint8_holes)
        return self._with(mixing=mixing)


def _require(fits: bool) -> None:
    if not fits:
        raise DoesNotFit


def _chained(first: Program, second: Program) -> Program:
    return chain((first, second)) if first.slots else second


def _mirrored(start: Array | int, flip: Array | bool, room: Array | int) -> Array:
    """Returns a window's start before a flip, where ``room`` is the frame's size less the window's."""
    return start if flip is False else np.where(flip, room - start, start)
