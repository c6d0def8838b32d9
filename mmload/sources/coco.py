"""Detection in COCO's layout: folders of images, and an annotation file in JSON for each split.

All annotations are read once when the splits are found. An error in one object or image does not stop that: it becomes
a SampleError when the image is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import numpy as np
import numpy.typing as npt
from msgspec import Meta
from PIL import Image

from mmload.errors import RecipeError, SourceError, choices, naming, shown
from mmload.pictures.instance_masks import runs_of_mask
from mmload.records import ObjectsRecord, mirrored_names
from mmload.sources import PathOrTable
from mmload.sources.coco_annotations import (
    AnnotationFile,
    Category,
    CocoObject,
    Task,
    leave_out_groups,
    objects_in,
)
from mmload.sources.decode import Decoder, RefusedImage, read_with_pillow
from mmload.sources.files import LocalTree, SampleFiles, check_is_folder, inner_name
from mmload.sources.listed_split import Beside, Item, ListedSplit, Listing, check_same_classes, note_doubles, size_of
from mmload.sources.objects import (
    ImageObjects,
    fields_of_objects,
    flip_field,
    notes_on_flip,
    polygon_fields,
    run_fields,
)
from mmload.store.checksum import crc32
from mmload.store.manifest import is_name

if TYPE_CHECKING:
    from mmload.records import FieldValue

_FILE = re.compile(
    r"(?:(?P<task>[a-z_]+?)(?:_v[\d.]+)?_)?(?P<split>(?P<stem>train|val|valid|validation|test|minival)(?:\d{4})?)\.json"
)
_PREFIXES: dict[str, tuple[str | None, ...]] = {
    "panoptic": ("panoptic",),
    "detection": ("instances", None, "lvis"),
    "instances": ("instances", None, "lvis"),
    "keypoints": ("person_keypoints", None),
}
"""Task -> first words of the names of its annotation files; LVIS's are used where there are no others."""
_BESIDE = "_annotations.coco.json"
"""Name of an annotation file that lies among its images, in a folder for each split, as Roboflow exports them."""

_MOST_RUN = 2**31
_MOST_DIGITS = 7  # characters of a compressed run
_FACTORS = np.array([1, 256, 65536])  # of red, green and blue in the number of a segment


@dataclass
class CocoSource:
    """Images with boxes, masks of instances, or keypoints, as COCO lays them out.

    Attributes:
        root: the folder with the images' folders and ``annotations``.
        decoder: decodes images to pixels.
        task: "detection" (boxes), "instances" (boxes and masks), "keypoints" (boxes and keypoints) or "panoptic"
            (segments of things and stuff: boxes and masks).
        annotations: annotation file relative to the root, or a table split -> file; None: those that are found.
        images: folder of the images relative to the root, or a table split -> folder; None: the folder that has the
            split's name.
        crowds: store crowds, too, with ``iscrowd``; False: leave them out.
        clip_boxes: cut boxes that reach over the edge, and leave out those of no area, instead of refusing the image.
        allow_outside: follow paths and links that lead out of the root.

    Raises:
        RecipeError: if an option is invalid.
    """

    root: str | Path
    decoder: Decoder
    _: KW_ONLY
    task: Annotated[Task, Meta(description=f"one of {choices(get_args(Task))}")] = "detection"
    annotations: PathOrTable = None
    images: PathOrTable = None
    crowds: bool = True
    clip_boxes: bool = False
    allow_outside: bool = False

    def __post_init__(self) -> None:
        if self.decoder.exif_orient:
            raise RecipeError("exif_orient rotates the image but not its boxes; leave it out for COCO")
        self._root = Path(self.root)
        self._tree = LocalTree(self.root, self.allow_outside)
        self._annotations, self._images = _table(self.annotations), _table(self.images)

    def splits(self) -> Mapping[str, CocoSplit]:
        """Returns the splits, train before the others.

        Raises:
            SourceError: if a folder or file is missing, an annotation file is damaged, or a link leads out of the root.
            RecipeError: if the annotation file has to be given.
        """
        check_is_folder(self._root, "the folder with the images' folders and annotations")
        paths = self._files()
        for path in paths.values():
            self._tree.check(path)
        files = {name: AnnotationFile(path, self.task, self.crowds) for name, path in paths.items()}
        leave_out_groups(files.values())
        splits = {name: self._split(name, file) for name, file in files.items()}
        named = {
            f"split {name}": (*split.classes, *map(str, split.objects().category_ids), *split.objects().keypoints)
            for name, split in splits.items()
            if any(files[name].objects)  # damaged ones may be of any class
        }
        check_same_classes(named, "list the same categories and keypoints in all annotation files")
        note_doubles(splits, self._tree.notes())
        return splits

    def _files(self) -> dict[str, Path]:
        """Returns the annotation file of each split."""
        if self._annotations:
            return {name or _split_of(file): self._root / file for name, file in self._annotations.items()}
        found, folder = dict[str, Path](), self._root / "annotations"
        matches = filter(None, map(_FILE.fullmatch, sorted(path.name for path in folder.glob("*.json"))))
        fitting = [match for match in matches if match["task"] in _PREFIXES[self.task]]
        chosen = [match for match in fitting if match["task"] != "lvis"] or fitting
        named = [(folder / match.string, match["stem"]) for match in chosen]
        beside = sorted(self._root.glob(f"*/{_BESIDE}"))
        named += [(path, path.parent.name) for path in beside if is_name(path.parent.name)]
        for path, name in named:
            if name in found:
                raise RecipeError(
                    f"{found[name]} and {path} are both of split {name}; give annotations, a table by split"
                )
            found[name] = path
        if not found:
            raise SourceError(
                f"{self._root} has no annotation file such as annotations/{_PREFIXES[self.task][0]}_train2017.json; "
                "give annotations, the path of the file"
            )
        return dict(sorted(found.items(), key=lambda each: (not each[0].startswith("train"), each[0])))

    def _folder(self, split: str, file: Path, first: str) -> str:
        """Returns the folder of a split's images, relative to the root; ``first`` is the name of one of them."""
        given = self._images.get(split, self._images.get(""))
        if given is not None:
            return "" if given == "." else given
        if file.name == _BESIDE:
            return Path(os.path.relpath(file.parent, self._root)).as_posix()
        match = _FILE.fullmatch(file.name)
        stems = [split] if match is None else [match["split"], match["stem"]]
        for name in chain(*((stem, f"images/{stem}") for stem in stems), ["images"]):
            if (self._root / name).is_dir():
                return name
        if inner_name(first) is not None and os.path.isfile(self._root / first):
            return ""
        raise SourceError(f"{self._root} has no folder {stems[0]} with the images of {file}; give images, the folder")

    def _split(self, name: str, read: AnnotationFile) -> CocoSplit:
        folder = self._folder(name, read.path, read.images[0].file_name if read.images else "")
        inside = f"{os.path.abspath(self._root / folder)}/"
        for image in read.images:
            image.file_name = image.file_name.replace("\\", "/").removeprefix(inside)  # tools on Windows
        return CocoSplit(self, Listing(Item, self._items(folder, read)), read)

    def _items(self, folder: str, read: AnnotationFile) -> Iterator[Item]:
        """Yields the images; one whose name leads out of the folder has a fault."""
        texts = [image.id for image in read.images if isinstance(image.id, str)]
        read.findings.add("ids of images are texts: image_ids are their places in the file", *map(shown, texts[:1]))
        maps = Path(os.path.relpath(read.path.with_suffix(""), self._root)).as_posix()
        for place, image in enumerate(read.images):
            found = [self._file(folder, image.file_name)]
            if place in read.maps:
                found.append(self._file(maps, read.maps[place]))
            outside = (
                f"{read.name_of(image)}: the file name {shown(name)} leaves the folder; name a file in "
                f"{self._root / folder}"
                for name, revision in found
                if not revision
            )
            fault = read.faults.get(place) or next(outside, "")
            number = place if texts else image.id
            size, objects = (image.height, image.width), bytes(read.objects[place])
            about = f"{number} {size} {fault}".encode("utf-8", "surrogatepass")
            revision = f"{' '.join(revision for _, revision in found)} {crc32(objects, crc32(about)):08x}"
            own = number, image.id, size, read.left_out.get(place, []), objects
            yield Item([name for name, _ in found], revision, fault, own)

    def _file(self, folder: str, name: str) -> tuple[str, str]:
        """Returns a file's path relative to the root, and its revision; that of a file outside of the folder is ""."""
        inner = inner_name(name)
        if inner is None:
            return name, ""
        return self._tree.find(f"{folder}/{inner}" if folder else inner)


class CocoSplit(ListedSplit):
    """One split: images in the order of the annotation file, and their objects."""

    def __init__(self, source: CocoSource, items: Listing[Item], read: AnnotationFile) -> None:
        names = [category.name for category in read.categories]
        if len(set(names)) < len(names):
            names = [f"{each.name} {each.id}" for each in read.categories]
            read.findings.add("categories share a name: names of classes end in their id", ", ".join(names[:3]))
        self._labels = {category.id: label for label, category in enumerate(read.categories)}
        ids = tuple(own for own in self._labels if isinstance(own, int))
        self._record = ObjectsRecord(
            category_ids=ids if len(ids) == len(names) else (),
            **_keypoints(read.categories),
        )
        notes = read.notes() + notes_on_flip(self._record)
        super().__init__(Path(source.root), source.decoder, items, tuple(names), notes, boxes=True)
        self._clip, self._task, self._file = source.clip_boxes, source.task, str(read.path)

    def objects(self) -> ObjectsRecord:
        """Returns the numbers of the categories, and the names and pairs of keypoints."""
        return self._record

    def beside(self, index: int, files: SampleFiles, image: FieldValue) -> Beside:
        """Returns the number of an image and its objects as lists."""
        import torch

        item, size = self.items[index], size_of(image)
        number, own_id, listed, left_out, lines = item.own
        with naming(f"{self._file}, image {shown(own_id)}, "):
            objects = objects_in(lines)
            own = self._of_objects(objects, None if 0 in listed else listed)
            if self._task == "panoptic":
                own = replace(
                    own, segments=_masks_of_segments(_read_map(files, item.files[1:], size), objects, left_out)
                )
            fields, losses, lists = fields_of_objects(own, size, self._clip)
        of_image = {"image_ids": torch.tensor(number, device="cpu"), **flip_field(self._record)}
        return Beside({**fields, **of_image}, losses, lists)

    def _of_objects(self, objects: Sequence[CocoObject], listed: tuple[int, int] | None) -> ImageObjects:
        """Returns the objects of an image, of which the size in the annotation file is given.

        Raises:
            ValueError: if one is wrong; names it.
        """
        labels, points, polygons, runs = [], [], [], []
        for place, each in enumerate(objects):
            with naming(f"{each.name}: "):
                if each.category not in self._labels:
                    raise ValueError(
                        f"category {shown(each.category)} does not exist; the file has {len(self._labels)}, the first "
                        f"is {shown(next(iter(self._labels)))}"
                    )
                labels.append(self._labels[each.category])
                if self._task == "keypoints":
                    points.append(self._points_of(each.shape))
                elif isinstance(each.shape, dict):
                    runs.append((place, _runs_of(each.shape, listed)))
                else:
                    polygons += [(place, _points_of_polygon(polygon)) for polygon in each.shape or ()]
        boxes = np.array([each.box for each in objects], np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        per_box = {
            "labels": np.array(labels, np.int64),
            "iscrowd": np.array([each.is_crowd for each in objects], np.bool_),
            "area": np.array([each.area for each in objects], np.float32),
        }
        if self._task == "keypoints":
            found = np.array(points, np.float32).reshape(len(objects), len(self._record.keypoints), 3)
            per_box["keypoints"] = found * (found[..., 2:] > 0)  # those that are not labeled at 0, 0
        segments = {**polygon_fields(polygons), **run_fields(runs)} if self._task == "instances" else {}
        names = [each.name for each in objects]
        return ImageObjects(boxes=boxes, names=names, per_box=per_box, segments=segments, listed=listed)

    def _points_of(self, points: list[float] | None) -> list[float]:
        expected = 3 * len(self._record.keypoints)
        points = points or [0.0] * expected
        if len(points) != expected:
            raise ValueError(
                f"it has {len(points) / 3:g} keypoints, the category with most has {len(self._record.keypoints)}"
            )
        if not {0, 1, 2}.issuperset(points[2::3]):
            raise ValueError("a keypoint has another visibility than 0, 1 and 2")
        return points


def _points_of_polygon(sides: list[float]) -> npt.NDArray[np.float64]:
    if len(sides) % 2:
        raise ValueError(f"a polygon has {len(sides) / 2:g} points")
    return np.array(sides, np.float64).reshape(-1, 2)


def _runs_of(mask: Mapping[str, Any], listed: tuple[int, int] | None) -> npt.NDArray[np.int32]:
    """Returns the runs of a mask; raises ValueError unless they cover its image, which is as large as listed."""
    counts, (height, width) = mask["counts"], mask["size"]
    if listed not in (None, (height, width)):
        raise ValueError(f"its run lengths are of an image of {width} x {height}, listed is {listed[1]} x {listed[0]}")
    is_text = isinstance(counts, str)
    runs = decoded_runs(counts.encode("latin-1", "replace")) if is_text else np.array(counts, np.int64)
    if ((runs < 0) | (runs >= _MOST_RUN)).any() or runs.sum() != height * width:
        raise ValueError(f"its run lengths do not cover an image of {width} x {height}")
    return runs.astype(np.int32)


def decoded_runs(text: bytes) -> npt.NDArray[np.int64]:
    """Decodes the compressed run lengths of pycocotools: 5 bits of a number per character, from "0" on.

    From the fourth on, a number is the difference from the one two places before.

    Raises:
        ValueError: if it has other characters or a larger number, or ends in the middle of one.
    """
    digits = np.frombuffer(text, np.uint8).astype(np.int64) - 48
    ends = np.flatnonzero(digits < 32)
    sizes = np.diff(ends, prepend=-1)
    if ((digits < 0) | (digits >= 64)).any() or sizes.sum() < len(digits) or (sizes > _MOST_DIGITS).any():
        raise ValueError("its compressed run lengths are damaged")
    starts = ends - sizes + 1
    places = np.arange(len(digits)) - np.repeat(starts, sizes)
    runs = np.add.reduceat((digits & 31) << 5 * places, starts)
    runs -= (digits[ends] & 16) << 5 * sizes - 4  # the highest bit of the last character is the sign
    for first in (1, 2):
        runs[first::2] = runs[first::2].cumsum()
    return runs


def _keypoints(categories: Sequence[Category]) -> dict[str, Any]:
    """Returns the keypoints of the category that has most, their skeleton and the table of a flip."""
    chosen = max(categories, key=lambda category: len(category.keypoints), default=Category(0, ""))
    names = tuple(chosen.keypoints)
    pairs = tuple((first - 1, second - 1) for first, second in chosen.skeleton)
    skeleton = tuple(pair for pair in pairs if min(pair) >= 0 and max(pair) < len(names))
    return {"keypoints": names, "skeleton": skeleton, "flip": mirrored_names(names)}


def _table(paths: str | dict[str, str] | None) -> dict[str, str]:
    """Returns a path, or a table of paths by split, as a table; the split of a single path is ""."""
    return {"": paths} if isinstance(paths, str) else paths or {}


def _split_of(file: str) -> str:
    match = _FILE.fullmatch(Path(file).name)
    return "train" if match is None else match["stem"]


def _masks_of_segments(
    numbers: npt.NDArray[np.int64], objects: Sequence[CocoObject], left_out: Sequence[int]
) -> dict[str, npt.NDArray[Any]]:
    """Returns the masks of the objects, whose ids are the numbers of a map, as fields of run lengths.

    ``left_out`` are numbers of segments that may be in the map, too.

    Raises:
        ValueError: if the map has other segments.
    """
    there, listed = set(np.unique(numbers).tolist()) - {0, *left_out}, {each.id for each in objects}
    if there != listed:
        odd = min(there ^ listed, key=str)
        raise ValueError(
            f"annotation {odd}: the segment "
            f"{'is in its map, but not in the file' if odd in there else 'has no pixel in its map'}"
        )
    runs = [(place, runs_of_mask(numbers == each.id)) for place, each in enumerate(objects)]
    return {**polygon_fields([]), **run_fields(runs)}


def _read_map(files: SampleFiles, names: Sequence[str], size: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Reads the number of the segment of each pixel of an image of (height, width) ``size``: int64 [H, W].

    Without a name of a map no pixel has a segment.

    Raises:
        SampleError: if the map is missing.
        ValueError: if it is broken.
    """
    if not names:
        return np.zeros(size, np.int64)

    def numbers_of(image: Image.Image) -> npt.NDArray[np.int64]:
        if image.size != size[::-1]:
            raise RefusedImage("it has another size than the image")
        return np.asarray(np.asarray(image.convert("RGB")).astype(np.int64) @ _FACTORS)

    with naming(f"its map of segments {names[0]} is no such map: "):
        return read_with_pillow(files.read(names[0]), numbers_of, ("PNG",))
