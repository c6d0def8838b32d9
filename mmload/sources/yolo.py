"""Detection in YOLO's layout: ``data.yaml``, folders of images, and a text file of labels beside each image's folder.

Label files are read with their images. Their lines are of a class and of numbers from 0 to 1, shares of width and
height: a box, a polygon, a box and keypoints, or the corners of a rotated box.
"""

from __future__ import annotations

import glob
import io
import os
import posixpath
import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import yaml
from msgspec import Meta

from mmload.errors import SourceError, choices, naming, shown
from mmload.records import ObjectsRecord, mirrored_names
from mmload.sources import Findings, one_or_more
from mmload.sources.annotation_values import read_integer
from mmload.sources.decode import Decoder, check_content
from mmload.sources.files import MISSING, LocalTree, SampleFiles, images_among, read_text
from mmload.sources.list_rows import MAX_CLASSES
from mmload.sources.listed_split import Beside, Item, ListedSplit, Listing, note_doubles, size_of
from mmload.sources.objects import (
    MAX_KEYPOINTS,
    ImageObjects,
    fields_of_objects,
    flip_field,
    notes_on_flip,
    polygon_fields,
)

if TYPE_CHECKING:
    from mmload.records import FieldValue

_SPLITS = {"train": ("train",), "val": ("val", "validation", "valid"), "test": ("test",)}
"""Names of a split's images in a description; the first one that it has is read."""
_DOUBLES = "lines of labels are the same as an earlier one of their image, and are left out"
_LABELS = ("labels", "Labels", "LABELS")
_LAST_IMAGES = re.compile(r"(?ais)^((?:.*/)?)images(?=/|\Z)")
"""The last folder that is called images in a path, after the folders around it."""
_MOST_BYTES = 2**28  # of a list of images


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
    task: Annotated[Task | None, Meta(description=f"one of {choices(get_args(Task))}")] = None
    file: str = "data.yaml"
    clip_boxes: bool = False
    allow_outside: bool = False

    def __post_init__(self) -> None:
        chosen = Path(self.root)
        self._root, self._path = (chosen, chosen / self.file) if chosen.is_dir() else (chosen.parent, chosen)
        self._tree = LocalTree(self._root, self.allow_outside)
        self._labels: dict[str, list[str]] = {}  # folder of images -> folders that may have their labels

    def splits(self) -> Mapping[str, YoloSplit]:
        """Returns the splits train, val and test, as far as the description has them.

        Raises:
            SourceError: if the description or a folder is missing or wrong, or a link leads out of the root.
        """
        self._tree.check(self._path)
        body = read_description(self._path)
        meaning = meaning_of(self._path, body, self.task)
        keys = {name: next(filter(body.get, names), None) for name, names in _SPLITS.items()}
        splits = {name: self._split(body, key, meaning) for name, key in keys.items() if key}
        if not splits:
            raise SourceError(f"{self._path} names no images; write train: images/train")
        note_doubles(splits, self._tree.notes())
        return splits

    def _split(self, body: Mapping[str, Any], key: str, meaning: YoloMeaning) -> YoloSplit:
        base = self._existing(str(body.get("path", ".")), [self._root]) or self._root  # it may be of another computer
        findings = Findings()
        files = (file for path in one_or_more(body[key]) for file in self._images(str(path), base, findings))
        items = Listing(Item, self._items(files, meaning.numbers, findings))
        return YoloSplit(self, self._root, meaning, items, findings.notes() + notes_on_flip(meaning.objects))

    def _existing(self, path: str, folders: Sequence[Path]) -> Path | None:
        """Returns the first path that is written in a description and exists below one of the folders, in any case.

        Roboflow's paths are relative to the folder of the images; tools on Windows write backslashes.
        """
        names = (path, path.removeprefix("../"), path.replace("\\", "/"))
        found = filter(None, (_in_any_case(folder, name) for folder in folders for name in names))
        inside = os.path.abspath(self._root)  # by its name, links not followed
        return next(
            (each for each in found if self.allow_outside or Path(os.path.abspath(each)).is_relative_to(inside)), None
        )

    def _images(self, path: str, base: Path, findings: Findings) -> Iterator[str]:
        """Yields the images of a folder, sorted, or of a list of files, relative to the root.

        A list has absolute paths, and paths relative to its own folder or to the description's ``path``.
        """
        place = self._existing(path, [base, self._root])
        if place is None:
            raise SourceError(
                f"{self._path} names {shown(path)}, which does not exist in {self._root}; correct it, or set "
                "allow_outside if it is elsewhere"
            )
        self._tree.check(place)
        if place.is_dir():
            folder = Path(os.path.relpath(place, self._root)).as_posix()
            yield from images_among(sorted(self._tree.files("" if folder == "." else folder)), findings)
            return
        folders = [Path(os.path.relpath(folder, self._root)).as_posix() for folder in (place.parent, base)]
        inside = f"{Path(os.path.abspath(self._root)).as_posix()}/"  # of absolute paths
        text = io.StringIO(read_text(place, _MOST_BYTES), newline=None)  # splitlines() splits at U+2028, too
        for line in filter(None, map(str.strip, text)):
            names = [
                posixpath.normpath(posixpath.join(folder, written)).removeprefix(inside)
                for folder in folders
                for written in (line, line.replace("\\", "/"))
            ]
            yield next((each for each in names if os.path.lexists(self._root / each)), names[0])

    def _items(self, files: Iterable[str], numbers: int, findings: Findings) -> Iterator[Item]:
        """Yields the images with their labels; counts those without, with labels beside them, or of another image."""
        owners: dict[str, str] = {}
        for listed in files:
            folder, stem = posixpath.split(posixpath.splitext(listed)[0])
            file, revision = self._tree.find(listed)
            labels, of_labels = self._tree.find(
                *(posixpath.join(place, f"{stem}.txt") for place in self._label_folders(folder))
            )
            yield Item([file, labels][: 1 + (of_labels != MISSING)], f"{revision} {of_labels} {numbers}")
            if of_labels == MISSING:
                findings.add("images without a label file have no objects", file)
                continue
            if posixpath.dirname(labels) == posixpath.dirname(file):
                findings.add("images have their labels in a file beside them", file)
            if owners.setdefault(labels, file) != file:
                findings.add("images share their label file with another image", f"{owners[labels]} and {file}")

    def _label_folders(self, folder: str) -> list[str]:
        """Returns the folders that may have the labels of a folder of images: ``labels`` for ``images``, and itself."""
        if folder not in self._labels:
            names = [_LAST_IMAGES.sub(rf"\1{name}", folder) for name in _LABELS]
            places = [name for name in names if (self._root / name).is_dir()] or names[:1]
            self._labels[folder] = list(dict.fromkeys([*places, folder]))
        return self._labels[folder]


class YoloSplit(ListedSplit):
    """One split: images and the objects in their label files."""

    def __init__(
        self, source: YoloSource, root: Path, meaning: YoloMeaning, items: Listing[Item], notes: tuple[str, ...]
    ) -> None:
        super().__init__(root, source.decoder, items, meaning.classes, notes, boxes=True)
        self._clip, self._meaning = source.clip_boxes, meaning

    def objects(self) -> ObjectsRecord:
        """Returns the names of keypoints and their flip."""
        return self._meaning.objects

    def beside(self, index: int, files: SampleFiles, image: FieldValue) -> Beside:
        """Returns the objects as lists."""
        size, names = size_of(image), self.files(index)
        edge = EDGE_SHARE * np.array([size[1], size[0]] * 2)
        text = files.read(names[1], MOST_LABEL_BYTES) if len(names) > 1 else b""
        with naming(f"{names[-1]}, "):
            lines, again = different_lines(text.removeprefix(BOM_UTF8), self._meaning)
            found = fields_of_objects(objects_of_lines(lines, size, self._meaning), size, self._clip, edge)
        fields = {**found.fields, **flip_field(self._meaning.objects)}
        return Beside(fields, {**found.losses, _DOUBLES: again}, found.lists)


def _in_any_case(folder: Path, name: str) -> Path | None:
    """Returns an existing path below a folder, perhaps in another case; None if there is none, or several."""
    if (folder / name).exists():
        return folder / name
    pattern = re.sub("[A-Za-z]", lambda letter: f"[{letter[0].lower()}{letter[0].upper()}]", glob.escape(name))
    found = glob.glob(pattern, root_dir=folder)
    return folder / found[0] if len(found) == 1 else None


# Labels: what their numbers stand for by data.yaml, and the objects in their lines.

Task = Literal["detection", "instances", "keypoints", "rotated"]
MOST_LABEL_BYTES = 2**23
"""Bytes of a label file: about a million numbers, which take 32 MB while they are read."""
EDGE_SHARE = 0.01
"""Share of the image by which a box may reach over its edge without being an error, as in Ultralytics: it is cut."""
_TRACKED = 7  # numbers in a line of a tracker
_MOST_YAML = 2**20
_ABSENT = ("", "~", "null", "Null", "NULL")
"""Texts of a description that stand for nothing."""


@dataclass(frozen=True, kw_only=True)
class YoloMeaning:
    """What the numbers in label files stand for.

    Attributes:
        task: what a line has.
        classes: class names by index.
        objects: names of keypoints and their flip.
        numbers: numbers of a keypoint: 2, or 3 with its visibility.
    """

    task: Task
    classes: tuple[str, ...]
    objects: ObjectsRecord = field(default_factory=ObjectsRecord)
    numbers: int = 3


Line = tuple[float, ...]
"""Numbers in a line of labels: the class, and shares of the image's width and height."""


def different_lines(text: bytes, meaning: YoloMeaning) -> tuple[dict[Line, int], int]:
    """Returns the different lines of a label file with the number of each, and how many are equal to an earlier one.

    Seven numbers are a triangle only beside other polygons: alone, they are also a box with its confidence and track.

    Raises:
        ValueError: naming the line, if it is wrong, or the file is something else.
    """
    check_content(text)
    lines, count = dict[Line, int](), 0
    for number, line in enumerate(text.splitlines(), 1):
        with naming(f"line {number}: "):
            if words := line.split():
                lines.setdefault(_checked(tuple(map(float, words)), meaning), number)
                count += 1
    if meaning.task == "detection" and max(map(len, lines), default=0) == _TRACKED:
        for numbers, number in lines.items():
            if len(numbers) == _TRACKED and numbers[-1] % 1 == 0:
                raise ValueError(
                    f"line {number}: it has 7 numbers, expected 5: a box with its confidence and track, or a triangle? "
                    "Leave the last two out, or set task=instances for polygons"
                )
    return lines, count - len(lines)


def _checked(numbers: Line, meaning: YoloMeaning) -> Line:
    """Returns the numbers of a line; raises ValueError if they are wrong."""
    label, points, task = numbers[0], len(meaning.objects.keypoints), meaning.task
    if label not in range(len(meaning.classes)):
        raise ValueError(f"class {label:g} does not exist; data.yaml has {len(meaning.classes)}")
    expected = {"detection": 5, "instances": 7, "keypoints": 5 + points * meaning.numbers, "rotated": 9}[task]
    is_polygon = task in ("detection", "instances") and len(numbers) >= 7 and len(numbers) % 2 == 1
    if not is_polygon and len(numbers) != expected:
        more = {"instances": " (or more, two for a point)", "keypoints": f" (data.yaml has {points})"}.get(task, "")
        raise ValueError(
            f"it has {len(numbers)} numbers, expected {expected} for {task}{more}; set task for other labels"
        )
    shares = list(numbers[1:])
    if task == "keypoints" and meaning.numbers == 3:
        if not {0, 1, 2}.issuperset(numbers[7::3]):
            raise ValueError("a keypoint has another visibility than 0, 1 and 2")
        del shares[6::3]
    if not all(-1 <= number <= 2 for number in shares):  # such as pixels
        raise ValueError("a number is no share of the image's width or height")
    return numbers


def objects_of_lines(lines: Mapping[Line, int], size: tuple[int, int], meaning: YoloMeaning) -> ImageObjects:
    """Returns the objects of checked lines, in pixels."""
    scale, task = np.array([size[1], size[0]], np.float64), meaning.task
    names = list(map("line {}".format, lines.values()))
    labels = np.array([int(line[0]) for line in lines], np.int64)
    points = [np.array(line[1:], np.float64) for line in lines]
    boxes = np.array([_box(each, task) for each in points], np.float64).reshape(-1, 4) * np.tile(scale, 2)
    per_box: dict[str, npt.NDArray[Any]] = {"labels": labels}
    segments: dict[str, npt.NDArray[Any]] = {}
    if task == "keypoints":
        per_box["keypoints"] = _keypoints([each[4:] for each in points], scale, meaning)
    elif task == "rotated":
        per_box["corners"] = (np.array(points).reshape(-1, 4, 2) * scale).astype(np.float32)
    elif task == "instances":
        # Rounded, as an exported polygon of at most 9 decimals is then the same again.
        polygons = [(place, np.round(each.reshape(-1, 2) * scale, 9)) for place, each in enumerate(points)]
        segments = polygon_fields(polygons)
    return ImageObjects(boxes=boxes, names=names, per_box=per_box, segments=segments)


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


class _Loader(yaml.BaseLoader):
    """Loader of YAML as texts, with each key once and without aliases: a few lines of them can stand for gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read, write the values themselves")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            raise ValueError(f"it has a key twice among {shown(list(found))}")
        return found


def read_description(path: Path) -> dict[str, Any]:
    """Reads ``data.yaml`` as a table of texts, lists and tables: names such as ``01`` and ``no`` stay as written.

    Raises:
        SourceError: if it cannot be read, or is no YAML that is read here.
    """
    text = read_text(path, _MOST_YAML)
    try:
        body = yaml.load(text, _Loader)  # of texts, no objects
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SourceError(f"{path} is no YAML that is read here: {' '.join(str(error).split())}") from error
    if not isinstance(body, dict):
        raise SourceError(f"{path} is no table; write lines such as train: images/train")
    return {key: value for key, value in body.items() if value not in _ABSENT}


def _class_names(path: Path, body: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the classes by index, of a list or table of names and their number; raises SourceError."""
    names = body.get("names", {})
    table = dict(enumerate(names)) if isinstance(names, list) else names
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise SourceError(f"{path}: names is {shown(names)}; write a list or a table, such as names: [cat, dog]")
    with naming(f"{path}: a number of a class or nc is wrong: ", to=SourceError):
        named = {read_integer(number): name for number, name in table.items()}
        most = read_integer(body.get("nc", len(table)))
    if table and (sorted(named) != list(range(len(table))) or most != len(table)):
        raise SourceError(
            f"{path} has {len(table)} names of the numbers {shown(list(named))}, and nc is {most}; number the classes "
            "from 0, each once and without gaps, and leave nc out"
        )
    if not 1 <= most <= MAX_CLASSES:
        raise SourceError(f"{path} has {most:,} classes, at most {MAX_CLASSES:,} are read; write names: [cat, dog]")
    classes = tuple(named.get(number, str(number)) for number in range(most))
    name, count = Counter(classes).most_common(1)[0]
    if count > 1:
        raise SourceError(f"{path} has {count} classes named {shown(name)}; give each its own name")
    return classes


def meaning_of(path: Path, body: Mapping[str, Any], task: Task | None) -> YoloMeaning:
    """Returns what labels stand for by a description.

    Raises:
        SourceError: if it contradicts itself.
    """
    classes = _class_names(path, body)
    with naming(f"{path}: kpt_shape or flip_idx is no list of integers: ", ValueError, TypeError, to=SourceError):
        shape, flip = (tuple(map(read_integer, body.get(key, ()))) for key in ("kpt_shape", "flip_idx"))
    chosen: Task = task or ("keypoints" if shape else "detection")
    if shape and chosen != "keypoints":
        raise SourceError(f"{path} has kpt_shape, so its lines are boxes and keypoints, not {chosen}; leave task out")
    if chosen != "keypoints":
        return YoloMeaning(task=chosen, classes=classes)
    if len(shape) != 2 or not 1 <= shape[0] <= MAX_KEYPOINTS or shape[1] not in (2, 3):
        raise SourceError(f"{path}: kpt_shape is {shape}; write [number of keypoints, at most {MAX_KEYPOINTS}, 2 or 3]")
    named = body.get("kpt_names", [])
    points = next(iter(named.values()), []) if isinstance(named, dict) else named
    keypoints = tuple(map(str, points)) if isinstance(points, list) and len(points) == shape[0] else ()
    with naming(f"{path}: flip_idx: ", to=SourceError):
        names = keypoints or tuple(map(str, range(shape[0])))
        record = ObjectsRecord(keypoints=names, flip=flip or mirrored_names(keypoints))
    return YoloMeaning(task=chosen, classes=classes, objects=record, numbers=shape[1])
