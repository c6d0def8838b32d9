"""Decodes the bytes of an image file to uint8 pixels [C, H, W]; docs/images.md describes every kind of file.

Intact JPEGs go through simplejpeg (libjpeg-turbo, as in Pillow, equal in every pixel, but on many threads at once).
Everything else goes through Pillow, including CMYK JPEGs and those that libjpeg warns about. On request a CUDA device
decodes JPEGs, to slightly different pixels. The result depends only on the file and the options, so a build is
deterministic. It never opens a file by name and never resizes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError
from simplejpeg import decode_jpeg, decode_jpeg_header  # type: ignore[import-untyped]
from torch import Tensor

from mmload.errors import RecipeError
from mmload.runtime.nvjpeg import END
from mmload.runtime.warning_filters import Shared, warnings_suppressed
from mmload.sources.libtiff_messages import libtiff_silenced
from mmload.store.whole_rows import MAX_PIXELS

MODES = {"RGB": "RGB", "L": "Gray"}
"""Pillow's name of each mode, and libjpeg-turbo's."""

FORMATS = (
    *("BMP", "DIB", "GIF", "ICO", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP"),
    *(("AVIF",) if find_spec("PIL.AvifImagePlugin") else ()),
    "TGA",  # last, as it has no signature
)
"""The formats that Pillow may detect. Some of its other formats start programs: EPS runs Ghostscript."""

DEVICES = ("cpu", "cuda")

_WIDE = ("I;16", "I;16L", "I;16B", "I;16N")
_COLORS = ("Gray", "YCbCr", "RGB")  # color spaces of JPEGs that need no conversion from CMYK
_WIDE_FORMATS = ("PNG", "PPM")  # their 32-bit mode "I" holds 16-bit values


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Converts files to pixels. Thread-safe and picklable.

    Attributes:
        mode: "RGB" or "L" (one gray channel), with the meaning of ``PIL.Image.convert``; but of a JPEG, "L" is the
            luma that the file itself holds.
        exif_orient: rotate the image as its EXIF orientation says; torchvision's ImageFolder does not.
        background: the color behind transparent pixels: a gray level, or (red, green, blue).
        device: "cpu", or "cuda": sound JPEGs are decoded by nvJPEG, in batches of the calling threads' files.

    Raises:
        RecipeError: if an option is invalid.
    """

    mode: str = "RGB"
    exif_orient: bool = False
    background: int | tuple[int, int, int] = 255
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not isinstance(self.mode, str) or self.mode not in MODES:
            raise RecipeError(f"decode mode is {self.mode!r}; use one of {', '.join(MODES)}")
        if not isinstance(self.exif_orient, bool):
            raise RecipeError(f"decode exif_orient is {self.exif_orient!r}; use true or false")
        object.__setattr__(self, "background", _tuple_of(self.background))
        levels = self._levels
        if len(levels) != 3 or any(type(level) is not int or not 0 <= level <= 255 for level in levels):
            raise RecipeError(f"decode background is {self.background!r}; use 0 to 255, or [red, green, blue]")
        if self.device not in DEVICES:
            raise RecipeError(f"decode device is {self.device!r}; use {' or '.join(DEVICES)}")

    def __call__(self, data: bytes) -> Tensor:
        """Decode one image file.

        Args:
            data: the whole file.

        Returns:
            uint8 [C, H, W]; its memory may be laid out in any order.

        Raises:
            ValueError: if the file is empty, broken, too large or of no known format; the message says which.
            UsageError: if the device is "cuda" and there is none.
        """
        return self.with_origin(data)[0]

    def with_origin(self, data: bytes) -> tuple[Tensor, bool]:
        """As a call, and whether the file is a JPEG of which simplejpeg makes exactly these pixels."""
        if not data:
            raise ValueError("the file is empty")
        size = None if self.exif_orient else _size_of_jpeg(data)
        if size is not None and self.device == "cuda" and (on_cuda := self._on_cuda(data, size)) is not None:
            return on_cuda, False
        found = None if size is None else self._of_sound_jpeg(data)
        pixels = self._with_pillow(data) if found is None else found
        return torch.from_numpy(pixels.transpose(2, 0, 1)), found is not None

    def _on_cuda(self, data: bytes, size: tuple[int, int]) -> Tensor | None:
        """[C, H, W]; None if the file has no end marker (nvJPEG accepts more than libjpeg) or the device refuses it."""
        from mmload.sources import decode_cuda

        if not data.endswith(END):
            return None
        pixels = (decode_cuda.in_gray if self.mode == "L" else decode_cuda.in_color)(data)
        return None if pixels is None or pixels.shape[1:] != size else pixels.cpu()

    def _of_sound_jpeg(self, data: bytes) -> np.ndarray | None:
        """[H, W, C]; None if libjpeg warns or fails."""
        try:
            pixels: np.ndarray = decode_jpeg(data, MODES[self.mode])
        except ValueError:
            return None
        return pixels

    @property
    def _levels(self) -> tuple[int, ...]:
        return self.background if isinstance(self.background, tuple) else (self.background,) * 3

    def _with_pillow(self, data: bytes) -> np.ndarray:
        """[H, W, C]."""
        try:
            with (
                warnings_suppressed,
                libtiff_silenced,
                _truncated_refused,
                Image.open(io.BytesIO(data), formats=FORMATS) as image,
            ):
                _refuse_bomb(*image.size)
                if self.mode == "L":
                    image.draft("L", None)  # the luma of a JPEG; no effect on other formats
                pixels = np.array(self.converted(image))
        except UnidentifiedImageError as error:
            raise ValueError("not an image in any format that mmload reads") from error
        except Image.DecompressionBombError as error:
            raise ValueError(f"{error}") from error
        except _Refused:
            raise
        except Exception as error:  # Pillow's readers raise nearly anything on a broken file: KeyError, zlib.error, ...
            raise ValueError(f"broken image ({error or type(error).__name__})") from error
        return pixels[..., None] if pixels.ndim == 2 else pixels

    def converted(self, image: Image.Image) -> Image.Image:
        """A PIL image in the mode: rotated by its EXIF orientation if asked, transparent pixels over the background.

        Raises:
            ValueError: if it has 32 bits a channel, whose range is unknown.
        """
        rotated = ImageOps.exif_transpose(image) if self.exif_orient else image
        return self._flattened(rotated, image.format).convert(self.mode)

    def _flattened(self, image: Image.Image, kind: str | None) -> Image.Image:
        """The image with 8 bits a channel and without transparency."""
        image.load()
        if image.mode in _WIDE or (image.mode == "I" and kind in _WIDE_FORMATS):
            return self._narrowed(image)
        if image.mode in ("I", "F"):
            raise _Refused(f"pixels are 32-bit ({image.mode}), whose range is unknown; convert it to 8 or 16 bits")
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
        color = np.where((wide == key)[..., None], np.array(self._levels, dtype=np.uint8), gray[..., None])
        return Image.fromarray(color)


@contextmanager
def _no_truncated_images() -> Iterator[None]:
    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


_truncated_refused = Shared(_no_truncated_images)
"""Inside, Pillow refuses images that end early, also where a program set LOAD_TRUNCATED_IMAGES."""


def _tuple_of(value: Any) -> Any:
    """A list, as TOML and JSON write it, as a tuple."""
    return tuple(value) if isinstance(value, list) else value


def _size_of_jpeg(data: bytes) -> tuple[int, int] | None:
    """Height and width of a JPEG; None for other files, CMYK, and kinds that libjpeg does not support."""
    try:
        height, width, colors, _ = decode_jpeg_header(data)
    except (ValueError, KeyError):  # KeyError: a subsampling that it does not know
        return None
    _refuse_bomb(width, height)
    return (height, width) if colors in _COLORS else None


class _Refused(ValueError):
    """A file that is valid but cannot be read."""


def _refuse_bomb(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise _Refused(f"{width} x {height} pixels is over the limit of {MAX_PIXELS}: a decompression bomb?")
