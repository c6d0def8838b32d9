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
_NO_BYTES, _NO_FLOATS, _NO_WORDS = np.empty(0, np.uint8), np.empty(0, np.float32), np.empty(0, np.uint32)
_NO_ADDRESSES = np.zeros(0, np.uintp)


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

    @classmethod
    def none(cls, count: int, channels: int) -> Operations:
        """Those of as many samples whose levels do not change."""
        nothing = np.zeros((count, 0), np.int64), np.zeros((count, 0, MOST_NUMBERS), np.float32)
        return cls(*nothing, np.zeros((0, channels), np.int64))

    def arguments(self, samples: slice, levels: Tensor, origin: int, out: Pixels | None) -> tuple[Any, ...]:
        """Those that :func:`mmload.render.changed_crops.render_changed` takes after the output.

        Args:
            samples: which.
            levels: uint8 [n, C, h, w]: memory for one sample, or without an output for all of them.
            origin: :data:`~mmload.render.cpu_kernels.IN_PLACE`, ``INSIDE`` or ``ANYWHERE``.
            out: the output; None: levels are not colored.
        """
        program = self.codes[samples], self.numbers[samples], self.fills
        if not self.codes.shape[1]:
            return *program, _NO_BYTES, _NO_FLOATS, _NO_WORDS, levels.numpy(), origin, _NO_ADDRESSES
        from mmload.render.changed_crops import addresses_for  # compiled only by those who have such steps

        _, channels, height, width = levels.shape
        size, framed = channels * height * width, (height + 2) * (width + 2)
        spare, floats = scratch("spare", (size,), torch.uint8), scratch("floats", (size,), torch.float32)
        packed = scratch("packed", (framed,), torch.int32).numpy().view(np.uint32)
        work = spare.numpy(), floats.numpy(), packed
        return *program, *work, levels.numpy(), origin, addresses_for(out)

    def render(self, samples: slice, cropped: tuple[Any, ...], out: Pixels | None, levels: Tensor, origin: int) -> None:
        """Cuts some samples out, changes their levels and, where there is an output, colors them.

        Args:
            samples: which.
            cropped: the arguments of a crop but the output; of flips [b], those that are still to be done stay set.
            out: [b, C, h, w], or [b, h, w * C] of channels_last; None: levels are not colored.
            levels: as for :meth:`arguments`.
            origin: see there.
        """
        from mmload.render.changed_crops import render_into

        target = _NO_OUTPUT if out is None else out
        render_into(target)(*cropped, target, *self.arguments(samples, levels, origin, out))
