"""Operations on levels against torchvision's functionals on uint8 tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from level_runs import ran as all_ran
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from mmload.render import level_operations as levels
from mmload.render.level_operations import MOST_NUMBERS

Made = tuple[int, tuple[float, ...], Callable[[Tensor], Tensor]]

EXACT: dict[str, Made] = {
    **{
        f"brightness {factor}": (levels.BRIGHTNESS, (factor,), lambda x, f=factor: F.adjust_brightness(x, f))
        for factor in (0.0, 0.37, 1.0, 1.4, 3.3)
    },
    **{
        f"contrast {factor}": (levels.CONTRAST, (factor, 1 - factor), lambda x, f=factor: F.adjust_contrast(x, f))
        for factor in (0.0, 0.6, 1.0, 1.9)
    },
    **{
        f"saturation {factor}": (levels.SATURATION, (factor, 1 - factor), lambda x, f=factor: F.adjust_saturation(x, f))
        for factor in (0.0, 0.21, 1.0, 1.8)
    },
    **{
        f"hue {turn}": (levels.HUE, (turn,), lambda x, t=turn: F.adjust_hue(x, t))
        for turn in (-0.5, -0.13, 0.0, 1e-8, -1e-8, 0.2, 0.5)
    },
    "gray": (levels.GRAY, (), lambda x: F.rgb_to_grayscale(x, 3) if len(x) == 3 else x),
    "invert": (levels.INVERT, (), F.invert),
    **{
        f"solarize {threshold}": (levels.SOLARIZE, (threshold,), lambda x, t=threshold: F.solarize(x, t))
        for threshold in (0.0, 100.0, 127.5, 255.0)
    },
    **{
        f"posterize {bits}": (levels.POSTERIZE, (bits,), lambda x, b=bits: F.posterize(x, b))
        for bits in (0, 1, 4, 7, 8)
    },
    "autocontrast": (levels.AUTOCONTRAST, (), F.autocontrast),
    "equalize": (levels.EQUALIZE, (), F.equalize),
    **{
        f"sharpness {factor}": (levels.SHARPNESS, (factor, 1 - factor), lambda x, f=factor: F.adjust_sharpness(x, f))
        for factor in (0.0, 0.4, 1.0, 2.5)
    },
    "flip x": (levels.FLIP_X, (), F.horizontal_flip),
    "flip y": (levels.FLIP_Y, (), F.vertical_flip),
}

BLURS = [(1, 1, 0.5), (3, 3, 0.1), (9, 9, 2.0), (23, 23, 0.1), (23, 23, 0.7), (23, 23, 2.0), (5, 11, 9.0)]


def ran(image: Tensor, operation: int, *numbers: float, fill: tuple[int, ...] | None = None) -> Tensor:
    """One operation on one image by the kernels."""
    values = np.zeros((1, 1, MOST_NUMBERS), np.float32)
    values[0, 0, : len(numbers)] = numbers
    fills = (-1,) * len(image) if fill is None else fill[: len(image)]
    return all_ran(image.unsqueeze(0), [[operation]], values, fills)[0][0]


def pictures() -> dict[str, Tensor]:
    """Noise, a smooth image, few levels, one color; odd sizes, as vector loops end in the middle of a line."""
    generator = torch.Generator().manual_seed(5)
    noise = torch.randint(0, 256, (3, 61, 47), dtype=torch.uint8, generator=generator)
    smooth = torch.nn.functional.interpolate(noise[None, :, :7, :6].float(), (96, 75), mode="bicubic")[0]
    return {
        "noise": noise,
        "smooth": smooth.clamp(0, 255).to(torch.uint8),
        "few": torch.randint(80, 90, (3, 32, 32), dtype=torch.uint8, generator=generator),
        "one color": torch.full((3, 24, 24), 77, dtype=torch.uint8),
        "narrow": noise[:, :, :3].contiguous(),
        "tiny": noise[:, :2, :2].contiguous(),
        "gray": noise[:1].contiguous(),
    }


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("picture", pictures())
def test_an_operation_has_the_bits_of_torchvision(name: str, picture: str) -> None:
    operation, numbers, expected = EXACT[name]
    image = pictures()[picture]
    assert torch.equal(ran(image, operation, *numbers), expected(image))


@pytest.mark.parametrize("turn", [-0.37, -0.31, 0.0, 0.05, 1 / 6, 0.5])
def test_all_colors_have_the_hue_of_torchvision(turn: float) -> None:
    side = torch.tensor([*range(0, 256, 3), 1, 2, 127, 128, 254], dtype=torch.uint8)
    cube = torch.cartesian_prod(side, side, side).T.reshape(3, len(side), -1).contiguous()
    assert torch.equal(ran(cube, levels.HUE, turn), F.adjust_hue(cube, turn))


def assert_close(found: Tensor, expected: Tensor, mode: str = "bilinear", share: float = 1.0) -> None:
    """Checks levels: one apart at most, in a share of the values; or some pixels of others, if they are the nearest."""
    apart = (found.int() - expected.int()).abs()
    if mode == "nearest":
        assert (apart.amax(0) > 0).float().mean() < 0.002  # coordinates half way between two pixels
    else:
        assert apart.max() <= 1
        assert (apart != 0).float().mean() <= share


@pytest.mark.parametrize(("wide", "high", "sigma"), BLURS)
def test_level_kernels_a_blur_is_within_a_level_of_torchvision(wide: int, high: int, sigma: float) -> None:
    for image in pictures().values():
        if min(image.shape[1:]) > max(wide, high) // 2:
            expected = F.gaussian_blur(image, [wide, high], [sigma, sigma])
            assert_close(
                ran(image, levels.BLUR, wide, high, sigma), expected, share=0.01
            )  # its sums have another order


@pytest.mark.parametrize("flips", [1, 2, 3])
@pytest.mark.parametrize("name", [*EXACT, "blur", "affine", "perspective"])
def test_flips_wait_for_the_end_only_where_that_gives_the_same(name: str, flips: int) -> None:
    image = pictures()["smooth"]
    extra = {
        "blur": (levels.BLUR, (9.0, 5.0, 1.3)),
        "affine": (levels.AFFINE_BILINEAR, (0.9, -0.2, 3.1, 0.1, 1.1, -4.3)),
        "perspective": (levels.PERSPECTIVE_NEAREST, (1.05, 0.1, -3.0, 0.02, 0.97, 2.0, 0.001, -0.0005)),
    }
    operation, numbers, *_ = EXACT.get(name) or extra[name]
    flipped = image.flip([axis for bit, axis in ((1, 2), (2, 1)) if flips & bit]).contiguous()
    values = np.zeros((1, 1, MOST_NUMBERS), np.float32)
    values[0, 0, : len(numbers)] = numbers
    (changed,), (left,) = all_ran(image.unsqueeze(0), [[operation]], values, (9, 8, 7), [flips])
    assert left == (0 if operation in levels.WARPS else flips)
    changed = changed.flip([axis for bit, axis in ((1, 2), (2, 1)) if left & bit])
    assert torch.equal(changed, ran(flipped, operation, *numbers, fill=(9, 8, 7)))


def test_channels_change_places() -> None:
    image = pictures()["noise"]
    assert torch.equal(ran(image, levels.PERMUTE, 2, 0, 1), image[[2, 0, 1]])


@pytest.mark.parametrize("fill", [None, (0, 0, 0), (10, 200, 30)])
@pytest.mark.parametrize("angle", [0.0, 13.7, -45.0, 180.0])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_an_affine_warp_is_torchvisions(mode: str, angle: float, fill: tuple[int, ...] | None) -> None:
    from torchvision.transforms.v2.functional._geometry import _get_inverse_affine_matrix

    image = pictures()["smooth"]
    arguments = angle, [3.0, -5.0], 1.2, [4.0, 8.0]
    matrix = _get_inverse_affine_matrix([0.0, 0.0], *arguments)
    operation = levels.AFFINE_NEAREST if mode == "nearest" else levels.AFFINE_BILINEAR
    warped = ran(image, operation, *matrix, fill=fill)
    expected = F.affine(
        image, *arguments, interpolation=F.InterpolationMode(mode), fill=None if fill is None else list(fill)
    )
    assert_close(warped, expected, mode)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_a_perspective_warp_is_torchvisions(mode: str) -> None:
    from torchvision.transforms.v2.functional._geometry import _get_perspective_coeffs

    image = pictures()["smooth"]
    height, width = image.shape[1:]
    start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    end = [[5, 9], [width - 12, 3], [width - 3, height - 14], [7, height - 2]]
    operation = levels.PERSPECTIVE_NEAREST if mode == "nearest" else levels.PERSPECTIVE_BILINEAR
    warped = ran(image, operation, *_get_perspective_coeffs(start, end), fill=(9, 8, 7))
    expected = F.perspective(image, start, end, interpolation=F.InterpolationMode(mode), fill=[9, 8, 7])
    assert_close(warped, expected, mode)


def test_chains_are_mixed_as_augmix_mixes_them() -> None:
    image = pictures()["noise"]
    program = [
        (levels.MIX_BEGIN, 0.3),
        (levels.INVERT, 0.0),
        (levels.MIX_ADD, 0.5),
        (levels.POSTERIZE, 2.0),
        (levels.MIX_ADD, 0.2),
        (levels.MIX_END, 0.0),
    ]
    values = np.zeros((1, len(program), MOST_NUMBERS), np.float32)
    values[0, :, 0] = [number for _, number in program]
    fills = np.zeros((len(program), 3), np.int64)
    images, _ = all_ran(image.unsqueeze(0), [[code for code, _ in program]], values, fills)
    mixed = 0.3 * image + 0.5 * F.invert(image) + 0.2 * F.posterize(image, 2)
    assert_close(images[0], mixed.to(torch.uint8))


@pytest.mark.parametrize("fill", [None, (10, 200, 30)])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize(("across", "down"), [(0, 0), (5, 0), (0, -7), (-3, 11), (46, 60), (47, 0), (0, 61), (-80, 2)])
def test_warp_by_integer_pixels_equals_the_general_warp(
    across: int, down: int, mode: str, fill: tuple[int, ...] | None
) -> None:
    image = pictures()["noise"]
    affine, perspective = {
        "nearest": (levels.AFFINE_NEAREST, levels.PERSPECTIVE_NEAREST),
        "bilinear": (levels.AFFINE_BILINEAR, levels.PERSPECTIVE_BILINEAR),
    }[mode]
    matrix = 1, 0, across, 0, 1, down
    assert torch.equal(ran(image, affine, *matrix, fill=fill), ran(image, perspective, *matrix, 0, 0, fill=fill))


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_a_bilinear_warp_of_any_channels_is_that_of_each(channels: int) -> None:
    image = torch.randint(0, 256, (channels, 40, 33), dtype=torch.uint8)
    matrix, fill = (0.9, 0.3, 2, -0.2, 1.1, -1), (10, 200, 30, 40, 50)
    warped = ran(image, levels.AFFINE_BILINEAR, *matrix, fill=fill)
    for c in range(channels):
        colors = image[c].expand(3, 40, 33).contiguous()
        expected = ran(colors, levels.AFFINE_BILINEAR, *matrix, fill=(fill[c],) * 3)
        assert torch.equal(warped[c].expand_as(expected), expected)


ODD = (float("nan"), float("inf"), float("-inf"), 1e30, -1e30, 3e9, -0.5, 0.0, 1.0, 46.5, 61.0)
"""Numbers that a warp's matrix should not have, and those at the edges of images."""


@pytest.mark.parametrize("operation", sorted(levels.WARPS))
@pytest.mark.parametrize("picture", ["noise", "tiny", "narrow"])
def test_warps_of_any_numbers_read_only_the_image(operation: int, picture: str) -> None:
    image = pictures()[picture]
    rng = np.random.default_rng(operation)
    for _ in range(60):
        numbers = rng.choice(ODD, MOST_NUMBERS)
        assert ran(image, operation, *numbers, fill=(9, 9, 9)).shape == image.shape
    everywhere = ran(image, operation, *(float("nan"),) * 8, fill=(9, 8, 7))
    assert torch.equal(everywhere, torch.tensor([9, 8, 7], dtype=torch.uint8).view(3, 1, 1).expand_as(image))


@pytest.mark.parametrize("operation", [levels.BRIGHTNESS, levels.CONTRAST, levels.SATURATION, levels.SHARPNESS])
def test_factors_beyond_all_levels_give_black_or_white(operation: int) -> None:
    image = pictures()["noise"]
    changed = ran(image, operation, 1e30, 1 - 1e30)
    assert torch.isin(changed[:, 1:-1, 1:-1], torch.tensor([0, 255]).to(torch.uint8)).float().mean() > 0.9


@pytest.mark.parametrize(("wide", "high", "sigma"), [(93, 121, 1e4), (93, 121, 1e-3), (93, 1, 40.0)])
def test_a_blur_reaches_as_far_as_the_image_is_wide(wide: int, high: int, sigma: float) -> None:
    image = pictures()["noise"]
    assert_close(ran(image, levels.BLUR, wide, high, sigma), F.gaussian_blur(image, [wide, high], [sigma, sigma]))
