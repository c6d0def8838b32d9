"""Detection in COCO's layout: folders of images, and an annotation file in JSON for each split.

All annotations are read once when the splits are found. An error in one object or image does not stop that: it becomes
a SampleError when the image is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from mmload.errors import RecipeError, SampleError, SourceError, choices, shown
from mmload.pictures.instance_masks import of_boxes, runs_of_mask
from mmload.records import OTHER_SIZE, SWAPPED_SIZE, ObjectsRecord, mirrored_names
from mmload.sources.coco_annotations import (
    OBJECT,
    PARTS,
    TASKS,
    AnnotationFile,
    Category,
    read_annotations,
    shown_object,
    without_groups,
)
from mmload.sources.decode import Decoder, RefusedImage, read_with_pillow
from mmload.sources.files import SampleFiles, check_is_folder, inner_name
from mmload.sources.links import Links, reading
from mmload.sources.listing import Beside, ListedSplit, Listing, check_same_classes, note_doubles, size_of
from mmload.sources.objects import (
    ImageObjects,
    ObjectError,
    fields_of_objects,
    flip_field,
    notes_on_flip,
)
from mmload.sources.options import PathOrTable
from mmload.store.checksum import crc32
from mmload.store.manifest import is_name

if TYPE_CHECKING:
    from torch import Tensor

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

_FACTORS = np.array([1, 256, 65536])  # of red, green and blue in the number of a segment


class CocoItem(NamedTuple):
    """One image.

    Attributes:
        file: its path relative to the root.
        id: its id in the annotation file.
        number: its id, or its place in the file where an id is a text.
        height: its height in the annotation file.
        width: its width there.
        revision: changes when its files do.
        segments: path of its map of segments, or "".
        left_out: numbers of segments that may be in the map, too.
        fault: what is wrong with it or one of its objects, or "".
        packed: its objects, as in :attr:`AnnotationFile.packed`.
    """

    file: str
    id: int | str
    number: int
    height: int
    width: int
    revision: str
    segments: str
    left_out: Sequence[int]
    fault: str
    packed: Sequence[bytes]


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
    task: str = "detection"
    annotations: PathOrTable = None
    images: PathOrTable = None
    crowds: bool = True
    clip_boxes: bool = False
    allow_outside: bool = False

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise RecipeError(f"task is {self.task!r}; use one of {choices(TASKS)}")
        if self.decoder.exif_orient:
            raise RecipeError("exif_orient rotates the image but not its boxes; leave it out for COCO")
        self._root = Path(self.root)
        self._links = Links(self.root, self.allow_outside)
        self._annotations = self._checked("annotations", self.annotations)
        self._images = self._checked("images", self.images)

    def splits(self) -> Mapping[str, CocoSplit]:
        """Returns the splits, train before the others.

        Raises:
            SourceError: if a folder or file is missing, an annotation file is damaged, or a link leads out of the root.
            RecipeError: if the annotation file has to be given.
        """
        with reading(self._root):
            check_is_folder(self._root, "the folder with the images' folders and annotations")
            files = without_groups({name: self._annotation_file(file) for name, file in self._files().items()})
            splits = {name: self._split(name, file) for name, file in files.items()}
            check_same_classes(
                {
                    f"split {name}": (
                        *split.classes,
                        *map(str, split.objects().category_ids),
                        *split.objects().keypoints,
                    )
                    for name, split in splits.items()
                    if split.has_objects
                },
                "list the same categories and keypoints in all annotation files",
            )
            note_doubles(splits, self._links.notes())
            return splits

    def _checked(self, option: str, value: str | Mapping[str, str] | None) -> dict[str, str]:
        """Returns a path, or a table of paths, as a table; the split of a single path is ""."""
        table = {} if value is None else {"": value} if isinstance(value, str) else value
        if not all(name == "" or is_name(name) for name in table):
            raise RecipeError(f"{option} is {value!r:.80}; use a path, or a table of paths by split")
        for path in table.values():
            if inner_name(path) is None and path != "." and not self.allow_outside:
                raise RecipeError(f"{option} is {path!r:.80}, which leaves the root; set allow_outside to follow it")
        return dict(table)

    def _files(self) -> dict[str, Path]:
        """Returns the annotation file of each split."""
        if self._annotations:
            return {name or _split_of(file): self._root / file for name, file in self._annotations.items()}
        found: dict[str, Path] = {}
        names = [(path, _FILE.fullmatch(path.name)) for path in sorted((self._root / "annotations").glob("*.json"))]
        fitting = [(path, match) for path, match in names if match and match["task"] in _PREFIXES[self.task]]
        usual = [(path, match["stem"]) for path, match in fitting if match["task"] != "lvis"]
        beside = [(path, path.parent.name) for path in sorted(self._root.glob(f"*/{_BESIDE}"))]
        chosen = usual or [(path, match["stem"]) for path, match in fitting]
        for path, name in [*chosen, *(each for each in beside if is_name(each[1]))]:
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
        for name in [*(name for stem in stems for name in (stem, f"images/{stem}")), "images"]:
            if (self._root / name).is_dir():
                return name
        if inner_name(first) is not None and os.path.isfile(self._root / first):
            return ""
        raise SourceError(f"{self._root} has no folder {stems[0]} with the images of {file}; give images, the folder")

    def _annotation_file(self, path: Path) -> AnnotationFile:
        self._links.check(path)
        if not path.is_file():
            raise SourceError(f"no such annotation file: {path}")
        return read_annotations(path, self.task, self.crowds)

    def _split(self, name: str, read: AnnotationFile) -> CocoSplit:
        if not read.images:
            raise SourceError(f"{read.path} has no images")
        folder = self._folder(name, read.path, read.images[0].file_name)
        inside = f"{os.path.abspath(self._root / folder)}/"
        for image in read.images:
            image.file_name = image.file_name.replace("\\", "/").removeprefix(inside)  # tools on Windows
        items = Listing(CocoItem, self._items(folder, read))
        return CocoSplit(self, items, read)

    def _items(self, folder: str, read: AnnotationFile) -> Iterator[CocoItem]:
        """Yields the images; one whose name leads out of the folder has a fault."""
        texts = [image.id for image in read.images if isinstance(image.id, str)]
        if texts:
            read.findings.add("ids of images are texts: image_ids are their places in the file", shown(texts[0]))
        maps = Path(os.path.relpath(read.path.with_suffix(""), self._root)).as_posix()
        for place, image in enumerate(read.images):
            name, segments, fault = image.file_name, read.maps.get(place, ""), read.faults.get(place, "")
            file, revision = self._file(folder, name)
            if segments and revision not in ("", "missing"):
                name = segments
                segments, of_map = self._file(maps, name)
                revision = f"{revision} {of_map}" if of_map else ""
            if not revision:
                fault = fault or (
                    f"{read.path}, image {shown(image.id)}: the file name {shown(name)} leaves the folder; name a file "
                    f"in {self._root / folder}"
                )
            number = place if texts or isinstance(image.id, str) else image.id
            packed, read.packed[place] = list(map(bytes, read.packed[place])), []  # once in memory
            left_out, size = read.left_out.get(place, []), (image.height, image.width)
            yield CocoItem(file, image.id, number, *size, revision, segments, left_out, fault, packed)

    def _file(self, folder: str, name: str) -> tuple[str, str]:
        """Returns a file's path relative to the root, and its revision; that of a file outside of the folder is ""."""
        inner = inner_name(name)
        if inner is None:
            return name, ""
        return self._links.find(str(self._root), f"{folder}/{inner}" if folder else inner)


class CocoSplit(ListedSplit[CocoItem]):
    """One split: images in the order of the annotation file, and their objects."""

    def __init__(self, source: CocoSource, items: Listing[CocoItem], read: AnnotationFile) -> None:
        names = [category.name for category in read.categories]
        if len(set(names)) < len(names):
            names = [f"{each.name} {each.id}" for each in read.categories]
            read.findings.add("categories share a name: names of classes end in their id", ", ".join(names[:3]))
        ids = tuple(category.id for category in read.categories if isinstance(category.id, int))
        self._record = ObjectsRecord(
            category_ids=ids if len(ids) == len(names) else (),
            **(_keypoints(read.categories) if source.task == "keypoints" else {}),
        )
        notes = read.findings.notes() + read.notes + notes_on_flip(self._record)
        super().__init__(Path(source.root), source.decoder, items, tuple(names), notes, boxes=True)
        self._clip, self._task, self._labels, self._file = source.clip_boxes, source.task, read.labels, str(read.path)

    @property
    def has_objects(self) -> bool:
        """Whether any image has an object."""
        return any(item.packed[0] for item in self.items)

    def objects(self) -> ObjectsRecord:
        """Returns the numbers of the categories, and the names and pairs of keypoints."""
        return self._record

    def revision(self, index: int) -> str:
        """Returns size and time of the image, and a checksum of what the annotation file says of it."""
        item = self.items[index]
        digest = crc32(f"{item.height} {item.width} {item.segments} {item.fault}".encode("utf-8", "surrogatepass"))
        for part in item.packed:
            digest = crc32(part, digest)
        return f"{item.revision} {item.number} {digest:08x}"

    def files(self, index: int) -> Sequence[str]:
        item = self.items[index]
        return [item.file, item.segments] if item.segments else [item.file]

    def check(self, index: int) -> None:
        item = self.items[index]
        missing = f"{self._where(item)}: no such file: {self.root / item.file}" if item.revision == "missing" else ""
        if item.fault or missing:
            raise SampleError(item.file, item.fault or missing)

    def _where(self, item: CocoItem) -> str:
        return f"{self._file}, image {shown(item.id)}"

    def beside(self, index: int, files: SampleFiles, image: Tensor) -> Beside:
        """Returns the number of an image and its objects as lists."""
        import torch

        item, size = self.items[index], size_of(image)
        ids, objects = self._unpacked(item.packed)
        try:
            if self._task == "panoptic":
                numbers = _read_map(files, item.segments, size)
                objects = replace(objects, segments=_masks_of_segments(numbers, ids, item.left_out))
            fields, losses, lists = fields_of_objects(objects, size, self._clip)
        except ObjectError as error:
            raise ValueError(f"{self._where(item)}, {shown_object(ids[error.index])}: {error.reason}") from error
        except ValueError as error:
            raise ValueError(f"{self._where(item)}, {error}") from error
        listed = (item.height, item.width)
        if 0 not in listed and listed != size:
            losses = {**losses, SWAPPED_SIZE if listed == size[::-1] else OTHER_SIZE: 1}
        of_image = {"image_ids": torch.tensor(item.number, device="cpu"), **flip_field(self._record)}
        return Beside({**fields, **of_image}, losses, lists)

    def _unpacked(self, packed: Sequence[bytes]) -> tuple[list[int], ImageObjects]:
        """Returns the ids of the objects of an image, and the objects; the last one of each id, as in pycocotools."""
        records = np.frombuffer(packed[0], OBJECT)
        parts = {
            name: np.frombuffer(part, dtype).reshape((-1, size) if size else -1)
            for part, (name, dtype, size) in zip(packed[1:], PARTS[self._task], strict=True)
        }
        keep = np.zeros(len(records), np.bool_)
        keep[len(records) - 1 - np.unique(records["id"][::-1], return_index=True)[1]] = True
        boxes = records["box"][keep]
        boxes[:, 2:] += boxes[:, :2]
        per_box = {
            "labels": self._labels[records["label"][keep]],
            "iscrowd": records["iscrowd"][keep],
            "area": records["area"][keep].astype(np.float32),
        }
        if (points := parts.pop("keypoints", None)) is not None:
            points = points.reshape(len(records), len(self._record.keypoints), 3)[keep]
            per_box["keypoints"] = points * (points[..., 2:] > 0)  # those that are not labeled at 0, 0
        objects = ImageObjects(boxes=boxes, per_box=per_box, segments=of_boxes(parts, keep))
        return records["id"][keep].tolist(), objects


def _keypoints(categories: Sequence[Category]) -> dict[str, Any]:
    """Returns the keypoints of the category that has most, their skeleton and the table of a flip."""
    chosen = max(categories, key=lambda category: len(category.keypoints), default=Category(0, ""))
    names = tuple(chosen.keypoints)
    pairs = tuple((first - 1, second - 1) for first, second in chosen.skeleton)
    skeleton = tuple(pair for pair in pairs if min(pair) >= 0 and max(pair) < len(names))
    return {"keypoints": names, "skeleton": skeleton, "flip": mirrored_names(names)}


def _split_of(file: str) -> str:
    match = _FILE.fullmatch(Path(file).name)
    return "train" if match is None else match["stem"]


def _masks_of_segments(
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
        "rings": np.empty((0, 2), np.int32),
        "polygons": np.empty((0, 2), np.float64),
        "run_boxes": np.array(owners, np.int32).reshape(-1, 2),
        "runs": np.concatenate([np.empty(0, np.int32), *runs]),
    }


def _read_map(files: SampleFiles, name: str, size: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Reads the number of the segment of each pixel of an image of (height, width) ``size``: int64 [H, W].

    Without a name there is no map, and no pixel has a segment.

    Raises:
        SampleError: if the map is missing.
        ValueError: if it is broken.
    """
    if not name:
        return np.zeros(size, np.int64)

    def numbers_of(image: Image.Image) -> npt.NDArray[np.int64]:
        if image.size != size[::-1]:
            raise RefusedImage("it has another size than the image")
        return np.asarray(np.asarray(image.convert("RGB")).astype(np.int64) @ _FACTORS)

    try:
        return read_with_pillow(files.read(name), numbers_of, ("PNG",))
    except ValueError as error:
        raise ValueError(f"its map of segments {name} is no such map: {error}") from error
