"""What the decoder refuses: bombs, files that are no images, cut and damaged ones, options that cannot be meant."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
import simplejpeg
from encoding import PHOTO, chunk, decoded, encoded, plain
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from mmload.errors import RecipeError
from mmload.sources.decode import Decoder
from mmload.store.variable_rows import MAX_PIXELS


def resized_header(jpeg: bytes, height: int, width: int) -> bytes:
    """A JPEG whose header claims another size."""
    at = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:at] + struct.pack(">HH", height, width) + jpeg[at + 4 :]


BOMBS = {
    "JPEG": resized_header(encoded(PHOTO, "JPEG"), 60_000, 60_000),
    "JPEG behind a bare marker": b"\xff\xd8\xff\xd0" + resized_header(encoded(PHOTO, "JPEG"), 60_000, 60_000)[2:],
    "PNG": b"\x89PNG\r\n\x1a\n"
    + chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    + chunk(b"IDAT", zlib.compress(bytes(1000)))
    + chunk(b"IEND", b""),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_anything_is_allocated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object, **options: object) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr("mmload.sources.decode.decode_jpeg", never)
    monkeypatch.setattr(Image.Image, "load", never)
    with pytest.raises(ValueError, match="bomb"):
        decoded(BOMBS[name])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # as programs set it that trust their own files
    with pytest.raises(ValueError, match=f"60000 x 60000 pixels is over the limit of {MAX_PIXELS}"):
        decoded(BOMBS[name])


def test_a_header_hidden_from_the_scan_is_still_refused() -> None:
    """A small frame where a reader lands that takes a length after a marker that has none."""
    bomb = BOMBS["JPEG"]
    small = b"\xff\xc0\x00\x11\x08\x00\x08\x00\x08\x03"
    with pytest.raises(ValueError, match="bomb"):
        decoded(b"\xff\xd8\xff\xd0\xff\xe1" + struct.pack(">H", len(small) + 2) + small + bomb[2:])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"a recipe for bread\n" * 9, "not an image"),
        (b"\xff\xd8", "not an image"),
        (b"\xff\xd8" + b"\xff" * 999, "not an image"),
        (b"\xff\xd8" + b"\xff\xe0\0\0" * 999, "not an image"),
        (b"GIF89a", "image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
    ],
)
def test_files_that_are_no_images(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decoded(data)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_rows": 1}])
def test_a_jpeg_cut_anywhere_is_an_error_even_where_it_could_be_filled(options: dict[str, object]) -> None:
    data = encoded(PHOTO, "JPEG", **options)
    for cut in [*range(1, len(data), 37), len(data) - 2, len(data) - 1]:
        with pytest.raises((OSError, SyntaxError)):
            plain(data[:cut])
        with pytest.raises(ValueError, match=r"broken|not an image"):
            decoded(data[:cut])


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_an_image_cut_short_is_refused_where_a_program_lets_pillow_take_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encoded(PHOTO, kind)[:-200]
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert plain(data).shape == (48, 60, 3)
    with pytest.raises(ValueError, match=r"broken image \(.*truncated"):
        decoded(data)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


def complained_of(data: bytes) -> bytes:
    """The same picture in a file that libjpeg warns of: bytes of nothing before the last marker."""
    return data[:-2] + bytes(99) + data[-2:]


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_what_libjpeg_only_warns_of_is_read(mode: str) -> None:
    data = encoded(PHOTO, "JPEG", quality=90)
    with pytest.raises(ValueError, match="extraneous bytes"):
        simplejpeg.decode_jpeg(complained_of(data))
    assert np.array_equal(decoded(complained_of(data), mode=mode), decoded(data, mode=mode))


FILES = [
    encoded(PHOTO, "JPEG"),
    encoded(PHOTO, "JPEG", progressive=True),
    encoded(PHOTO.convert("CMYK"), "JPEG"),
    encoded(PHOTO, "PNG"),
    encoded(PHOTO.quantize(8), "PNG"),
    encoded(PHOTO, "GIF"),
    encoded(PHOTO, "WEBP"),
    encoded(PHOTO, "BMP"),
    encoded(PHOTO, "TIFF"),
    encoded(PHOTO, "TIFF", compression="tiff_lzw"),
]


@settings(max_examples=400, deadline=5000)
@given(
    which=st.sampled_from(FILES),
    cut=st.integers(0, 2**20),
    flips=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=4),
    whole=st.booleans(),
    exif_orient=st.booleans(),
)
def test_a_damaged_file_is_a_picture_or_a_value_error(
    which: bytes, cut: int, flips: list[tuple[int, int]], whole: bool, exif_orient: bool
) -> None:
    data = bytearray(which if whole else which[: cut % len(which)])
    for place, value in flips:
        if data:
            data[place % min(len(data), 200 if place % 2 else len(data))] = value
    try:
        pixels = decoded(bytes(data), exif_orient=exif_orient)
    except ValueError:
        return
    assert pixels.shape[2] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "RGBA"}, "mode is 'RGBA'; use one of RGB, L"),
        ({"mode": ["RGB"]}, "mode is"),
        ({"exif_orient": 1}, "exif_orient is 1; use true or false"),
        ({"background": 256}, "background is 256"),
        ({"background": [1, 2]}, r"background is \[1, 2\]; use 0 to 255, or \[red"),
        ({"background": True}, "background is True"),
        ({"background": "white"}, "background is 'white'"),
    ],
)
def test_options_that_cannot_be_meant(options: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Decoder(**options)
