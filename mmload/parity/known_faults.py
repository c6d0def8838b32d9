"""Diagnoses wrong pixels by comparing them with variants of the reference that each contain one known fault.

A fault is reported only if its variant is much closer than the reference. It is a hint: no verdict depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from mmload.errors import counted
from mmload.parity.reference import Reference

_FAR_NEARER = 0.3  # upper bound on a variant's mean difference, as a share of the reference's
_SHIFTS = 3  # pixels in each direction to search for a shifted crop
_SIGNATURE = 8  # pixels of a side of a signature, which identifies an image
_SAME_PICTURE = 2.0  # upper bound in levels on the difference of two signatures of one image
_RESIZES = (
    ("nearest-neighbor resampling", InterpolationMode.NEAREST, True),
    ("nearest-neighbor resampling", InterpolationMode.NEAREST_EXACT, True),
    ("bilinear resampling without antialiasing", InterpolationMode.BILINEAR, False),
    ("bicubic resampling", InterpolationMode.BICUBIC, True),
    ("bicubic resampling without antialiasing", InterpolationMode.BICUBIC, False),
    ("bilinear resampling", InterpolationMode.BILINEAR, True),
)
_PILLOW_RESIZES = (
    ("Lanczos resampling", InterpolationMode.LANCZOS),
    ("box resampling", InterpolationMode.BOX),
    ("Hamming resampling", InterpolationMode.HAMMING),
)


def looks_like(stored: Tensor, reference: Reference, transforms: v2.Compose) -> str:
    """Returns the known fault that explains a row, uint8 [C, H, W], best; empty if there is none."""
    right = reference.images
    if right is None or right.shape != stored.shape:
        return ""
    return _nearest(_scores(stored, right, reference, transforms), _apart(stored, right))


def batch_looks_like(image: Tensor, expected: Tensor) -> str:
    """Returns the known fault that explains an image of a batch, as text; empty if none does."""
    name = _nearest(_of_pixels(image, expected), _apart(image, expected))
    return f"looks like {name}" if name else ""


def _nearest(scores: Iterator[tuple[str, float]], difference: float) -> str:
    """Returns the variant that is the nearest and much nearer than the reference; empty if none is."""
    name, score = min(scores, key=lambda each: each[1], default=("", difference))
    return name if score < _FAR_NEARER * difference else ""


def swapped_rows(stored: Sequence[Tensor], references: Sequence[Tensor], bad: Sequence[int]) -> dict[int, int]:
    """Finds bad rows, by their positions, that hold the image of another row, by signatures.

    Returns:
        Position -> position of the row whose reference it holds; only unambiguous matches.
    """
    if len(references) < 2 or not bad:
        return {}
    pictures = torch.stack(list(references)).flatten(1)
    found: dict[int, int] = {}
    for row in bad:
        difference = (pictures - stored[row].flatten()).abs().amax(1)
        nearest = int(difference.argmin())
        if (
            nearest != row
            and difference[nearest] <= _SAME_PICTURE
            and difference[nearest] < _FAR_NEARER * difference[row]
        ):
            found[row] = nearest
    return found


def signature(images: Tensor) -> Tensor:
    """Returns a short descriptor of an image: float32 [C, 8, 8] means."""
    means: Tensor = torch.nn.functional.adaptive_avg_pool2d(images.to(torch.float32), _SIGNATURE)
    return means


def _scores(stored: Tensor, right: Tensor, reference: Reference, transforms: v2.Compose) -> Iterator[tuple[str, float]]:
    """Yields the name of every variant and its difference from the row, whose reference has the pixels ``right``."""
    yield from _of_pixels(stored, right)
    for base, pixels in _geometries(right, reference, transforms):
        if pixels.shape == stored.shape:
            yield base, _apart(stored, pixels)
            for change, changed in _changes(pixels):
                yield f"{base}, and {change}", _apart(stored, changed)


def _of_pixels(image: Tensor, right: Tensor) -> Iterator[tuple[str, float]]:
    """Yields the variants of an image that need nothing but its pixels."""
    for change, changed in _changes(right):
        yield change, _apart(image, changed)
    yield from _shifted(image, right)


def _geometries(right: Tensor, reference: Reference, transforms: v2.Compose) -> Iterator[tuple[str, Tensor]]:
    """Yields variants of the reference with one setting of the geometry changed."""
    opened = reference.opened
    if opened is None:
        return
    image = F.to_image(opened)
    if reference.pillow is not None:
        yield "Pillow's own resize", reference.pillow
    if any(hasattr(step, "interpolation") for step in transforms.transforms):
        for name, mode, antialias in _RESIZES:
            yield name, _tensor(_with(transforms, interpolation=mode, antialias=antialias)(image))
        for name, mode in _PILLOW_RESIZES:
            yield name, F.pil_to_tensor(_with(transforms, interpolation=mode)(opened))
        yield "the whole image squeezed into the row", _tensor(F.resize(image, list(right.shape[-2:]), antialias=True))


def _changes(pixels: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yields variants of an image with its channels, axes or levels changed."""
    white = 1.0 if pixels.is_floating_point() else 255
    if len(pixels) == 3:
        yield "channels swapped (BGR)", pixels.flip(0)
    yield "mirrored left to right", pixels.flip(-1)
    yield "upside down", pixels.flip(-2)
    yield "rotated by 180 degrees", pixels.flip(-1, -2)
    yield "rows and columns exchanged", pixels.transpose(-1, -2)
    yield "inverted levels", white - pixels


def _shifted(stored: Tensor, right: Tensor) -> Iterator[tuple[str, float]]:
    """Yields the crop shifted by a few pixels, compared on the overlap."""
    height, width = stored.shape[-2:]
    if min(height, width) <= 2 * _SHIFTS:
        return
    reach = range(-_SHIFTS, _SHIFTS + 1)
    for down, along in [(down, along) for down in reach for along in reach if (down, along) != (0, 0)]:
        mine = stored[:, max(0, -down) : height - max(0, down), max(0, -along) : width - max(0, along)]
        theirs = right[:, max(0, down) : height + min(0, down), max(0, along) : width + min(0, along)]
        yield f"the crop {_offset_text(down, along)}", _apart(mine, theirs)


def _offset_text(down: int, along: int) -> str:
    """Formats an offset as text."""
    parts = []
    for count, unit, after, before in (
        (down, "row", "too low", "too high"),
        (along, "column", "too far right", "too far left"),
    ):
        if count:
            parts.append(f"{counted(abs(count), unit)} {after if count > 0 else before}")
    return " and ".join(parts)


def _with(transforms: v2.Compose, **settings: Any) -> v2.Compose:
    """Returns the transforms with different settings in every step that resizes."""
    steps = []
    for step in transforms.transforms:
        if hasattr(step, "interpolation"):
            step = copy(step)
            for name, value in settings.items():
                setattr(step, name, value)
        steps.append(step)
    return v2.Compose(steps)


def _tensor(image: Any) -> Tensor:
    pixels: Tensor = image.as_subclass(Tensor)
    return pixels


def _apart(a: Tensor, b: Tensor) -> float:
    """Returns the mean difference in levels; infinite for different shapes."""
    if a.shape != b.shape:
        return float("inf")
    kind = torch.float64 if a.is_floating_point() else torch.int16  # uint8 has no difference below 0
    return float((a.to(kind) - b.to(kind)).abs().to(torch.float32).mean())
