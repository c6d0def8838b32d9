"""Label files of YOLO: what their numbers stand for by ``data.yaml``, and the objects in their lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.errors import SourceError
from mmload.records import ObjectsRecord, mirrored_names
from mmload.sources.file_kinds import describe_content
from mmload.sources.list_rows import MAX_CLASSES
from mmload.sources.objects import MAX_KEYPOINTS, ImageObjects, no_polygons

TASKS = ("detection", "instances", "keypoints", "rotated")
MOST_LABEL_BYTES = 2**25
"""Bytes of a label file."""
_MOST_NUMBERS = 1_000_000  # of a label file


@dataclass(frozen=True, kw_only=True)
class YoloMeaning:
    """What the numbers in label files stand for.

    Attributes:
        task: one of :data:`TASKS`.
        classes: class names by index.
        objects: names of keypoints and their flip.
        numbers: numbers of a keypoint: 2, or 3 with its visibility.
    """

    task: str
    classes: tuple[str, ...]
    objects: ObjectsRecord = field(default_factory=ObjectsRecord)
    numbers: int = 3


def checked_lines(text: bytes, meaning: YoloMeaning) -> dict[int, list[float]]:
    """Returns the numbers in each line of a label file that is not empty, by its number.

    Raises:
        ValueError: naming the line, if it is wrong, or the file has too many numbers or is something else.
    """
    if what := describe_content(text):
        raise ValueError(f"it is {what}")
    lines: dict[int, list[float]] = {}
    total = 0
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        total += len(words)
        try:
            if total > _MOST_NUMBERS:
                raise ValueError(f"the file has more than {_MOST_NUMBERS:,} numbers")
            if words:
                lines[number] = _checked(list(map(float, words)), meaning)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    return lines


def _checked(numbers: list[float], meaning: YoloMeaning) -> list[float]:
    """Checks the numbers of a line; raises ValueError."""
    label, points, task = numbers[0], len(meaning.objects.keypoints), meaning.task
    if label not in range(len(meaning.classes)):
        raise ValueError(f"class {label:g} does not exist; data.yaml has {len(meaning.classes)}")
    expected = {"detection": 5, "instances": 7, "keypoints": 5 + points * meaning.numbers, "rotated": 9}[task]
    is_polygon = task in ("detection", "instances") and len(numbers) >= 7 and len(numbers) % 2 == 1
    if not is_polygon and len(numbers) != expected:
        if task == "instances":
            raise ValueError(f"it has {(len(numbers) - 1) / 2:g} points, a polygon has at least 3")
        if task == "keypoints":
            raise ValueError(f"it has {(len(numbers) - 5) / meaning.numbers:g} keypoints, data.yaml has {points}")
        raise ValueError(f"it has {len(numbers)} numbers, expected {expected} for {task}; set task for other labels")
    shares = numbers[1:]
    if task == "keypoints" and meaning.numbers == 3:
        if any(flag not in (0, 1, 2) for flag in numbers[7::3]):
            raise ValueError("a keypoint has another visibility than 0, 1 and 2")
        del shares[6::3]
    if not all(-1 <= number <= 2 for number in shares):  # such as pixels
        raise ValueError("a number is no share of the image's width or height")
    return numbers


def objects_of_lines(lines: Sequence[Sequence[float]], size: tuple[int, int], meaning: YoloMeaning) -> ImageObjects:
    """Returns the objects of checked lines, in pixels."""
    scale, task = np.array([size[1], size[0]], np.float64), meaning.task
    labels = np.array([int(line[0]) for line in lines], np.int64)
    if task == "rotated":
        corners = np.array([line[1:] for line in lines], np.float64).reshape(-1, 4, 2) * scale
        boxes = np.concatenate([corners.min(1), corners.max(1)], 1)
        return ImageObjects(boxes=boxes, per_box={"labels": labels, "corners": corners.astype(np.float32)})
    points = [np.array(line[1:], np.float64) for line in lines]
    boxes = np.array([_box(each, task) for each in points], np.float64).reshape(-1, 4) * np.tile(scale, 2)
    per_box: dict[str, npt.NDArray[Any]] = {"labels": labels}
    if task == "keypoints":
        per_box["keypoints"] = _keypoints([each[4:] for each in points], scale, meaning)
    if task != "instances":
        return ImageObjects(boxes=boxes, per_box=per_box)
    polygons = [(each.reshape(-1, 2) * scale).astype(np.float32) for each in points]
    segments = no_polygons()
    if polygons:
        rings = np.array([(number, len(each)) for number, each in enumerate(polygons)], np.int32)
        segments = {"rings": rings, "polygons": np.concatenate(polygons)}
    return ImageObjects(boxes=boxes, per_box=per_box, segments=segments)


def _box(numbers: npt.NDArray[np.float64], task: str) -> list[float]:
    """Returns a box or the box around a polygon as shares of the image: x0, y0, x1, y1."""
    if task == "keypoints" or len(numbers) == 4:
        x, y, width, height = numbers[:4].tolist()
        return [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
    polygon = numbers.reshape(-1, 2)
    return [*polygon.min(0).tolist(), *polygon.max(0).tolist()]


def _keypoints(
    points: Sequence[npt.NDArray[np.float64]], scale: npt.NDArray[np.float64], meaning: YoloMeaning
) -> npt.NDArray[np.float32]:
    """Returns keypoints float32 [n, K, 3] in pixels; those that are not labeled are 0, 0, 0."""
    found = np.array(points, np.float64).reshape(len(points), len(meaning.objects.keypoints), meaning.numbers)
    shown = found[..., 2:] if meaning.numbers == 3 else 2.0 * (found != 0).any(2, keepdims=True)
    return np.concatenate([found[..., :2] * scale * (shown > 0), shown], 2).astype(np.float32)


def meaning_of(path: Path, body: Mapping[str, Any], task: str | None) -> YoloMeaning:
    """Returns what labels stand for by a description.

    Raises:
        SourceError: if it contradicts itself.
    """
    names = body.get("names")
    if isinstance(names, list):
        names = dict(enumerate(names))
    try:
        table = {int(number): str(name) for number, name in names.items()} if names else {}
        count = max([int(body.get("nc") or 0), *(number + 1 for number in table)], default=0)
        shape = [int(number) for number in body.get("kpt_shape") or ()]
        flip = tuple(int(number) for number in body.get("flip_idx") or ())
    except (ValueError, TypeError, AttributeError) as error:
        raise SourceError(f"{path}: names, nc, kpt_shape or flip_idx are malformed ({error})") from error
    if not count:
        raise SourceError(f"{path} has no names of classes; write names: [cat, dog]")
    if count > MAX_CLASSES:
        raise SourceError(f"{path} has {count:,} classes, at most {MAX_CLASSES:,} are read; correct nc or names")
    classes = tuple(table.get(number, str(number)) for number in range(count))
    chosen = task or ("keypoints" if shape else "detection")
    if shape and chosen != "keypoints":
        raise SourceError(f"{path} has kpt_shape, so its lines are boxes and keypoints, not {chosen}; leave task out")
    if chosen != "keypoints":
        return YoloMeaning(task=chosen, classes=classes)
    if len(shape) != 2 or shape[0] < 1 or shape[1] not in (2, 3):
        raise SourceError(f"{path}: kpt_shape is {shape}; write [number of keypoints, 2 or 3]")
    if shape[0] > MAX_KEYPOINTS:
        raise SourceError(f"{path}: kpt_shape has {shape[0]:,} keypoints, at most {MAX_KEYPOINTS} are read")
    named = body.get("kpt_names")
    points = next(iter(named.values())) if isinstance(named, dict) and named else named
    keypoints = tuple(map(str, points)) if isinstance(points, list) and len(points) == shape[0] else ()
    flip = flip or (mirrored_names(keypoints) if keypoints else ())
    try:
        record = ObjectsRecord(keypoints=keypoints or tuple(map(str, range(shape[0]))), flip=flip)
    except ValueError as error:
        raise SourceError(f"{path}: flip_idx: {error}") from error
    return YoloMeaning(task=chosen, classes=classes, objects=record, numbers=shape[1])
