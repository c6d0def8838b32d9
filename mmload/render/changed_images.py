"""Changes the levels of variable-size images before their windows are cut out and resized, compiled.

Each image is copied into memory of the thread, and its operations run there: levels that are changed after a resize are
others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmload.render.kernel_arguments import (
    NEEDED,
    PIXELS,
    PLACE,
    PLANES,
    RUN,
    WINDOW,
    Bytes,
    ImageLines,
    Numbers,
    Operations,
    Places,
    Records,
    steps_of,
)
from mmload.render.plan import Program
from mmload.runtime.host_memory import copied, scratch
from mmload.runtime.intrinsics import Arena, reshaped
from mmload.runtime.kernels import ARENA, USED, CallBy, RecordArray, called, numba_compiled, void

_run = CallBy(RUN)


def complete_images(sizes: Numbers) -> Places:
    """Returns all lines of images of these heights and widths, int64 [B, 2]: :data:`NEEDED` [B]."""
    needed = np.empty(len(sizes), NEEDED)
    needed["first"], needed["stop"], needed["shrink"] = 0, sizes[:, 0], 1
    return needed


def changed_images(program: Program, first: int, lines: ImageLines, channels: int) -> ImageLines:
    """Runs the operations of samples from ``first`` on on copies of their images, all lines of which are there.

    Returns:
        The copies, in memory of the thread: valid until the next call.

    Raises:
        ValueError: if lines of an image are missing, or it is smaller than it was.
    """
    from mmload.render.level_kernels import run_operations

    places, samples = lines.places, slice(first, first + len(lines.places))
    if ((places["count"] != places["height"]) | (places["shrink"] != 1)).any():
        raise ValueError("levels change before windows, and lines of an image are missing")
    sizes = places["height"] * places["width"] * channels
    made = copied(places)
    made["start"], made["layout"] = np.cumsum(sizes) - sizes, PLANES
    levels = scratch("first_levels", (int(sizes.sum()),))
    operations = program.for_kernels(channels)
    own = operations._replace(codes=operations.codes[samples], numbers=operations.numbers[samples])
    window, address = np.zeros(1, WINDOW), run_operations.address
    _change(lines.memory, lines.decoded, places, made, own, window, address, channels, levels)
    return ImageLines(levels, made)


@called
def _copy(memory: Bytes, place: Any, image: Bytes) -> None:
    """Copies an image in one of the layouts to planes [C, H, W]."""
    channels, height, width = image.shape
    of_channel, of_line, of_pixel = steps_of(place.layout, height, width, channels)
    for c in range(channels):
        for y in range(height):
            line = place.start + c * of_channel + y * of_line
            for x in range(width):
                image[c, y, x] = memory[line + x * of_pixel]


@numba_compiled(
    void(
        "uint8[::1]", "uint8[::1]", RecordArray(PLACE), RecordArray(PLACE), RUN.arguments[2], RecordArray(WINDOW),
        "uintp", "int64", "uint8[::1]", ARENA,
    )
)  # fmt: skip
def _change(
    memory: Bytes, decoded: Bytes, places: Places, made: Places, operations: Operations, window: Records,
    address: int, channels: int, levels: Bytes, arena: Arena,
) -> None:  # fmt: skip
    """Copies images to new places and runs their operations there, by the address of ``run_operations``."""
    begun = arena[USED]
    for k in range(len(places)):
        arena[USED] = begun
        start, height, width = made[k].start, made[k].height, made[k].width
        pixels = levels[start : start + channels * height * width]
        image = reshaped(pixels, (1, channels, height, width))
        _copy(decoded if places[k].layout == PIXELS else memory, places[k], image[0])
        own = Operations(operations.codes[k : k + 1], operations.numbers[k : k + 1], operations.fills)
        _run(address, (image, window, own, arena))
