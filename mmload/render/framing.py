"""What lies around a plan's window, to which size it is resized, and where that lies on a canvas."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

PADDING_MODES = ("constant", "edge", "reflect", "symmetric")


@dataclass(frozen=True, kw_only=True)
class Padding:
    """What lies outside the image: one of :data:`PADDING_MODES`, and the constant's value per channel (or one).

    Masks have a value of their own, 255 (void) unless said, and boxes are never repeated or mirrored. ``margin`` is how
    far windows may reach outside: rows, columns.
    """

    mode: str = "constant"
    fill: tuple[float, ...] = (0.0,)
    mask_fill: int = 255
    margin: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Windows are resized to a size per sample, and placed on a canvas that is as large for all.

    Attributes:
        rows: int64 [B], height of the resized window.
        cols: int64 [B].
        top: int64 [B], where its first row lies on the canvas; negative: so many rows are cut off.
        left: int64 [B].
        fill: of the rest of the canvas, values per channel or one for all.
        mask_fill: of a mask's.
    """

    rows: Tensor
    cols: Tensor
    top: Tensor
    left: Tensor
    fill: tuple[float, ...]
    mask_fill: int


@dataclass(frozen=True, kw_only=True)
class Resampling:
    """The window is resized to (height, width), and a part of that is kept.

    Attributes:
        height: pixels after the resize, before the part is taken; of the canvas, where there is a placement; 0 while
            the canvas is not known, since a crop is still to come.
        width: the same.
        mode: ``nearest``, ``nearest-exact``, ``bilinear`` or ``bicubic``.
        antialias: whether shrinking averages over all source pixels.
        top: int64 [B], first row of the part; None: the whole.
        left: int64 [B], first column of the part; None: the whole.
        exact_masks: whether masks take ``nearest-exact``; else ``nearest``.
        mirror_x: bool [B], whether the window is mirrored left to right before the resize, which ``flip_x`` of the plan
            does after it: masks, whose nearest pixels are counted from one side, need to know.
        mirror_y: bool [B], the same upside down.
        placement: to what size each window is resized, and where that lies on the canvas; None: to height x width.
    """

    height: int
    width: int
    mode: str
    antialias: bool
    top: Tensor | None = None
    left: Tensor | None = None
    exact_masks: bool = False
    mirror_x: Tensor | None = None
    mirror_y: Tensor | None = None
    placement: Placement | None = None

    @property
    def is_open(self) -> bool:
        """Whether each window has a size of its own after the resize, too, and a crop must follow."""
        return self.height == 0
