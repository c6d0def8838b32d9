"""What a list of steps does to each sample of a batch, described before any pixel is touched.

A :class:`Plan` has one source window, one optional resize, one flip per axis, a list of operations on levels, one
color map, holes, and a mixing of samples, in that order.
Each step adds its draws by one call; :mod:`mmload.render.rendering` carries out the result in a single pass. A step
that does not fit into that order (``fits_...``) starts a new plan. No pixel is read here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmload.render.framing import Padding, Placement, Resampling
from mmload.render.level_program import FLIP_X, FLIP_Y, GRAY, MOVES, Program, chain

LUMA_WEIGHTS = (0.2989, 0.587, 0.114)
"""Of red, green and blue, as ``torchvision.transforms.v2.functional.rgb_to_grayscale`` has them."""


def refuse_levels(name: str, values: tuple[float, ...] | None) -> None:
    """Refuses values that cannot be written into uint8 images; None stands for noise.

    Raises:
        ValueError: if they are not integers from 0 to 255.
    """
    if values is None or any(not (0 <= one <= 255 and one == int(one)) for one in values):
        got = "'random'" if values is None else ", ".join(f"{one:g}" for one in values)
        raise ValueError(
            f"{name} is {got}, and the images are uint8 there: give whole levels from 0 to 255, or put the step after "
            "Normalize"
        )


@dataclass(frozen=True, kw_only=True)
class Hole:
    """A rectangle that is overwritten after everything else.

    Attributes:
        top: int64 [B], in output pixels.
        left: int64 [B].
        height: int64 [B]; 0 where the sample has no hole.
        width: int64 [B].
        value: one number, or one per channel; None: ``noise``.
        noise: int64 [B], the keys of standard normal noise per pixel.
    """

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    value: tuple[float, ...] | None
    noise: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """Every sample is mixed with the one before it in the batch, the first with the last: blended, then pasted into.

    Attributes:
        share: float32 [B], what a sample keeps of itself in share * own + (1 - share) * other; 1 where it is not
            blended. None: none is.
        boxes: int64 [B, 4], x1 y1 x2 y2 of what is pasted from the other; empty where nothing is. None: none is.
    """

    share: Tensor | None = None
    boxes: Tensor | None = None

    def kept(self, height: int, width: int) -> Tensor:
        """What every sample keeps of itself in all, for its targets: float32 [B]."""
        if self.boxes is None:
            if self.share is None:
                raise RuntimeError("a mixing has shares, boxes or both")
            return self.share
        x1, y1, x2, y2 = self.boxes.unbind(1)
        uncovered = 1.0 - ((x2 - x1) * (y2 - y1)).to(torch.float32) / (width * height)
        return uncovered if self.share is None else self.share * uncovered


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The description of one pass over a batch.

    Attributes:
        count: B.
        source: (C, H, W) of the images that come in; (C, 0, 0) where they have a size each.
        peak: the value of white: 255 for uint8 images, 1 for floats.
        device: where the tensors of this description live.
        height: rows of the output.
        width: columns of the output.
        top: int64 [B], first row of the source window; may lie outside the image. None: the whole image.
        left: int64 [B], first column of it.
        rows: int64 [B] or one number: how many rows the window has.
        cols: int64 [B] or one number.
        padding: what lies outside the image; None: the window lies inside.
        resampling: how the window becomes height x width; None: it is.
        flip_x: bool [B], mirrored left to right, after the resize.
        flip_y: bool [B], upside down.
        gray: bool [B], the channels are replaced by their luma.
        program: what happens to the levels after that; None: nothing.
        shift: float32 [C]; with ``scale`` the color map (x - shift) * scale, after ``gray``. None: values stay.
        scale: float32 [C].
        holes: what is overwritten after that.
        mixing: how samples are mixed at the end; None: they are not. Nothing follows it.
        dropped: bool [B, M], boxes that go whatever is left of them; None: none.
        sizes: int64 [B, 2], height and width of each image; None: all have those of ``source``.
        is_framed: whether images of a size each lie on a canvas of the largest: see :meth:`framed`.
    """

    count: int
    source: tuple[int, int, int]
    peak: float
    device: torch.device
    height: int
    width: int
    top: Tensor | None = None
    left: Tensor | None = None
    rows: Tensor | int = 0
    cols: Tensor | int = 0
    padding: Padding | None = None
    resampling: Resampling | None = None
    flip_x: Tensor | None = None
    flip_y: Tensor | None = None
    gray: Tensor | None = None
    program: Program | None = None
    shift: Tensor | None = None
    scale: Tensor | None = None
    holes: tuple[Hole, ...] = ()
    mixing: Mixing | None = None
    dropped: Tensor | None = None
    sizes: Tensor | None = None
    is_framed: bool = False

    @classmethod
    def of(cls, count: int, source: tuple[int, int, int], peak: float, device: torch.device) -> Plan:
        """The plan that changes nothing."""
        _, height, width = source
        return cls(
            count=count,
            source=source,
            peak=peak,
            device=device,
            height=height,
            width=width,
            rows=height,
            cols=width,
        )

    @classmethod
    def of_sizes(cls, sizes: Tensor, channels: int) -> Plan:
        """The plan that changes nothing of uint8 images of a size each, int64 [B, 2]; something must give them one."""
        return cls(
            count=len(sizes),
            source=(channels, 0, 0),
            peak=255.0,
            device=sizes.device,
            height=0,
            width=0,
            rows=sizes[:, 0].contiguous(),
            cols=sizes[:, 1].contiguous(),
            sizes=sizes,
        )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[B, C, H, W] of the output."""
        return self.count, self.source[0], self.height, self.width

    @property
    def is_ragged(self) -> bool:
        """Whether images have a size each so far, so that there is no output."""
        return isinstance(self.rows, Tensor) if self.resampling is None else self.resampling.is_open

    @property
    def frame(self) -> tuple[Tensor | int, Tensor | int]:
        """(height, width) of the images so far, one number or int64 [B] each."""
        if not self.is_ragged:
            return self.height, self.width
        placed = None if self.resampling is None else self.resampling.placement
        return (self.rows, self.cols) if placed is None else (placed.rows, placed.cols)

    @property
    def moves(self) -> bool:
        """Whether a pixel can end up elsewhere than it was."""
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

    def whole_program(self) -> Program | None:
        """What happens to levels, the luma included; None: nothing."""
        if self.gray is None or self.source[0] != 3:
            return self.program
        gray = Program.of(GRAY, self.count, self.device, on=self.gray)
        return gray if self.program is None else chain((gray, self.program))

    def of_batch(self, value: Tensor | int) -> Tensor:
        """One number per sample, [B], from one for all or one each; made on the device, without a copy to it."""
        return value if isinstance(value, Tensor) else torch.full((self.count,), value, device=self.device)

    def fits_padding(self) -> bool:
        """Whether the whole source is still in view, so that what lies outside the view is outside the image."""
        untouched = self.top is None and self.resampling is None and self.gray is None and self.program is None
        return untouched and self.fits_levels()

    def fits_canvas(self) -> bool:
        """Whether a crop that reaches outside of the image can still be composed, as that is resized to a canvas."""
        return self.resampling is not None and self.resampling.is_open and self.fits_window()

    def fits_window(self) -> bool:
        """Whether a crop can still be composed."""
        return not self.ends and self.program is None

    def fits_ragged(self) -> bool:
        """Whether windows of a size per sample can still be composed, to be resized later."""
        return self.fits_window() and self.resampling is None and self.shift is None and self.gray is None

    def fits_placement(self, mode: str) -> bool:
        """Whether a resize to a size per sample on a canvas can still be composed.

        Not after a flip, which moves the canvas, nor after a change of colors, which would change its fill.
        """
        flipped = self.flip_x is not None or self.flip_y is not None
        return self.fits_resize(mode) and not flipped and self.gray is None and self.shift is None

    def fits_flip(self) -> bool:
        """Whether a flip can still be composed: as an operation on levels, or before they change."""
        return not self.ends and (self.program is None or self.shift is None)

    def fits_resize(self, mode: str) -> bool:
        """Whether a resize can still be composed.

        Not bicubic after a change of colors: it overshoots, and is clipped to levels before they change. Not nearest
        after a flip: which of two pixels is nearest depends on the side that it counts from.
        """
        if self.program is not None:
            return False
        colored = self.gray is not None or self.shift is not None
        flipped = self.flip_x is not None or self.flip_y is not None
        other = (mode == "bicubic" and colored) or (mode.startswith("nearest") and flipped)
        padded = self.padding is not None and not self.is_ragged
        return self.resampling is None and not padded and not self.ends and not other

    def fits_levels(self) -> bool:
        """Whether values are still levels, and all of them the image's."""
        return self.shift is None and not self.ends

    def fits_color(self) -> bool:
        """Whether a channel map can still be composed."""
        return not self.ends

    def fits_hole(self) -> bool:
        """Whether a hole can still be composed."""
        return self.mixing is None

    def fits_mixing(self) -> bool:
        """Whether samples can still be mixed."""
        return self.mixing is None

    def cropped(self, top: Tensor, left: Tensor, height: int, width: int, padding: Padding | None = None) -> Plan:
        """The plan followed by a crop of height x width at (top, left) [B], as seen in the output so far.

        Images of a size each are cropped by a resize to the same size, which copies pixels; or, where they were resized
        to a size each, by placing them on a canvas.
        """
        high, wide = self.frame
        top = _mirrored(top, self.flip_y, high - height)
        left = _mirrored(left, self.flip_x, wide - width)
        around, how = padding or self.padding, self.resampling
        if how is None:
            same = Resampling(height=height, width=width, mode="bilinear", antialias=True) if self.is_ragged else None
            within = self._within(top, left, height, width)
            return replace(self, **within, height=height, width=width, padding=around, resampling=same)
        if how.placement is not None and how.is_open:
            placed = replace(how.placement, top=-top, left=-left)
            if padding is not None:
                placed = replace(placed, fill=padding.fill, mask_fill=padding.mask_fill)
            part = replace(how, height=height, width=width, placement=placed)
        else:
            part = replace(how, top=_sum(how.top, top), left=_sum(how.left, left))
        return replace(self, resampling=part, height=height, width=width)

    def resized(self, window: tuple[Tensor, Tensor, Tensor, Tensor] | None, resampling: Resampling) -> Plan:
        """The plan followed by the crop of a window (top, left, rows, cols: int64 [B]) and its resize."""
        narrowed = {}
        if window is not None:
            top, left, rows, cols = window
            height, width = self.frame
            top = _mirrored(top, self.flip_y, height - rows)
            left = _mirrored(left, self.flip_x, width - cols)
            narrowed = self._within(top, left, rows, cols)
        resampling = replace(resampling, mirror_x=self.flip_x, mirror_y=self.flip_y)
        return replace(self, **narrowed, resampling=resampling, height=resampling.height, width=resampling.width)

    def windowed(
        self,
        window: tuple[Tensor, Tensor, Tensor, Tensor],
        padding: Padding | None = None,
        dropped: Tensor | None = None,
    ) -> Plan:
        """The plan followed by windows (top, left, rows, cols: int64 [B]), to be resized later."""
        top, left, rows, cols = window
        height, width = self.frame
        top = _mirrored(top, self.flip_y, height - rows)
        left = _mirrored(left, self.flip_x, width - cols)
        gone = dropped if self.dropped is None or dropped is None else self.dropped | dropped
        around = padding or self.padding
        return replace(self, **self._within(top, left, rows, cols), padding=around, dropped=gone)

    def _within(self, top: Tensor, left: Tensor, rows: Tensor | int, cols: Tensor | int) -> dict[str, Any]:
        """What changes when the source window is narrowed to a window inside of it."""
        return {"top": _sum(self.top, top), "left": _sum(self.left, left), "rows": rows, "cols": cols}

    def framed(self) -> Plan:
        """The plan of images of a size each, followed by a black canvas of the largest, at its top left.

        Only holes and mixing may follow, in the same pass.
        """
        rows, cols = (self.of_batch(side) for side in self.frame)
        height, width = (int(side.max()) if len(side) else 1 for side in (rows, cols))
        nothing, how = torch.zeros_like(rows), self.resampling
        placed = Placement(
            rows=rows,
            cols=cols,
            top=nothing if self.flip_y is None else torch.where(self.flip_y, height - rows, 0),
            left=nothing if self.flip_x is None else torch.where(self.flip_x, width - cols, 0),
            fill=(0.0,),
            mask_fill=255,
        )
        if how is None:  # a resize to the same size, which copies pixels
            how = Resampling(height=0, width=0, mode="bilinear", antialias=True)
        how = replace(how, height=height, width=width, placement=placed)
        return replace(self, resampling=how, height=height, width=width, is_framed=True)

    def flipped(self, *, x: Tensor | None = None, y: Tensor | None = None) -> Plan:
        """The plan followed by flips, bool [B] each."""
        if self.program is not None:
            flips = [(FLIP_X, x), (FLIP_Y, y)]
            return self.followed_by(
                chain(Program.of(code, self.count, self.device, on=on) for code, on in flips if on is not None)
            )
        return replace(self, flip_x=_either(self.flip_x, x), flip_y=_either(self.flip_y, y))

    def grayed(self, gray: Tensor) -> Plan:
        """The plan followed by the luma of the samples where ``gray`` [B] is true."""
        if self.program is not None:
            return self.followed_by(Program.of(GRAY, self.count, self.device, on=gray))
        return replace(self, gray=gray if self.gray is None else self.gray | gray)

    def followed_by(self, program: Program) -> Plan:
        """The plan followed by operations on levels."""
        return replace(self, program=program if self.program is None else chain((self.program, program)))

    def scaled(self, shift: Tensor, scale: Tensor) -> Plan:
        """The plan followed by (x - shift) * scale, float32 [C] each."""
        if self.shift is None or self.scale is None:
            return replace(self, shift=shift, scale=scale)
        return replace(self, shift=self.shift + shift / self.scale, scale=self.scale * scale)

    def with_hole(self, hole: Hole) -> Plan:
        """The plan followed by a hole."""
        return replace(self, holes=(*self.holes, hole))

    def mixed(self, mixing: Mixing) -> Plan:
        """The plan followed by mixing."""
        return replace(self, mixing=mixing)


def _mirrored(start: Tensor, flip: Tensor | None, room: Tensor | int) -> Tensor:
    """A window's start seen before a flip, where ``room`` is the frame's size less the window's."""
    return start if flip is None else torch.where(flip, room - start, start)


def _sum(first: Tensor | None, second: Tensor) -> Tensor:
    return second if first is None else first + second


def _either(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """One flip after another: the second undoes the first."""
    if first is None or second is None:
        return second if first is None else first
    return first ^ second
