"""Draws one image as a picture (any channels, boxes and masks in class colors, legible text), and encodes pictures."""

from __future__ import annotations

import base64
import colorsys
import io
import struct
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, lru_cache
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from mmload.errors import one_line
from mmload.records import VOID

try:
    from isal.isal_zlib import compress, crc32
except ImportError:  # no wheel for this platform: three times slower
    from zlib import compress, crc32

Pixels = npt.NDArray[np.uint8]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
Color = tuple[int, int, int]

VOID_COLOR = (255, 255, 255)

_GOLDEN = 0.61803398875  # turns of the color circle from class to class: neighbors differ, and no two of many are equal
_OPACITY = 0.5
_TINT = 70  # opacity of polygons, of 255
_DOT = 2  # radius of a keypoint in pixels
_LABEL = 11
_FEW = 5
_LEVEL = 1 / 255

_SQUARE = 8  # pixels of a side of its squares
_LIGHT, _DARK = 255, 204
"""The two grays of the checkerboard behind transparent pixels."""

_FILES = ("DejaVuSans.ttf", "Arial Unicode.ttf", "arial.ttf")
"""Fonts of many scripts, where the system has one; Pillow's own has Latin letters only."""

_COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # of PNG, by channels: gray, gray and alpha, RGB, RGB and alpha
_COMPRESSION_LEVEL = 1
_SUB = 1  # the filter: each pixel less the one to its left


def color_of(index: int) -> Color:
    """Returns the color of a class, by its index: the same in all pictures."""
    hue = (0.02 + index * _GOLDEN) % 1
    value = (1.0, 0.85, 0.7)[index % 3]
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.85, value)
    return round(red * 255), round(green * 255), round(blue * 255)


def ink_on(color: Color) -> Color:
    """Returns black or white, whichever has the greater contrast (WCAG) with a color."""
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in (c / 255 for c in color)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)


def name_of(index: int, classes: Sequence[str]) -> str:
    """Returns a class's name; its index where it has none."""
    return classes[index] if 0 <= index < len(classes) else str(index)


def draw_mask(image: Image.Image, mask: npt.NDArray[np.uint8]) -> Image.Image:
    """Lays a mask [H, W] over a picture: class 0, the background, stays; void is white."""
    colors = np.array([color_of(index) for index in range(256)], np.float32)
    colors[VOID] = VOID_COLOR
    over = Image.fromarray(colors.astype(np.uint8)[mask]).resize(image.size, Image.Resampling.NEAREST)
    shown = Image.fromarray(((mask > 0) * np.uint8(255 * _OPACITY)).astype(np.uint8))
    return Image.composite(over, image, shown.resize(image.size, Image.Resampling.NEAREST))


def draw_boxes(
    image: Image.Image,
    boxes: npt.NDArray[np.float32],
    labels: Sequence[int],
    factor: float,
    classes: Sequence[str],
    *,
    framed: bool = True,
) -> None:
    """Draws boxes into a picture with the names of their classes; of many boxes, on the largest of each class.

    Boxes are float32 [N, 4], xyxy in pixels before the image was scaled by ``factor``; without a frame, only names are
    drawn.
    """
    draw = ImageDraw.Draw(image)
    letters = font(_LABEL)
    named = set(range(len(labels))) if len(labels) <= _FEW else _largest(boxes, labels)
    places = [[round(side * factor) for side in box] for box in boxes.tolist()]
    for (left, top, right, bottom), label in zip(places, labels, strict=True) if framed else ():
        draw.rectangle((left, top, max(right - 1, left), max(bottom - 1, top)), outline=color_of(label), width=2)
    for number in sorted(named):  # names are above all boxes
        (left, top, _, _), label = places[number], labels[number]
        color = color_of(label)
        text = cut(name_of(label, classes), letters, max(image.width - 6, 20))
        width, height = size_of(text, letters)
        x = min(max(left, 0), max(image.width - width - 4, 0))
        y = top - height - 2 if top >= height + 2 else top
        draw.rectangle((x, y, x + width + 3, y + height + 1), fill=color)
        draw.text((x + 2, y), text, font=letters, fill=ink_on(color))


def draw_outlines(
    image: Image.Image,
    outlines: Sequence[tuple[int, npt.NDArray[np.float32]]],
    labels: Sequence[int],
    factor: float,
) -> None:
    """Draws polygons into a picture, tinted and with an outline, in the colors of their boxes' classes.

    Outlines are the box of each polygon, and its points, float32 [n, 2], in pixels before the image was scaled.
    """
    draw = ImageDraw.Draw(image, "RGBA")
    for box, points in outlines:
        color = color_of(labels[box])
        places = [(x * factor, y * factor) for x, y in points.tolist()]
        draw.polygon(places, fill=(*color, _TINT), outline=(*color, 255))


def draw_keypoints(
    image: Image.Image, keypoints: npt.NDArray[np.float32], skeleton: Sequence[tuple[int, int]], factor: float
) -> None:
    """Draws keypoints into a picture, and the lines of their skeleton; those that are hidden are hollow.

    Keypoints are float32 [N, K, 3], x and y in pixels before the image was scaled, and visibility.
    """
    draw = ImageDraw.Draw(image)
    for points in keypoints.tolist():
        places = [(x * factor, y * factor) for x, y, _ in points]
        for number, (first, second) in enumerate(skeleton):
            if points[first][2] > 0 and points[second][2] > 0:
                draw.line([places[first], places[second]], fill=color_of(number), width=2)
        for number, ((x, y), (_, _, shown)) in enumerate(zip(places, points, strict=True)):
            if shown > 0:
                color = color_of(number)
                fill, outline = (color, (255, 255, 255)) if shown > 1 else (None, color)
                draw.ellipse((x - _DOT, y - _DOT, x + _DOT, y + _DOT), fill=fill, outline=outline)


def _largest(boxes: npt.NDArray[np.float32], labels: Sequence[int]) -> set[int]:
    """Returns the number of the largest box of each class."""
    areas = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).tolist()
    return set(
        {label: number for _, number, label in sorted(zip(areas, range(len(labels)), labels, strict=True))}.values()
    )


def picture(image: Pixels) -> Image.Image:
    """Converts an image, uint8 [C, H, W], to a color picture, whose transparent pixels show a checkerboard.

    One channel is gray, two are gray and alpha, three are RGB, four are RGB and alpha; of more, the first three are
    taken for RGB.
    """
    channels = len(image)
    gray = channels <= 2
    rgb = np.repeat(image[:1], 3, axis=0) if gray else image[:3]
    if channels in (2, 4):
        _, height, width = image.shape
        rows, columns = np.arange(height)[:, None] // _SQUARE, np.arange(width) // _SQUARE
        board = np.where((rows + columns) % 2 == 0, _LIGHT, _DARK)
        alpha = image[-1].astype(np.float32) / 255
        rgb = np.round(rgb * alpha + board * (1 - alpha)).astype(np.uint8)
    return Image.merge("RGB", [Image.fromarray(np.ascontiguousarray(levels)) for levels in rgb])


def levels(images: npt.NDArray[np.generic], mean: tuple[float, ...] = (), std: tuple[float, ...] = ()) -> Pixels:
    """Converts images [B, C, H, W] to uint8 levels: floats are x * std + mean, from 0 (black) to 1 (white).

    Mean and std per channel are those that ``Normalize`` had; empty: images are not normalized.

    Raises:
        ValueError: if floats leave [0, 1] by more than a level, as normalized images do if mean and std are not given.
    """
    if images.dtype == np.uint8:
        return images.astype(np.uint8, copy=False)
    floats = images.astype(np.float32)
    if mean and std:
        floats = floats * np.array(std, np.float32)[:, None, None] + np.array(mean, np.float32)[:, None, None]
    elif floats.size and not (floats.min() >= -_LEVEL and floats.max() <= 1 + _LEVEL):
        raise ValueError(
            f"images are from {floats.min():.3g} to {floats.max():.3g}, which looks normalized: give the mean and std "
            "of Normalize, to undo it"
        )
    return np.round(floats.clip(0, 1) * 255).astype(np.uint8)


def fitted(image: Image.Image, side: int) -> tuple[Image.Image, float]:
    """Resizes a picture to fit into a square of ``side`` pixels, and returns the factor, too.

    Small pictures grow by whole factors, so that each pixel is seen; large ones shrink.
    """
    factor = side / max(image.size)
    scale = float(int(factor)) or factor
    size = [max(1, round(pixels * scale)) for pixels in image.size]
    return image.resize(size, Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.HAMMING), scale


@cache
def font(size: int) -> Font:
    """Loads a font of so many pixels."""
    for file in _FILES:
        with suppress(OSError):
            return ImageFont.truetype(file, size)
    return ImageFont.load_default(size)


def size_of(text: str, letters: Font) -> tuple[int, int]:
    """Measures the width of a text and the height of its line, in pixels."""
    line = letters.getbbox("Ag", anchor=None)
    return round(letters.getlength(text)), round(line[3]) + 1


@lru_cache(maxsize=4096)  # measuring takes longer than drawing, and a sheet repeats its classes
def cut(text: str, letters: Font, width: int) -> str:
    """Cuts a text to one line of at most ``width`` pixels; dots replace the end of a longer one."""
    text = one_line(text)
    if len(text) <= width and letters.getlength(text) <= width:  # no letter is narrower than a pixel
        return text
    counts = range(min(len(text), width) + 1)
    most = bisect_right(counts, float(width), key=lambda count: letters.getlength(f"{text[:count].rstrip()}..."))
    return f"{text[: max(most - 1, 0)].rstrip()}..."


def png(pixels: npt.NDArray[Any]) -> bytes:
    """Encodes a PNG of uint8 pixels [H, W, C] with 1 to 4 channels: gray, gray and alpha, RGB, RGB and alpha.

    See https://www.w3.org/TR/png-3/. All lines are filtered alike, in one operation: choosing a filter for each takes
    Pillow most of its time.
    """
    height, width, channels = pixels.shape
    lines = np.empty((height, 1 + width * channels), np.uint8)
    lines[:, 0] = _SUB
    body = lines[:, 1:].reshape(height, width, channels)
    body[:, :1] = pixels[:, :1]
    np.subtract(pixels[:, 1:], pixels[:, :-1], out=body[:, 1:])
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", compress(lines.data, _COMPRESSION_LEVEL)), (b"IEND", b""))
    framed = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", crc32(data, crc32(name)))
        for name, data in chunks
    )
    return b"".join([b"\x89PNG\r\n\x1a\n", *framed])


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    """Encodes a picture as a file of a format that Pillow knows, with Pillow's options of the format.

    Raises:
        ValueError: if the format has no room for so large a picture.
    """
    if form == "PNG":
        return png(np.asarray(image if image.mode == "RGB" else image.convert("RGB")))
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def figure(image: Image.Image, description: str, form: str = "PNG", **options: Any) -> str:
    """Writes an ``img`` element with the picture in it, and a description for readers who do not see it.

    The picture is encoded as :func:`encoded` does it; a JPEG is smaller and not exact, for pages of many photographs.
    """
    place = data_url(image, form, **options)
    return f'<img width="{image.width}" height="{image.height}" alt="{escape(description, quote=True)}" src="{place}">'


def data_url(image: Image.Image, form: str, **options: Any) -> str:
    """Writes a picture as a URL that contains it, encoded as :func:`encoded` does it."""
    return f"data:image/{form.lower()};base64,{base64.b64encode(encoded(image, form, **options)).decode('ascii')}"
