"""What annotations say of an image as fields of a row: boxes with all that belongs to them as lists, masks of classes.

A mask of classes is a picture whose pixels are the numbers of classes, in a file of its own for each image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mmload.errors import naming
from mmload.pictures.instance_masks import of_boxes
from mmload.records import CLIPPED, OTHER_SIZE, SWAPPED_SIZE, VOID, ObjectsRecord
from mmload.sources.decode import class_numbers, read_with_pillow
from mmload.sources.files import SampleFiles
from mmload.sources.listed_split import Beside

if TYPE_CHECKING:
    from torch import Tensor


Array = npt.NDArray[Any]
Size = tuple[int, int]

MAX_KEYPOINTS = 256
"""Keypoints of an object: the table of a flip has a byte for each."""

EDGE = 1.0
"""Pixels by which a box may reach over the edge of its image without being an error, as tools round: it is cut."""


_POINTS_AWAY = "labeled keypoints lie outside of the image"
"""Loss of a sample, and the text of its note."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageObjects:
    """Objects of one image.

    Attributes:
        boxes: float64 [n, 4], xyxy in pixels.
        names: how messages name each.
        per_box: further fields of :data:`~mmload.records.PER_BOX` by name, [n, ...].
        segments: fields of :data:`~mmload.records.SEGMENTS` by name.
        listed: (height, width) of the image that they were drawn on; None: unknown.
    """

    boxes: Array
    names: Sequence[str]
    per_box: Mapping[str, Array]
    segments: Mapping[str, Array] = field(default_factory=dict)
    listed: Size | None = None


def fields_of_objects(objects: ImageObjects, size: Size, clip: bool, edge: float | Array = EDGE) -> Beside:
    """Returns the fields of an image's objects: boxes float32 [n, 4], what belongs to them, and ``counts``.

    With ``clip``, boxes that leave the image are cut, and those of no area left out; else the image is rejected if one
    leaves it by more than ``edge`` pixels, of all sides or each.

    Raises:
        ValueError: if a box has no area, or leaves the image; names the object.
    """
    import torch

    height, width = size
    boxes = objects.boxes.reshape(-1, 4)
    inside = np.clip(boxes, 0, [width, height, width, height])
    has_area = (inside[:, 2] > inside[:, 0]) & (inside[:, 3] > inside[:, 1])
    outside = (np.abs(inside - boxes) > edge).any(1)
    wrong = np.flatnonzero(~has_area | outside | ~np.isfinite(boxes).all(1))
    if len(wrong) and not clip:
        first = int(wrong[0])
        sides = ", ".join(map("{:g}".format, boxes[first]))
        raise ValueError(
            f"{objects.names[first]}: the box {sides} {'leaves' if outside[first] else 'has no area in'} the {width} x "
            f"{height} image; clip_boxes cuts such boxes, and leaves out those of no area"
        )
    arrays = {"boxes": inside[has_area].astype(np.float32)}
    arrays |= {name: values[has_area] for name, values in objects.per_box.items()}
    arrays |= of_boxes(objects.segments, has_area)
    fields = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}
    lists = frozenset(fields)
    fields["counts"] = torch.tensor(int(has_area.sum()), device="cpu")
    points = objects.per_box.get("keypoints", np.zeros((0, 3)))[..., :2]  # those that are not labeled are at 0, 0
    losses = {
        CLIPPED: int((outside | ~has_area).sum()) if clip else 0,
        _POINTS_AWAY: int((np.abs(points.clip(0, [width, height]) - points) > EDGE).any(-1).sum()),
        SWAPPED_SIZE if objects.listed == (width, height) else OTHER_SIZE: int(objects.listed not in (None, size)),
    }
    return Beside(fields, {name: count for name, count in losses.items() if count}, lists)


def polygon_fields(polygons: Sequence[tuple[int, Array]]) -> dict[str, Array]:
    """Returns the fields of polygons, of each of which the index of its box and its points [n, 2] are given."""
    values = np.concatenate([np.empty((0, 2)), *(points for _, points in polygons)])
    return {"rings": _counted(polygons), "polygons": values}


def run_fields(masks: Sequence[tuple[int, Array]]) -> dict[str, Array]:
    """Returns the fields of run lengths, of each of which the index of its box and its runs int32 [n] are given."""
    values = np.concatenate([np.empty(0, np.int32), *(runs for _, runs in masks)])
    return {"run_boxes": _counted(masks), "runs": values}


def _counted(parts: Sequence[tuple[int, Array]]) -> Array:
    return np.array([(box, len(values)) for box, values in parts], np.int32).reshape(-1, 2)


def flip_field(objects: ObjectsRecord) -> dict[str, Tensor]:
    """Returns ``keypoint_flips`` uint8 [K], for each keypoint the one that it becomes where an image is mirrored.

    A number per row, which takes a byte per keypoint, goes with the row into any batch. Without such a table there is
    no field.
    """
    import torch

    return {"keypoint_flips": torch.tensor(objects.flip, dtype=torch.uint8, device="cpu")} if objects.flip else {}


def notes_on_flip(objects: ObjectsRecord) -> tuple[str, ...]:
    """Returns a note if there are several keypoints, of which a flip exchanges none."""
    count = len(objects.keypoints)
    if count < 2 or objects.flip not in ((), tuple(range(count))):
        return ()
    return (
        f"flips of images will exchange none of the {count} keypoints: name them left_... and right_..., or (yolo) say "
        "in flip_idx of data.yaml which ones change places",
    )


def read_mask(files: SampleFiles, name: str) -> Tensor:
    """Reads a class mask as uint8 [H, W]: the indices of a palette, gray levels, or the numbers of VOC's colors.

    Raises:
        SampleError: if the file cannot be read.
        ValueError: if it is broken, or of another kind.
    """
    import torch

    data = files.read(name)
    with naming(f"its mask {name} cannot be read: "):
        return torch.from_numpy(read_with_pillow(data, class_numbers))


def read_mask_of(files: SampleFiles, name: str, size: tuple[int, int], classes: int, advice: str) -> Tensor:
    """Reads the mask of an image of (height, width) ``size``, whose values are those of so many classes, or void.

    Raises:
        SampleError: if the file cannot be read.
        ValueError: if it is wrong; ``advice`` says what to do if it is a value.
    """
    mask = read_mask(files, name)
    if mask.shape != size:
        raise ValueError(f"its mask is {mask.shape[1]} x {mask.shape[0]}, the image {size[1]} x {size[0]}")
    if len(odd := mask[(mask >= classes) & (mask != VOID)]):
        raise ValueError(
            f"its mask has the value {int(odd[0])}; classes are 0 to {classes - 1}, and 255 is void; {advice}"
        )
    return mask
