"""JPEGs that are decoded inside of a compiled call, against simplejpeg: whole, as strips, and smaller."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image
from simplejpeg import decode_jpeg
from variable_datasets import some_images

from mmload.render.arrival import arrive
from mmload.render.kernel_arguments import NEEDED, PIXELS, PLACE, REFUSED, Arrival
from mmload.render.rendering import ImageLines
from mmload.runtime import turbojpeg
from mmload.runtime.resident_pages import NO_FILES
from mmload.runtime.turbojpeg import HANDLE, TurboDecoder, turbojpeg_library

LIBRARY = turbojpeg_library()

needs_library = pytest.mark.skipif(LIBRARY is None, reason="TurboJPEG's library is not installed")


def jpeg(size: tuple[int, int], channels: int = 3, mode: str = "", **options: int | bool) -> bytes:
    image = some_images([size], channels)[0].transpose(1, 2, 0)
    picture = Image.fromarray(image if channels == 3 else image[..., 0])
    file = io.BytesIO()
    (picture.convert(mode) if mode else picture).save(file, "JPEG", **options)
    return file.getvalue()


def lines_of(
    rows: Sequence[bytes], sizes: Sequence[tuple[int, int]], needed: Sequence[tuple[int, int, int]], channels: int = 3
) -> ImageLines:
    """The rows one after another in memory, to be decoded one after another."""
    assert LIBRARY is not None
    lengths = np.array([len(row) for row in rows])
    pixels = np.array([height * width * channels for height, width in sizes])
    places = [(0, 0, height, height, width, PIXELS, 1) for height, width in sizes]
    arrival = Arrival(
        ranges=NO_FILES,
        files=np.zeros(len(rows), np.int64),
        absent=np.zeros(len(rows), np.int64),
        jpeg=np.ones(len(rows), np.bool_),
        starts=np.cumsum(lengths) - lengths,
        lengths=lengths,
        needed=np.array(needed, NEEDED),
        rooms=np.cumsum(pixels) - pixels,
        channels=channels,
        spare=np.zeros(int(lengths.max()) + 2, np.uint8),
        decoder=TurboDecoder(LIBRARY).state,
        failed=np.array([-1, 0]),
    )
    memory, decoded = np.frombuffer(b"".join(rows), np.uint8).copy(), np.zeros(int(pixels.sum()), np.uint8)
    return ImageLines(memory, np.array(places, PLACE), decoded, arrival)


@needs_library
@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("shrink", [1, 2, 4])
def test_decoded_lines_equal_those_of_simplejpeg(channels: int, shrink: int) -> None:
    sizes = [(97, 61), (200, 33), (64, 64), (1, 1), (90, 130), (33, 47)]
    kinds = [{}, {"restart_marker_rows": 1}, {"progressive": True}, {"quality": 30}, {"restart_marker_rows": 1}]
    options = [{**kind, **({} if channels == 1 else {"subsampling": k % 3})} for k, kind in enumerate([*kinds, {}])]
    rows = [jpeg(size, channels, **kind) for size, kind in zip(sizes, options, strict=True)]
    needed = [(height // 3, height // 3 + max(1, height // 4), shrink) for height, _ in sizes]
    lines = lines_of(rows, sizes, needed, channels)
    arrive(lines.stored, lines.arrival, np.array([0, len(rows)]))
    assert lines.arrival.failed[0] == -1
    for k, (row, (height, width), (first, stop, _)) in enumerate(zip(rows, sizes, needed, strict=True)):
        sides = -(-height // shrink), -(-width // shrink)
        smaller = {} if shrink == 1 else {"min_height": sides[0], "min_width": sides[1], "min_factor": shrink}
        whole = decode_jpeg(row, "RGB" if channels == 3 else "GRAY", **smaller)
        start, begin, count, _, _, layout, factor = lines.places[k].tolist()
        assert (layout, factor) == (PIXELS, shrink)
        found = lines.decoded[start : start + count * sides[1] * channels].reshape(count, sides[1], channels)
        wanted = slice(first // shrink, -(-stop // shrink))
        assert begin <= wanted.start < wanted.stop <= begin + count
        np.testing.assert_array_equal(found[wanted.start - begin : wanted.stop - begin], whole[wanted])


@needs_library
def test_a_row_that_is_refused_stops_the_call_and_the_decoder_is_made_anew() -> None:
    sizes, needed = [(40, 50)] * 3, [(0, 40, 1)] * 3
    whole = jpeg((40, 50))
    for broken in (whole[:300], b"\xff\xd8" + bytes(90), jpeg((50, 40)), jpeg((40, 50), mode="CMYK")):
        lines = lines_of([whole, broken, whole], sizes, needed)
        arrive(lines.stored, lines.arrival, np.array([0, 3]))
        assert lines.arrival.failed.tolist() == [1, REFUSED]
        assert lines.arrival.decoder[HANDLE] == 0
        lines.arrival.failed[:] = -1, 0
        arrive(lines.stored, lines.arrival, np.array([2, 3]))
        assert lines.arrival.failed[0] == -1
        assert np.array_equal(lines.decoded[-40 * 50 * 3 :].reshape(40, 50, 3), decode_jpeg(whole, "RGB"))


@needs_library
def test_a_library_with_other_pixels_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turbojpeg, "_decoded", lambda *given: np.zeros((37, 37, 3), np.uint8))
    assert turbojpeg_library.__wrapped__() is None


def test_no_library_is_found_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turbojpeg, "_names", lambda: iter(["libturbojpeg-that-is-not-there.so"]))
    assert turbojpeg_library.__wrapped__() is None
