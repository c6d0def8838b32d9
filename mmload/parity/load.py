"""Checks that a collate's draws have the same distribution as torchvision's draws.

There is one verdict per property of each random step. Seeds are fixed, so the same check returns the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from mmload.augment import (
    AlternatingHorizontalFlip,
    CenterCrop,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from mmload.augment.collate import Collate
from mmload.augment.mix import MixStep
from mmload.augment.step import Step
from mmload.parity.draws import Property, Shape, properties, run_seeds, shape_after
from mmload.parity.statistics import Test, chi_square, kolmogorov_smirnov
from mmload.parity.verdict import Verdict
from mmload.parity.whole_rows import shape_of
from mmload.store.dataset import Split

ALPHA = 1e-4
"""Probability that a correct store fails any test of a check; each test uses ``ALPHA`` divided by their number."""

DRAWS = 20_000
"""Draws of each property, for each of the two libraries."""


_NEXT = 4_000  # number of draws that are compared with those of the next epoch


def usual_collates(split: Split) -> dict[str, Collate]:
    """The steps of common training recipes, for the size of a split's images."""
    channels, height, width = shape_of(split)
    if split.fields["images"].own_sizes:
        return _of_whole_photographs(split, channels, min(height, width))
    size = max(1, height * 7 // 8), max(1, width * 7 // 8)
    margin = [max(1, width // 8), max(1, height // 8)]
    crops = {
        "crop": RandomCrop(size),
        "padded crop": RandomCrop((height, width), margin),
        "resized crop": RandomResizedCrop(size),
    }
    return {name: Collate(crop, RandomHorizontalFlip(), _normalize(split, channels)) for name, crop in crops.items()}


def _of_whole_photographs(split: Split, channels: int, short: int) -> dict[str, Collate]:
    size = max(1, min(224, short * 7 // 8))
    normalize = _normalize(split, channels)
    return {
        "resized crop": Collate(RandomResizedCrop(size), RandomHorizontalFlip(), normalize),
        "evaluation": Collate(Resize(short), CenterCrop(size), normalize),
    }


def _normalize(split: Split, channels: int) -> Normalize:
    mean, std = split.mean or (0.5,) * channels, split.std or (0.25,) * channels
    return Normalize(mean, [value or 1.0 for value in std])


def check_draws(
    collates: dict[str, Collate], split: Split, *, seed: int, draws: int = DRAWS, alpha: float = ALPHA
) -> list[Verdict]:
    """Compare the draws of every random step with torchvision's own.

    Args:
        collates: keyed by name.
        split: the input of the collates; its rows' seeds are those of training.
        seed: the seed of the run.
        draws: number of draws of each property.
        alpha: probability that a correct store fails.
    """
    found: list[tuple[str, Property, list[Test]]] = []
    notes: list[Verdict] = []
    for name, collate in collates.items():
        shape = shape_of(split)
        for step_index, each_epochs in enumerate(collate.steps):
            step = each_epochs.at_epoch(0) if isinstance(each_epochs, Step) else each_epochs
            text = _not_compared(each_epochs, step)
            if text:
                notes.append(Verdict(part="load", name=name, state="note", text=text))
            found += [
                (name, each, tests_of(each)) for each in _of_step(step, shape, step_index, len(split), draws, seed)
            ]
            shape = shape_after(step, shape)
    most = sum(len(tests) for *_, tests in found)
    limit = alpha / max(most, 1)
    return [_verdict(name, each, tests, limit) for name, each, tests in found] + notes


def _not_compared(step: nn.Module, in_first_epoch: nn.Module) -> str:
    """What of a step's draws is not compared, and why; empty if nothing."""
    name = type(step).__name__
    if isinstance(step, MixStep) and step.per == "sample":
        return f"{name} draws for each sample, torchvision for each batch: compared draw by draw"
    if isinstance(step, AlternatingHorizontalFlip):
        return f"{name} draws nothing, and torchvision has no counterpart: not compared"
    if step is not in_first_epoch:
        return f"{name} has another size in other epochs: its draws are compared for that of epoch 0"
    return ""


def _of_step(step: nn.Module, shape: Shape, step_index: int, rows: int, draws: int, seed: int) -> list[Property]:
    """All properties that a step draws, and whether its draws change in the next epoch."""
    seeds = run_seeds(rows, draws, seed)
    here = properties(step, shape, seeds, step_index, seed)
    first = next((at for at, each in enumerate(here) if each.kind != "real"), None)
    if first is None:
        return here
    count = min(draws, _NEXT)
    following = run_seeds(rows, count + rows, seed)[rows:]
    there = properties(step, shape, following, step_index, seed + 1)[first]
    now = here[first]
    ours = (now.ours[:count] == there.ours[:count]).astype(np.int64)
    theirs = (now.theirs[:count] == there.theirs[:count]).astype(np.int64)
    return [*here, Property(name=f"{now.name}, the same an epoch later", kind="repeat", ours=ours, theirs=theirs)]


def tests_of(each: Property) -> list[Test]:
    """The tests of one property; for integers also whether both ends are as frequent as other values."""
    if each.kind == "real":
        return [kolmogorov_smirnov(each.ours, each.theirs)]
    tests = [chi_square(each.ours, each.theirs)]
    least, greatest = _ends([each.ours, each.theirs])
    if each.kind == "integer" and greatest - least > 1:
        tests += [
            chi_square(*(np.sign(np.abs(values - end)) for values in (each.ours, each.theirs)))
            for end in (least, greatest)
        ]
    return tests


def _verdict(name: str, each: Property, tests: Sequence[Test], limit: float) -> Verdict:
    worst = min(tests, key=lambda test: test.p)
    right = worst.p >= limit
    text = f"{_spread(each)}; p {tests[0].p:.2g}"
    if len(tests) > 1:
        text += f", ends {min(test.p for test in tests[1:]):.2g}"
    return Verdict(
        part="load",
        name=f"{name}, {each.name}",
        state="pass" if right else "fail",
        text=text,
        diagnosis="" if right else draws_look_like(each),
        numbers={
            "draws": len(each.ours),
            "draws_torchvision": len(each.theirs),
            "test": tests[0].name,
            "statistic": tests[0].statistic,
            "freedom": tests[0].freedom,
            "p": tests[0].p,
            "p_least": worst.p,
            "limit": limit,
        },
    )


def _spread(each: Property) -> str:
    """A summary of both samples as text."""
    if each.kind in ("probability", "repeat"):
        return f"{each.ours.mean():.4f}, torchvision {each.theirs.mean():.4f}"
    form = "d" if each.kind == "integer" else ".3g"
    (low, high), (least, greatest) = _ends([each.ours]), _ends([each.theirs])
    ours, theirs = f"{low:{form}} to {high:{form}}", f"{least:{form}} to {greatest:{form}}"
    return f"{ours}, as torchvision" if ours == theirs else f"{ours}, torchvision {theirs}"


def _ends(samples: Sequence[np.ndarray]) -> tuple[float | int, float | int]:
    low, high = min(sample.min() for sample in samples), max(sample.max() for sample in samples)
    return low.item(), high.item()


def draws_look_like(each: Property) -> str:
    """The known fault that explains a different distribution; else the direction of the difference."""
    if each.kind == "repeat":
        return "every epoch draws the same" if each.ours.all() else "draws depend on those of the epoch before"
    if each.kind == "probability":
        return _chance_looks_like(float(each.ours.mean()), float(each.theirs.mean()))
    (low, high), (least, greatest) = _ends([each.ours]), _ends([each.theirs])
    if each.kind == "integer" and low - least == high - greatest != 0:
        return f"every place is off by {low - least:+d}"
    if each.kind == "integer" and low == high:
        return f"always {low}"
    if each.kind == "integer" and (low, high) != (least, greatest):
        ends = [f"the first place ({least}) is never drawn"] * (low > least)
        ends += [f"the last place ({greatest}) is never drawn"] * (high < greatest)
        ends += [f"draws reach {low}"] * (low < least) + [f"draws reach {high}"] * (high > greatest)
        return ", ".join(ends)
    return f"the mean is {each.ours.mean():.4g}, torchvision's {each.theirs.mean():.4g}"


def _chance_looks_like(ours: float, theirs: float) -> str:
    if ours in (0.0, 1.0) and not 1.9 < ours / max(theirs, 1e-9) < 2.1:
        return "never" if ours == 0 else "always"
    for factor, name in ((2.0, "doubled"), (0.5, "halved")):
        if theirs and abs(ours / theirs - factor) < 0.05 * factor:
            return f"the probability is {name}"
    return f"the probability is {ours:.3f} instead of {theirs:.3f}"
