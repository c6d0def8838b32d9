"""Operations on the levels of each sample of a batch, between geometry and color map: a short list per sample.

Steps of :mod:`mmload.augment` draw a :class:`~mmload.render.plan.Program` of them. :mod:`mmload.render.level_kernels`
runs it on uint8 images on a CPU, one sample after the other; :mod:`mmload.render.torch_levels` runs it on any batch by
torch's operations. Every operation rounds to whole levels, as torchvision does between two transforms of uint8 images.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Array: TypeAlias = Any
"""NumPy array on the host; torch's tensor in the copy of a plan that torch's operations render from."""

(
    NONE,
    BRIGHTNESS,
    CONTRAST,
    SATURATION,
    HUE,
    HSV,
    GRAY,
    INVERT,
    SOLARIZE,
    POSTERIZE,
    AUTOCONTRAST,
    EQUALIZE,
    SHARPNESS,
    BLUR,
    PERMUTE,
    FLIP_X,
    FLIP_Y,
    AFFINE_NEAREST,
    AFFINE_BILINEAR,
    PERSPECTIVE_NEAREST,
    PERSPECTIVE_BILINEAR,
    MIX_BEGIN,
    MIX_ADD,
    MIX_END,
) = range(24)
"""Codes of the operations. An operation has these numbers, in the order of a program's ``numbers``:

- BRIGHTNESS: the factor. CONTRAST, SATURATION, SHARPNESS: the factor, and 1 less it, rounded by itself as in
  torchvision. HUE: the rotation in full turns of the color circle. HSV: the rotation in 180ths of a turn, a whole
  number from 0, and the factors of saturation and value.
- SOLARIZE: the threshold, in values of the image. POSTERIZE: the number of bits that stay.
- BLUR: the kernel's width and height in pixels, and its standard deviation.
- PERMUTE, of images of three channels: those that come first, second, third.
- AFFINE: the six numbers of the matrix from output to input coordinates, whose origin is the image's center.
- PERSPECTIVE: the eight coefficients from output to input coordinates, whose origin is the top left corner.
- MIX_BEGIN: the share of the current image, which is saved. MIX_ADD: the share with which the image is added to the
  mixture, before the saved one takes its place. MIX_END: none; the image becomes the mixture.
"""

MOST_NUMBERS = 8
"""Upper bound on the numbers of an operation."""

LUMA_WEIGHTS = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue, as ``torchvision.transforms.v2.functional.rgb_to_grayscale`` has them."""

WARPS = frozenset({AFFINE_NEAREST, AFFINE_BILINEAR, PERSPECTIVE_NEAREST, PERSPECTIVE_BILINEAR})
MIXES = frozenset({MIX_BEGIN, MIX_ADD, MIX_END})
MOVES = WARPS | {FLIP_X, FLIP_Y}
"""Operations that move pixels, so that boxes and masks follow."""
