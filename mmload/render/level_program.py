"""Operations on the levels of each sample of a batch, between geometry and color map: a short list per sample.

A :class:`Program` is drawn by the steps of :mod:`mmload.augment`. :mod:`mmload.render.level_kernels` runs it on uint8
images on a CPU, one sample after the other, and :mod:`mmload.render.torch_levels` on any batch by torch's operations.
Every operation rounds to whole levels, as torchvision does between two transforms of uint8 images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np

from mmload.render.kernel_arguments import Operations
from mmload.runtime.host_memory import zeros
from mmload.runtime.kernels import numba_compiled

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

BY_PIXEL = frozenset({NONE, BRIGHTNESS, SATURATION, HUE, HSV, GRAY, INVERT, SOLARIZE, POSTERIZE, PERMUTE})
"""Operations whose result for a pixel depends on that pixel alone, so that a flip after them may come before them."""


@dataclass(frozen=True, kw_only=True)
class OperationSlot:
    """Settings that all samples share at one position of a program.

    Attributes:
        operations: codes that may occur at this position. On a device, each of them is computed for the whole batch.
        fill: values outside of a warped image, per channel or one for all; None: 0, as torchvision has it without one.
        mask_fill: value outside of a warped mask; 255 is void.
        blur_radius: radius of the largest blur kernel, in pixels.
    """

    operations: frozenset[int]
    fill: tuple[float, ...] | None = None
    mask_fill: int = 255
    blur_radius: int = 0


@dataclass(frozen=True, kw_only=True)
class Program:
    """Operations of B samples, K per sample.

    Attributes:
        codes: int64 [B, K]; :data:`NONE` if a sample has no operation at a position.
        numbers: float32 [B, K, 8], numbers of the operations.
        slots: settings of the K positions.
    """

    codes: Array
    numbers: Array
    slots: tuple[OperationSlot, ...]

    def for_kernels(self, channels: int) -> Operations:
        """Returns the operations as kernels take them; a missing fill is -1."""
        fills = [
            (-1.0,) * channels if slot.fill is None else slot.fill * (channels // len(slot.fill)) for slot in self.slots
        ]
        codes, numbers = np.ascontiguousarray(self.codes), np.ascontiguousarray(self.numbers)
        return Operations(codes, numbers, np.array(fills, np.int64).reshape(-1, channels))

    @classmethod
    def single_operation(
        cls,
        operation: int,
        count: int,
        *numbers: Array | float,
        apply_mask: Array | None = None,
        **settings: Any,
    ) -> Program:
        """Returns a program of one operation.

        Args:
            operation: its code.
            count: number of samples.
            numbers: its numbers, arrays [B] or one for all.
            apply_mask: bool [B], samples that have it; None: all.
            settings: settings of its :class:`OperationSlot`.
        """
        codes = np.full((count, 1), operation, np.int64)
        values = zeros((count, 1, MOST_NUMBERS), np.float32)
        for place, number in enumerate(numbers):
            values[:, 0, place] = number
        slot = OperationSlot(operations=frozenset({operation}) - {NONE}, **settings)
        program = cls(codes=codes, numbers=values, slots=(slot,))
        return program if apply_mask is None else program.masked(apply_mask)

    @classmethod
    def empty(cls, count: int, slots: tuple[OperationSlot, ...]) -> Program:
        """Returns a program that does nothing."""
        length = len(slots)
        numbers = zeros((count, length, MOST_NUMBERS), np.float32)
        return cls(codes=zeros((count, length), np.int64), numbers=numbers, slots=slots)

    def masked(self, apply_mask: Array) -> Program:
        """Returns a copy that does nothing for samples outside ``apply_mask`` (bool [B])."""
        out = Program.empty(len(self.codes), self.slots)
        _copy(self.codes, self.numbers, apply_mask, 0, out.codes, out.numbers)
        return out

    @property
    def operations(self) -> frozenset[int]:
        """Codes that may occur at any position."""
        return frozenset().union(*(slot.operations for slot in self.slots))


def chain(programs: Iterable[Program]) -> Program:
    """Concatenates programs of the same samples."""
    parts = list(programs)
    out, first = Program.empty(len(parts[0].codes), tuple(slot for part in parts for slot in part.slots)), 0
    for part in parts:
        _copy(part.codes, part.numbers, _EVERY, first, out.codes, out.numbers)
        first += len(part.slots)
    return out


def one_of(programs: Sequence[Program], chosen: Array) -> Program:
    """Selects one of several programs for each sample, by its number in ``chosen`` (int64 [B]).

    The result is as long as the longest of them; as all together if their warps have different fills, as a position
    has one fill.
    """
    if len(_fills(slot for program in programs for slot in program.slots)) > 1:
        return chain(program.masked(chosen == place) for place, program in enumerate(programs))
    slots = tuple(
        _merge_slots([slot for slot in alternatives if slot is not None])
        for alternatives in zip_longest(*(program.slots for program in programs))
    )
    out = Program.empty(len(chosen), slots)
    for place, program in enumerate(programs):
        _copy(program.codes, program.numbers, chosen == place, 0, out.codes, out.numbers)
    return out


def ordered(programs: Sequence[Program], order: Array) -> Program:
    """Concatenates programs in an order per sample, int64 [B, N]: the numbers of the programs."""
    return chain(one_of(programs, order[:, place]) for place in range(len(programs)))


_EVERY = np.ones(0, np.bool_)


@numba_compiled(
    "void(int64[:, ::1], float32[:, :, ::1], boolean[::1], int64, int64[:, ::1], float32[:, :, ::1])", nogil=False
)
def _copy(codes: Array, numbers: Array, apply_mask: Array, first: int, to_codes: Array, to_numbers: Array) -> None:
    """Copies the operations of the samples in ``apply_mask``, bool [B] or [0] for all, to positions from ``first``."""
    for k in range(len(codes)):
        if len(apply_mask) == 0 or apply_mask[k]:
            for place in range(codes.shape[1]):
                to_codes[k, first + place] = codes[k, place]
                for number in range(numbers.shape[2]):
                    to_numbers[k, first + place, number] = numbers[k, place, number]


def _merge_slots(slots: Sequence[OperationSlot]) -> OperationSlot:
    """Merges the slots of alternative programs."""
    operations: frozenset[int] = frozenset().union(*(slot.operations for slot in slots))
    fill, mask_fill = next(iter(_fills(slots)), (None, 255))
    radius = max(slot.blur_radius for slot in slots)
    return OperationSlot(operations=operations, fill=fill, mask_fill=mask_fill, blur_radius=radius)


def _fills(slots: Iterable[OperationSlot]) -> set[tuple[tuple[float, ...] | None, int]]:
    """Returns the different fills and mask fills of slots with warps."""
    return {(slot.fill, slot.mask_fill) for slot in slots if slot.operations & WARPS}
