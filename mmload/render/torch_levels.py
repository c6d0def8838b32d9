"""Runs a :class:`~mmload.render.plan.Program` on a whole batch by torch's operations, on any device.

Every operation that may occur at a position is computed for the whole batch, and each sample takes its own: nothing
waits for the device. Values run from 0 to ``white``: 255 for images that were uint8, which every operation rounds down
to levels as torchvision does; else 1. Factors of colors are one per sample, with torchvision's numbers.

Grids of affine and perspective warps are torchvision's, in float32; :mod:`mmload.render.warp_kernels` computes the same
for one image on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import conv2d, grid_sample, pad

from mmload.render import level_operations as levels
from mmload.render.hsv_kernel import SECTORS, changed_hsv
from mmload.render.level_operations import LUMA_WEIGHTS
from mmload.render.neighborhood_kernels import REACH
from mmload.render.plan import OperationSlot, Program
from mmload.runtime.host_memory import constant

_RED, _GREEN, _BLUE = LUMA_WEIGHTS


def run_program(program: Program, images: Tensor, white: float) -> Tensor:
    """Runs each sample's operations on images [B, C, H, W], uint8 or floating, of which ``white`` is 255 or 1.

    Returns:
        float32 [B, C, H, W]; whole levels if ``white`` is 255.
    """
    values = images.to(torch.float32, copy=True)
    saved = mixture = values
    for place, slot in enumerate(program.slots):
        codes, numbers = program.codes[:, place], program.numbers[:, place]
        before = values
        for operation in sorted(slot.operations - levels.MIXES):
            changed = _changed(operation, before, numbers, slot, white)
            values = torch.where((codes == operation).view(-1, 1, 1, 1), changed, values)
        if slot.operations & levels.MIXES:
            begins, adds, ends = ((codes == code).view(-1, 1, 1, 1) for code in sorted(levels.MIXES))
            share = numbers[:, 0].view(-1, 1, 1, 1)
            saved = torch.where(begins, before, saved)
            mixture = torch.where(begins, share * before, torch.where(adds, mixture + share * before, mixture))
            values = torch.where(adds, saved, torch.where(ends, _rounded_down(mixture, white), values))
    return values


def _changed(operation: int, images: Tensor, numbers: Tensor, slot: OperationSlot, white: float) -> Tensor:
    """Runs one operation on a batch, with numbers [B, 8]."""
    if operation in levels.WARPS:
        return warped(operation, images, numbers, slot.fill, white)
    if operation == levels.BLUR:
        return _blurred(images, numbers, slot.blur_radius, white)
    return _OPERATIONS[operation](images, numbers, white)


def _rounded_down(values: Tensor, white: float) -> Tensor:
    return _floored(values.clamp(0, white), white)


def _floored(values: Tensor, white: float) -> Tensor:
    """Rounds levels down in place; floats stay."""
    return values if white == 1 else values.floor_()


def _posterize(images: Tensor, numbers: Tensor, white: float) -> Tensor:
    """Keeps the highest bits; floats have 2^bits levels, as in torchvision."""
    steps = torch.exp2(numbers[:, 0]).view(-1, 1, 1, 1)
    if white == 1:
        return torch.minimum((images * steps).floor().clamp(min=0), steps - 1) / steps
    width = 256 / steps
    return (images / width).floor() * width


def _autocontrast(images: Tensor, numbers: Tensor, white: float) -> Tensor:
    least, most = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    flat = least == most
    scale = (most - least) * (1.0 / white)
    stretched = (images - torch.where(flat, 0.0, least)) / torch.where(flat, 1.0, scale)
    return _rounded_down(stretched, white)


def _equalize(images: Tensor, numbers: Tensor, white: float) -> Tensor:
    """Equalizes by Pillow's scheme on levels, as torchvision; floats are cut to levels before and scaled back after."""
    scaled = images if white > 1 else (images * (255 + 1 - 1e-3)).floor()
    flat = scaled.flatten(2).to(torch.int64)
    counts = flat.new_zeros((*flat.shape[:2], 256)).scatter_add_(2, flat, torch.ones_like(flat))
    sums = counts.cumsum(2)
    last = counts.gather(2, sums.argmax(2, keepdim=True))
    step = (flat.shape[2] - last) // 255
    table = ((sums - counts + step // 2) // step.clamp(min=1)).clamp_(0, 255)
    equal = torch.where(step > 0, table.gather(2, flat), flat).view_as(images).to(torch.float32)
    return equal / (255 / white)


def _sharpness(images: Tensor, numbers: Tensor, white: float) -> Tensor:
    if min(images.shape[2:]) <= 2:
        return images
    weights = torch.full((1, 1, 3, 3), 1.0 / 13.0, dtype=torch.float32, device=images.device)
    weights[:, :, 1, 1] = 5.0 / 13.0
    soft = conv2d(images.flatten(0, 1).unsqueeze(1), weights).view(
        *images.shape[:2], *(n - 2 for n in images.shape[2:])
    )
    soft = soft.round() if white > 1 else soft
    middle = images[:, :, 1:-1, 1:-1]
    sharpened = images.clone()
    sharpened[:, :, 1:-1, 1:-1] = _fused(middle, soft - middle, _per_sample(numbers[:, 1]))
    return _rounded_down(sharpened, white)


def _fused(values: Tensor, factors: Tensor, others: Tensor) -> Tensor:
    """Returns values + factors * others, rounded once."""
    return (values.to(torch.float64) + factors.to(torch.float64) * others.to(torch.float64)).to(torch.float32)


def _blurred(images: Tensor, numbers: Tensor, reach: int, white: float) -> Tensor:
    """Blurs one axis after the other, by a depthwise convolution with taps per sample."""
    blurred = _blurred_columns(images.transpose(2, 3), numbers[:, 0], numbers[:, 2], reach).transpose(2, 3)
    blurred = _blurred_columns(blurred, numbers[:, 1], numbers[:, 2], reach)
    return blurred if white == 1 else (blurred + 0.5).floor_().clamp_(max=white)


def _blurred_columns(images: Tensor, size: Tensor, sigma: Tensor, reach: int) -> Tensor:
    reach = min(reach, images.shape[2] - 1)
    offsets = torch.arange(-reach, reach + 1, device=images.device)
    spread = sigma.clamp(min=1e-3).unsqueeze(1)
    limit = torch.minimum((size.unsqueeze(1) - 1) / 2, (REACH * spread).ceil())
    weights = torch.exp(-0.5 * (offsets / spread) ** 2) * (offsets.abs() <= limit)
    weights = weights / weights.sum(1, keepdim=True)
    count, channels, height, width = images.shape
    if not count:
        return images  # a convolution in no groups is an error
    padded = pad(images, (0, 0, reach, reach), mode="reflect").view(1, -1, height + 2 * reach, width)
    kernels = weights.repeat_interleave(channels, 0).view(-1, 1, 2 * reach + 1, 1)
    return conv2d(padded, kernels, groups=count * channels).view(count, channels, height, width)


def _permute(images: Tensor, numbers: Tensor, white: float) -> Tensor:
    order = numbers[:, : images.shape[1]].to(torch.int64).clamp_(0, images.shape[1] - 1)
    return images.gather(1, order.view(*order.shape, 1, 1).expand_as(images))


def _contrast(images: Tensor, numbers: Tensor, white: float) -> Tensor:
    """Blends with the mean luma; the sum is in float64, so that it does not depend on its order."""
    luma = _luma_of(images, white)
    mean = luma.to(torch.float64).mean(dim=(1, 2, 3), keepdim=True).to(torch.float32)
    return _blended(images, mean, numbers, white)


def _saturation(images: Tensor, numbers: Tensor, white: float) -> Tensor:
    """Blends with each pixel's luma; one channel is returned unchanged."""
    return images if images.shape[1] == 1 else _blended(images, _luma_of(images, white), numbers, white)


def _hue(images: Tensor, numbers: Tensor, white: float) -> Tensor:
    """Rotates hues by a share of the color circle, through HSV; one channel is returned unchanged."""
    if images.shape[1] == 1 or not images.numel():
        return images
    angle, strength, value = _to_hsv(images * (1.0 / white))
    rotated = _to_rgb((angle + _per_sample(numbers[:, 0])[:, 0]).remainder_(1.0), strength, value)
    return rotated if white == 1 else (rotated * (white + 1 - 1e-3)).floor_()


def _luma_of(images: Tensor, white: float) -> Tensor:
    """Returns the luma [B, 1, H, W], rounded down to levels for uint8; one channel is its own luma."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    luma = red.mul(_RED).add_(green, alpha=_GREEN).add_(blue, alpha=_BLUE).unsqueeze(1)
    return _floored(luma, white)


def _blended(images: Tensor, other: Tensor, numbers: Tensor, white: float) -> Tensor:
    """Returns images * factor + other * rest, the first two of the numbers.

    torchvision's second product and sum are one fused operation with one rounding. A factor per sample has no such
    operation; float64 holds the product exactly, so rounding its sum gives the same bits. One bit matters: values are
    cut to levels, and hue magnifies a level.
    """
    first = (images * _per_sample(numbers[:, 0])).to(torch.float64)
    total = first.add_(other.to(torch.float64) * _per_sample(numbers[:, 1].to(torch.float64)))
    return _rounded_down(total.to(torch.float32), white)


def _per_sample(factor: Tensor) -> Tensor:
    return factor.view(-1, 1, 1, 1)


def _to_hsv(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns hue, saturation and value [B, H, W] in [0, 1] of images in [0, 1], by the usual hexagon formula."""
    red, green, _ = images.unbind(1)
    least, value = torch.aminmax(images, dim=1)
    reach = value - least
    flat = reach == 0
    strength = reach / torch.where(flat, 1.0, value)
    below = (value.unsqueeze(1) - images) / torch.where(flat, 1.0, reach).unsqueeze(1)
    from_red, from_green, from_blue = below.unbind(1)
    angle = torch.where(
        value == red,
        from_blue - from_green,
        torch.where(value == green, from_red + 2.0 - from_blue, from_green + 4.0 - from_red),
    )
    return angle.mul_(1.0 / 6.0).add_(1.0).fmod_(1.0), strength, value


def _to_rgb(angle: Tensor, strength: Tensor, value: Tensor) -> Tensor:
    """Converts hue, saturation and value back to images [B, 3, H, W]."""
    sixths = angle * 6
    sector = sixths.floor()
    part = strength * (sixths - sector)
    pale = 1.0 - strength
    least = (pale * value).clamp_(0.0, 1.0)
    falling = ((1.0 - part) * value).clamp_(0.0, 1.0)
    rising = ((part + pale) * value).clamp_(0.0, 1.0)
    levels = torch.stack((value, least, falling, rising), dim=1)
    table = constant(SECTORS, torch.int64, angle.device).view(6, 3).t()
    chosen = table[:, sector.to(torch.int64).remainder_(6)].transpose(0, 1)
    return levels.gather(1, chosen)


_OPERATIONS: dict[int, Callable[[Tensor, Tensor, float], Tensor]] = {
    levels.BRIGHTNESS: lambda images, numbers, white: _rounded_down(images * _per_sample(numbers[:, 0]), white),
    levels.CONTRAST: _contrast,
    levels.SATURATION: _saturation,
    levels.HUE: _hue,
    levels.HSV: changed_hsv,
    levels.GRAY: lambda images, numbers, white: _luma_of(images, white).expand_as(images),
    levels.INVERT: lambda images, numbers, white: white - images,
    levels.SOLARIZE: lambda images, numbers, white: torch.where(
        images >= _per_sample(numbers[:, 0]), white - images, images
    ),
    levels.POSTERIZE: _posterize,
    levels.AUTOCONTRAST: _autocontrast,
    levels.EQUALIZE: _equalize,
    levels.SHARPNESS: _sharpness,
    levels.PERMUTE: _permute,
    levels.FLIP_X: lambda images, numbers, white: images.flip(3),
    levels.FLIP_Y: lambda images, numbers, white: images.flip(2),
}


_OUTSIDE = 4.0
"""Grid coordinate that no pixel is near, whatever the size: for points on the horizon, which are infinitely far or
undefined, and would be sampled as NaN."""


def warped(operation: int, images: Tensor, numbers: Tensor, fill: tuple[float, ...] | None, white: float) -> Tensor:
    """Warps images, float32 [B, C, H, W], by the numbers of an operation, float32 [B, 8].

    Without a fill, 0 is outside, and is not blended with the edge once more. If ``white`` is 255, values are rounded to
    levels.
    """
    grid_of, mode = _WARPS[operation]
    grid = grid_of(numbers, *images.shape[2:])
    if fill is None:
        warped = grid_sample(images, grid, mode=mode, padding_mode="zeros", align_corners=False)
    else:
        inside = torch.ones_like(images[:, :1])
        both = grid_sample(torch.cat((images, inside), 1), grid, mode=mode, padding_mode="zeros", align_corners=False)
        warped, share = both[:, :-1], both[:, -1:]
        ground = constant(fill, torch.float32, images.device).view(1, -1, 1, 1)
        warped = torch.where(share < 0.5, ground, warped) if mode == "nearest" else (warped - ground) * share + ground
    return warped if white == 1 else warped.round_()


def _affine_grid(numbers: Tensor, height: int, width: int) -> Tensor:
    x = torch.linspace((1.0 - width) * 0.5, (width - 1.0) * 0.5, width, dtype=torch.float32, device=numbers.device)
    y = torch.linspace((1.0 - height) * 0.5, (height - 1.0) * 0.5, height, dtype=torch.float32, device=numbers.device)
    across, over = _half(numbers[:, :3], width), _half(numbers[:, 3:6], height)
    return torch.stack((_planes(across, x, y), _planes(over, x, y)), dim=3)


def _perspective_grid(numbers: Tensor, height: int, width: int) -> Tensor:
    x = torch.linspace(0.5, width - 0.5, width, dtype=torch.float32, device=numbers.device)
    y = torch.linspace(0.5, height - 0.5, height, dtype=torch.float32, device=numbers.device)
    below = _planes(torch.cat((numbers[:, 6:8], torch.ones_like(numbers[:, :1])), 1), x, y)
    across, over = _half(numbers[:, :3], width), _half(numbers[:, 3:6], height)
    grid = torch.stack((_planes(across, x, y) / below, _planes(over, x, y) / below), dim=3) - 1.0
    return grid.nan_to_num(nan=_OUTSIDE).clamp(-_OUTSIDE, _OUTSIDE)


_WARPS = {
    levels.AFFINE_NEAREST: (_affine_grid, "nearest"),
    levels.AFFINE_BILINEAR: (_affine_grid, "bilinear"),
    levels.PERSPECTIVE_NEAREST: (_perspective_grid, "nearest"),
    levels.PERSPECTIVE_BILINEAR: (_perspective_grid, "bilinear"),
}


def _half(factors: Tensor, length: int) -> Tensor:
    """Converts pixels to shares of half of the image's side."""
    return factors / (0.5 * length)


def _planes(factors: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Returns a x + b y + c of each sample: [B, h, w] of factors [B, 3]."""
    a, b, c = (factor.view(-1, 1, 1) for factor in factors.unbind(1))
    return a * x + b * y.unsqueeze(1) + c
