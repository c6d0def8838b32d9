"""Windows of an image: where they are, what they show, and the pixels in them."""

from __future__ import annotations

from torch import Tensor

Size = tuple[int, int]
"""(height, width)."""
Window = tuple[int, int, int, int]
"""(top, left, height, width); it may lie outside the image."""


def middle(have: int, want: int) -> int:
    """Returns where torchvision's center_crop starts, or (negative) what it pads before."""
    return int(round((have - want) / 2.0)) if have >= want else -((want - have) // 2)


def is_inside(window: Window, size: tuple[int, ...]) -> bool:
    """Returns whether a window lies completely inside an image of (height, width)."""
    top, left, height, width = window
    return top >= 0 and left >= 0 and top + height <= size[0] and left + width <= size[1]


def seen(inside: Window, window: Window) -> Window:
    """Returns the part of a window that shows the image, from the window's corner; empty if there is none."""
    top, left = max(inside[0] - window[0], 0), max(inside[1] - window[1], 0)
    bottom = min(inside[0] + inside[2] - window[0], window[2])
    right = min(inside[1] + inside[3] - window[1], window[3])
    return top, left, max(bottom - top, 0), max(right - left, 0)


def scaled(inside: Window, have: Size, size: Size) -> Window:
    """Scales a window to another image size; pixels that a border reaches into count as border."""
    top, left = -(-inside[0] * size[0] // have[0]), -(-inside[1] * size[1] // have[1])
    bottom, right = ((inside[axis] + inside[axis + 2]) * size[axis] // have[axis] for axis in (0, 1))
    return top, left, max(bottom - top, 0), max(right - left, 0)


def cut(pixels: Tensor, window: Window, fill: int) -> Tensor:
    """Returns the pixels [..., H, W] of a window; those outside the image are ``fill``."""
    top, left, height, width = window
    have_height, have_width = pixels.shape[-2:]
    if is_inside(window, (have_height, have_width)):
        return pixels[..., top : top + height, left : left + width]
    out = pixels.new_full((*pixels.shape[:-2], height, width), fill)
    y0, y1 = max(top, 0), min(top + height, have_height)
    x0, x1 = max(left, 0), min(left + width, have_width)
    out[..., y0 - top : y1 - top, x0 - left : x1 - left] = pixels[..., y0:y1, x0:x1]
    return out
