"""Text in pictures: a legible font, sizes, and names that are cut to a width."""

from __future__ import annotations

from functools import cache, lru_cache

from PIL import ImageFont

from mmload.errors import one_line

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_FILES = ("DejaVuSans.ttf", "Arial Unicode.ttf", "arial.ttf")
"""Fonts of many scripts, where the system has one; Pillow's own has Latin letters only."""


@cache
def font(size: int) -> Font:
    """A font of so many pixels."""
    for file in _FILES:
        try:
            return ImageFont.truetype(file, size)
        except OSError:
            continue
    return ImageFont.load_default(size)


def size_of(text: str, letters: Font) -> tuple[int, int]:
    """Width of a text and height of its line, in pixels."""
    line = letters.getbbox("Ag", anchor=None)
    return round(letters.getlength(text)), round(line[3]) + 1


@lru_cache(maxsize=4096)  # measuring takes longer than drawing, and a sheet repeats its classes
def cut(text: str, letters: Font, width: int) -> str:
    """A text in one line of at most ``width`` pixels; its end is replaced by dots where it is longer."""
    text = one_line(text)
    if letters.getlength(text) <= width:
        return text
    low, high = 0, len(text)
    while low < high:  # the most letters that fit: a name may be very long
        middle = (low + high + 1) // 2
        if letters.getlength(f"{text[:middle].rstrip()}...") <= width:
            low = middle
        else:
            high = middle - 1
    return f"{text[:low].rstrip()}..."
