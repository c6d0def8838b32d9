"""Runs a :class:`~mmload.render.level_program.Program` on a whole batch by torch's operations, on any device.

Every operation that can stand at a place is computed for the whole batch, and each sample takes its own: nothing waits
for the device. Values run from 0 to ``white``: 255 for what was uint8, which every operation rounds to levels; else 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from mmload.render import level_program as levels
from mmload.render import torch_color as color
from mmload.render.level_program import Program, Slot
from mmload.render.torch_warps import warped

_REACH = 4.5
"""As in :mod:`mmload.render.neighborhood_kernels`."""


def run(program: Program, images: Tensor, white: float) -> Tensor:
    """Each sample after its operations.

    Args:
        program: for B samples.
        images: [B, C, H, W], uint8 or floating.
        white: the value of white, 255 or 1.

    Returns:
        float32 [B, C, H, W]; whole levels if ``white`` is 255.
    """
    values = images.to(torch.float32, copy=True)
    kept = mixture = values
    for place, slot in enumerate(program.slots):
        codes, numbers = program.codes[:, place], program.numbers[:, place]
        before = values
        for operation in sorted(slot.operations - levels.MIXES):
            changed = _changed(operation, before, numbers, slot, white)
            values = torch.where((codes == operation).view(-1, 1, 1, 1), changed, values)
        if slot.operations & levels.MIXES:
            begins, adds, ends = ((codes == code).view(-1, 1, 1, 1) for code in sorted(levels.MIXES))
            share = numbers[:, 0].view(-1, 1, 1, 1)
            kept = torch.where(begins, before, kept)
            mixture = torch.where(begins, share * before, torch.where(adds, mixture + share * before, mixture))
            values = torch.where(adds, kept, torch.where(ends, _rounded_down(mixture, white), values))
    return values


def moved_masks(program: Program, masks: Tensor) -> Tensor:
    """Masks [B, H, W] after the operations that move pixels, by the nearest pixel."""
    for place, slot in enumerate(program.slots):
        codes, numbers = program.codes[:, place].view(-1, 1, 1), program.numbers[:, place]
        for operation in sorted(slot.operations & levels.MOVES):
            if operation in levels.WARPS:
                floats, nearest = masks.unsqueeze(1).to(torch.float32), levels.NEAREST[operation]
                moved = warped(nearest, floats, numbers, (float(slot.mask_fill),), 255.0)[:, 0].to(masks.dtype)
            else:
                moved = masks.flip(2 if operation == levels.FLIP_X else 1)
            masks = torch.where(codes == operation, moved, masks)
    return masks


def _changed(operation: int, images: Tensor, numbers: Tensor, slot: Slot, white: float) -> Tensor:
    """A batch after one operation, numbers [B, 8]."""
    if operation in levels.WARPS:
        return warped(operation, images, numbers, slot.fill, white)
    if operation == levels.BLUR:
        return _blurred(images, numbers, slot.reach, white)
    return _OPERATIONS[operation](images, numbers, white)


def _rounded_down(values: Tensor, white: float) -> Tensor:
    values = values.clamp(0, white)
    return values if white == 1 else values.floor_()


def _gray(images: Tensor, numbers: Tensor, white: float) -> Tensor:
    return color.luma_of(images, white).expand_as(images)


def _invert(images: Tensor, numbers: Tensor, white: float) -> Tensor:
    return white - images


def _solarize(images: Tensor, numbers: Tensor, white: float) -> Tensor:
    return torch.where(images >= numbers[:, 0].view(-1, 1, 1, 1), white - images, images)


def _posterize(images: Tensor, numbers: Tensor, white: float) -> Tensor:
    """The highest bits; floats have 2^bits levels, as in torchvision."""
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
    """Pillow's scheme on levels, as torchvision; floats are cut to levels before and scaled back after."""
    scaled = images if white > 1 else (images * (255 + 1 - 1e-3)).floor()
    flat = scaled.flatten(2).to(torch.int64)
    counts = flat.new_zeros((*flat.shape[:2], 256)).scatter_add_(2, flat, torch.ones_like(flat))
    sums = counts.cumsum(2)
    last = counts.gather(2, sums.argmax(2, keepdim=True))
    step = (flat.shape[2] - last) // 255
    table = ((sums - counts + step // 2) // step.clamp(min=1)).clamp_(0, 255)
    equal = torch.where(step > 0, table.gather(2, flat), flat).view_as(images).to(torch.float32)
    return equal if white > 1 else equal / 255


def _sharpness(images: Tensor, numbers: Tensor, white: float) -> Tensor:
    if min(images.shape[2:]) <= 2:
        return images
    weights = torch.full((1, 1, 3, 3), 1.0 / 13.0, device=images.device)
    weights[:, :, 1, 1] = 5.0 / 13.0
    soft = conv2d(images.flatten(0, 1).unsqueeze(1), weights).view(
        *images.shape[:2], *(n - 2 for n in images.shape[2:])
    )
    soft = soft.round() if white > 1 else soft
    middle = images[:, :, 1:-1, 1:-1]
    sharpened = images.clone()
    rest = numbers[:, 1].view(-1, 1, 1, 1)
    sharpened[:, :, 1:-1, 1:-1] = _fused(middle, soft - middle, rest)
    return _rounded_down(sharpened, white)


def _fused(values: Tensor, factors: Tensor, others: Tensor) -> Tensor:
    """Values + factors * others, rounded once."""
    return (values.to(torch.float64) + factors.to(torch.float64) * others.to(torch.float64)).to(torch.float32)


def _blurred(images: Tensor, numbers: Tensor, reach: int, white: float) -> Tensor:
    """One axis after the other, by a depthwise convolution whose taps are each sample's own."""
    blurred = _blurred_columns(images.transpose(2, 3), numbers[:, 0], numbers[:, 2], reach).transpose(2, 3)
    blurred = _blurred_columns(blurred, numbers[:, 1], numbers[:, 2], reach)
    return blurred if white == 1 else (blurred + 0.5).floor_().clamp_(max=white)


def _blurred_columns(images: Tensor, size: Tensor, sigma: Tensor, reach: int) -> Tensor:
    reach = min(reach, images.shape[2] - 1)
    offsets = torch.arange(-reach, reach + 1, device=images.device)
    spread = sigma.clamp(min=1e-3).unsqueeze(1)
    limit = torch.minimum((size.unsqueeze(1) - 1) / 2, (_REACH * spread).ceil())
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


_OPERATIONS: dict[int, Callable[[Tensor, Tensor, float], Tensor]] = {
    levels.BRIGHTNESS: lambda images, numbers, white: color.brightness(images, numbers[:, 0], white),
    levels.CONTRAST: lambda images, numbers, white: color.contrast(images, numbers[:, 0], numbers[:, 1], white),
    levels.SATURATION: lambda images, numbers, white: color.saturation(images, numbers[:, 0], numbers[:, 1], white),
    levels.HUE: lambda images, numbers, white: color.hue(images, numbers[:, 0], white),
    levels.GRAY: _gray,
    levels.INVERT: _invert,
    levels.SOLARIZE: _solarize,
    levels.POSTERIZE: _posterize,
    levels.AUTOCONTRAST: _autocontrast,
    levels.EQUALIZE: _equalize,
    levels.SHARPNESS: _sharpness,
    levels.PERMUTE: _permute,
    levels.FLIP_X: lambda images, numbers, white: images.flip(3),
    levels.FLIP_Y: lambda images, numbers, white: images.flip(2),
}
