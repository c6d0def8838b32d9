"""Bytes of an image file -> uint8 pixels [C, H, W]. docs/images.md says how each kind of file is read.

Ordinary JPEGs go through torchvision's decoder (the same libjpeg-turbo as Pillow's, pixel for pixel, but it works on
many threads at once); everything else, CMYK JPEGs included, goes through Pillow. Which one decodes depends on the file
alone, so a build is deterministic. Never opens a file by name and never resizes.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from mmload.errors import RecipeError
from mmload.quiet import quiet

MODES = {"RGB": ImageReadMode.RGB, "L": ImageReadMode.GRAY}
MAX_PIXELS = 2**31 // 12
"""178,956,970: above this an image is taken for a decompression bomb; it is twice Pillow's warning level."""

_WIDE = ("I;16", "I;16L", "I;16B", "I;16N")
_BARE = (0x01, *range(0xD0, 0xD8))  # JPEG markers that no length follows
_WIDE_FORMATS = ("PNG", "PPM")  # their 32-bit mode "I" holds 16-bit values


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """How pixels are made of files. Thread-safe and picklable.

    Attributes:
        mode: "RGB" or "L" (one gray channel), with the meaning of ``PIL.Image.convert``; but of a JPEG, "L" is the
            luma that the file itself holds.
        exif_orient: turn the image as its EXIF orientation says; torchvision's ImageFolder does not.
        background: what shows through transparent pixels: a gray level, or (red, green, blue).

    Raises:
        RecipeError: if an option cannot be meant.
    """

    mode: str = "RGB"
    exif_orient: bool = False
    background: int | tuple[int, int, int] = 255

    def __post_init__(self) -> None:
        if not isinstance(self.mode, str) or self.mode not in MODES:
            raise RecipeError(f"decode mode is {self.mode!r}; use one of {', '.join(MODES)}")
        if not isinstance(self.exif_orient, bool):
            raise RecipeError(f"decode exif_orient is {self.exif_orient!r}; use true or false")
        object.__setattr__(self, "background", _tuple_of(self.background))
        levels = self._levels
        if len(levels) != 3 or any(type(level) is not int or not 0 <= level <= 255 for level in levels):
            raise RecipeError(f"decode background is {self.background!r}; use 0 to 255, or [red, green, blue]")

    def __call__(self, data: np.ndarray) -> Tensor:
        """Decode one image file.

        Args:
            data: uint8 [N], the whole file.

        Returns:
            uint8 [C, H, W]; its memory may be laid out in any order.

        Raises:
            ValueError: if the file is empty, broken, too large or of no known format; the message says which.
        """
        if data.size == 0:
            raise ValueError("the file is empty")
        header = _jpeg_header(data)
        if header is None:
            return self._with_pillow(data)
        height, width, channels = header
        _refuse_bomb(width, height)
        if channels not in (1, 3):
            return self._with_pillow(data)
        try:
            pixels: Tensor = decode_jpeg(
                torch.from_numpy(data), mode=MODES[self.mode], apply_exif_orientation=self.exif_orient
            )
        except RuntimeError as error:
            raise ValueError(f"broken JPEG ({_reason(error)})") from error
        return pixels

    @property
    def _levels(self) -> tuple[int, ...]:
        return self.background if isinstance(self.background, tuple) else (self.background,) * 3

    def _with_pillow(self, data: np.ndarray) -> Tensor:
        try:
            with quiet, Image.open(io.BytesIO(data.tobytes())) as image:
                _refuse_bomb(*image.size)
                turned = ImageOps.exif_transpose(image) if self.exif_orient else image
                pixels = np.array(self._flattened(turned, image.format).convert(self.mode))
        except UnidentifiedImageError as error:
            raise ValueError("not an image in any format that Pillow reads") from error
        except Image.DecompressionBombError as error:
            raise ValueError(f"{error}") from error
        except _Refused:
            raise
        except Exception as error:  # Pillow's readers raise nearly anything on a broken file: KeyError, zlib.error, ...
            raise ValueError(f"broken image ({error or type(error).__name__})") from error
        tensor = torch.from_numpy(pixels)
        return tensor.unsqueeze(0) if tensor.ndim == 2 else tensor.permute(2, 0, 1)

    def _flattened(self, image: Image.Image, kind: str | None) -> Image.Image:
        """8 bits a channel, and no transparency left."""
        image.load()
        if image.mode in _WIDE or (image.mode == "I" and kind in _WIDE_FORMATS):
            return self._narrowed(image)
        if image.mode in ("I", "F"):
            raise _Refused(f"pixels are 32-bit ({image.mode}), whose range no file says; convert it to 8 or 16 bits")
        if not image.has_transparency_data:
            return image
        canvas = Image.new("RGBA", image.size, (*self._levels, 255))
        return Image.alpha_composite(canvas, image.convert("RGBA")).convert("RGB")

    def _narrowed(self, image: Image.Image) -> Image.Image:
        """16-bit gray scaled to 8 bits: round(value / 257), ``PIL.Image.convert`` clips all above 255 to white."""
        wide = np.asarray(image).astype(np.uint32)
        gray = ((wide + 128) // 257).astype(np.uint8)
        key = image.info.get("transparency")
        if not isinstance(key, int):
            return Image.fromarray(gray)
        colour = np.where((wide == key)[..., None], np.array(self._levels, dtype=np.uint8), gray[..., None])
        return Image.fromarray(colour)


def _tuple_of(value: Any) -> Any:
    """A list, as TOML and JSON write it, as a tuple."""
    return tuple(value) if isinstance(value, list) else value


def _reason(error: RuntimeError) -> str:
    """The first line of a message of torch's, without the place in its source that newer versions put before it."""
    return re.sub(r"^.*\.cpp:\d+, ", "", str(error).partition("\n")[0])


class _Refused(ValueError):
    """A file that is not broken and still cannot be read."""


def _refuse_bomb(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise _Refused(f"{width} x {height} pixels is over the limit of {MAX_PIXELS}: a decompression bomb?")


def _jpeg_header(data: np.ndarray) -> tuple[int, int, int] | None:
    """(height, width, channels) from a JPEG's start-of-frame segment (ITU T.81, B.2.2); None if there is none."""
    view = data.data
    if bytes(view[:2]) != b"\xff\xd8":
        return None
    at = 2
    while at + 4 <= len(view):
        segment = bytes(view[at : at + 10])
        if segment[0] != 0xFF:
            return None
        marker = segment[1]
        if marker == 0xFF:
            at += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return _frame(segment)
        length = 0 if marker in _BARE else int.from_bytes(segment[2:4], "big")
        if marker not in _BARE and length < 2:
            return None
        at += 2 + length
    return None


def _frame(segment: bytes) -> tuple[int, int, int] | None:
    if len(segment) < 10:
        return None
    return int.from_bytes(segment[5:7], "big"), int.from_bytes(segment[7:9], "big"), segment[9]
