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
    whole = letters.getlength(text)
    if whole <= width:
        return text

    def fits(count: int) -> bool:
        return letters.getlength(f"{text[:count].rstrip()}...") <= width

    count = min(int(len(text) * width / whole), len(text) - 1)  # near the most that fit: names may be very long
    while count > 0 and not fits(count):
        count -= 1
    while count + 1 < len(text) and fits(count + 1):
        count += 1
    return f"{text[:count].rstrip()}..."
