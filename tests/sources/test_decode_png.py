"""PNGs with chunks that pixels do not need: read whatever is in them, and never unpacked."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from encoding import NOISE, chunk, decoded, encoded
from PIL import Image

from mmload.sources.files import SampleFiles
from mmload.sources.objects import read_mask

LARGE = zlib.compress(bytes(3 << 20))
SMALL = zlib.compress(bytes(1 << 20))

EXTRAS = {
    "compressed text": chunk(b"zTXt", b"workflow\0\0" + LARGE),
    "compressed Unicode text": chunk(b"iTXt", b"workflow\0\1\0\0\0" + LARGE),
    "plain text": chunk(b"tEXt", b"workflow\0" + bytes(65 << 20)),
    "color profile": chunk(b"iCCP", b"profile\0\0" + LARGE),
    "many texts": b"".join(chunk(b"zTXt", b"text\0\0" + SMALL) for _ in range(65)),
    "checksum of a text": chunk(b"tEXt", b"workflow\0")[:-4] + bytes(4),
    "short gamma": chunk(b"gAMA", b""),
    "content credentials": chunk(b"caBX", bytes(1 << 20)),
}


def with_chunks(data: bytes, before: bytes = b"", after: bytes = b"") -> bytes:
    """A PNG with chunks before its pixels, and after them."""
    end = data.rindex(b"IEND") - 4
    return data[:33] + before + data[33:end] + after + data[end:]


@pytest.mark.parametrize("exif_orient", [False, True])
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("name", EXTRAS)
def test_decoder_of_a_png_with_large_or_wrong_extras_returns_its_pixels(
    name: str, place: str, exif_orient: bool
) -> None:
    data = with_chunks(encoded(Image.fromarray(NOISE), "PNG"), **{place: EXTRAS[name]})
    assert np.array_equal(decoded(data, exif_orient=exif_orient), NOISE)


def test_decoder_of_a_png_keeps_transparency_palette_and_orientation() -> None:
    image = Image.fromarray(NOISE).quantize(16)
    exif = Image.Exif()
    exif[0x0112] = 6
    data = with_chunks(encoded(image, "PNG", transparency=3, exif=exif), EXTRAS["compressed text"])
    colors = np.array(image.convert("RGB"))
    colors[np.array(image) == 3] = 255
    assert np.array_equal(decoded(data), colors)
    assert np.array_equal(decoded(data, exif_orient=True), np.rot90(colors, -1))


def test_decoder_of_a_png_with_the_orientation_in_a_text_turns_it() -> None:
    profile = b"\nexif\n      34\n" + (b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0").hex().encode()
    text = chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(profile))
    data = with_chunks(encoded(Image.fromarray(NOISE), "PNG"), text)
    assert np.array_equal(decoded(data, exif_orient=True), np.rot90(NOISE, -1))
    assert np.array_equal(decoded(data), NOISE)


def test_decoder_of_a_png_that_ends_in_a_text_refuses_it() -> None:
    data = with_chunks(encoded(Image.fromarray(NOISE), "PNG"), b"", EXTRAS["compressed text"])
    with pytest.raises(ValueError, match="broken"):
        decoded(data[:-100])


def test_mask_with_a_large_text_is_read(tmp_path: Path) -> None:
    classes = NOISE[..., 0] % 21
    data = with_chunks(encoded(Image.fromarray(classes), "PNG"), EXTRAS["compressed text"])
    (tmp_path / "a.png").write_bytes(data)
    assert np.array_equal(read_mask(SampleFiles(tmp_path, "a"), "a.png").numpy(), classes)


@pytest.mark.parametrize("kind", ["JPEG", "TIFF", "WEBP"])
def test_decoder_of_other_formats_reads_large_metadata(kind: str) -> None:
    options = {"quality": 95} if kind != "TIFF" else {}
    image = Image.fromarray(NOISE)
    extras = {"icc_profile": bytes(3 << 20), "xmp": bytes(60_000)}
    assert np.array_equal(decoded(encoded(image, kind, **options, **extras)), decoded(encoded(image, kind, **options)))


@pytest.mark.parametrize(("tags", "is_raw"), [({254: 1, 330: 8}, True), ({254: 1}, False), ({}, False)])
def test_decoder_of_a_tiff_that_begins_with_a_thumbnail_refuses_it(tags: dict[int, int], is_raw: bool) -> None:
    data = encoded(Image.fromarray(NOISE), "TIFF", tiffinfo=tags)
    if is_raw:
        with pytest.raises(ValueError, match="thumbnail"):
            decoded(data)
    else:
        assert np.array_equal(decoded(data), NOISE)
