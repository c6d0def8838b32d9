"""Flips of one image in place, compiled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmload.render.cpu_kernels import FLIPPED_X, FLIPPED_Y
from mmload.runtime.numba_compile import called

Bytes = npt.NDArray[np.uint8]

_U = np.uintp


@called
def mirror(image: Bytes) -> None:
    """By way of a copy of each line: a loop in which two pixels change places is not vectorized."""
    channels, height, width = image.shape
    line, last = np.empty(width, np.uint8), _U(width - 1)
    for c in range(_U(channels)):
        for y in range(_U(height)):
            for x in range(_U(width)):
                line[x] = image[c, y, x]
            for x in range(_U(width)):
                image[c, y, x] = line[last - x]


@called
def upside_down(image: Bytes) -> None:
    """By way of a copy of each line, too."""
    channels, height, width = image.shape
    line, last = np.empty(width, np.uint8), _U(height - 1)
    for c in range(_U(channels)):
        for y in range(_U(height // 2)):
            for x in range(_U(width)):
                line[x] = image[c, y, x]
            for x in range(_U(width)):
                image[c, y, x] = image[c, last - y, x]
            for x in range(_U(width)):
                image[c, last - y, x] = line[x]


@called
def flip(image: Bytes, flips: int) -> None:
    """Both, as the bits ``FLIPPED_X`` and ``FLIPPED_Y`` say."""
    if flips & FLIPPED_X:
        mirror(image)
    if flips & FLIPPED_Y:
        upside_down(image)
