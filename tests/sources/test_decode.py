"""Pixels of files made here against Pillow's own result, one rule of docs/images.md after the other."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
import simplejpeg
from encoding import ALPHA, NOISE, PHOTO, RANDOM, decoded, encoded, over, plain, png
from PIL import Image, ImageOps, UnidentifiedImageError


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpegs(mode: str, progressive: bool) -> None:
    data = encoded(PHOTO.convert(mode), "JPEG", progressive=progressive, quality=90)
    assert Image.open(io.BytesIO(data)).mode == mode
    assert np.array_equal(decoded(data), plain(data))


@pytest.mark.parametrize("options", [{"subsampling": 0}, {"subsampling": 2}, {"restart_marker_rows": 1}])
def test_jpegs_of_other_kinds(options: dict[str, int]) -> None:
    data = encoded(PHOTO, "JPEG", **options)
    assert np.array_equal(decoded(data), plain(data))


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411", "Gray"])
def test_jpegs_of_every_subsampling(subsampling: str, mode: str) -> None:
    pixels = np.array(PHOTO)[..., :1].copy() if subsampling == "Gray" else np.array(PHOTO)
    colors = "Gray" if subsampling == "Gray" else "RGB"
    data = simplejpeg.encode_jpeg(pixels, colorspace=colors, colorsubsampling=subsampling)
    image = Image.open(io.BytesIO(data))
    image.draft(mode, None)
    want = np.array(image.convert(mode)).reshape(48, 60, -1)
    assert np.array_equal(simplejpeg.decode_jpeg(data, {"RGB": "RGB", "L": "Gray"}[mode]), want)
    assert np.array_equal(decoded(data, mode=mode), want)


@pytest.mark.parametrize("luma", [0x12, 0x21, 0x22, 0x41, 0x14, 0x31, 0x13])
@pytest.mark.parametrize("chroma", [0x11, 0x12])
def test_subsampling_that_a_header_only_claims(luma: int, chroma: int) -> None:
    data = bytearray(encoded(PHOTO, "JPEG", subsampling=0))
    factors = data.index(b"\xff\xc0") + 11
    data[factors], data[factors + 3], data[factors + 6] = luma, chroma, chroma
    try:
        want = plain(bytes(data))
    except OSError:
        with pytest.raises(ValueError, match="broken image"):
            decoded(bytes(data))
    else:
        assert np.array_equal(decoded(bytes(data)), want)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP", "GIF", "PPM", "TGA", "ICO", "JPEG2000"])
@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
def test_other_formats(kind: str, mode: str) -> None:
    if (kind, mode) in (("JPEG2000", "1"), ("JPEG2000", "P"), ("PPM", "P")):
        pytest.skip(f"there is no {kind} of mode {mode}")
    data = encoded(Image.fromarray(NOISE).convert(mode), kind)
    try:
        expected = plain(data)
    except OSError as error:
        pytest.skip(f"this Pillow cannot read the {kind} of mode {mode} that it wrote ({error})")
    assert np.array_equal(decoded(data), expected)


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("WEBP", {"lossless": True, "exact": True}), ("TIFF", {})])
@pytest.mark.parametrize("background", [255, 0, (10, 200, 30)])
def test_alpha_lies_over_the_background(
    kind: str, options: dict[str, bool], background: int | tuple[int, int, int]
) -> None:
    levels = background if isinstance(background, tuple) else (background,) * 3
    image = Image.fromarray(np.dstack([NOISE, ALPHA]))
    assert np.abs(decoded(encoded(image, kind, **options), background=background) - over(image, levels)).max() <= 1


@pytest.mark.parametrize("background", [255, 0, (200, 10, 90)])
def test_decode_palette_with_alpha_lies_over_the_background(background: int | tuple[int, int, int]) -> None:
    levels = background if isinstance(background, tuple) else (background,) * 3
    data = encoded(Image.fromarray(NOISE).quantize(16), "PNG", transparency=bytes([0, 128] + [255] * 14))
    image = Image.open(io.BytesIO(data))
    assert image.mode == "P"
    got = decoded(data, background=background)
    assert np.abs(got - over(image, levels)).max() <= 1
    clear = np.array(image.convert("RGBA"))[..., 3] == 0
    assert clear.any()
    assert (got[clear] == levels).all()


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_gray_with_alpha(mode: str) -> None:
    gray = Image.merge("LA", [Image.fromarray(NOISE[..., 0]), Image.fromarray(ALPHA)])
    assert gray.mode == "LA"
    got = decoded(encoded(gray, "PNG"), mode=mode, background=7)
    assert np.abs(got - over(gray, (7, 7, 7))).max() <= 1


@pytest.mark.parametrize("mode", ["1", "L", "RGB"])
def test_one_transparent_colour(mode: str) -> None:
    image = Image.fromarray(NOISE).convert(mode)
    first = image.getpixel((0, 0))
    data = encoded(image, "PNG", transparency=first)
    same = np.array(image) == np.array(image)[0, 0]
    clear = same.all(-1) if same.ndim == 3 else same
    want = np.array(image.convert("RGB"))
    want[clear] = (9, 8, 7)
    assert np.array_equal(decoded(data, background=(9, 8, 7)), want)


def test_a_transparent_gif() -> None:
    image = Image.fromarray(NOISE).quantize(16)
    data = encoded(image, "GIF", transparency=image.getpixel((0, 0)))
    again = Image.open(io.BytesIO(data))
    assert np.array_equal(decoded(data, background=(9, 8, 7)), over(again, (9, 8, 7)).astype(np.uint8))
    assert (decoded(data, background=(9, 8, 7))[0, 0] == (9, 8, 7)).all()


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "TIFF"])
def test_of_several_frames_the_first_is_taken(kind: str) -> None:
    frames = [Image.fromarray(np.roll(NOISE, i, 0)) for i in range(3)]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    image = Image.open(io.BytesIO(data))
    assert image.n_frames == 3
    assert np.array_equal(decoded(data), np.array(image.convert("RGB")))
    if kind != "GIF":
        assert np.array_equal(decoded(data), NOISE)


@pytest.mark.parametrize("exif_orient", [False, True])
@pytest.mark.parametrize("kind", ["PNG", "PPM", "TIFF"])
def test_16_bit_gray_is_scaled_not_clipped(kind: str, exif_orient: bool) -> None:
    wide = RANDOM.integers(0, 65536, (13, 21), dtype=np.uint16)
    wide[0, :6] = 0, 128, 129, 257, 65406, 65535
    want = np.round(wide / 257).astype(np.uint8)
    assert want[0, :6].tolist() == [0, 0, 1, 1, 254, 255]
    data = encoded(Image.fromarray(wide), kind)
    assert np.array_equal(decoded(data, mode="L", exif_orient=exif_orient)[..., 0], want)
    assert np.array_equal(decoded(data, exif_orient=exif_orient), want[..., None].repeat(3, 2))


def test_16_bit_tiff_in_which_0_is_white_is_inverted() -> None:
    wide = RANDOM.integers(0, 65536, (5, 6), dtype=np.uint16)
    data = encoded(Image.fromarray(wide), "TIFF", tiffinfo={262: 0})
    assert Image.open(io.BytesIO(data)).tag_v2[262] == 0
    expected = 255 - np.round(wide / 257).astype(np.uint8)
    np.testing.assert_array_equal(decoded(data, mode="L")[..., 0], expected)


def test_12_bit_tiff_is_scaled_by_its_own_range() -> None:
    wide = np.array([[0, 4095, 2048, 16]], np.uint16)
    packed = bytes.fromhex("000fff800010")
    entries = [
        (256, 3, 1, 4),
        (257, 3, 1, 1),
        (258, 3, 1, 12),
        (259, 3, 1, 1),
        (262, 3, 1, 1),
        (273, 4, 1, 8),
        (277, 3, 1, 1),
        (278, 3, 1, 1),
        (279, 4, 1, 6),
    ]
    table = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    data = b"II*\0" + struct.pack("<I", 14) + packed + struct.pack("<H", len(entries)) + table + bytes(4)
    np.testing.assert_array_equal(decoded(data, mode="L")[..., 0], np.round(wide / 4095 * 255))


def test_16_bit_gray_with_a_transparent_value() -> None:
    wide = RANDOM.integers(0, 65536, (5, 6, 1)).astype(np.uint16)
    got = decoded(png(wide, key=int(wide[2, 3, 0])), background=(9, 8, 7))
    want = np.round(wide / 257).astype(np.uint8).repeat(3, 2)
    want[wide[..., 0] == wide[2, 3, 0]] = (9, 8, 7)
    assert np.array_equal(got, want)


def test_16_bit_colour_is_what_pillow_makes_of_it() -> None:
    wide = RANDOM.integers(0, 65536, (5, 6, 3)).astype(np.uint16)
    assert np.array_equal(decoded(png(wide)), wide >> 8)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_32_bit_pixels_are_refused(mode: str) -> None:
    data = encoded(Image.fromarray(NOISE[..., 0]).convert(mode), "TIFF")
    with pytest.raises(ValueError, match="pixels are 32-bit"):
        decoded(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(10))
def test_every_orientation(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(PHOTO, kind, exif=exif)
    turned = np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert turned.shape[:2] == ((60, 48) if orientation in (5, 6, 7, 8) else (48, 60))
    assert np.array_equal(decoded(data, exif_orient=True), turned)
    assert np.array_equal(decoded(data), plain(data))
    assert decoded(data).shape == (48, 60, 3)


@pytest.mark.parametrize("exif_orient", [False, True])
def test_a_tiff_is_turned_by_pillow_in_any_case(exif_orient: bool) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(Image.fromarray(NOISE), "TIFF", exif=exif)
    assert np.array_equal(decoded(data, exif_orient=exif_orient), np.rot90(NOISE, -1))


def test_transparency_survives_the_turn() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.fromarray(np.dstack([NOISE, ALPHA]))
    got = decoded(encoded(image, "PNG", exif=exif), exif_orient=True, background=50)
    assert np.abs(got - np.rot90(over(image, (50, 50, 50)), -1)).max() <= 1


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_gray_of_colour_is_pillows(kind: str) -> None:
    data = encoded(Image.fromarray(NOISE), kind)
    assert np.array_equal(decoded(data, mode="L")[..., 0], plain(data, "L"))


@pytest.mark.parametrize("exif_orient", [False, True])
@pytest.mark.parametrize("kind", ["JPEG", "MPO"])
def test_gray_of_a_jpeg_is_the_luma_it_holds(kind: str, exif_orient: bool) -> None:
    data = encoded(PHOTO, kind, quality=95, **({"save_all": True, "append_images": [PHOTO]} if kind == "MPO" else {}))
    image = Image.open(io.BytesIO(data))
    assert image.format == kind
    image.draft("L", None)
    assert np.array_equal(decoded(data, mode="L", exif_orient=exif_orient)[..., 0], np.array(image))


def test_no_image_beside_an_opener_that_asks_for_another_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ultralytics replaces ``PIL.Image.open`` in the whole process with such a function."""
    pillows = Image.open

    def opened(*arguments: Any, **options: Any) -> Image.Image:
        try:
            return pillows(*arguments, **options)
        except UnidentifiedImageError:
            raise ModuleNotFoundError("No module named 'pi_heif'") from None

    monkeypatch.setattr(Image, "open", opened)
    with pytest.raises(ValueError, match="not an image in any format that mmload reads"):
        decoded(b"no image")
