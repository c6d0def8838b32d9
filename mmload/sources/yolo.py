"""Detection in YOLO's layout: ``data.yaml``, folders of images, and a text file of labels beside each image's folder.

Label files are read with their images. Their lines are of a class and of numbers from 0 to 1, shares of width and
height: a box, a polygon, a box and keypoints, or the corners of a rotated box.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.errors import RecipeError, SampleError, SourceError, choices, counted
from mmload.records import ObjectsRecord, Sample
from mmload.sources.decode import Decoder
from mmload.sources.files import (
    EXTENSIONS,
    Links,
    checksum_of,
    inner_name,
    read_bytes,
    read_image_and_jpeg,
    reading,
    walk,
)
from mmload.sources.listing import Listing, notes_on_doubles
from mmload.sources.objects import (
    ImageObjects,
    ObjectError,
    empty_segments,
    fields_of_objects,
    flip_field,
    mirrored_names,
)
from mmload.sources.yaml_subset import read_yaml

TASKS = ("detection", "instances", "keypoints", "rotated")
_SPLITS = ("train", "val", "test")
_MOST_NUMBERS = 1_000_000  # of a label file
_SLACK = 1e-3  # by which a share may be over 1, as tools round


class YoloItem(NamedTuple):
    """One image: its path and that of its labels, relative to the root, and their revisions."""

    file: str
    labels: str
    revision: str
    label_revision: str


@dataclass
class YoloSource:
    """Images and labels as YOLO's trainers take them.

    Attributes:
        root: the folder with ``data.yaml``, or that file.
        decoder: decodes images to pixels.
        task: "detection" (boxes, also of polygons), "instances" (boxes and polygons), "keypoints" (boxes and
            keypoints) or "rotated" (corners of rotated boxes, and the boxes around them); None: "keypoints" if
            ``data.yaml`` has ``kpt_shape``, else "detection".
        file: the description, relative to the root.
        clip_boxes: cut boxes that reach over the edge, and leave out those of no area, instead of refusing the image.
        allow_outside: follow paths and links that lead out of the root.

    Raises:
        RecipeError: if an option is invalid.
    """

    root: str | Path
    decoder: Decoder
    _: KW_ONLY
    task: str | None = None
    file: str = "data.yaml"
    clip_boxes: bool = False
    allow_outside: bool = False

    def __post_init__(self) -> None:
        if self.task not in (None, *TASKS):
            raise RecipeError(f"task is {self.task!r}; use one of {choices(TASKS)}")
        if not isinstance(self.file, str) or (inner_name(self.file) is None and not self.allow_outside):
            raise RecipeError(f"file is {self.file!r}; write the path of the description in the root")
        if self.decoder.exif_orient:
            raise RecipeError("exif_orient rotates the image but not its boxes; leave it out for YOLO")
        chosen = Path(self.root)
        self._root, self._path = (chosen, chosen / self.file) if chosen.is_dir() else (chosen.parent, chosen)
        self._links = Links(self._root, self.allow_outside)

    def splits(self) -> Mapping[str, YoloSplit]:
        """Returns the splits train, val and test, as far as the description has them.

        Raises:
            SourceError: if the description or a folder is missing or wrong, or a link leads out of the root.
        """
        with reading(self._root):
            if not self._path.is_file():
                raise SourceError(f"no such file: {self._path}; give the folder with data.yaml")
            self._links.check(self._path)
            body = read_yaml(self._path)
            meaning = _meaning(self._path, body, self.task)
            splits = {name: self._split(body, name, meaning) for name in _SPLITS if body.get(name)}
            if not splits:
                raise SourceError(f"{self._path} names no images; write train: images/train")
            doubles = notes_on_doubles({name: map(each.id, range(len(each))) for name, each in splits.items()}, "image")
            for name, split in splits.items():
                split.add_notes(doubles[name])
            return splits

    def _split(self, body: Mapping[str, Any], name: str, meaning: _Meaning) -> YoloSplit:
        paths = body[name] if isinstance(body[name], list) else [body[name]]
        files = (file for path in paths for file in self._images(self._place(str(path), body.get("path"))))
        items = Listing(YoloItem, map(self._item, files))
        if not items:
            raise SourceError(f"{self._path}: {name} has no images in {', '.join(map(str, paths))}")
        unlabeled = sum(item.label_revision == "missing" for item in items)
        notes: tuple[str, ...] = ()
        if unlabeled:
            notes += (f"{counted(unlabeled, 'image')} without a label file: no objects",)
        if meaning.task == "keypoints" and not meaning.objects.flip:
            notes += ("data.yaml has no flip_idx: flips of images will not exchange left and right keypoints",)
        return YoloSplit(self._root, self.decoder, self.clip_boxes, meaning, items, notes)

    def _place(self, path: str, base: Any) -> Path:
        """Returns the folder or list of images that a path of the description means."""
        bases = [self._root / base] if isinstance(base, str) and (inner_name(base) or self.allow_outside) else []
        for folder in (*bases, self._root):
            for name in (path, path.removeprefix("../")):  # Roboflow's are relative to the folder of the images
                found = folder / name
                if found.exists() and (self.allow_outside or _is_below(found, self._root)):
                    return found
        raise SourceError(
            f"{self._path} names {path}, which does not exist in {self._root}; correct it, or set allow_outside if it "
            "is elsewhere"
        )

    def _images(self, place: Path) -> Iterator[str]:
        """Yields the images of a folder, sorted, or of a list of files, relative to the root."""
        self._links.check(place)
        if place.is_dir():
            found = [
                os.path.relpath(os.path.join(folder, name), self._root)
                for folder, names in walk(str(place), (), self._links)
                for name in names
                if name.lower().endswith(EXTENSIONS)
            ]
            yield from (Path(name).as_posix() for name in sorted(found))
            return
        for number, line in enumerate(place.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip():
                continue
            name = posixpath.normpath(posixpath.join(place.parent.relative_to(self._root).as_posix(), line.strip()))
            if inner_name(name) is None and not self.allow_outside:
                raise SourceError(f"{place}, line {number}: {line.strip()!r:.80} leaves the root")
            yield name

    def _item(self, file: str) -> YoloItem:
        path = self._root / file
        self._links.check_folder(path.parent)
        labels = _labels_of(file)
        self._links.check_folder((self._root / labels).parent)
        return YoloItem(file, labels, self._links.revision(path), self._links.revision(self._root / labels))


@dataclass(frozen=True, kw_only=True)
class _Meaning:
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


class YoloSplit:
    """One split.

    Args:
        root: the source's folder.
        decoder: decodes images to pixels.
        clip_boxes: whether boxes that reach over the edge are cut.
        meaning: what labels stand for.
        items: the images in order.
        notes: notes on what is missing.
    """

    def __init__(
        self,
        root: Path,
        decoder: Decoder,
        clip_boxes: bool,
        meaning: _Meaning,
        items: Listing[YoloItem],
        notes: tuple[str, ...],
    ) -> None:
        self.root, self.decoder, self._clip, self._meaning = root, decoder, clip_boxes, meaning
        self.items, self._notes = items, notes

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by index."""
        return self._meaning.classes

    def objects(self) -> ObjectsRecord:
        """Returns the names of keypoints and their flip."""
        return self._meaning.objects

    def part(self, samples: Sequence[int]) -> YoloSplit:
        return YoloSplit(self.root, self.decoder, self._clip, self._meaning, self.items.only(samples), self._notes)

    def __len__(self) -> int:
        return len(self.items)

    def notes(self) -> tuple[str, ...]:
        """Returns how many images have no label file."""
        return self._notes

    def add_notes(self, notes: tuple[str, ...]) -> None:
        """Adds notes for the summary of a build."""
        self._notes += notes

    def id(self, index: int) -> str:
        """Returns the image's path relative to the root."""
        return self.items[index].file

    def revision(self, index: int) -> str:
        """Returns sizes and times of the image and its labels."""
        item = self.items[index]
        return f"{item.revision} {item.label_revision}"

    def checksum(self, index: int) -> str:
        item = self.items[index]
        labels = [] if item.label_revision == "missing" else [item.labels]
        return checksum_of(self.root, [item.file, *labels], item.file)

    def read(self, index: int) -> Sample:
        """Reads the image as ``images`` uint8 [C, H, W], and its objects as lists.

        Raises:
            SampleError: if the image is missing or broken, or a line of its labels is wrong.
        """
        item = self.items[index]
        if item.revision == "missing":
            raise SampleError(item.file, f"no such file: {self.root / item.file}")
        pixels, jpeg = read_image_and_jpeg(self.root, item.file, self.decoder, item.file)
        size = (pixels.shape[1], pixels.shape[2])
        lines = {} if item.label_revision == "missing" else self._lines(item)
        try:
            found = fields_of_objects(_objects(list(lines.values()), size, self._meaning), size, self._clip)
        except ObjectError as error:
            where = f"{item.labels}, line {list(lines)[error.index]}"
            raise SampleError(item.file, f"{where}: {error.reason}") from error
        fields = {"images": pixels, **found.fields, **flip_field(self._meaning.objects)}
        return Sample(item.file, fields, size, found.losses, encoded=jpeg, lists=found.lists)

    def _lines(self, item: YoloItem) -> dict[int, list[float]]:
        """Returns the numbers in each line of a label file that is not empty, by its number."""
        text = read_bytes(self.root, item.labels, item.file)
        lines: dict[int, list[float]] = {}
        for number, line in enumerate(text.splitlines(), 1):
            try:
                numbers = [float(word) for word in line.split()]
                if numbers:
                    lines[number] = self._checked(numbers)
            except ValueError as error:
                raise SampleError(item.file, f"{item.labels}, line {number}: {error}") from error
        return lines

    def _checked(self, numbers: list[float]) -> list[float]:
        """Checks the numbers of a line; raises ValueError."""
        label, points, task = numbers[0], len(self._meaning.objects.keypoints), self._meaning.task
        if label not in range(len(self._meaning.classes)):
            raise ValueError(f"class {label:g} does not exist; data.yaml has {len(self._meaning.classes)}")
        expected = {"detection": 5, "instances": 7, "keypoints": 5 + points * self._meaning.numbers, "rotated": 9}[task]
        is_polygon = task in ("detection", "instances") and len(numbers) >= 7 and len(numbers) % 2 == 1
        if not is_polygon and len(numbers) != expected:
            if task == "instances":
                raise ValueError(f"it has {(len(numbers) - 1) / 2:g} points, a polygon has at least 3")
            if task == "keypoints":
                raise ValueError(
                    f"it has {(len(numbers) - 5) / self._meaning.numbers:g} keypoints, data.yaml has {points}"
                )
            raise ValueError(
                f"it has {len(numbers)} numbers, expected {expected} for {task}; set task for other labels"
            )
        limits = numbers[1:] if task != "keypoints" else numbers[1:5]
        if not all(-1 <= number <= 2 for number in limits):  # such as pixels
            raise ValueError("a number is no share of the image's width or height")
        return numbers


def _objects(lines: Sequence[Sequence[float]], size: tuple[int, int], meaning: _Meaning) -> ImageObjects:
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
    segments = empty_segments(with_runs=False)
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
    points: Sequence[npt.NDArray[np.float64]], scale: npt.NDArray[np.float64], meaning: _Meaning
) -> npt.NDArray[np.float32]:
    """Returns keypoints float32 [n, K, 3] in pixels; those that are not labeled are 0, 0, 0."""
    found = np.array(points, np.float64).reshape(len(points), len(meaning.objects.keypoints), meaning.numbers)
    shown = found[..., 2:] if meaning.numbers == 3 else 2.0 * (found != 0).any(2, keepdims=True)
    return np.concatenate([found[..., :2] * scale * (shown > 0), shown], 2).astype(np.float32)


def _meaning(path: Path, body: Mapping[str, Any], task: str | None) -> _Meaning:
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
    classes = tuple(table.get(number, str(number)) for number in range(count))
    chosen = task or ("keypoints" if shape else "detection")
    if chosen != "keypoints":
        return _Meaning(task=chosen, classes=classes)
    if len(shape) != 2 or shape[0] < 1 or shape[1] not in (2, 3):
        raise SourceError(f"{path}: kpt_shape is {shape}; write [number of keypoints, 2 or 3]")
    named = body.get("kpt_names")
    points = next(iter(named.values())) if isinstance(named, dict) and named else named
    keypoints = tuple(map(str, points)) if isinstance(points, list) and len(points) == shape[0] else ()
    flip = flip or (mirrored_names(keypoints) if keypoints else ())
    try:
        record = ObjectsRecord(keypoints=keypoints or tuple(map(str, range(shape[0]))), flip=flip)
    except ValueError as error:
        raise SourceError(f"{path}: flip_idx: {error}") from error
    return _Meaning(task=chosen, classes=classes, objects=record, numbers=shape[1])


def _labels_of(file: str) -> str:
    """Returns the path of an image's label file: ``labels`` in place of the last folder ``images``."""
    folders = file.split("/")
    for place in range(len(folders) - 2, -1, -1):
        if folders[place] == "images":
            folders[place] = "labels"
            break
    return posixpath.splitext("/".join(folders))[0] + ".txt"


def _is_below(path: Path, root: Path) -> bool:
    """Returns whether a path lies in a folder by its name, links not followed."""
    return Path(os.path.abspath(path)).is_relative_to(os.path.abspath(root))
