"""Changes the levels of variable-size images before their windows are cut out and resized, compiled.

Each image is copied into memory of the thread, and its operations run there: levels that are changed after a resize are
others.
"""

from __future__ import annotations

import numpy as np

from mmload.render.cpu_kernels import RenderingSteps
from mmload.render.kernel_arguments import (
    NEEDED,
    PIXELS,
    PLACE,
    PLANES,
    WINDOW,
    Bytes,
    ImageLines,
    Lines,
    Numbers,
    Places,
    steps_of,
)
from mmload.render.level_kernels import run_operations
from mmload.render.plan import Program
from mmload.runtime.host_memory import copied, scratch, zeros
from mmload.runtime.intrinsics import reshaped
from mmload.runtime.kernels import RecordArray, numba_compiled


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
    places, samples = lines.places, slice(first, first + len(lines.places))
    if ((places["count"] != places["height"]) | (places["shrink"] != 1)).any():
        raise ValueError("levels change before windows, and lines of an image are missing")
    sizes = places["height"] * places["width"] * channels
    made = copied(places)
    made["start"], made["layout"] = np.cumsum(sizes) - sizes, PLANES
    levels, steps = scratch("first_levels", (int(sizes.sum()),)), RenderingSteps()
    operations = program.for_kernels(channels).part(samples)
    steps.of_rows.append(_copy.prepare(lines.stored, made, channels, levels, steps.rows))
    windows = zeros(len(places), WINDOW)
    steps.of_samples.append(run_operations.prepare(levels, made, channels, windows, operations, steps.samples))
    steps.run(len(places))
    return ImageLines(levels, made)


@numba_compiled(Lines, RecordArray(PLACE), "int64, uint8[::1], int64[::1]")
def _copy(lines: Lines, made: Places, channels: int, levels: Bytes, rows: Numbers) -> None:
    """Copies images in one of the layouts to new places, as planes [C, H, W]."""
    for k in range(rows[0], rows[1]):
        place, start, height, width = lines.places[k], made[k].start, made[k].height, made[k].width
        memory = lines.decoded if place.layout == PIXELS else lines.memory
        image = reshaped(levels[start : start + channels * height * width], (channels, height, width))
        of_channel, of_line, of_pixel = steps_of(place.layout, height, width, channels)
        for c in range(channels):
            for y in range(height):
                line = place.start + c * of_channel + y * of_line
                for x in range(width):
                    image[c, y, x] = memory[line + x * of_pixel]
