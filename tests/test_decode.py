"""Pixels against Pillow's own result, one rule of docs/images.md after the other."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from mmload.decode import MAX_PIXELS, Decoder
from mmload.errors import RecipeError

RANDOM = np.random.default_rng(0)
NOISE = RANDOM.integers(0, 256, (13, 21, 3), dtype=np.uint8)
ALPHA = RANDOM.integers(0, 256, (13, 21), dtype=np.uint8)
PHOTO = Image.fromarray(RANDOM.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((60, 48))


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def decoded(data: bytes, **options: object) -> np.ndarray:
    """[H, W, C], as numpy lays images out."""
    pixels = Decoder(**options)(np.frombuffer(data, np.uint8).copy())
    assert pixels.dtype == torch.uint8
    return pixels.permute(1, 2, 0).numpy()


def plain(data: bytes, mode: str = "RGB") -> np.ndarray:
    return np.array(Image.open(io.BytesIO(data)).convert(mode))


def over(image: Image.Image, background: tuple[int, int, int]) -> np.ndarray:
    """A transparent image over a colour, in floating point."""
    pixels = np.array(image.convert("RGBA")).astype(float)
    alpha = pixels[..., 3:] / 255
    return pixels[..., :3] * alpha + np.array(background) * (1 - alpha)


def png(pixels: np.ndarray, *, key: int | None = None) -> bytes:
    """A PNG of 16 bits a channel, [H, W, C] uint16, which Pillow reads but does not write."""
    height, width, channels = pixels.shape
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    header = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    clear = [] if key is None else [chunk(b"tRNS", struct.pack(">H", key))]
    chunks = [chunk(b"IHDR", header), *clear, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def resized_header(jpeg: bytes, height: int, width: int) -> bytes:
    """A JPEG whose header claims another size."""
    at = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:at] + struct.pack(">HH", height, width) + jpeg[at + 4 :]


# real files


def odd(real_data: Path, name: str) -> bytes:
    return (real_data / "odd" / name).read_bytes()


@pytest.mark.parametrize(
    "name",
    [
        "exif_Portrait_6.jpg",
        "exif_hopper_orientation_6.jpg",
        "hopper_gray.jpg",
        "iss634.gif",
        "iss634.webp",
        "pil_sample_cmyk.jpg",
    ],
)
def test_real_files_are_read_as_pillow_reads_them(real_data: Path, name: str) -> None:
    data = odd(real_data, name)
    assert np.array_equal(decoded(data), plain(data))


@pytest.mark.parametrize("name", ["iss634.gif", "iss634.webp"])
def test_of_a_real_animation_the_first_frame_is_taken(real_data: Path, name: str) -> None:
    image = Image.open(io.BytesIO(odd(real_data, name)))
    assert image.n_frames == 42
    first = np.array(image.convert("RGB"))
    assert np.array_equal(decoded(odd(real_data, name)), first)
    image.seek(41)
    assert not np.array_equal(np.array(image.convert("RGB")), first)


@pytest.mark.parametrize("name", ["exif_Portrait_6.jpg", "exif_hopper_orientation_6.jpg"])
def test_a_real_file_is_turned_only_when_asked(real_data: Path, name: str) -> None:
    data = odd(real_data, name)
    turned = np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert np.array_equal(decoded(data, exif_orient=True), turned)
    assert not np.array_equal(decoded(data), turned)


@pytest.mark.parametrize("background", [255, 0, (200, 10, 90)])
@pytest.mark.parametrize("name", ["p_trns_single.png", "pil123p.png"])
def test_real_palettes_with_transparency_lie_over_the_background(
    real_data: Path, name: str, background: int | tuple[int, int, int]
) -> None:
    image = Image.open(io.BytesIO(odd(real_data, name)))
    assert image.mode == "P"
    levels = background if isinstance(background, tuple) else (background,) * 3
    got = decoded(odd(real_data, name), background=background)
    assert np.abs(got - over(image, levels)).max() <= 1
    clear = np.array(image.convert("RGBA"))[..., 3] == 0
    assert clear.any()
    assert (got[clear] == levels).all()


def test_a_real_16_bit_file_is_scaled_and_its_key_colour_is_transparent(real_data: Path) -> None:
    wide = np.array(Image.open(io.BytesIO(odd(real_data, "i_trns.png"))))
    assert wide.dtype == np.uint16
    want = np.round(wide / 257).astype(np.uint8)[..., None].repeat(3, 2)
    want[wide == 255] = (1, 2, 3)
    assert np.array_equal(decoded(odd(real_data, "i_trns.png"), background=(1, 2, 3)), want)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("broken.png", "not an image in any format"),
        ("broken_data_stream.png", "broken image"),
        ("truncated_image.png", r"broken image .*truncated"),
        ("truncated_jpeg.jpg", r"broken JPEG \(Image is incomplete or truncated"),
    ],
)
def test_real_broken_files_are_refused_as_pillow_refuses_them(real_data: Path, name: str, reason: str) -> None:
    with pytest.raises((OSError, SyntaxError)):
        plain(odd(real_data, name))
    with pytest.raises(ValueError, match=reason):
        decoded(odd(real_data, name))


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_real_photographs_are_equal_to_pillows(real_data: Path, mode: str) -> None:
    files = sorted((real_data / "imagenet120").rglob("*.[jJ]*"))[::4]
    assert len(files) == 30
    for file in files:
        image = Image.open(io.BytesIO(file.read_bytes()))
        image.draft(mode, None)  # of a gray reading Pillow too takes the file's luma then
        want = np.array(image.convert(mode)).reshape(image.height, image.width, -1)
        assert np.array_equal(decoded(file.read_bytes(), mode=mode), want), file


# files made here


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


def test_gray_of_a_jpeg_is_the_luma_it_holds() -> None:
    data = encoded(PHOTO, "JPEG", quality=95)
    image = Image.open(io.BytesIO(data))
    image.draft("L", None)
    assert np.array_equal(decoded(data, mode="L")[..., 0], np.array(image))


# what is refused


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

    monkeypatch.setattr("mmload.decode.decode_jpeg", never)
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


def test_messages_hold_no_path_of_the_machine_that_built_torch() -> None:
    with pytest.raises(ValueError, match=r"^broken JPEG \(Image is incomplete or truncated\)$"):
        decoded(encoded(PHOTO, "JPEG")[:-200])


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
        ({"background": [1, 2]}, r"background is \(1, 2\)"),
        ({"background": True}, "background is True"),
        ({"background": "white"}, "background is 'white'"),
    ],
)
def test_options_that_cannot_be_meant(options: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Decoder(**options)
