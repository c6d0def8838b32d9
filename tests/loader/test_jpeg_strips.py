"""Strips of JPEGs against the same lines of the whole, bit for bit, for every kind that Pillow writes."""

from __future__ import annotations

import io
import math
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from simplejpeg import decode_jpeg

from mmload.errors import DamagedError
from mmload.loader.tiers import decode_lines
from mmload.render.jpeg_strips import cut_strip
from tests.helpers.variable_datasets import some_images


def jpeg(size: tuple[int, int], channels: int = 3, **options: int | bool) -> np.ndarray:
    noise = np.random.default_rng(1).integers(0, 60, (channels, *size), dtype=np.uint8)
    image = (some_images([size], channels)[0] // 2 + noise).transpose(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(image if channels == 3 else image[..., 0]).save(file, "JPEG", **options)
    return np.frombuffer(file.getvalue(), np.uint8).copy()


@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    ends=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    subsampling=st.sampled_from([0, 1, 2, None]),
    shrink=st.sampled_from([1, 1, 2, 4]),
    rows=st.sampled_from([1, 1, 1, 2, 0]),
    kind=st.sampled_from([{}, {"progressive": True}, {"optimize": True}]),
)
@example(size=(300, 20), ends=(0.4, 0.5), subsampling=2, shrink=1, rows=1, kind={})
@example(size=(90, 40), ends=(0.36, 0.53), subsampling=2, shrink=1, rows=1, kind={})  # to an edge of blocks
@settings(max_examples=250, deadline=None)
def test_jpeg_strip_lines_equal_those_of_the_image_also_decoded_smaller(
    size: tuple[int, int],
    ends: tuple[float, float],
    subsampling: int | None,
    shrink: int,
    rows: int,
    kind: dict[str, bool],
) -> None:
    channels, color = (1, "GRAY") if subsampling is None else (3, "RGB")
    options = {} if subsampling is None else {"subsampling": subsampling}
    data = jpeg(size, channels, quality=90, restart_marker_rows=rows, **options, **kind)
    first, stop = int(min(ends) * (size[0] - 1)), int(max(ends) * (size[0] - 1)) + 1
    height, width = (math.ceil(side / shrink) for side in size)
    whole = decode_jpeg(data, color, min_height=height, min_width=width, min_factor=shrink)
    out, spare = np.empty(size[0] * size[1] * channels, np.uint8), np.empty(len(data) + 2, np.uint8)
    begin, count = decode_lines(data, size, channels, (first, stop), shrink, spare, out)
    assert begin * shrink <= first < stop <= (begin + count) * shrink
    assert begin + count <= height
    found = out[: count * width * channels].reshape(count, width, channels)
    from_line, to_line = first // shrink, math.ceil(stop / shrink)
    np.testing.assert_array_equal(found[from_line - begin : to_line - begin], whole[from_line:to_line])
    if shrink == rows == 1 and "progressive" not in kind:
        tall = 16 if subsampling == 2 else 8
        assert count < stop - first + 2 * tall + 2 or stop - first >= 0.9 * size[0]


@given(changes=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=4), cut=st.integers(0, 5000))
@settings(max_examples=200, deadline=None)
def test_damaged_bytes_end_in_pixels_or_one_error(changes: list[tuple[int, int]], cut: int) -> None:
    data = jpeg((70, 40), quality=80, restart_marker_rows=1)
    for place, value in changes:
        data[place % len(data)] = value
    data = data[: max(1, cut % (2 * len(data)))]
    out, spare = np.empty(70 * 40 * 3, np.uint8), np.empty(len(data) + 2, np.uint8)
    lines = np.zeros(2, np.int64)
    assert 0 <= cut_strip(data, 20, 40, spare, lines) <= len(data) + 2
    assert 0 <= lines[1] <= 65_535
    with suppress(DamagedError):  # any other error fails
        begin, count = decode_lines(data, (70, 40), 3, (20, 40), 1, spare, out)
        assert begin <= 20
        assert begin + count >= 40


def test_another_size_is_an_error() -> None:
    data = jpeg((30, 40))
    with pytest.raises(DamagedError, match="its JPEG is 30 x 40, its size is 30 x 41"):
        decode_lines(data, (30, 41), 3, (0, 5), 1, np.empty(9000, np.uint8), np.empty(9000, np.uint8))
