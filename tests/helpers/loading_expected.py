"""A batch as it has to be, and what of another differs from it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

Fields = dict[str, Tensor]


@dataclass
class Expected:
    """A batch as it has to be.

    Attributes:
        fields: what has to be equal; images in float64 once they are no integers.
        slack: levels of 255 that a value of an image may be off; 0: every bit is known.
        unit: [C, 1, 1], what a level is in the images' values.
        rounded: whether float arithmetic came in another order, so that the last bits may differ.
    """

    fields: Fields
    slack: float = 0.0
    unit: Tensor = field(default_factory=lambda: torch.ones((), dtype=torch.float64))
    rounded: bool = False


def differences(got: Fields, expected: Expected) -> list[str]:
    """What of a batch is not as expected, a line each."""
    lines = (
        [f"fields {sorted(got)}, expected {sorted(expected.fields)}"] if got.keys() != expected.fields.keys() else []
    )
    for name, want in expected.fields.items():
        have = got.get(name, torch.empty(0))
        if (have.shape, have.dtype) != (want.shape, want.dtype):
            lines.append(f"{name} is {have.dtype} {tuple(have.shape)}, expected {want.dtype} {tuple(want.shape)}")
        elif not _near(name, have, want, expected):
            apart = (have.double() - want.double()).abs()
            lines.append(
                f"{name} differs in {int((apart > 0).sum())} of {apart.numel()} values, by {float(apart.max())}"
            )
    return lines


def _near(name: str, have: Tensor, want: Tensor, expected: Expected) -> bool:
    if name == "boxes":
        return torch.allclose(have, want, rtol=0, atol=1e-3)
    if name == "targets" and want.is_floating_point():
        return torch.allclose(have, want, rtol=1e-6, atol=1e-6)
    if name != "images" or not (expected.slack or expected.rounded):
        return torch.equal(have, want)
    eps = 8 * torch.finfo(want.dtype).eps if want.is_floating_point() else 0.0
    apart = (have.double() - want.double()).abs()
    scale = want.double().abs() + 1
    return bool((apart <= (expected.slack + 0.01) * expected.unit + eps * scale).all())
