"""Description of what a list of steps does to each sample of a batch, made before any pixel is touched.

A :class:`Plan` has one source, perhaps a canvas of several rows, one window of it, one optional resize, one flip per
axis, a list of operations on levels, one color map, holes, and a mixing of samples, in that order. Each step adds its
draws by one call; :mod:`mmload.render.rendering` carries out the result in a single pass. A step that does not fit into
that order starts a new plan. No pixel is read here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from mmload.render.level_program import BY_PIXEL, FLIP_X, FLIP_Y, GRAY, MOVES, Program, chain
from mmload.render.plan_parts import Array, Canvas, Hole, Mixing, Padding, Placement, Resampling


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
        height: rows of the output.
        width: columns of the output.
        canvas: what the images that come in are composed of; None: they are rows as they are stored.
        first_program: operations on the levels of variable-size images before their windows, which move no pixel;
            None: none. Images of one size are changed in a pass of their own.
        top: int64 [B], first row of the source window; may lie outside the image. None: the window is the image.
        left: int64 [B], first column of it.
        rows: int64 [B] or one number, rows of the window.
        cols: int64 [B] or one number, columns of the window.
        padding: padding outside the image; None: the window lies inside.
        resampling: how the window becomes height x width; None: it has that size.
        flip_x: bool [B], mirrored left to right, after the resize.
        flip_y: bool [B], upside down.
        gray: bool [B], the channels are replaced by their luma.
        program: operations on the levels after that; None: none.
        shift: float32 [C]; with ``scale`` the color map (x - shift) * scale, after ``gray``. None: values stay.
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
    first_program: Program | None = None
    top: Array | None = None
    left: Array | None = None
    rows: Array | int = 0
    cols: Array | int = 0
    padding: Padding | None = None
    resampling: Resampling | None = None
    flip_x: Array | None = None
    flip_y: Array | None = None
    gray: Array | None = None
    program: Program | None = None
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
        return not isinstance(self.rows, int) if self.resampling is None else self.resampling.is_open

    @property
    def frame(self) -> tuple[Array | int, Array | int]:
        """Height and width of the images so far, one number or int64 [B] each."""
        if not self.is_variable_size:
            return self.height, self.width
        placed = None if self.resampling is None else self.resampling.placement
        return (self.rows, self.cols) if placed is None else (placed.rows, placed.cols)

    @property
    def moves(self) -> bool:
        """Whether the plan changes pixel positions."""
        still = self.top is None and self.resampling is None and self.flip_x is None and self.flip_y is None
        return not still or (self.program is not None and bool(self.program.operations & MOVES))

    @property
    def ends(self) -> bool:
        """Whether only holes or mixing may follow."""
        return bool(self.holes) or self.mixing is not None

    @property
    def blends(self) -> bool:
        """Whether the output has values between two levels, which uint8 cannot hold."""
        return self.mixing is not None and self.mixing.share is not None

    def complete_program(self) -> Program | None:
        """Returns all operations on levels, the luma included; None: there are none."""
        if self.gray is None or self.source[0] != 3:
            return self.program
        gray = Program.single_operation(GRAY, self.count, apply_mask=self.gray)
        return gray if self.program is None else chain((gray, self.program))

    def per_sample(self, value: Array | int) -> Array:
        """Returns one number per sample, int64 [B], of one for all or one each."""
        return np.full(self.count, value, np.int64) if isinstance(value, int) else value

    @property
    def _takes_windows(self) -> bool:
        """Whether a crop can still be composed."""
        return not self.ends and self.program is None

    @property
    def _takes_levels(self) -> bool:
        """Whether values are still levels, and all of them the image's."""
        return self.shift is None and not self.ends

    @property
    def _is_stored(self) -> bool:
        """Whether pixels are those of the image as it is stored: at most its windows are cut out and mirrored."""
        return (
            self.canvas is None
            and self.resampling is None
            and self.gray is None
            and self._takes_windows
            and self._takes_levels
        )

    @property
    def _is_whole(self) -> bool:
        """Whether nothing is cropped so far, either, so that padding is outside of the image."""
        return self.top is None and self._is_stored

    def _takes_resize(self, mode: str) -> bool:
        """Returns whether a resize can still be composed.

        A bicubic one cannot after a change of colors: it overshoots, and is clipped to levels before they change. A
        nearest one cannot after a flip: which of two pixels is nearest depends on the side from which it counts.
        """
        if self.program is not None or self.canvas is not None:
            return False
        colored = self.gray is not None or self.shift is not None
        flipped = self.flip_x is not None or self.flip_y is not None
        other = (mode == "bicubic" and colored) or (mode.startswith("nearest") and flipped)
        padded = self.padding is not None and not self.is_variable_size
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
        high, wide = self.frame
        top = _mirrored(top, self.flip_y, high - height)
        left = _mirrored(left, self.flip_x, wide - width)
        around, resampling = padding or self.padding, self.resampling
        if resampling is None:
            copy = Resampling(height=height, width=width, mode="bilinear", antialias=True)
            within = self._within(top, left, height, width)
            copied = copy if self.is_variable_size else None
            return self._with(**within, height=height, width=width, padding=around, resampling=copied)
        if resampling.placement is not None and resampling.is_open:
            placed = replace(resampling.placement, top=-top, left=-left)
            if padding is not None:
                placed = replace(placed, fill=padding.fill, mask_fill=padding.mask_fill)
            part = replace(resampling, height=height, width=width, placement=placed)
        else:
            part = replace(resampling, top=_sum(resampling.top, top), left=_sum(resampling.left, left))
        return self._with(resampling=part, height=height, width=width, is_framed=False)

    def resized(self, window: tuple[Array, Array, Array, Array] | None, resampling: Resampling) -> Plan:
        """Adds the crop of a window (top, left, rows, cols: int64 [B]) and its resize."""
        _require(self._takes_resize(resampling.mode))
        narrowed = {} if window is None else self._narrowed(*window)
        resampling = replace(resampling, mirror_x=self.flip_x, mirror_y=self.flip_y)
        return self._with(**narrowed, resampling=resampling, height=resampling.height, width=resampling.width)

    def windowed(
        self,
        window: tuple[Array, Array, Array, Array],
        padding: Padding | None = None,
        dropped: Array | None = None,
    ) -> Plan:
        """Adds windows (top, left, rows, cols: int64 [B]), to be resized later; padding is around the whole image."""
        _require(self._is_stored if padding is None else self._is_whole)
        both = dropped if self.dropped is None or dropped is None else self.dropped | dropped
        return self._with(**self._narrowed(*window), padding=padding or self.padding, dropped=both)

    def _narrowed(self, top: Array, left: Array, rows: Array, cols: Array) -> dict[str, Any]:
        """Returns the fields that change when the output so far is narrowed to windows of it."""
        height, width = self.frame
        top = _mirrored(top, self.flip_y, height - rows)
        left = _mirrored(left, self.flip_x, width - cols)
        return self._within(top, left, rows, cols)

    def _within(self, top: Array, left: Array, rows: Array | int, cols: Array | int) -> dict[str, Any]:
        """Returns the fields that change when the source window is narrowed to a window inside of it."""
        return {"top": _sum(self.top, top), "left": _sum(self.left, left), "rows": rows, "cols": cols}

    def placed(self, resampling: Resampling, placement: Placement) -> Plan:
        """Adds a resize to a size per sample, at its place on a canvas.

        Flips before it are done to the images: they turn the canvas, too, on which the place is mirrored before. A
        change of colors before it would change the fill of the canvas.
        """
        _require(self.gray is None and self.shift is None)
        top = _mirrored(placement.top, self.flip_y, resampling.height - placement.rows)
        left = _mirrored(placement.left, self.flip_x, resampling.width - placement.cols)
        return self.resized(None, replace(resampling, placement=replace(placement, top=top, left=left)))

    def framed(self) -> Plan:
        """Puts variable-size images at the top left of a black canvas that is as large as the largest.

        Only holes and mixing may follow, in the same pass.
        """
        rows, cols = (self.per_sample(side) for side in self.frame)
        height, width = (int(side.max()) if len(side) else 1 for side in (rows, cols))
        nothing, resampling = np.zeros_like(rows), self.resampling
        placed = Placement(
            rows=rows,
            cols=cols,
            top=_mirrored(nothing, self.flip_y, height - rows),
            left=_mirrored(nothing, self.flip_x, width - cols),
            fill=(0.0,),
            mask_fill=255,
        )
        if resampling is None:  # a resize to the same size, which copies pixels
            resampling = Resampling(height=0, width=0, mode="bilinear", antialias=True)
        resampling = replace(resampling, height=height, width=width, placement=placed)
        return self._with(resampling=resampling, height=height, width=width, is_framed=True)

    def flipped(self, *, x: Array | None = None, y: Array | None = None) -> Plan:
        """Adds flips, bool [B] each; before the operations on levels where that gives the same pixels."""
        _require(not self.ends and (self.program is None or self.shift is None))
        if self.program is not None and not self.program.operations <= BY_PIXEL:
            flips = [(FLIP_X, x), (FLIP_Y, y)]
            return self.followed_by(
                chain(
                    Program.single_operation(code, self.count, apply_mask=mask)
                    for code, mask in flips
                    if mask is not None
                )
            )
        return self._with(flip_x=_either(self.flip_x, x), flip_y=_either(self.flip_y, y), is_framed=False)

    def grayed(self, gray: Array) -> Plan:
        """Adds the luma of the samples where ``gray`` [B] is true."""
        _require(self._takes_levels)
        if self.program is not None:
            return self.followed_by(Program.single_operation(GRAY, self.count, apply_mask=gray))
        return self._with(gray=gray if self.gray is None else self.gray | gray)

    def followed_by(self, program: Program) -> Plan:
        """Adds operations on levels; on those of variable-size images before their windows."""
        if self.is_variable_size:
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


def _chained(first: Program | None, second: Program) -> Program:
    return second if first is None else chain((first, second))


def _mirrored(start: Array, flip: Array | None, room: Array | int) -> Array:
    """Returns a window's start before a flip, where ``room`` is the frame's size less the window's."""
    return start if flip is None else np.where(flip, room - start, start)


def _sum(first: Array | None, second: Array) -> Array:
    return second if first is None else first + second


def _either(first: Array | None, second: Array | None) -> Array | None:
    """Combines one flip after another: the second undoes the first."""
    if first is None or second is None:
        return second if first is None else first
    return first ^ second
