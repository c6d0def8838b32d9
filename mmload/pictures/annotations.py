"""Draws boxes and masks over a picture, in a color for each class."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from mmload.pictures.text import cut, font, size_of

VOID = 255
"""The value of masks where no class is known."""

_GOLDEN = 0.61803398875  # turns of the color circle from class to class: neighbors differ, and no two of many are equal
_OPACITY = 0.5
_VOID_COLOR = (255, 255, 255)
_LABEL = 11
_FEW = 5

Color = tuple[int, int, int]


def color_of(index: int) -> Color:
    """The color of a class, by its index: the same in all pictures."""
    hue = (0.02 + index * _GOLDEN) % 1
    value = (1.0, 0.85, 0.7)[index % 3]
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.85, value)
    return round(red * 255), round(green * 255), round(blue * 255)


def ink_on(color: Color) -> Color:
    """Black or white, whichever has the greater contrast (WCAG) with a color."""
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in (c / 255 for c in color)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)


def name_of(index: int, classes: Sequence[str]) -> str:
    """A class's name; its index where it has none."""
    return classes[index] if 0 <= index < len(classes) else str(index)


def draw_mask(image: Image.Image, mask: npt.NDArray[np.uint8]) -> Image.Image:
    """A picture with its mask [H, W] laid over it: class 0, the background, stays; void is white."""
    colors = np.array([color_of(index) for index in range(256)], np.float32)
    colors[VOID] = _VOID_COLOR
    over = Image.fromarray(colors.astype(np.uint8)[mask]).resize(image.size, Image.Resampling.NEAREST)
    shown = Image.fromarray(((mask > 0) * np.uint8(255 * _OPACITY)).astype(np.uint8))
    return Image.composite(over, image, shown.resize(image.size, Image.Resampling.NEAREST))


def draw_boxes(
    image: Image.Image,
    boxes: npt.NDArray[np.float32],
    labels: Sequence[int],
    factor: float,
    classes: Sequence[str],
) -> None:
    """Draws boxes into a picture with the names of their classes; of many boxes, on the largest of each class.

    Args:
        image: changed in place.
        boxes: float32 [N, 4], xyxy in pixels of the image before it was scaled.
        labels: the class of each.
        factor: by which the image was scaled.
        classes: names by index.
    """
    draw = ImageDraw.Draw(image)
    letters = font(_LABEL)
    named = set(range(len(labels))) if len(labels) <= _FEW else _largest(boxes, labels)
    places = [[round(side * factor) for side in box] for box in boxes.tolist()]
    for (left, top, right, bottom), label in zip(places, labels, strict=True):
        rectangle = (left, top, max(right - 1, left), max(bottom - 1, top))
        draw.rectangle(rectangle, outline=color_of(label), width=2)
    for number in sorted(named):  # names are above all boxes
        (left, top, _, _), label = places[number], labels[number]
        color = color_of(label)
        text = cut(name_of(label, classes), letters, max(image.width - 6, 20))
        width, height = size_of(text, letters)
        x = min(max(left, 0), max(image.width - width - 4, 0))
        y = top - height - 2 if top >= height + 2 else top
        draw.rectangle((x, y, x + width + 3, y + height + 1), fill=color)
        draw.text((x + 2, y), text, font=letters, fill=ink_on(color))


def _largest(boxes: npt.NDArray[np.float32], labels: Sequence[int]) -> set[int]:
    """Which box of each class is the largest."""
    areas = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).tolist()
    return set(
        {label: number for _, number, label in sorted(zip(areas, range(len(labels)), labels, strict=True))}.values()
    )
