"""Damaged TIFFs are errors of their own and say nothing on stderr."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from mmload.sources.decode import Decoder, pillow_guarded


def damaged() -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "TIFF", compression="tiff_adobe_deflate")
    data = bytearray(file.getvalue())
    data[200:260] = bytes(60)
    return bytes(data)


def test_a_damaged_tiff_is_an_error_and_no_lines(capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="broken image"):
            Decoder()(damaged())
    assert capfd.readouterr().err == ""
    with pillow_guarded, pytest.raises(OSError, match="decoder error"):
        Image.open(io.BytesIO(damaged())).load()
    assert capfd.readouterr().err == ""


def test_what_the_program_had_set_is_put_back(capfd: pytest.CaptureFixture[str]) -> None:
    with pillow_guarded, pillow_guarded:
        pass
    with pytest.raises(OSError, match="decoder error"):
        Image.open(io.BytesIO(damaged())).load()
    assert "Decoding error" in capfd.readouterr().err
