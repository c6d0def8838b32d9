"""Samples the draws of steps that change levels, warp, or choose other steps, and torchvision's draws.

mmload's draws are read from the step's program; the draws of a torchvision policy are recorded when it applies an
operation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torchvision.transforms import v2

from mmload import augment
from mmload.augment.draws import Draws
from mmload.augment.step import LevelStep
from mmload.interop.torchvision import equivalent_of
from mmload.render import level_program as levels
from mmload.render.level_program import Program
from mmload.render.plan import Plan

Shape = tuple[int, int, int]
Sample = npt.NDArray[Any]
DrawSamples = Iterator[tuple[str, str, Sample, Sample]]
Event = tuple[str, float]
"""A policy's operation by torchvision's name, and its magnitude."""

_NAMES = {
    levels.BRIGHTNESS: "Brightness",
    levels.CONTRAST: "Contrast",
    levels.SATURATION: "Color",
    levels.SHARPNESS: "Sharpness",
    levels.SOLARIZE: "Solarize",
    levels.POSTERIZE: "Posterize",
    levels.AUTOCONTRAST: "AutoContrast",
    levels.EQUALIZE: "Equalize",
    levels.INVERT: "Invert",
}
_KINDS = (*_NAMES.values(), "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
_WARPS = _KINDS[-5:]
_SAME = 1e-3
"""Magnitudes that differ by less are treated as equal."""


def _program(step: LevelStep, shape: Shape, draws: Draws, count: int) -> Program:
    return step.program(Plan.unchanged(count, shape, 255.0), draws)


def with_probability(step: Any, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    """Samples whether a step with a probability applies."""
    ours = (_program(step, shape, draws, count).codes != levels.NONE).any(1).astype(np.int64)
    yield "share changed", "probability", ours, _changed_shares(step, shape, count)


def blur(step: augment.GaussianBlur, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    """Samples the standard deviation."""
    if step.sigma[0] < step.sigma[1]:
        ours = _program(step, shape, draws, count).numbers[:, 0, 2].astype(np.float64)
        transform, image = equivalent_of(step), torch.empty(shape)
        yield "sigma", "real", ours, np.array([transform.make_params([image])["sigma"][0] for _ in range(count)])


def distort(step: augment.RandomPhotometricDistort, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    """Samples the probabilities, the factors, the position of contrast, and the permutation of channels."""
    program = _program(step, shape, draws, count)
    transform, image = equivalent_of(step), torch.empty(shape)
    theirs = [transform.make_params([image]) for _ in range(count)]
    codes, numbers = program.codes, program.numbers.astype(np.float64)
    for name, places in (("brightness", [0]), ("contrast", [1, 4]), ("saturation", [2]), ("hue", [3])):
        factors = [one[f"{name}_factor"] for one in theirs]
        on = (codes[:, places] != levels.NONE).any(1)
        yield f"share with {name}", "probability", on.astype(np.int64), _int([one is not None for one in factors])
        ends = getattr(step, name)
        if on.any() and ends[0] < ends[1]:
            yield name, "real", numbers[on, places[0], 0], np.array([one for one in factors if one is not None])
    before = codes[:, 1] != levels.NONE
    either = before | (codes[:, 4] != levels.NONE)
    contrasted = [one["contrast_before"] for one in theirs if one["contrast_factor"] is not None]
    if either.any() and contrasted:
        yield "contrast first", "probability", before[either].astype(np.int64), _int(contrasted)
    if shape[0] == 3:
        ours = np.where(codes[:, 5] != levels.NONE, numbers[:, 5, :3] @ np.array([9, 3, 1]), -1).astype(np.int64)
        orders = [one["channel_permutation"] for one in theirs]
        yield (
            "channels",
            "integer",
            ours,
            _int([-1 if one is None else int(one @ torch.tensor([9, 3, 1])) for one in orders]),
        )


def rotation(step: augment.RandomRotation, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    """Samples the angle."""
    if step.degrees[0] < step.degrees[1]:
        transform, image = equivalent_of(step), torch.empty(shape)
        theirs = np.array([transform.make_params([image])["angle"] for _ in range(count)])
        _, angle, _, _, _ = _parts(_program(step, shape, draws, count), step.center, shape)
        yield "angle", "real", _wrapped(-angle), _wrapped(theirs)


def affine(step: augment.RandomAffine, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    """Samples angle, translation, scale and shears; a matrix only determines the angle minus the shear in y."""
    transform, image = equivalent_of(step), torch.empty(shape)
    theirs = [transform.make_params([image]) for _ in range(count)]
    moved, angle, scale, slant, stretch = _parts(_program(step, shape, draws, count), step.center, shape)
    shear = np.array([one["shear"] for one in theirs], dtype=np.float64).reshape(count, 2)
    angles = np.array([one["angle"] for one in theirs]) - shear[:, 1]
    if np.ptp(angles) > _SAME:
        yield "angle", "real", _wrapped(angle), _wrapped(angles)
    if step.translate is not None:
        places = np.array([one["translate"] for one in theirs], dtype=np.int64)
        for axis, name in enumerate(("columns moved", "rows moved")):
            yield name, "integer", moved[axis].round().astype(np.int64), places[:, axis]
    if step.scale is not None and step.scale[0] < step.scale[1]:
        yield "scale", "real", scale, np.array([one["scale"] for one in theirs])
    if step.shear is not None:
        x, y = np.radians(shear).T
        across = -np.tan(x) / np.cos(y) ** 2 - np.tan(y)
        if np.ptp(across) > _SAME:
            yield "shear in x", "real", slant, across
        if np.ptp(y) > _SAME:
            yield "shear in y", "real", stretch, 1 / np.cos(y)


def perspective(step: augment.RandomPerspective, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    """Samples whether the step applies, and the new positions of the corners."""
    program = _program(step, shape, draws, count)
    on = program.codes[:, 0] != levels.NONE
    yield "share distorted", "probability", on.astype(np.int64), _changed_shares(step, shape, count)
    transform, image = equivalent_of(step), torch.empty(shape)
    theirs = np.array([transform.make_params([image])["coefficients"] for _ in range(count)])
    ours = _corners(program.numbers[on, 0].astype(np.float64), shape)
    if len(ours):
        for which, name in enumerate(("top left", "top right", "bottom right", "bottom left")):
            for axis, line in enumerate(("column", "row")):
                yield f"{name} {line}", "integer", ours[:, axis, which], _corners(theirs, shape)[:, axis, which]


def policy(step: Any, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    """Samples the number of operations, the first two of them, and the magnitudes of each kind."""
    program = _program(step, shape, draws, count)
    ours = _read_events(program, shape)
    theirs, shares = _recorded(equivalent_of(step), shape, count)
    yield "operations", "integer", _int([len(row) for row in ours]), _int([len(row) for row in theirs])
    yield "first two operations", "integer", _pairs(ours), _pairs(theirs)
    for kind in _KINDS:
        mine, other = ([value for row in rows for name, value in row if name == kind] for rows in (ours, theirs))
        if mine and other:
            yield f"{kind}", "integer", *_grouped(np.array(mine), np.array(other))
    if isinstance(step, augment.AugMix):
        numbers = program.numbers[:, :, 0].astype(np.float64)
        codes = program.codes[0]
        yield "share of the image", "real", numbers[:, codes == levels.MIX_BEGIN][:, 0], shares[:, 0]
        yield "share of the first chain", "real", numbers[:, codes == levels.MIX_ADD][:, 0], shares[:, 1]


def of_steps(step: Any, shape: Shape, draws: Draws, count: int) -> DrawSamples:
    """Samples which of the inner steps run, and in which order."""
    marked = copy.copy(step)
    marked._modules = {"transforms": nn.ModuleList(_Mark(place) for place in range(len(step.transforms)))}
    program = _program(marked, shape, draws, count)
    places = np.where(program.codes != levels.NONE, program.numbers[:, :, 0].astype(np.int64) + 1, 0).tolist()
    seen: list[int] = []
    transform = equivalent_of(step)
    transform.transforms = [Seen(place + 1, seen) for place in range(len(step.transforms))]
    image, theirs = torch.empty(shape), []
    for _ in range(count):
        seen.clear()
        transform(image)
        theirs.append(list(seen))
    yield "steps", "integer", _orders([[one for one in row if one] for row in places]), _orders(theirs)


class _Mark(LevelStep):
    """Records its index in a program."""

    channels = None

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place

    def program(self, plan: Plan, draws: Draws) -> Program:
        return Program.single_operation(levels.BRIGHTNESS, plan.count, float(self.place))


class Seen(v2.Transform):
    """Records that it ran."""

    def __init__(self, place: int, seen: list[int]) -> None:
        super().__init__()
        self.place, self.seen = place, seen

    def forward(self, image: Any) -> Any:
        self.seen.append(self.place)
        return image


def _changed_shares(step: nn.Module, shape: Shape, count: int) -> Sample:
    """Samples whether torchvision's transform of a step with a probability ran."""
    transform, image, ran = equivalent_of(step), torch.zeros(shape, dtype=torch.uint8), []

    def note(image: Any, params: Any) -> Any:
        ran.append(1)
        return image

    transform.transform = note
    made = []
    for _ in range(count):
        ran.clear()
        transform(image)
        made.append(len(ran))
    return _int(made)


def _recorded(transform: Any, shape: Shape, count: int) -> tuple[list[list[Event]], Sample]:
    """Records the operations that torchvision's policy applies, and AugMix's weights."""
    events: list[Event] = []
    shares: list[Any] = []

    def apply(image: Any, name: str, magnitude: float, **_: Any) -> Any:
        value = int(magnitude) if name.startswith("Translate") else magnitude
        if not (name == "Identity" or (name in _WARPS and value == 0)):
            events.append((name, float(value)))
        return image

    transform._apply_image_or_video_transform = apply
    if isinstance(transform, v2.AugMix):
        dirichlet = transform._sample_dirichlet

        def sample(params: Any) -> Any:
            shares.append(dirichlet(params))
            return shares[-1]

        transform._sample_dirichlet = sample
    rows = []
    for _ in range(count):
        events.clear()
        transform(torch.zeros(shape, dtype=torch.uint8))
        rows.append(list(events))
    mixed = [
        [float(kept[0, 0]), float(kept[0, 1] * chains[0, 0])]
        for kept, chains in zip(shares[::2], shares[1::2], strict=True)
    ]
    return rows, np.array(mixed)


def _read_events(program: Program, shape: Shape) -> list[list[Event]]:
    rows: list[list[Event]] = []
    for codes, numbers in zip(program.codes.tolist(), program.numbers.tolist(), strict=True):
        events = [
            _event(code, own, shape)
            for code, own in zip(codes, numbers, strict=True)
            if code in _NAMES or code in levels.WARPS
        ]
        rows.append([event for event in events if event is not None])
    return rows


def _event(code: int, numbers: Sequence[float], shape: Shape) -> Event | None:
    """Returns torchvision's equivalent operation and argument; None if the operation has no effect."""
    if code in (levels.BRIGHTNESS, levels.CONTRAST, levels.SATURATION, levels.SHARPNESS):
        return _NAMES[code], numbers[0] - 1.0
    if code == levels.SOLARIZE:
        return "Solarize", numbers[0] / 255.0
    if code in _NAMES:
        return _NAMES[code], numbers[0] if code == levels.POSTERIZE else 0.0
    a, b, c, d, _, f = numbers[:6]
    if b and d:
        return "Rotate", float(np.degrees(np.arctan2(b, a)))
    if b:  # around the top left corner, so the offset determines the magnitude
        return "ShearX", 2.0 * c / shape[1]
    if d:
        return "ShearY", 2.0 * f / shape[2]
    if c:
        return "TranslateX", -c
    return ("TranslateY", -f) if f else None


def _parts(program: Program, center: Any, shape: Shape) -> tuple[Sample, Sample, Sample, Sample, Sample]:
    """Returns translation [2, N], angle in degrees, scale, slant and stretch of affine operations."""
    matrix = program.numbers[:, 0, :6].astype(np.float64).reshape(-1, 2, 3)
    forward = np.linalg.inv(matrix[:, :, :2])
    scale = np.sqrt(np.linalg.det(forward))
    x, y = (0.0, 0.0) if center is None else (center[0] - 0.5 * shape[2], center[1] - 0.5 * shape[1])
    origin = np.array([x, y])
    moved = (forward @ (origin - matrix[:, :, 2])[:, :, None])[:, :, 0] - origin
    a, b, c, d = (forward[:, row, column] / scale for row in (0, 1) for column in (0, 1))
    return moved.T, np.degrees(np.arctan2(c, a)), scale, a * b + c * d, np.hypot(a, c)


def _corners(coefficients: Sample, shape: Shape) -> Sample:
    """Returns the positions to which perspectives [N, 8] move the image's corners: int64 [N, 2, 4]."""
    right, bottom = shape[2] - 1.0, shape[1] - 1.0
    corners = np.array([[0, right, right, 0], [0, 0, bottom, bottom], [1, 1, 1, 1]])
    to_input = np.concatenate([coefficients, np.ones((len(coefficients), 1))], 1).reshape(-1, 3, 3)
    moved = np.linalg.solve(to_input, np.broadcast_to(corners, (len(to_input), 3, 4)))
    return (moved[:, :2] / moved[:, 2:]).round().astype(np.int64)


def _grouped(ours: Sample, theirs: Sample) -> tuple[Sample, Sample]:
    """Numbers the values of both samples; values without a gap between them become one integer."""
    values = np.concatenate([ours, theirs])
    order = values.argsort()
    groups = np.empty(len(values), np.int64)
    groups[order] = np.concatenate([[0], np.cumsum(np.diff(values[order]) > _SAME)])
    return groups[: len(ours)], groups[len(ours) :]


def _pairs(rows: Sequence[Sequence[Event]]) -> Sample:
    return _orders([[1 + _KINDS.index(name) for name, _ in row[:2]] for row in rows])


def _orders(rows: Sequence[Sequence[int]]) -> Sample:
    """Returns an integer for each list of small integers."""
    return _int([sum(value * 17**place for place, value in enumerate(row[:14])) for row in rows])


def _int(values: Sequence[Any]) -> Sample:
    return np.array([int(value) for value in values], dtype=np.int64)


def _wrapped(angle: Sample) -> Sample:
    return (angle + 180.0) % 360.0 - 180.0


READERS: dict[type[nn.Module], Callable[[Any, Shape, Draws, int], DrawSamples]] = {
    **dict.fromkeys(
        (
            augment.RandomInvert,
            augment.RandomAutocontrast,
            augment.RandomEqualize,
            augment.RandomPosterize,
            augment.RandomSolarize,
            augment.RandomAdjustSharpness,
        ),
        with_probability,
    ),
    augment.GaussianBlur: blur,
    augment.RandomPhotometricDistort: distort,
    augment.RandomRotation: rotation,
    augment.RandomAffine: affine,
    augment.RandomPerspective: perspective,
    **dict.fromkeys((augment.RandAugment, augment.TrivialAugmentWide, augment.AutoAugment, augment.AugMix), policy),
    **dict.fromkeys((augment.RandomApply, augment.RandomChoice, augment.RandomOrder), of_steps),
}
"""Step -> the function that samples its draws."""
