"""Decodes the bytes of an image file to uint8 pixels [C, H, W]; docs/images.md describes every kind of file.

Intact JPEGs go through simplejpeg (libjpeg-turbo, as in Pillow, equal in every pixel, but on many threads at once).
Everything else goes through Pillow, including CMYK JPEGs and those that libjpeg warns about. The result depends only on
the file and the options, so a build is deterministic. It never opens a file by name and never resizes.

What is no image is named by its first bytes, here and where an annotation cannot be read; only contents that are never
right there have a name, so that a damaged annotation is not called by another one.
"""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt
from msgspec import Meta
from PIL import ExifTags, Image, ImageFile, ImageOps, TiffImagePlugin, UnidentifiedImageError
from simplejpeg import decode_jpeg, decode_jpeg_header  # type: ignore[import-untyped]

from mmload.errors import RecipeError
from mmload.records import checked
from mmload.store.variable_rows import MAX_PIXELS

T = TypeVar("T")


class _PillowGuard:
    """A context in which Pillow warns of nothing and refuses images that end early, whatever the program set.

    All threads share it: the first one enters it, and the last one restores what the first found. In overlapping
    blocks of ``warnings.catch_warnings`` of two threads the program's own state would be lost.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._ignored, self._reads_cut = warnings.catch_warnings(), False

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._ignored = warnings.catch_warnings(action="ignore")
                self._ignored.__enter__()
                self._reads_cut, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                ImageFile.LOAD_TRUNCATED_IMAGES = self._reads_cut
                self._ignored.__exit__(None, None, None)


pillow_guarded = _PillowGuard()


MODES = {"RGB": "RGB", "L": "Gray"}
"""Pillow's name of each mode, and libjpeg-turbo's."""

FORMATS = (
    *("BMP", "DIB", "GIF", "ICO", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP"),
    *(("AVIF",) if find_spec("PIL.AvifImagePlugin") else ()),
    "TGA",  # last, as it has no signature
)
"""The formats that Pillow may detect. Some of its other formats start programs: EPS runs Ghostscript."""

_LOSSY = ("JPEG", "MPO")
"""Formats that do not preserve masks: class numbers change at every edge."""

_BACKGROUND = "0 to 255, or [red, green, blue]"  # msgspec 0.22 crashes on a union of an int with bounds and a tuple
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

    Raises:
        RecipeError: if an option is invalid.
    """

    mode: Annotated[Literal["RGB", "L"], Meta(description="one of RGB, L")] = "RGB"
    exif_orient: bool = False
    background: Annotated[int | tuple[int, int, int], Meta(description=_BACKGROUND)] = 255

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            object.__setattr__(self, name, checked(getattr(self, name), kind, f"decode {name}"))
        if not all(0 <= level <= 255 for level in self._levels):
            raise RecipeError(f"decode background is {self.background!r:.80}; use {_BACKGROUND}")

    def __call__(self, data: bytes) -> npt.NDArray[np.uint8]:
        """Decodes an image file to uint8 [C, H, W], whose memory may be laid out in any order.

        Raises:
            ValueError: if the file is empty, broken, too large or of no known format; the message says which.
        """
        return self.with_origin(data)[0]

    def with_origin(self, data: bytes) -> tuple[npt.NDArray[np.uint8], bool]:
        """Decodes one image file and says whether it is a JPEG of which simplejpeg makes exactly these pixels."""
        if not data:
            raise ValueError("the file is empty")
        found = None if self.exif_orient else self._of_sound_jpeg(data)
        pixels = read_with_pillow(data, self._pixels, exif_orient=self.exif_orient) if found is None else found
        return pixels.transpose(2, 0, 1), found is not None

    def size(self, data: bytes) -> tuple[int, int]:
        """Returns (height, width) of the pixels of an image file, by its header.

        Raises:
            ValueError: as for :meth:`__call__`, as far as the header says.
        """

        def of_header(image: Image.Image) -> tuple[int, int]:
            turned = self.exif_orient and image.getexif().get(ExifTags.Base.Orientation, 1) > _MOST_UPRIGHT
            return image.size if turned else (image.height, image.width)

        return read_with_pillow(data, of_header, exif_orient=self.exif_orient)

    def _of_sound_jpeg(self, data: bytes) -> np.ndarray | None:
        """Returns [H, W, C]; None for other files, CMYK, and where libjpeg warns, fails, or does not know the kind."""
        try:
            height, width, colors, _ = decode_jpeg_header(data)
            _check_pixel_count(width, height)
            return decode_jpeg(data, MODES[self.mode]) if colors in _COLORS else None
        except (ValueError, KeyError):  # KeyError: a subsampling that it does not know
            return None

    @property
    def _levels(self) -> tuple[int, ...]:
        return self.background if isinstance(self.background, tuple) else (self.background,) * 3

    def _pixels(self, image: Image.Image) -> np.ndarray:
        """Returns [H, W, C]."""
        if self.mode == "L":
            image.draft("L", None)  # the luma of a JPEG; no effect on other formats
        pixels = np.array(self.converted(image))
        return pixels[..., None] if pixels.ndim == 2 else pixels

    def converted(self, image: Image.Image) -> Image.Image:
        """Converts a PIL image to the mode, with its EXIF orientation if set and the background behind transparency.

        Raises:
            ValueError: if it has 32 bits a channel, whose range is unknown, or is the thumbnail in a raw photograph.
        """
        tags = image.tag_v2 if isinstance(image, TiffImagePlugin.TiffImageFile) else {}
        if tags.get(_SUBFILE_TYPE) == 1 and _SUB_IFDS in tags:  # one would train on it without a word
            raise RefusedImage(
                "its first picture is a thumbnail, as in raw photographs (DNG, NEF); develop it to JPEG or PNG"
            )
        rotated = ImageOps.exif_transpose(image) if self.exif_orient else image
        return self._flattened(rotated, image.format, tags).convert(self.mode)

    def _flattened(self, image: Image.Image, kind: str | None, tags: Mapping[int, Any]) -> Image.Image:
        """Returns the image with 8 bits a channel and without transparency."""
        image.load()
        if image.mode in _WIDE or (image.mode == "I" and kind in _WIDE_FORMATS):
            return self._narrowed(image, tags)
        if image.mode in ("I", "F"):
            raise RefusedImage(f"pixels are 32-bit ({image.mode}), whose range is unknown; convert it to 8 or 16 bits")
        if not image.has_transparency_data:
            return image
        canvas = Image.new("RGBA", image.size, (*self._levels, 255))
        return Image.alpha_composite(canvas, image.convert("RGBA")).convert("RGB")

    def _narrowed(self, image: Image.Image, tags: Mapping[int, Any]) -> Image.Image:
        """Scales 16-bit gray to 8 bits: round(value / 257); ``PIL.Image.convert`` clips all above 255 to white.

        The tags of a TIFF may say that it has 12 bits, or that 0 is white, which Pillow ignores for such pixels.
        """
        wide = np.asarray(image).astype(np.uint32)
        white = 2 ** int(tags.get(_BITS, (16,))[0]) - 1
        gray = ((wide.clip(max=white) * 255 + white // 2) // white).astype(np.uint8)
        if tags.get(_PHOTOMETRIC) == 0:
            gray = 255 - gray
        key = image.info.get("transparency")
        if not isinstance(key, int):
            return Image.fromarray(gray)
        color = np.where((wide == key)[..., None], np.array(self._levels, dtype=np.uint8), gray[..., None])
        return Image.fromarray(color)


def read_with_pillow(
    data: bytes,
    read: Callable[[Image.Image], T],
    formats: tuple[str, ...] = FORMATS,
    *,
    exif_orient: bool = False,
) -> T:
    """Returns what a function reads from the picture in a file.

    Raises:
        ValueError: if the file is broken, too large or of no such format, or if the function raises.
    """
    try:
        file = io.BytesIO(without_png_extras(data, exif_orient))
        with pillow_guarded, Image.open(file, formats=formats) as image:
            _check_pixel_count(*image.size)
            return read(image)
    except (UnidentifiedImageError, ImportError) as error:  # Ultralytics' Image.open then imports another reader
        raise ValueError(f"not an image in any format that mmload reads{content_of(data)}") from error
    except Image.DecompressionBombError as error:
        raise ValueError(f"{error}") from error
    except RefusedImage:
        raise
    except Exception as error:  # Pillow's readers raise nearly anything on a broken file: KeyError, zlib.error, ...
        raise ValueError(f"broken image ({error or type(error).__name__})") from error


def is_turned(data: bytes) -> bool:
    """Returns whether a JPEG has an EXIF orientation other than upright."""
    if b"Exif\0\0" not in data[:_EXIF_WITHIN]:
        return False
    with pillow_guarded, suppress(Exception), Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        return image.getexif().get(ExifTags.Base.Orientation, 1) not in (0, 1)
    return False


def is_dark_depth(data: bytes, pixels: npt.NDArray[np.uint8]) -> bool:
    """Returns whether a file is a PNG of 16 bits whose values have 12 bits at most: its pixels are nearly black."""
    is_wide = data.startswith(_PNG) and data[_PNG_DEPTH] == 16
    return is_wide and bool((pixels <= _WHITE_OF_12_BITS).all()) and bool(pixels.any())


_SUBFILE_TYPE, _BITS, _PHOTOMETRIC, _SUB_IFDS = 254, 258, 262, 330  # tags of TIFF
_MOST_UPRIGHT = 4  # EXIF orientations above exchange height and width
_PNG = b"\x89PNG\r\n\x1a\n"
_EXIF_WITHIN = 2**17  # bytes from the begin of a JPEG
_PNG_DEPTH = 24  # place of the bits per channel
_WHITE_OF_12_BITS = 16  # 4,095 of 65,535, of 255
_DRAWN = (b"tRNS", b"acTL", b"fcTL", b"fdAT")
"""Chunks that pixels depend on among the ancillary ones, whose names begin with a lower-case letter."""
_ORIENTED = (b"eXIf", b"tEXtRaw profile type exif\0", b"zTXtRaw profile type exif\0", b"iTXtXML:com.adobe.xmp\0")
"""First bytes of ancillary chunks that may have an EXIF orientation."""


def without_png_extras(data: bytes, exif_orient: bool = False) -> bytes:
    """Returns a PNG without what its pixels, and its orientation if asked for, do not need; other files unchanged.

    Pillow refuses a file whose texts or color profile unpack to more than 1 MiB, as ComfyUI's workflows and profiles
    of Photoshop do. They are not unpacked here, so a small file cannot expand to a large one.
    """
    if not data.startswith(_PNG):
        return data
    kept = (*_DRAWN, *_ORIENTED) if exif_orient else _DRAWN
    parts, place = [_PNG], len(_PNG)
    while place < len(data):
        after = place + 12 + int.from_bytes(data[place : place + 4])
        is_extra = data[place + 4 : place + 5].islower() and not data.startswith(kept, place + 4)
        if not is_extra or after > len(data):  # Pillow reports a chunk that is cut off
            parts.append(data[place:after])
        place = after
    return b"".join(parts)


def content_of(data: bytes) -> str:
    """Returns what a file is that is no image, or the text that it begins with, after a colon; "" if unknown."""
    if what := describe_content(data):
        return f": it is {what}"
    start = " ".join(data[:40].decode("ascii", "replace").split())
    return f": it is text that begins with {start!r}" if start.isprintable() and start.isascii() else ""


class RefusedImage(ValueError):
    """A file that is valid but cannot be read."""


def _check_pixel_count(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise RefusedImage(f"{width} x {height} pixels is over the limit of {MAX_PIXELS}: a decompression bomb?")


_CODE = np.array([65536, 256, 1])  # red, green, blue as one number


def class_numbers(image: Image.Image) -> npt.NDArray[np.uint8]:
    """Returns the class of each pixel, uint8 [H, W].

    Raises:
        ValueError: if the pixels do not say it.
    """
    if image.format in _LOSSY:
        raise RefusedImage(f"it is a {image.format}, which does not keep class numbers")
    pixels, mode = np.array(image), image.mode
    if mode in ("LA", "RGBA"):
        if (pixels[..., -1] != 255).any():
            raise RefusedImage("it has transparent pixels, of which the class is unclear")
        pixels, mode = pixels[..., :-1], mode[:-1]
    if mode == "RGB":
        codes = pixels.astype(np.int64) @ _CODE
        colors = voc_colors().astype(np.int64) @ _CODE
        order = np.argsort(colors)
        place = order[np.searchsorted(colors, codes, sorter=order).clip(max=len(colors) - 1)]
        unknown = pixels[colors[place] != codes]
        if len(unknown):
            raise RefusedImage(
                f"its color {tuple(unknown[0].tolist())} is none of VOC's colors of classes; colors of one's own, as "
                "CVAT's labelmap.txt has them, are not read: write class numbers"
            )
        return np.asarray(place, np.uint8)
    if mode not in ("P", "L", "1"):
        raise RefusedImage(f"it is of mode {mode}; use palette, gray of at most 8 bits, or VOC's colors")
    return np.ascontiguousarray(pixels.reshape(pixels.shape[:2]), np.uint8)


def voc_colors() -> npt.NDArray[np.uint8]:
    """Returns the color of each class, uint8 [256, 3], as VOC's devkit makes them: bits of the number, by threes."""
    numbers = np.arange(256)[:, None, None]
    places = np.arange(8)
    bits = (numbers >> (3 * places + np.arange(3)[:, None])) & 1
    return np.asarray((bits << (7 - places)).sum(2), np.uint8)


_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"version https://git-lfs.github.com/", "a Git LFS pointer: run git lfs pull"),
    (0, b"/annex/objects/", "a git-annex pointer: run git annex get"),
    (0, b"<!doctype html", "a web page (HTML): download the file again"),
    (0, b"<html", "a web page (HTML): download the file again"),
    (0, b"<svg", "an SVG drawing: render it to PNG"),
    (0, b"<error>", "an error message of object storage (XML): download the file again"),
    (0, b"%pdf-", "a PDF document: render it to PNG"),
    (0, b"%!ps", "a PostScript file: render it to PNG"),
    (0, b"pk\3\4", "a ZIP archive, such as an Office document or NumPy's .npz: unpack it"),
    (0, b"rar!\x1a", "a RAR archive: unpack it"),
    (0, b"7z\xbc\xaf", "a 7-Zip archive: unpack it"),
    (0, b"\x1f\x8b", "a gzip archive: unpack it"),
    (0, b"\xfd7zxz", "an xz archive: unpack it"),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard archive: unpack it"),
    (0, b"bzh91ay&sy", "a bzip2 archive: unpack it"),
    (257, b"ustar", "a tar archive: unpack it"),
    (0, b"8bps", "a Photoshop document: export it as PNG or JPEG"),
    (0, b"\x93numpy", "a NumPy array (.npy): read it with a source of kind python"),
    (0, b"\x89hdf", "an HDF5 file: read it with a source of kind python"),
    (0, b"par1", "a Parquet file: read it with a source of kind python"),
    (0, b"\xd0\xcf\x11\xe0", "an Office document: export it"),
    (128, b"dicm", "a DICOM image: convert it to 8-bit PNG"),
    (0, b"\x76\x2f\x31\x01", "an OpenEXR image: convert it to 8-bit PNG"),
    (0, b"#?radiance", "a Radiance HDR image: convert it to 8-bit PNG"),
    (0, b"\xff\x0a", "a JPEG XL image: convert it, e.g. with djxl"),
    (4, b"jxl \r\n\x87\n", "a JPEG XL image: convert it, e.g. with djxl"),
    *(
        (4, b"ftyp" + brand, "a HEIC photograph: convert it to JPEG, e.g. with ImageMagick")
        for brand in (b"hei", b"hev", b"mif1", b"msf1")
    ),
    *(
        (4, b"ftyp" + brand, "an AVIF image, which this Pillow cannot read: convert it to JPEG, e.g. with ImageMagick")
        for brand in (b"avif", b"avis")
    ),
    (4, b"ftypcrx", "a raw photograph (CR3): develop it to JPEG"),
    (4, b"ftyp", "a video (MP4 or QuickTime): extract the frames that you need, e.g. with ffmpeg"),
    (8, b"avi list", "a video (AVI): extract the frames that you need, e.g. with ffmpeg"),
    (0, bytes(64), "nothing but zeros, as of a copy that failed: download the file again"),
    (0, b"\x1a\x45\xdf\xa3", "a video (Matroska or WebM): extract the frames that you need, e.g. with ffmpeg"),
)
"""Place, bytes in lower case, and name with advice; the first one that a file has is its own."""


def check_content(data: bytes) -> None:
    """Raises ValueError if an annotation is something else than its name says, such as a web page; says what."""
    if what := describe_content(data):
        raise ValueError(f"it is {what}")


def describe_content(first: bytes) -> str | None:
    """Returns what a file is and what to do about it, by its first bytes (512 suffice); None if that is unknown."""
    start = first[:512].removeprefix(b"\xef\xbb\xbf").lower()
    text = start.lstrip()
    if text.startswith(b"<?xml"):
        text = text[text.find(b"?>") + 2 :].lstrip()
    found = (name for place, signature, name in _SIGNATURES if (start if place else text).startswith(signature, place))
    return next(found, None)
