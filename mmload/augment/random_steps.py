"""RandomApply, RandomChoice and RandomOrder, named and set as in ``torchvision.transforms.v2``, drawn per sample.

They hold steps that change levels and keep the size: any of :class:`~mmload.augment.step.LevelStep`, flips and
grayscale included, and each other. A choice may instead hold MixUp and CutMix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from mmload.augment.arguments import argument_error, chance, shown
from mmload.augment.draws import Draws
from mmload.augment.mix import MixChoice, MixStep, weights
from mmload.augment.step import LevelStep, Step
from mmload.render.level_program import NONE, Program, chain, one_of, pad_program
from mmload.render.plan import Plan


class _OfSteps(LevelStep):
    """Base of the steps that contain steps; the draws of each do not depend on those of the others."""

    channels = None

    def __init__(self, transforms: Sequence[nn.Module] | nn.ModuleList) -> None:
        super().__init__()
        steps = list(transforms) if isinstance(transforms, nn.ModuleList | Sequence) else []
        if not steps:
            raise argument_error("transforms", transforms, "a list of at least one step")
        for step in steps:
            if not isinstance(step, LevelStep) and not (isinstance(step, Step) and step.operation is not None):
                raise TypeError(
                    f"transforms has {shown(step)}, which cannot be drawn per sample: {type(self).__name__} takes "
                    "flips, RandomGrayscale and steps that change levels"
                )
        self.transforms = nn.ModuleList(steps)

    @property
    def steps(self) -> list[Step]:
        """The steps, in order."""
        return [step for step in self.transforms if isinstance(step, Step)]

    def check_images(self, plan: Plan) -> None:
        for step in self.steps:
            step.check_images(plan)

    def check_fields(self, *, boxes: bool, masks: bool) -> None:
        for step in self.steps:
            step.check_fields(boxes=boxes, masks=masks)

    def programs(self, plan: Plan, draws: Draws) -> list[Program]:
        """Returns the program of each step."""
        return [_program_of(step, plan, draws.branch(place)) for place, step in enumerate(self.steps)]


def _program_of(step: Step, plan: Plan, draws: Draws) -> Program:
    if isinstance(step, LevelStep):
        return step.program(plan, draws)
    on = draws.chance(float(step.p))  # type: ignore[arg-type]  # torch types attributes of modules loosely
    return Program.single_operation(step.operation or NONE, plan.count, plan.device, apply_mask=on)


class RandomApply(_OfSteps):
    """All of the steps with probability ``p``, or none of them, drawn per sample.

    Args:
        transforms: steps, in order.
        p: probability that a sample is changed.

    Raises:
        TypeError: if a step changes the size, or is not a step of mmload.
        ValueError: if ``p`` is no probability, or there is no step.
    """

    def __init__(self, transforms: Sequence[nn.Module] | nn.ModuleList, p: float = 0.5) -> None:
        super().__init__(transforms)
        self.p = chance(p)

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws for the step itself once per sample, and for the inner steps."""
        return chain(self.programs(plan, draws)).masked(draws.chance(self.p))


class RandomChoice(_OfSteps):
    """One of the steps, drawn per sample.

    A choice of MixUp and CutMix is a :class:`~mmload.augment.mix.MixChoice`.

    Args:
        transforms: steps that change levels; or MixUp, CutMix and choices of them.
        p: relative probability of each; None: all are equal.
        per: ``"sample"``; for MixUp and CutMix also ``"batch"``: one draw per batch.

    Raises:
        TypeError: if a step changes the size, or is not a step of mmload, or only some mix samples.
        ValueError: if there is no step, ``per`` is something else, or ``p`` is not one number from 0 for each of
            which some are above 0.
    """

    def __new__(cls, transforms: Any = (), p: Any = None, per: Any = "sample") -> Any:
        """Makes a choice of steps that change levels, or of steps that mix samples."""
        steps = transforms if isinstance(transforms, nn.ModuleList | Sequence) else ()
        if any(isinstance(step, MixStep) for step in steps):
            return MixChoice(transforms, p, per)
        return super().__new__(cls)

    def __init__(self, transforms: Sequence[nn.Module], p: Sequence[float] | None = None, per: str = "sample") -> None:
        super().__init__(transforms)
        if not isinstance(per, str) or per != "sample":
            raise argument_error("per", per, "'sample', or 'batch' for a choice of MixUp and CutMix")
        self.p, self.per = weights(p, len(self.transforms)), per

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws for the step itself once per sample, and for the inner steps."""
        return one_of(self.programs(plan, draws), draws.weighted(self.p))


class RandomOrder(_OfSteps):
    """All of the steps in an order drawn per sample.

    Args:
        transforms: steps.

    Raises:
        TypeError: if a step changes the size, or is not a step of mmload.
        ValueError: if there is no step.
    """

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws one key per step and sample, and what the steps draw."""
        order = draws.uniform(len(self.transforms)).argsort(1)
        programs = self.programs(plan, draws)
        longest = max(len(program.slots) for program in programs)
        padded = [pad_program(program, longest) for program in programs]
        return chain(one_of(padded, order[:, place]) for place in range(len(padded)))
