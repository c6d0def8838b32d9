"""Steps that change levels: what they draw becomes a list of operations that one pass runs on each sample."""

from __future__ import annotations

from mmload.augment.draws import Draws
from mmload.augment.step import Step
from mmload.errors import counted
from mmload.render.level_program import Program
from mmload.render.plan import Plan, refuse_levels

_MOST_PIXELS = 2**31 - 1
"""Of an image and a frame of one pixel: a warp counts them in 32 bits."""


class LevelStep(Step):
    """A step whose effect is a :class:`~mmload.render.level_program.Program`. A subclass draws that.

    Attributes:
        channels: how many the images may have; None: any number.
    """

    channels: tuple[int, ...] | None = (1, 3)

    def fits(self, plan: Plan) -> bool:
        """Levels change before colors are mapped."""
        return plan.fits_levels() and not plan.is_ragged

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """The plan followed by the step's operations.

        Raises:
            ValueError: if the step cannot be done to images of this size or number of channels.
        """
        self.refuse_images(plan)
        return plan.followed_by(self.program(plan, draws))

    def program(self, plan: Plan, draws: Draws) -> Program:
        """The operations drawn for each sample of a plan; as many draws for every batch."""
        raise NotImplementedError

    def refuse_images(self, plan: Plan) -> None:
        """Refuses images that the step cannot be done to.

        Raises:
            ValueError: if they have another number of channels than it takes.
        """
        channels = plan.source[0]
        if self.channels is not None and channels not in self.channels:
            allowed = " or ".join(str(number) for number in self.channels)
            raise ValueError(f"{type(self).__name__} takes images of {allowed} channels, these have {channels}")

    def refuse_warp(self, fill: tuple[float, ...] | None, plan: Plan) -> None:
        """Refuses images that cannot be warped with this fill.

        Raises:
            ValueError: if it has another number of channels, is no level of uint8 images, or is outside of [0, 1] for
                floats; or if the images have more pixels than a warp can count.
        """
        channels = plan.source[0]
        if (plan.height + 2) * (plan.width + 2) > _MOST_PIXELS:
            raise ValueError(
                f"images of {plan.height} x {plan.width} are too large for {type(self).__name__}: crop before"
            )
        if fill is not None and len(fill) not in (1, channels):
            raise ValueError(f"fill has {counted(len(fill), 'number')} and the images {counted(channels, 'channel')}")
        if fill is not None and plan.peak > 1:
            refuse_levels("fill", fill)
        elif fill is not None and not all(0 <= one <= 1 for one in fill):
            got = ", ".join(f"{one:g}" for one in fill)
            raise ValueError(f"fill is {got} and the images are floats from 0 to 1: give a fill from 0 to 1")

    def refuse_fields(self, *, boxes: bool, masks: bool) -> None:
        """Raises a ValueError if batches have boxes or masks and the step would leave them behind."""
