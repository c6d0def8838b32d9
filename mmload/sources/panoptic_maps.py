"""Masks of segments from COCO's panoptic maps: pictures whose colors are the numbers of the segments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from mmload.errors import SampleError
from mmload.pictures.instance_masks import runs_of_mask
from mmload.sources.decode import RefusedImage, read_with_pillow
from mmload.sources.files import read_bytes
from mmload.sources.objects import no_polygons

_FACTORS = np.array([1, 256, 65536])  # of red, green and blue in a number


def masks_of_segments(
    numbers: npt.NDArray[np.int64], listed: Sequence[int], left_out: Sequence[int]
) -> dict[str, npt.NDArray[Any]]:
    """Returns the masks of the listed segments of a map as fields of run lengths.

    ``left_out`` are numbers of segments that may be in the map, too.

    Raises:
        ValueError: if the map has other segments.
    """
    there = set(np.unique(numbers).tolist()) - {0, *left_out}
    if there != set(listed):
        odd = min(there ^ set(listed))
        raise ValueError(
            f"annotation {odd}: the segment "
            f"{'is in its map, but not in the file' if odd in there else 'has no pixel in its map'}"
        )
    runs = [runs_of_mask(numbers == number) for number in listed]
    owners = [(place, len(each)) for place, each in enumerate(runs)]
    return {
        **no_polygons(),
        "run_boxes": np.array(owners, np.int32).reshape(-1, 2),
        "runs": np.concatenate([np.empty(0, np.int32), *runs]),
    }


def read_map(root: Path, name: str, size: tuple[int, int], sample: str) -> npt.NDArray[np.int64]:
    """Reads the number of the segment of each pixel of an image of (height, width) ``size``: int64 [H, W].

    Without a name there is no map, and no pixel has a segment.

    Raises:
        SampleError: of ``sample``, if the map is missing or broken.
    """
    if not name:
        return np.zeros(size, np.int64)

    def numbers_of(image: Image.Image) -> npt.NDArray[np.int64]:
        if image.size != size[::-1]:
            raise RefusedImage("it has another size than the image")
        return np.asarray(np.asarray(image.convert("RGB")).astype(np.int64) @ _FACTORS)

    try:
        return read_with_pillow(read_bytes(root, name, sample), numbers_of, ("PNG",))
    except ValueError as error:
        raise SampleError(sample, f"its map of segments {name} is no such map: {error}") from error
