"""Runs a program on the levels of some samples on a CPU: the numbers and the working memory that the kernels take."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmload.render.cpu_kernels import Floats, Numbers, Pixels
from mmload.render.level_program import MOST_NUMBERS, Program
from mmload.render.scratch_memory import scratch

_NO_OUTPUT = np.empty((0, 0, 0, 0), np.float32)


class Operations(NamedTuple):
    """A program as :func:`mmload.render.level_kernels.run` takes it."""

    codes: Numbers
    numbers: Floats
    fills: Numbers

    @classmethod
    def of_program(cls, program: Program, channels: int) -> Operations:
        """Those of all samples; a missing fill is -1."""
        fills = [
            (-1.0,) * channels if slot.fill is None else slot.fill * (channels // len(slot.fill))
            for slot in program.slots
        ]
        shape = len(program.codes), len(program.slots), MOST_NUMBERS
        numbers = np.ascontiguousarray(program.numbers.numpy()).reshape(shape)
        return cls(
            np.ascontiguousarray(program.codes.numpy()), numbers, np.array(fills, np.int64).reshape(-1, channels)
        )

    def render(self, samples: slice, cropped: tuple[Any, ...], out: Pixels | None, levels: Tensor, origin: int) -> None:
        """Cuts some samples out, changes their levels and, where there is an output, colors them.

        Args:
            samples: which.
            cropped: the arguments of a crop but the output; of flips [b], those that are still to be done stay set.
            out: [b, C, h, w], or [b, h, w * C] of channels_last; None: levels are not colored.
            levels: uint8 [n, C, h, w]: memory for one sample, or without an output for all of them.
            origin: :data:`~mmload.render.cpu_kernels.IN_PLACE`, ``INSIDE`` or ``ANYWHERE``.
        """
        from mmload.render import changed_crops as kernels  # compiled only by those who have such steps

        _, channels, height, width = levels.shape
        size, framed = channels * height * width, (height + 2) * (width + 2)
        spare, floats = scratch("spare", (size,), torch.uint8), scratch("floats", (size,), torch.float32)
        packed = scratch("packed", (framed,), torch.int32).numpy().view(np.uint32)
        program = self.codes[samples], self.numbers[samples], self.fills, spare.numpy(), floats.numpy(), packed
        target = _NO_OUTPUT if out is None else out
        where = levels.numpy(), origin, kernels.addresses_for(out)
        kernels.render_into(target)(*cropped, target, *program, *where)
