"""RandomErasing (cutout), named and set as in ``torchvision.transforms.v2``."""

from __future__ import annotations

from collections.abc import Sequence

from mmload.augment.arguments import argument_error, chance, per_channel, ratios, shares
from mmload.augment.resize import drawn_windows
from mmload.augment.step import Draws, Step
from mmload.errors import counted
from mmload.render.plan import Hole, Plan


class RandomErasing(Step):
    """Overwrites a random rectangle with probability ``p``, drawn per sample.

    After Normalize, ``value`` is in normalized units. A step after RandomErasing starts another pass over the pixels.
    Boxes and masks do not change.

    Args:
        p: probability that a rectangle is erased.
        scale: least and greatest share of the image's area.
        ratio: least and greatest height / width; drawn uniformly in its logarithm.
        value: one number, one per channel, or ``"random"``: standard normal noise for each pixel.

    Raises:
        ValueError: if an argument is out of range, or (when run) there is not one value per channel.
    """

    takes_sizes = False

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] | str = 0.0,
    ) -> None:
        super().__init__()
        self.p = chance(p)
        self.scale = shares(scale)
        if self.scale[1] > 1:
            raise argument_error("scale", scale, "shares of the area, at most 1")
        self.ratio = ratios(ratio)
        self.value = _value(value)

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Draws one rectangle per sample: the first of ten that is smaller than the image, else none."""
        channels = plan.source[0]
        values = None if isinstance(self.value, str) else self.value
        if values is not None and len(values) not in (1, channels):
            raise ValueError(
                f"value has {counted(len(values), 'number')} and the images {counted(channels, 'channel')}"
            )
        applied = draws.chance(self.p)
        frame = plan.height, plan.width
        top, left, rows, cols = drawn_windows(draws, frame, self.scale, self.ratio, (0, 0), are_holes=True)
        noise = draws.bits(1)[:, 0] if values is None else 0
        hole = Hole(top=top, left=left, height=rows * applied, width=cols * applied, value=values, noise=noise)
        return plan.with_hole(hole)


def _value(value: float | Sequence[float] | str) -> tuple[float, ...] | str:
    """Checks one number, one per channel, or "random", and returns it."""
    if not isinstance(value, str):
        return per_channel("value", value)
    if value != "random":
        raise argument_error("value", value, "a number, one per channel, or 'random'")
    return value
