"""Pixels of real files against Pillow's own result: photographs, odd kinds, animations and broken ones."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from encoding import decoded, over, plain
from PIL import Image, ImageOps


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
        ("truncated_jpeg.jpg", r"broken image .*truncated"),
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
