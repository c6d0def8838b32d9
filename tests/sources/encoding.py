"""Images made here: encoded by Pillow or by hand, and read again by the decoder and by Pillow."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image

from mmload.sources.decode import Decoder

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
    pixels = Decoder(**options)(data)
    assert pixels.dtype == np.uint8
    return pixels.transpose(1, 2, 0)


def plain(data: bytes, mode: str = "RGB") -> np.ndarray:
    return np.array(Image.open(io.BytesIO(data)).convert(mode))


def over(image: Image.Image, background: tuple[int, int, int]) -> np.ndarray:
    """A transparent image over a color, in floating point."""
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
