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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import numpy as np
from msgspec import Meta

from mmload.errors import RecipeError, SourceError, choices, shown
from mmload.records import ObjectsRecord
from mmload.sources.annotation_values import Findings, naming
from mmload.sources.decode import Decoder
from mmload.sources.files import MISSING, LocalTree, SampleFiles, images_among, inner_name, read_text, reading
from mmload.sources.listing import Beside, Item, ListedSplit, Listing, note_doubles, size_of
from mmload.sources.objects import fields_of_objects, flip_field, notes_on_flip
from mmload.sources.yolo_labels import (
    ABSENT,
    EDGE_SHARE,
    MOST_LABEL_BYTES,
    Task,
    YoloMeaning,
    checked_lines,
    meaning_of,
    objects_of_lines,
    read_description,
    without_doubles,
)

if TYPE_CHECKING:
    from torch import Tensor

_SPLITS = {"train": ("train",), "val": ("val", "validation", "valid"), "test": ("test",)}
"""Names of a split's images in a description; the first one that it has is read."""
_DOUBLES = "lines of labels are the same as an earlier one of their image, and are left out"
_LABELS = ("labels", "Labels", "LABELS")
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
        if inner_name(self.file) is None and not self.allow_outside:
            raise RecipeError(f"file is {self.file!r}; write the path of the description in the root")
        chosen = Path(self.root)
        self._root, self._path = (chosen, chosen / self.file) if chosen.is_dir() else (chosen.parent, chosen)
        self._tree = LocalTree(self._root, self.allow_outside)
        self._labels: dict[str, list[str]] = {}  # folder of images -> folders that may have their labels

    def splits(self) -> Mapping[str, YoloSplit]:
        """Returns the splits train, val and test, as far as the description has them.

        Raises:
            SourceError: if the description or a folder is missing or wrong, or a link leads out of the root.
        """
        with reading(self._root):
            if not self._path.is_file():
                raise SourceError(f"no such file: {self._path}; give the folder with data.yaml")
            self._tree.check(self._path)
            body = read_description(self._path)
            meaning = meaning_of(self._path, body, self.task)
            body = {key: value for key, value in body.items() if value not in ABSENT}
            keys = {name: next(filter(body.get, names), None) for name, names in _SPLITS.items()}
            splits = {name: self._split(body, key, meaning) for name, key in keys.items() if key}
            if not splits:
                raise SourceError(f"{self._path} names no images; write train: images/train")
            note_doubles(splits, self._tree.notes())
            return splits

    def _split(self, body: Mapping[str, Any], key: str, meaning: YoloMeaning) -> YoloSplit:
        paths = body[key] if isinstance(body[key], list) else [body[key]]
        above = body.get("path")  # a folder of another computer, where it does not exist
        base = (self._existing(above, [self._root]) if isinstance(above, str) else None) or self._root
        findings = Findings()
        files = (file for path in paths for file in self._images(self._place(str(path), base), base, findings))
        items = Listing(Item, self._items(files, meaning.numbers, findings))
        if not items:
            raise SourceError(f"{self._path}: {key} has no images in {', '.join(map(str, paths))}")
        notes = findings.notes()
        if meaning.task == "keypoints" and not meaning.objects.flip:
            notes += ("data.yaml has no flip_idx: flips of images will not exchange left and right keypoints",)
        notes += notes_on_flip(meaning.objects)
        return YoloSplit(self, self._root, meaning, items, notes)

    def _place(self, path: str, base: Path) -> Path:
        """Returns the folder or list of images that a path of the description means."""
        found = self._existing(path, [base, self._root])
        if found is None:
            raise SourceError(
                f"{self._path} names {shown(path)}, which does not exist in {self._root}; correct it, or set "
                "allow_outside if it is elsewhere"
            )
        return found

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

    def _images(self, place: Path, base: Path, findings: Findings) -> Iterator[str]:
        """Yields the images of a folder, sorted, or of a list of files, relative to the root.

        A list has absolute paths, and paths relative to its own folder or to the description's ``path``.
        """
        self._tree.check(place)
        if place.is_dir():
            folder = Path(os.path.relpath(place, self._root)).as_posix()
            yield from images_among(sorted(self._tree.files("" if folder == "." else folder)), findings)
            return
        folders = [Path(os.path.relpath(folder, self._root)).as_posix() for folder in (place.parent, base)]
        inside = f"{Path(os.path.abspath(self._root)).as_posix()}/"  # of absolute paths
        text = io.StringIO(read_text(place, _MOST_BYTES), newline=None)  # splitlines() splits at U+2028, too
        for number, line in enumerate(map(str.strip, text), 1):
            if not line:
                continue
            names = [
                posixpath.normpath(posixpath.join(folder, path)).removeprefix(inside)
                for folder in folders
                for path in (line, line.replace("\\", "/"))
            ]
            name = next((each for each in names if os.path.lexists(self._root / each)), names[0])
            if inner_name(name) is None and not self.allow_outside:
                raise SourceError(
                    f"{place}, line {number}: {line!r:.80} leaves {self._root}; set allow_outside to follow it"
                )
            yield name

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
            parts = folder.split("/")
            last = max((place for place, part in enumerate(parts) if part.lower() == "images"), default=None)
            names = [] if last is None else ["/".join([*parts[:last], name, *parts[last + 1 :]]) for name in _LABELS]
            places = [name for name in names if (self._root / name).is_dir()] or names[:1]
            self._labels[folder] = [*places, folder]
        return self._labels[folder]


class YoloSplit(ListedSplit[Item]):
    """One split: images and the objects in their label files."""

    def __init__(
        self, source: YoloSource, root: Path, meaning: YoloMeaning, items: Listing[Item], notes: tuple[str, ...]
    ) -> None:
        super().__init__(root, source.decoder, items, meaning.classes, notes, boxes=True)
        self._clip, self._meaning = source.clip_boxes, meaning

    def objects(self) -> ObjectsRecord:
        """Returns the names of keypoints and their flip."""
        return self._meaning.objects

    def beside(self, index: int, files: SampleFiles, image: Tensor) -> Beside:
        """Returns the objects as lists."""
        size, names = size_of(image), self.files(index)
        edge = EDGE_SHARE * np.array([size[1], size[0]] * 2)
        text = files.read(names[1], MOST_LABEL_BYTES) if len(names) > 1 else b""
        with naming(f"{names[-1]}, "):
            lines, again = without_doubles(checked_lines(text.removeprefix(BOM_UTF8), self._meaning))
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
