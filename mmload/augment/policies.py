"""RandAugment, TrivialAugmentWide, AutoAugment and AugMix, named and set as in ``torchvision.transforms.v2``.

A policy draws operations and magnitudes per sample and warps images only: boxes and masks are refused, as in
torchvision. Spaces and policies are torchvision's, which has them from the papers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.augment.arguments import choice, flag, integer, number
from mmload.augment.step import Doubles, Draws, Flags, dirichlet, whole_numbers
from mmload.augment.warps import WarpingStep, affine_matrix
from mmload.render import level_operations as levels
from mmload.render.level_operations import MOST_NUMBERS
from mmload.render.plan import OperationSlot, Plan, Program, chain
from mmload.runtime.kernels import numba_compiled
from mmload.runtime.random_words import Numbers

_MOST_BINS = 1_000
_MOST_OPERATIONS = 100


class Change(NamedTuple):
    """One operation of a policy's space.

    Attributes:
        name: torchvision's.
        least: its magnitude in the first bin.
        most: its magnitude in the last bin; of a translation a share of the image's side, from 1 on pixels.
    """

    name: str
    least: float = 0.0
    most: float = 0.0

    @property
    def signed(self) -> bool:
        """Whether the sign is drawn, too."""
        return self.name in (*_WARPS, *_BLENDS)


_CODES = {
    "Identity": levels.NONE,
    "Brightness": levels.BRIGHTNESS,
    "Color": levels.SATURATION,
    "Contrast": levels.CONTRAST,
    "Sharpness": levels.SHARPNESS,
    "Posterize": levels.POSTERIZE,
    "Solarize": levels.SOLARIZE,
    "AutoContrast": levels.AUTOCONTRAST,
    "Equalize": levels.EQUALIZE,
    "Invert": levels.INVERT,
}
"""All others are warps."""

_WARPS = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
_BLENDS = ("Brightness", "Color", "Contrast", "Sharpness")


def _space(shear: float, move: float, angle: float, blend: float, bits: tuple[int, int]) -> tuple[Change, ...]:
    """Returns the changes that all spaces have, by the most of each warp and blend, and the bits of Posterize."""
    warps = map(Change, _WARPS, [0.0] * 5, (shear, shear, move, move, angle))
    blends = [Change(name, 0.0, blend) for name in _BLENDS]
    rest = [Change("Posterize", *bits), Change("Solarize", 1.0, 0.0), Change("AutoContrast"), Change("Equalize")]
    return (*warps, *blends, *rest)


class _Policy(WarpingStep):
    """Draws changes from a space."""

    leaves_behind = dict.fromkeys(
        ("boxes", "masks"),
        "warps images but not boxes and masks, as in torchvision; use RandomAffine and ColorJitter, or leave boxes and "
        "masks out of fields",
    )

    def drawn_change(self, space: tuple[Change, ...], draws: Draws, plan: Plan, bins: Numbers, of: int) -> Program:
        """Draws one change per sample, uniform over the space, and its sign, negative with probability 0.5.

        The magnitude is that of ``bins``, int64 [B], of ``of``.
        """
        uniform = draws.uniform(2)
        return self.changes(space, whole_numbers(uniform[:, 0], len(space)), uniform[:, 1] < 0.5, plan, bins, of)

    def changes(
        self, space: tuple[Change, ...], chosen: Numbers, negative: Flags, plan: Plan, bins: Numbers, of: int
    ) -> Program:
        """Returns the change ``chosen`` for each sample, with the magnitude of a bin: int64 [B] each.

        It is one of ``of`` bins, and negative where a bool [B] says so and the change is signed.
        """
        warp = levels.AFFINE_NEAREST if self.interpolation == "nearest" else levels.AFFINE_BILINEAR
        codes, numbers = _tables(space, warp, of, plan.height, plan.width, plan.peak)
        operations = frozenset(_CODES.get(change.name, warp) for change in space) - {levels.NONE}
        program = Program.empty(len(chosen), (OperationSlot(operations=operations, fill=self.fill),))
        _look_up(codes, numbers, chosen, bins, negative, program.codes, program.numbers)
        return program


@numba_compiled(
    "int64[::1], float32[:, :, :, ::1], int64[::1], int64[::1], boolean[::1], int64[:, ::1], float32[:, :, ::1]",
    nogil=False,
)
def _look_up(
    codes: Numbers, numbers: Any, chosen: Numbers, bins: Numbers, negative: Flags, to_codes: Numbers, to: Any
) -> None:
    """Writes the operation of each sample's change, and its numbers for a bin and sign."""
    for k in range(len(chosen)):
        change, sign = chosen[k], 1 if negative[k] else 0
        to_codes[k, 0] = codes[change]
        for place in range(numbers.shape[3]):
            to[k, 0, place] = numbers[change, bins[k], sign, place]


@lru_cache(maxsize=32)
def _tables(
    space: tuple[Change, ...], warp: int, bins: int, height: int, width: int, peak: float
) -> tuple[Numbers, npt.NDArray[np.float32]]:
    """Returns the operation of each change, int64 [N], and its numbers per bin and sign, float32 [N, bins, 2, 8].

    They are cached per size of images: to compute the matrices of each batch's changes took a tenth of the time.
    """
    numbers = np.zeros((len(space), bins, 2, MOST_NUMBERS), np.float32)
    for place, change in enumerate(space):
        magnitudes = _magnitudes(change, bins, height, width)
        for sign, values in enumerate((magnitudes, -magnitudes if change.signed else magnitudes)):
            made = _numbers(change.name, values, height, width, peak)
            numbers[place, :, sign, : made.shape[1]] = made
    return np.array([_CODES.get(change.name, warp) for change in space], np.int64), numbers


def _magnitudes(change: Change, bins: int, height: int, width: int) -> Doubles:
    """Returns the magnitude in each bin as torchvision computes it, float64 [bins]."""
    if change.name == "Posterize":
        shares = np.arange(bins, dtype=np.float32) / np.float32((bins - 1) / (change.least - change.most))
        return (np.float32(change.least) - shares).round().astype(np.float64)
    is_share = change.name.startswith("Translate") and change.most < 1
    side = (width if change.name == "TranslateX" else height) if is_share else 1
    first, last = (np.float32(end * side) for end in (change.least, change.most))
    step, place = float((last - first) / np.float32(bins - 1)), np.arange(bins)
    # As torch.linspace, from both ends, and with fused products as on processors that have them.
    magnitudes = np.where(place < bins // 2, first + step * place, last - step * (bins - 1 - place))
    return magnitudes.astype(np.float32).astype(np.float64)


def _numbers(name: str, magnitude: Doubles, height: int, width: int, peak: float) -> Doubles:
    """Returns the numbers of an operation with these magnitudes: float64 [bins, N]."""
    if name in _BLENDS:
        return np.stack((1.0 + magnitude, -magnitude), 1)
    if name not in _WARPS:
        return (peak * magnitude if name == "Solarize" else magnitude)[:, None]
    nothing, one, move = np.zeros_like(magnitude), np.ones_like(magnitude), np.trunc(magnitude)
    shear = np.array([math.atan(one) for one in magnitude]) * (180.0 / math.pi)
    still, middle = (nothing, nothing), (0.0, 0.0)
    corner = -0.5 * width, -0.5 * height  # at the top left: torchvision shears around it, as it has it from the paper
    angle, moves, shears, center = {
        "Rotate": (-magnitude, still, still, middle),
        "TranslateX": (nothing, (move, nothing), still, middle),
        "TranslateY": (nothing, (nothing, move), still, middle),
        "ShearX": (nothing, still, (shear, nothing), corner),
        "ShearY": (nothing, still, (nothing, shear), corner),
    }[name]
    return affine_matrix(angle, moves, one, shears, center)


class RandAugment(_Policy):
    """``num_ops`` changes per sample, each drawn from 14, all of the same magnitude (Cubuk and others, 2019).

    Args:
        num_ops: number of operations.
        magnitude: the bin of the magnitudes.
        num_magnitude_bins: number of bins.
        interpolation: interpolation of warps, ``nearest`` or ``bilinear``, or torchvision's name for it.
        fill: outside of warped images: a value, or one per channel; None: 0.

    Raises:
        ValueError: if an argument is out of range, or (when run) the images have neither one nor three channels.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: Any = "nearest",
        fill: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(interpolation, fill)
        self.num_ops = integer("num_ops", num_ops, least=0, greatest=_MOST_OPERATIONS)
        self.num_magnitude_bins = integer("num_magnitude_bins", num_magnitude_bins, least=2, greatest=_MOST_BINS)
        last = self.num_magnitude_bins - 1
        self.magnitude = integer("magnitude", magnitude, least=0, greatest=last, unit="a bin of num_magnitude_bins,")

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws a change and a sign per operation and sample."""
        bins = np.full(plan.count, self.magnitude, np.int64)
        if not self.num_ops:
            return Program.single_operation(levels.NONE, plan.count)
        return chain(
            self.drawn_change(RAND_AUGMENT, draws, plan, bins, self.num_magnitude_bins) for _ in range(self.num_ops)
        )


class TrivialAugmentWide(_Policy):
    """One change per sample, of 14 and of any magnitude (Mueller and Hutter, 2021).

    Args:
        num_magnitude_bins: number of magnitudes.
        interpolation: interpolation of warps, ``nearest`` or ``bilinear``, or torchvision's name for it.
        fill: outside of warped images: a value, or one per channel; None: 0.

    Raises:
        ValueError: if an argument is out of range, or (when run) the images have neither one nor three channels.
    """

    def __init__(
        self,
        num_magnitude_bins: int = 31,
        interpolation: Any = "nearest",
        fill: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(interpolation, fill)
        self.num_magnitude_bins = integer("num_magnitude_bins", num_magnitude_bins, least=2, greatest=_MOST_BINS)

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws a magnitude, a change and a sign per sample."""
        bins = whole_numbers(draws.uniform(1)[:, 0], self.num_magnitude_bins)
        return self.drawn_change(TRIVIAL_AUGMENT_WIDE, draws, plan, bins, self.num_magnitude_bins)


_PAIRS = {
    "imagenet": (
        "Posterize 0.4 8, Rotate 0.6 9; Solarize 0.6 5, AutoContrast 0.6; Equalize 0.8, Equalize 0.6; "
        "Posterize 0.6 7, Posterize 0.6 6; Equalize 0.4, Solarize 0.2 4; Equalize 0.4, Rotate 0.8 8; "
        "Solarize 0.6 3, Equalize 0.6; Posterize 0.8 5, Equalize 1; Rotate 0.2 3, Solarize 0.6 8; "
        "Equalize 0.6, Posterize 0.4 6; Rotate 0.8 8, Color 0.4 0; Rotate 0.4 9, Equalize 0.6; "
        "Equalize 0, Equalize 0.8; Invert 0.6, Equalize 1; Color 0.6 4, Contrast 1 8; Rotate 0.8 8, Color 1 2; "
        "Color 0.8 8, Solarize 0.8 7; Sharpness 0.4 7, Invert 0.6; ShearX 0.6 5, Equalize 1; "
        "Color 0.4 0, Equalize 0.6; Equalize 0.4, Solarize 0.2 4; Solarize 0.6 5, AutoContrast 0.6; "
        "Invert 0.6, Equalize 1; Color 0.6 4, Contrast 1 8; Equalize 0.8, Equalize 0.6"
    ),
    "cifar10": (
        "Invert 0.1, Contrast 0.2 6; Rotate 0.7 2, TranslateX 0.3 9; Sharpness 0.8 1, Sharpness 0.9 3; "
        "ShearY 0.5 8, TranslateY 0.7 9; AutoContrast 0.5, Equalize 0.9; ShearY 0.2 7, Posterize 0.3 7; "
        "Color 0.4 3, Brightness 0.6 7; Sharpness 0.3 9, Brightness 0.7 9; Equalize 0.6, Equalize 0.5; "
        "Contrast 0.6 7, Sharpness 0.6 5; Color 0.7 7, TranslateX 0.5 8; Equalize 0.3, AutoContrast 0.4; "
        "TranslateY 0.4 3, Sharpness 0.2 6; Brightness 0.9 6, Color 0.2 8; Solarize 0.5 2, Invert 0; "
        "Equalize 0.2, AutoContrast 0.6; Equalize 0.2, Equalize 0.6; Color 0.9 9, Equalize 0.6; "
        "AutoContrast 0.8, Solarize 0.2 8; Brightness 0.1 3, Color 0.7 0; Solarize 0.4 5, AutoContrast 0.9; "
        "TranslateY 0.9 9, TranslateY 0.7 9; AutoContrast 0.9, Solarize 0.8 3; Equalize 0.8, Invert 0.1; "
        "TranslateY 0.7 9, AutoContrast 0.9"
    ),
    "svhn": (
        "ShearX 0.9 4, Invert 0.2; ShearY 0.9 8, Invert 0.7; Equalize 0.6, Solarize 0.6 6; Invert 0.9, Equalize 0.6; "
        "Equalize 0.6, Rotate 0.9 3; ShearX 0.9 4, AutoContrast 0.8; ShearY 0.9 8, Invert 0.4; "
        "ShearY 0.9 5, Solarize 0.2 6; Invert 0.9, AutoContrast 0.8; Equalize 0.6, Rotate 0.9 3; "
        "ShearX 0.9 4, Solarize 0.3 3; ShearY 0.8 8, Invert 0.7; Equalize 0.9, TranslateY 0.6 6; "
        "Invert 0.9, Equalize 0.6; Contrast 0.3 3, Rotate 0.8 4; Invert 0.8, TranslateY 0 2; "
        "ShearY 0.7 6, Solarize 0.4 8; Invert 0.6, Rotate 0.8 4; ShearY 0.3 7, TranslateX 0.9 3; "
        "ShearX 0.1 6, Invert 0.6; Solarize 0.7 2, TranslateY 0.6 7; ShearY 0.8 4, Invert 0.8; "
        "ShearX 0.7 9, TranslateY 0.8 3; ShearY 0.8 5, AutoContrast 0.7; ShearX 0.7 2, Invert 0.1"
    ),
}
"""AutoAugment's pairs: a change, its probability and the bin of its magnitude, if it has one."""


def _pair(text: str) -> tuple[tuple[str, float, int | None], ...]:
    parts = (part.split() for part in text.split(", "))
    return tuple((name, float(chance), int(place[0]) if place else None) for name, chance, *place in parts)


POLICIES = {policy: [_pair(pair) for pair in pairs.split("; ")] for policy, pairs in _PAIRS.items()}


class AutoAugment(_Policy):
    """One of 25 pairs of changes per sample, each with its own probability and magnitude (Cubuk and others, 2018).

    Args:
        policy: ``imagenet``, ``cifar10`` or ``svhn``, or torchvision's name for it.
        interpolation: interpolation of warps, ``nearest`` or ``bilinear``, or torchvision's name for it.
        fill: outside of warped images: a value, or one per channel; None: 0.

    Raises:
        ValueError: if an argument is invalid, or (when run) the images have neither one nor three channels.
    """

    def __init__(
        self,
        policy: Any = "imagenet",
        interpolation: Any = "nearest",
        fill: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(interpolation, fill)
        self.policy = choice("policy", getattr(policy, "value", policy), tuple(POLICIES))

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws a pair per sample, and for each of its changes whether it is made and its sign."""
        which, bins, shares = _pair_tables(self.policy)
        pair = whole_numbers(draws.uniform(1)[:, 0], len(which))
        parts = []
        for place in range(2):
            uniform = draws.uniform(2)
            negative = uniform[:, 1] < 0.5
            part = self.changes(AUTO_AUGMENT, which[pair, place], negative, plan, bins[pair, place], 10)
            parts.append(part.masked(uniform[:, 0] < shares[pair, place]))
        return chain(parts)


@cache
def _pair_tables(policy: str) -> tuple[Numbers, Numbers, Doubles]:
    """Returns the changes of a policy's pairs, bins of their magnitudes, and their probabilities: [25, 2] each."""
    names, pairs = [change.name for change in AUTO_AUGMENT], POLICIES[policy]
    table = np.array([[(names.index(name), place or 0, share) for name, share, place in pair] for pair in pairs])
    which, bins, shares = np.moveaxis(table, -1, 0)
    return which.astype(np.int64), bins.astype(np.int64), shares.astype(np.float32).astype(np.float64)


class AugMix(_Policy):
    """A mixture of chains of changes and the image itself, drawn per sample (Hendrycks and others, 2020).

    Args:
        severity: magnitudes are drawn from the first bins of ten, so many of them.
        mixture_width: number of chains.
        chain_depth: changes of each chain; negative: 1 to 3, drawn.
        alpha: parameter of the Dirichlet and Beta distributions of the shares.
        all_ops: whether brightness, contrast, color and sharpness are among the changes.
        interpolation: interpolation of warps, ``nearest`` or ``bilinear``, or torchvision's name for it.
        fill: outside of warped images: a value, or one per channel; None: 0.

    Raises:
        ValueError: if an argument is out of range, or (when run) the images have neither one nor three channels.
    """

    def __init__(
        self,
        severity: int = 3,
        mixture_width: int = 3,
        chain_depth: int = -1,
        alpha: float = 1.0,
        all_ops: bool = True,
        interpolation: Any = "bilinear",
        fill: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(interpolation, fill)
        self.severity = integer("severity", severity, least=1, greatest=10)
        self.mixture_width = integer("mixture_width", mixture_width, least=1, greatest=_MOST_OPERATIONS)
        self.chain_depth = integer("chain_depth", chain_depth, greatest=_MOST_OPERATIONS)
        self.alpha = number("alpha", alpha, least=1e-3, greatest=1e6)
        self.all_ops = flag("all_ops", all_ops)

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws per sample the shares, and for each chain its depth and its changes with magnitudes and signs."""
        space = AUGMIX if self.all_ops else tuple(change for change in AUGMIX if change.name not in _BLENDS)
        share = dirichlet(draws, self.alpha, 2)
        shares = dirichlet(draws, self.alpha, self.mixture_width) * share[:, 1:]
        parts = [Program.single_operation(levels.MIX_BEGIN, plan.count, share[:, 0])]
        for row in range(self.mixture_width):
            depth, most = np.full(plan.count, self.chain_depth), self.chain_depth
            if self.chain_depth <= 0:
                depth, most = 1 + whole_numbers(draws.uniform(1)[:, 0], 3), 3
            for place in range(most):
                bins = whole_numbers(draws.uniform(1)[:, 0], self.severity)
                part = self.drawn_change(space, draws, plan, bins, 10)
                parts.append(part.masked(depth > place))
            parts.append(Program.single_operation(levels.MIX_ADD, plan.count, shares[:, row]))
        return chain([*parts, Program.single_operation(levels.MIX_END, plan.count)])


_SHARE = 150.0 / 331.0
"""The share of the side by which most spaces move images."""

RAND_AUGMENT = (Change("Identity"), *_space(0.3, _SHARE, 30.0, 0.9, (8, 4)))
TRIVIAL_AUGMENT_WIDE = (Change("Identity"), *_space(0.99, 32.0, 135.0, 0.99, (8, 2)))
AUTO_AUGMENT = (*_space(0.3, _SHARE, 30.0, 0.9, (8, 4)), Change("Invert"))
AUGMIX = _space(0.3, 1.0 / 3.0, 30.0, 0.9, (4, 0))
"""The spaces of torchvision, whose order does not matter."""
