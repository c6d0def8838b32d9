"""The compiled resize of windows against torch's, bit for bit: in images and beyond, whole and on a canvas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import EXAMPLES
from torch import Tensor

from mmload.render.antialiased_resize import REACHES, resize, resize_part
from mmload.render.kernel_arguments import PADDING_MODES, RESIZED, Resizes
from mmload.render.plan import Padding, Plan, Resampling
from mmload.render.rendering import ImageLines
from mmload.render.torch_rendering import placed_window
from mmload.render.torch_sampling import Placed, Window


@given(
    data=st.data(),
    mode=st.sampled_from(sorted(REACHES)),
    sizes=st.tuples(*[st.integers(1, 300)] * 4),
    extreme=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=EXAMPLES)
def test_a_resize_gives_the_bits_of_torchs(
    data: st.DataObject, mode: str, sizes: tuple[int, int, int, int], extreme: bool, seed: int
) -> None:
    rows, cols, height, width = sizes
    shape = data.draw(st.integers(1, 4)), rows + data.draw(st.integers(0, 9)), cols + data.draw(st.integers(0, 9))
    top, left = data.draw(st.integers(0, shape[1] - rows)), data.draw(st.integers(0, shape[2] - cols))
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (3, *shape), dtype=torch.uint8, generator=generator)
    if extreme:  # a cubic overshoots most there
        images = images // 128 * 255
    windows = [(0, 0, 1, 1, height, width, 0, 0), (top, left, rows, cols, height, width, 0, 0)]
    out = torch.empty(2, shape[0], height, width, dtype=torch.uint8)
    black = np.zeros(shape[0], np.uint8)
    lines = ImageLines.of_batch(images, np.array([1, 2]))
    resizes = Resizes(np.array(windows, RESIZED), black, 0, black, REACHES[mode])
    for k in range(2):
        resize(lines.stored, resizes, np.array([k, k + 1]), out[k : k + 1].numpy())
    assert torch.equal(out[0], images[1, :, :1, :1].expand(-1, height, width))
    # Interleaved with a fourth channel, as torch resizes them fastest; rows and columns separately.
    pixels = torch.zeros(1, 4, rows, cols, dtype=torch.uint8)
    pixels[:, : shape[0]] = images[2, :, top : top + rows, left : left + cols]
    expected = _of_height(_of_height(pixels.mT, width, mode).mT, height, mode)
    torch.testing.assert_close(out[1], expected[0, : shape[0]], rtol=0, atol=0)
    if width > 1:
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        expected = F.interpolate(pixels, size=(height, width), mode=mode, antialias=True)
        torch.testing.assert_close(out[1], expected[0, : shape[0]], rtol=0, atol=0)


def _of_height(images: Tensor, height: int, mode: str) -> Tensor:
    """Resized in one direction, with every column twice: torch's own kernels go wrong at a width of 1."""
    twice = torch.cat([images, images], 3).contiguous(memory_format=torch.channels_last)
    return F.interpolate(twice, size=(height, twice.shape[3]), mode=mode, antialias=True)[..., : images.shape[3]]


@given(
    data=st.data(),
    mode=st.sampled_from(sorted(REACHES)),
    outside=st.sampled_from(PADDING_MODES),
    image=st.tuples(*[st.integers(1, 40)] * 2),
    window=st.tuples(*[st.integers(1, 150)] * 2),
    # One pixel is left out: the reference resizes it as floats, since torch fails there, and is up to a level off.
    size=st.tuples(*[st.integers(1, 60)] * 2).filter(lambda size: size != (1, 1)),
    canvas=st.tuples(*[st.integers(2, 60)] * 2),
)
@settings(max_examples=EXAMPLES)
def test_windows_beyond_their_image_on_a_canvas_are_torchs(
    data: st.DataObject,
    mode: str,
    outside: str,
    image: tuple[int, int],
    window: tuple[int, int],
    size: tuple[int, int],
    canvas: tuple[int, int],
) -> None:
    corner = [data.draw(st.integers(-length - 20, side + 20)) for length, side in zip(window, image, strict=True)]
    place = [data.draw(st.integers(-length - 5, side + 5)) for length, side in zip(size, canvas, strict=True)]
    images = torch.randint(0, 256, (2, 3, *image), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    fill, ground = (255.0, 7.0, 130.0), (1.0, 2.0, 254.0)
    levels = [np.array(values, np.uint8) for values in (fill, ground)]
    padding = PADDING_MODES.index(outside)
    out = np.full((1, 3, *canvas), 99, np.uint8)
    windows, lines = np.array([(*corner, *window, *size, *place)], RESIZED), ImageLines.of_batch(images, np.array([1]))
    resizes = Resizes(windows, levels[0], padding, levels[1], REACHES[mode])
    resize(lines.stored, resizes, np.array([0, 1]), out)
    how = Resampling(rows=size[0], cols=size[1], mode=mode, antialias=True, fill=ground)
    plan = replace(Plan.unchanged(1, (3, *canvas), 255.0), padding=Padding(mode=outside, fill=fill))
    expected = placed_window(images[1], Window(*corner, *window, (), Placed(*size, *place)), plan, how)
    torch.testing.assert_close(torch.from_numpy(out[0]), expected, rtol=0, atol=0)


def test_a_part_of_a_resized_image_equals_that_part_of_the_whole() -> None:
    for length, wanted, reach in ((300, 224, 1), (10, 300, 2), (900, 7, 1)):
        image = np.random.default_rng(length).integers(0, 256, (1, length, 5), np.uint8)
        whole, part = np.empty((1, wanted, 5), np.uint8), np.empty((1, 4, 5), np.uint8)
        resize_part(image, (wanted, 5), (0, 0, wanted, 5), reach, whole)
        resize_part(image, (wanted, 5), (2, 0, 4, 5), reach, part)
        assert np.array_equal(part, whole[:, 2:6])
