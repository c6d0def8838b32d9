"""What happens to the levels of each sample of a batch between geometry and color map: a short list of operations.

A :class:`Program` is drawn by the steps of :mod:`mmload.augment`. :mod:`mmload.render.level_kernels` runs it on uint8
images on a CPU, one sample after the other, and :mod:`mmload.render.torch_levels` on any batch by torch's operations.
Every operation rounds to whole levels, as torchvision does between two transforms of uint8 images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

(
    NONE,
    BRIGHTNESS,
    CONTRAST,
    SATURATION,
    HUE,
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
) = range(23)
"""The operations. Their numbers, in the order of a program's ``numbers``:

- BRIGHTNESS: the factor. CONTRAST, SATURATION, SHARPNESS: the factor, and 1 less it, rounded by itself as in
  torchvision. HUE: the rotation in full turns of the color circle.
- SOLARIZE: the threshold, in values of the image. POSTERIZE: the bits that stay.
- BLUR: the kernel's width and height in pixels, and its standard deviation.
- PERMUTE: which channel comes first, second, third.
- AFFINE: the six numbers of the matrix from output to input coordinates, whose origin is the image's center.
- PERSPECTIVE: the eight coefficients from output to input coordinates, whose origin is the top left corner.
- MIX_BEGIN: the share of the image as it is now, which is kept. MIX_ADD: the share with which the image is added to the
  mixture, before it is again what was kept. MIX_END: none; the image becomes the mixture.
"""

MOST_NUMBERS = 8
"""Numbers of an operation."""

COLORS = frozenset({BRIGHTNESS, CONTRAST, SATURATION, HUE, GRAY, AUTOCONTRAST, SHARPNESS})
"""What torchvision does to images of one or three channels only."""

WARPS = frozenset({AFFINE_NEAREST, AFFINE_BILINEAR, PERSPECTIVE_NEAREST, PERSPECTIVE_BILINEAR})
NEAREST = {operation: operation for operation in WARPS} | {
    AFFINE_BILINEAR: AFFINE_NEAREST,
    PERSPECTIVE_BILINEAR: PERSPECTIVE_NEAREST,
}
"""The same warp by the nearest pixel, as masks take it."""

MIXES = frozenset({MIX_BEGIN, MIX_ADD, MIX_END})
MOVES = WARPS | {FLIP_X, FLIP_Y}
"""What moves pixels, so that boxes and masks follow."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """What is the same for all samples at one place of a program.

    Attributes:
        operations: those that a sample can have here; a batch is computed for each of them.
        fill: outside of a warped image, values per channel or one for all; None: 0, as torchvision has it without one.
        mask_fill: outside of a warped mask: 255, void, unless said.
        reach: pixels to each side that the largest blur looks at.
    """

    operations: frozenset[int]
    fill: tuple[float, ...] | None = None
    mask_fill: int = 255
    reach: int = 0


@dataclass(frozen=True, kw_only=True)
class Program:
    """K operations for each of B samples.

    Attributes:
        codes: int64 [B, K], which operation; :data:`NONE` where a sample has none.
        numbers: float32 [B, K, 8], its numbers.
        slots: K of them.
    """

    codes: Tensor
    numbers: Tensor
    slots: tuple[Slot, ...]

    @classmethod
    def of(
        cls,
        operation: int,
        count: int,
        device: torch.device,
        *numbers: Tensor | float,
        on: Tensor | None = None,
        fill: tuple[float, ...] | None = None,
        mask_fill: int = 255,
        reach: int = 0,
    ) -> Program:
        """One operation for all samples, or for those where ``on`` [B] is true; numbers are [B] each or one for all."""
        codes = torch.full((count, 1), operation, device=device)
        values = torch.zeros((count, 1, MOST_NUMBERS), device=device)
        for place, number in enumerate(numbers):
            values[:, 0, place] = number
        program = cls(
            codes=codes,
            numbers=values,
            slots=(Slot(operations=frozenset({operation}) - {NONE}, fill=fill, mask_fill=mask_fill, reach=reach),),
        )
        return program if on is None else program.only(on)

    def only(self, on: Tensor) -> Program:
        """This program for the samples where ``on`` [B] is true, nothing for the others."""
        return replace(self, codes=self.codes * on.unsqueeze(1))

    @property
    def operations(self) -> frozenset[int]:
        """All that a sample can have."""
        return frozenset().union(*(slot.operations for slot in self.slots))


def chain(programs: Iterable[Program]) -> Program:
    """Programs of the same samples, one after the other."""
    parts = list(programs)
    return Program(
        codes=torch.cat([part.codes for part in parts], 1),
        numbers=torch.cat([part.numbers for part in parts], 1),
        slots=tuple(slot for part in parts for slot in part.slots),
    )


def one_of(programs: Sequence[Program], chosen: Tensor) -> Program:
    """For each sample one of several programs, as ``chosen`` (int64 [B]) says.

    As long as the longest of them; as all together where their warps have different fills, as a place has one fill.
    """
    if (
        len({(slot.fill, slot.mask_fill) for program in programs for slot in program.slots if slot.operations & WARPS})
        > 1
    ):
        return chain(program.only(chosen == place) for place, program in enumerate(programs))
    length = max(len(program.slots) for program in programs)
    padded = [padded_to(program, length) for program in programs]
    place = chosen.view(1, -1, 1).expand(1, -1, length)
    codes = torch.stack([program.codes for program in padded]).gather(0, place)[0]
    wide = place.unsqueeze(3).expand(-1, -1, -1, MOST_NUMBERS)
    numbers = torch.stack([program.numbers for program in padded]).gather(0, wide)[0]
    slots = tuple(_joined(program.slots[place] for program in padded) for place in range(length))
    return Program(codes=codes, numbers=numbers, slots=slots)


def padded_to(program: Program, length: int) -> Program:
    """The program with empty places behind it."""
    missing = length - len(program.slots)
    if not missing:
        return program
    count, _, width = program.numbers.shape
    return Program(
        codes=torch.cat((program.codes, program.codes.new_zeros((count, missing))), 1),
        numbers=torch.cat((program.numbers, program.numbers.new_zeros((count, missing, width))), 1),
        slots=program.slots + (Slot(operations=frozenset()),) * missing,
    )


def _joined(slots: Iterable[Slot]) -> Slot:
    """What can stand at a place where one of several can."""
    slots = list(slots)
    fills = {(slot.fill, slot.mask_fill) for slot in slots if slot.operations & WARPS}
    operations: frozenset[int] = frozenset().union(*(slot.operations for slot in slots))
    reach = max(slot.reach for slot in slots)
    fill, mask_fill = fills.pop() if fills else (None, 255)
    return Slot(operations=operations, fill=fill, mask_fill=mask_fill, reach=reach)
