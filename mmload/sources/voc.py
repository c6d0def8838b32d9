"""A VOCdevkit: ``VOCdevkit/VOC2012/{JPEGImages,Annotations,ImageSets,SegmentationClass}``, for one of four tasks.

Without a devkit, XML that lies beside images, or in a folder beside theirs, is read as well.

Annotations are read with their images. Only where they say which classes or samples there are, all are read when the
splits are found, too: an error in one does not stop that, and becomes a SampleError when its image is read.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from itertools import chain, filterfalse, product, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeVar, get_args
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
from msgspec import Meta

from mmload.errors import RecipeError, SampleError, SourceError, choices, naming, shown
from mmload.records import CLIPPED, VOID
from mmload.sources import Findings, Names, Table, one_or_more
from mmload.sources.annotation_values import read_flag, read_integer, read_number
from mmload.sources.decode import Decoder, check_content
from mmload.sources.files import EXTENSIONS, LocalTree, SampleFiles, inner_name, is_image_name, read_text
from mmload.sources.listed_split import Beside, Item, ListedSplit, Listing, checked_names, note_doubles, size_of
from mmload.sources.objects import ImageObjects, fields_of_objects, read_mask, read_mask_of
from mmload.store.manifest import is_name

if TYPE_CHECKING:
    from mmload.records import FieldValue

PASCAL = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
"""The twenty classes of PASCAL VOC 2007 to 2012, in their own (alphabetical) order."""

Task = Literal["detection", "classification", "segmentation", "single-label"]
BACKGROUND = "background"
"""Class 0 of masks; a list of classes may begin with it or leave it out."""


T = TypeVar("T")

_SPLITS = ("train", "val", "test")
_USUAL_SETS = {name: [name] for name in (*_SPLITS, "trainval")}
_LISTS = 'names of lists, such as "train" or ["train", "val"]'


@dataclass
class VocSource:
    """A VOCdevkit.

    Attributes:
        root: the folder ``VOCdevkit``, the one around it, or a single year's; or a folder of images with XML beside
            them, as labelImg writes it, or of such a folder for each split, as Roboflow does.
        decoder: decodes images to pixels.
        task: "detection", "classification", "segmentation" or "single-label".
        year: which ``VOC<year>`` folder, or a list of them; None: the only one.
        image_set: which lists of ``ImageSets``: a name, a list of names (each a split of that name), or a table
            split -> name or names; a name may be ``year/name``. None: train, val and test, those that are there.
        classes: class names by index; "auto": those in the annotations, sorted, or the numbers in the masks; None:
            PASCAL's twenty, or "auto" without a devkit. For segmentation the background comes before them, whether the
            list begins with it or not.
        class_map: for single-label: VOC's class name -> the name in ``target_classes``.
        target_classes: for single-label: the other class list, by index; None: the map's names, sorted.
        one_based: boxes count pixels from 1 and include the last, as VOC's do; False: from 0, half-open.
        clip_boxes: cut boxes that reach over the edge, instead of refusing the image.
        download: fetch what is missing into ``root`` with torchvision's downloader.
        allow_outside: follow links that lead out of the root.

    Raises:
        RecipeError: if an option is invalid.
    """

    root: str | Path
    decoder: Decoder
    _: KW_ONLY
    task: Annotated[Task, Meta(description=f"one of {choices(get_args(Task))}")] = "detection"
    year: Annotated[str | int | list[str | int] | None, Meta(description="a year, or a list of years")] = None
    image_set: Annotated[str | list[str] | dict[str, str | list[str]] | None, Meta(description=_LISTS)] = None
    classes: Annotated[Literal["auto"] | list[str] | None, Meta(description='a list of different names, or "auto"')] = (
        None
    )
    class_map: Table = None
    target_classes: Names = None
    one_based: bool = True
    clip_boxes: bool = False
    download: bool = False
    allow_outside: bool = False

    def __post_init__(self) -> None:
        if self.decoder.exif_orient and self.task in ("detection", "segmentation"):
            raise RecipeError("exif_orient rotates the image but not its boxes or mask; leave it out for VOC")
        if (self.task == "single-label") != (self.class_map is not None):
            raise RecipeError('task "single-label" needs a class_map, and no other task takes one')
        self._root = Path(self.root)
        self._years = list(map(str, one_or_more(self.year)))
        self._sets = _checked_sets(self.image_set)
        self._map = self.class_map or {}
        self._classes = self._checked_targets() if self._map else _checked_classes(self.classes, self.task)

    def splits(self) -> Mapping[str, VocSplit]:
        """Returns the splits in the order of ``image_set``.

        Raises:
            SourceError: if a folder or a list is missing, no image is left, or a link leads out of the root.
            RecipeError: if the year has to be given.
        """
        findings: dict[str, Findings] = defaultdict(Findings)
        if self.download:
            self._fetch()
        devkit, years = find_years(self._root)
        tree = LocalTree(devkit if years else self._root, self.allow_outside, self._root)
        if years:
            lists = self._lists(tree, years)
            items = {name: Listing(Item, self._items(tree, own)) for name, own in lists.items()}
        else:
            items = self._annotated_items(tree, findings)
        if self._map:
            items = {name: self._single(tree.place, split, findings[name]) for name, split in items.items()}
        classes = self._own_classes(tree.place, items, PASCAL if years and self.classes is None else ())
        splits = {
            name: VocSplit(self, tree.place, split, classes, findings[name].notes()) for name, split in items.items()
        }
        note_doubles(splits, tree.notes())
        return splits

    def class_of(self, annotation: VocAnnotation) -> str:
        """Returns the class of an image with one label; raises ValueError if it has none, and is dropped."""
        if len(annotation.objects) != 1:
            raise ValueError("several objects" if annotation.objects else "no object")
        name = annotation.objects[0].name
        if name not in self._map:
            raise ValueError(f"{name} is not in the class map")
        return self._map[name]

    def _checked_targets(self) -> tuple[str, ...]:
        """Returns the classes that the class map leads to."""
        names = checked_names("target_classes", self.target_classes or sorted(set(self._map.values())))
        if not set(names).issuperset(self._map.values()):
            raise RecipeError(
                f"target_classes is {self.target_classes!r}, and class_map {self._map!r}; write each class that "
                "class_map leads to"
            )
        return names

    def _fetch(self) -> None:
        """Downloads what is missing."""
        from mmload.sources.download import download_voc

        if not self._years:
            raise RecipeError("download needs to know the year; give year, 2007 to 2012")
        devkit, years = find_years(self._root)
        wanted = chain.from_iterable(self._sets.values()) if self._sets else ("train", "val")
        for year, name in _with_years(wanted, self._years):
            if not (devkit / self._list(years.get(year, f"VOC{year}"), name)).is_file():
                download_voc(year, name, self._root)

    def _list(self, folder: str, name: str) -> str:
        """Returns the name of a list in a year's folder."""
        return f"{folder}/ImageSets/{'Segmentation' if self.task == 'segmentation' else 'Main'}/{name}.txt"

    def _lists(self, tree: LocalTree, years: Mapping[str, str]) -> dict[str, list[tuple[str, str]]]:
        """Returns the lists of each split: the folder of their year, and their names."""
        if not self._years and len(years) > 1:
            raise RecipeError(f"{tree.place} holds several years ({', '.join(years)}); give the year, one or a list")
        chosen, lists = self._years or list(years), dict[str, list[tuple[str, str]]]()
        for split, names in (self._sets or _USUAL_SETS).items():
            own = list(_with_years(names, chosen))
            if odd := {year for year, _ in own}.difference(years):
                raise SourceError(f"{tree.place} has no year {min(odd)!r}; it has {', '.join(years)}")
            lists[split] = [(years[year], name) for year, name in own]
        if self._sets:
            return lists
        there = {
            split: [each for each in lists[split] if (tree.place / self._list(*each)).is_file()] for split in lists
        }
        found = {split: there[split] for split in _SPLITS if there[split]} or {"train": there["trainval"]}
        if not any(found.values()):
            raise SourceError(
                f"{(tree.place / self._list(years[chosen[0]], 'train')).parent} has none of train.txt, val.txt, "
                "test.txt, trainval.txt; give image_set"
            )
        return found

    def _items(self, tree: LocalTree, lists: Sequence[tuple[str, str]]) -> Iterator[Item]:
        folder, ending = ("SegmentationClass", ".png") if self.task == "segmentation" else ("Annotations", ".xml")
        for year, name in lists:
            path = tree.place / self._list(year, name)
            tree.check(path)
            for stem in read_list(path, tree.place / year / "JPEGImages"):
                yield _item(tree, f"{year}/JPEGImages/{stem}", f"{year}/{folder}/{stem}{ending}")

    def _annotated_items(self, tree: LocalTree, findings: Mapping[str, Findings]) -> dict[str, Listing[Item]]:
        """Returns the images of each split with an annotation, where there is no devkit."""
        found, others = find_annotated(self._root)
        if not found or self._years or self._sets or self.task == "segmentation":
            raise SourceError(
                f"{self._root} is not a VOCdevkit: no folder in it has JPEGImages and ImageSets, "
                f"{'and XML beside images has no years, no lists and no masks' if found else 'or XML beside images'}; "
                "give the folder that holds VOC2007, VOC2012, ..., or set download to fetch one"
            )
        items = {}
        for split, (images, xml) in found.items():
            own = [
                _item(tree, posixpath.join(images, stem), posixpath.join(xml, f"{stem}.xml"))
                for stem, ending in map(posixpath.splitext, tree.names(xml, of_files=True))
                if ending.lower() == ".xml"
            ]
            read = {posixpath.basename(each.files[0]) for each in own}
            unread = filterfalse(read.__contains__, filter(is_image_name, tree.names(images, of_files=True)))
            findings[split].add("images without an annotation (.xml) of their own are left out", *unread)
            items[split] = Listing(Item, own)
        findings[next(iter(found))].add("folders without annotations (.xml) are left out", *others)
        return items

    def _single(self, devkit: Path, items: Listing[Item], findings: Findings) -> Listing[Item]:
        """Returns the images with one label; those whose annotation cannot be read are errors when they are read."""
        rows = []
        for row, item in enumerate(items):
            try:
                for annotation in _readable(read_annotation, devkit, [item]):  # none if it cannot be read
                    self.class_of(annotation)
                rows.append(row)
            except ValueError as error:
                findings.add(f"images dropped, {error}", item.files[0])
        return items.only(rows)

    def _own_classes(
        self, devkit: Path, items: Mapping[str, Listing[Item]], default: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Returns the names of the classes by index; without a default, those in the annotations or masks."""
        classes, every = self._classes or default, chain.from_iterable(items.values())
        if self.task != "segmentation":
            annotations = _readable(read_annotation, devkit, every)
            return classes or tuple(sorted({each.name for one in annotations for each in one.objects}))
        if not classes:
            masks = _readable(read_mask, devkit, every)
            largest = max((int(mask.masked_fill(mask == VOID, 0).max()) for mask in masks), default=0)
            classes = tuple(f"class {number}" for number in range(1, largest + 1))
        return classes if _is_background(next(iter(classes), "")) else (BACKGROUND, *classes)


def _with_years(names: Iterable[str], years: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields year and name of lists: of the year that stands before the name, as in ``2007/train``, or of each."""
    for name in names:
        year, _, plain = name.rpartition("/")
        yield from product([year] if year else years, [plain])


def _item(tree: LocalTree, base: str, beside: str) -> Item:
    """Returns the item of an image, of which the path without its ending is given, and its annotation or mask."""
    name, image = tree.find(*(posixpath.normpath(f"{base}{ending}") for ending in EXTENSIONS))
    beside, own = tree.find(posixpath.normpath(beside))
    return Item((name, beside), f"{image} {own}")


class VocSplit(ListedSplit):
    """One split: images and their annotations or masks."""

    def __init__(
        self, source: VocSource, devkit: Path, items: Listing[Item], classes: tuple[str, ...], notes: tuple[str, ...]
    ) -> None:
        super().__init__(devkit, source.decoder, items, classes, notes, boxes=source.task == "detection")
        self._source = source

    def beside(self, index: int, files: SampleFiles, image: FieldValue) -> Beside:
        """Returns what the task stores.

        ============== ==============================================================================================
        detection      lists: ``boxes`` float32 [n, 4] (xyxy, half-open), ``labels`` [n], ``difficult`` [n]; ``counts``
        classification ``targets`` float32 [K], 1 for a class in the image; ``ignored`` bool [K], 1 where only difficult
        segmentation   ``masks`` uint8 [H, W]: class indices, 255 = void
        single-label   ``targets`` int64 []
        ============== ==============================================================================================
        """
        import torch

        beside, source, size = self.files(index)[1], self._source, size_of(image)
        if source.task == "segmentation":
            return Beside({"masks": read_mask_of(files, beside, size, len(self.classes), _OWN_CLASSES)})
        annotation = read_annotation(files, beside)
        if source.task == "single-label":
            return Beside({"targets": torch.tensor(self.classes.index(source.class_of(annotation)), device="cpu")})
        if source.task == "classification":
            return classification_fields(annotation, self.classes)
        return detection_fields(annotation, self.classes, size, one_based=source.one_based, clip=source.clip_boxes)


_OWN_CLASSES = "name your own in classes, or take those in the masks: --set classes=auto"


def _readable(read: Callable[[SampleFiles, str], T], devkit: Path, items: Iterable[Item]) -> Iterator[T]:
    """Yields what is beside each image; not where that is an error, which is raised again when the sample is read."""
    for item in items:
        with suppress(SampleError, ValueError):
            yield read(SampleFiles(devkit, item.files[0]), item.files[1])


def _checked_sets(image_set: str | list[str] | dict[str, str | list[str]] | None) -> dict[str, list[str]]:
    """Returns the names of the lists of each split in ``image_set``; empty: it is not given."""
    if isinstance(image_set, dict):
        sets = {split: one_or_more(names) for split, names in image_set.items()}
    else:
        sets = {name.rpartition("/")[2]: [name] for name in one_or_more(image_set)}
    if image_set in ([], {}) or not all(map(is_name, sets)) or not all(sets.values()):
        raise RecipeError(f"image_set is {image_set!r}; use {_LISTS}")
    return sets


def _is_background(name: str) -> bool:
    return name.lower() == BACKGROUND


def _checked_classes(classes: str | list[str] | None, task: str) -> tuple[str, ...]:
    """Returns the names in ``classes``, () if it has none."""
    names = checked_names("classes", classes if isinstance(classes, list) else None)
    is_late = any(map(_is_background, names[1:] or names))
    if len(names) > 254 or (task == "segmentation" and is_late):
        raise RecipeError(
            f"classes is {classes!r:.80}; write at most 254 names; {BACKGROUND} is class 0 of masks: put it before the "
            "others, or leave it out"
        )
    return names


def read_list(path: Path, images: Path) -> list[str]:
    """Reads the image names of a list; of a class's list (``name 1``, ``name -1``) those that have the class.

    Raises:
        SourceError: if it cannot be read, or a line in it is no plain name.
    """
    if not path.exists():
        lists = sorted(other.stem for other in path.parent.glob("*.txt"))
        raise SourceError(f"cannot read the list {path} (no such file); choose from {', '.join(lists)}")
    lines = enumerate(read_text(path).splitlines(), 1)
    return list(filter(None, (_listed_name(line.strip(), images, f"{path}, line {number}") for number, line in lines)))


def _listed_name(line: str, images: Path, where: str) -> str:
    """Returns the image name in a line, "" if there is none or the image does not have the list's class.

    Tools also write the path of the image, of its annotation, or of both. A name may have spaces.
    """
    words, whole = line.split(), _below_folders(line)
    if len(words) > 1 and inner_name(whole) and any((images / f"{whole}{each}").is_file() for each in EXTENSIONS):
        return whole
    if len(words) == 2 and words[1] in ("-1", "0", "1"):
        words = words[:1] if words[1] == "1" else []
    names = set(map(_below_folders, words))
    if len(names) > 1 or not all(map(inner_name, names)):
        raise SourceError(f"{where}: {line[:60]!r} is not the name of an image in JPEGImages")
    return "".join(names)


_OWN_FOLDERS = re.compile(r"(?:^|(?<=/))(?:JPEGImages|Annotations)(?:/|\Z)")


def _below_folders(path: str) -> str:
    """Returns a path relative to JPEGImages or Annotations, without the ending of an image or annotation."""
    stem, ending = posixpath.splitext(_OWN_FOLDERS.split(path.replace("\\", "/"))[-1])
    return stem if ending.lower() in (*EXTENSIONS, ".xml") else stem + ending


def find_years(root: Path) -> tuple[Path, dict[str, str]]:
    """Returns the folder that holds the year folders, and year -> folder name."""
    if _is_year(root):
        resolved = root.resolve()
        return resolved.parent, {resolved.name.removeprefix("VOC"): resolved.name}
    for devkit in filter(Path.is_dir, (root, root / "VOCdevkit", root / "TrainVal" / "VOCdevkit")):
        if names := sorted(folder.name for folder in devkit.iterdir() if _is_year(folder)):
            return devkit, {name.removeprefix("VOC"): name for name in names}
    return root / "VOCdevkit", {}


def _is_year(folder: Path) -> bool:
    return (folder / "JPEGImages").is_dir() and (folder / "ImageSets").is_dir()


def find_annotated(root: Path) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Returns split -> (folder of images, folder of annotations) where XML lies beside images, without a devkit.

    The split is the root itself, named train, or each folder in it that has annotations; the others are returned, too.
    """
    if (own := _annotated(root, "")) is not None:
        return {"train": own}, []
    pairs = {folder.name: _annotated(root, folder.name) for folder in sorted(root.iterdir()) if folder.is_dir()}
    splits = {name: pair for name, pair in pairs.items() if pair is not None and is_name(name)}
    return splits, sorted(pairs.keys() - splits)


def _annotated(root: Path, folder: str) -> tuple[str, str] | None:
    """Returns the folders of images and of annotations of a folder; None if it has no annotations."""
    for name in ("", "annotations", "Annotations", "annotations/xmls"):
        xml = posixpath.join(folder, name).rstrip("/")
        if any((root / xml).glob("*.[xX][mM][lL]")):
            images = [posixpath.join(folder, each) for each in ("JPEGImages", "images", "Images") if name]
            return next((each for each in images if (root / each).is_dir()), folder), xml
    return None


# Annotations: the objects in an XML file, and what a row has of them.

Box = tuple[float, float, float, float]

_ROUNDED = (
    "boxes reach over the edge of the image by a pixel and are cut there; if the files count pixels from 0, set "
    "one_based=false"
)
"""Loss of a sample, and the text of its note."""

MOST_BYTES = 16 * 2**20
"""Bytes of one annotation; PASCAL's largest has 30 KB."""

SIDES = ("xmin", "ymin", "xmax", "ymax")


class VocObject(NamedTuple):
    """One object: its class's name, its difficult flag, and xmin, ymin, xmax, ymax as written (or None)."""

    name: str
    difficult: bool
    box: Box | None


class VocAnnotation(NamedTuple):
    """Content of an annotation file.

    Attributes:
        objects: in the file's order; parts of objects (heads, hands) are left aside.
        size: (height, width) of the image that the boxes were drawn on; None where it is missing, 0 or no number.
    """

    objects: tuple[VocObject, ...] = ()
    size: tuple[int, int] | None = None


def read_annotation(files: SampleFiles, name: str) -> VocAnnotation:
    """Reads an annotation file.

    Raises:
        SampleError: if it cannot be read.
        ValueError: as for :func:`parse_annotation`; the message names the file.
    """
    data = files.read(name, MOST_BYTES)
    with naming(f"{name}: "):
        return parse_annotation(data)


def parse_annotation(data: bytes) -> VocAnnotation:
    """Returns the objects of an annotation, and the size that it gives for the image.

    Raises:
        ValueError: if it is not XML, has a document type (which VOC never has, and which attacks need), is no
            annotation, or an object in it has no name, several names, or a side that is no number; the message says
            which.
    """
    check_content(data)
    parser = ElementTree.XMLParser(target=_WithoutDocumentType())
    with naming("malformed XML: ", ElementTree.ParseError, LookupError):  # the second: an unknown encoding
        parser.feed(data)
        root = parser.close()
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2].lower()  # without its namespace
    if root.tag != "annotation":
        raise ValueError(f"the XML is a <{root.tag[:40]}>, not an <annotation>")
    elements = list(root.iter("object"))
    if len(list(root.iter("bndbox"))) > sum(len(list(each.iter("bndbox"))) for each in elements):
        raise ValueError("a bndbox is in no <object>")
    objects = chain.from_iterable(starmap(_objects, enumerate(elements, 1)))
    return VocAnnotation(tuple(objects), _size(root))


class _WithoutDocumentType(ElementTree.TreeBuilder):
    """Builder that refuses document types before an entity is expanded."""

    def doctype(self, *_: object) -> None:
        raise ValueError("the XML has a document type, which VOC annotations never have; entities are refused")


def _texts(element: Element, path: str) -> list[str]:
    return [(each.text or "").strip() for each in element.findall(path)]


def _objects(place: int, element: Element) -> list[VocObject]:
    """Returns an object for each box of an ``<object>``, and one without a box if it has none."""
    names = set(_texts(element, "name")) - {""}
    if len(names) != 1:
        several = f"the names {', '.join(map(shown, sorted(names)))}" if names else "no name"
        raise ValueError(f"object {place} has {several}")
    (name,) = names
    with naming(f"object {place} ({name}): difficult is "):
        difficult = any(read_flag(text) for text in _texts(element, "difficult"))
    boxes = []
    for box in element.findall("bndbox"):
        sides = []
        for side in SIDES:
            with naming(f"object {place} ({name}): {side} is "):
                texts = _texts(box, side)
                sides.append(read_number(texts[0] if len(texts) == 1 else texts))
        boxes.append((sides[0], sides[1], sides[2], sides[3]))
    return [VocObject(name, difficult, box) for box in boxes] or [VocObject(name, difficult, None)]


def _size(root: Element) -> tuple[int, int] | None:
    """Returns (height, width); None if it is unknown: many tools write 0 or nothing."""
    with suppress(ValueError):
        height, width = (read_integer("".join(_texts(root, f"size/{side}")[-1:])) for side in ("height", "width"))
        return (height, width) if min(height, width) >= 1 else None
    return None


def label_of(name: str, classes: tuple[str, ...]) -> int:
    """Returns the index of a class; raises ValueError if there is no such class."""
    if name not in classes:
        first = ", ".join(classes[:20]) + (", ..." if len(classes) > 20 else "")
        raise ValueError(
            f"{name!r} is not one of the classes: {first}; name your own in classes, or take those in the "
            "annotations: --set classes=auto"
        )
    return classes.index(name)


def detection_fields(
    annotation: VocAnnotation, classes: tuple[str, ...], size: tuple[int, int], *, one_based: bool, clip: bool
) -> Beside:
    """Returns the objects of an image of (height, width) ``size`` as lists: ``boxes``, ``labels``, ``difficult``.

    Boxes become half-open and count from 0: those in files that are ``one_based`` count from 1 and include the last
    pixel.

    Raises:
        ValueError: if an object is wrong; the message names it.
    """
    objects, listed = annotation.objects, annotation.size
    labels = np.array([label_of(each.name, classes) for each in objects], np.int64)
    drawn = f", drawn on an image of {listed[1]} x {listed[0]}" if listed not in (None, size) else ""
    written, names = [], []
    for number, each in enumerate(objects, 1):
        if each.box is None:
            raise ValueError(f"object {number} ({each.name}) has no bndbox")
        written.append(each.box)
        sides = ", ".join(map("{:g}".format, each.box))
        names.append(f"object {number} ({each.name}) of {', '.join(SIDES)} = {sides}{drawn}")
    boxes = np.array(written, np.float64).reshape(-1, 4) - np.array([1, 1, 0, 0]) * one_based
    difficult = np.array([each.difficult for each in objects], np.bool_)
    per_box = {"labels": labels, "difficult": difficult}
    own = ImageObjects(boxes=boxes, names=names, per_box=per_box, listed=listed)
    fields, losses, lists = fields_of_objects(own, size, clip)
    over = int(((boxes < 0) | (boxes > [size[1], size[0]] * 2)).any(1).sum())
    loss = CLIPPED if clip else _ROUNDED
    return Beside(fields, {**losses, loss: max(over, losses.get(loss, 0))}, lists)


def classification_fields(annotation: VocAnnotation, classes: tuple[str, ...]) -> Beside:
    """Returns ``targets`` float32 [K], 1 for the classes in an image, and ``ignored`` bool [K].

    By VOC's rule a class with only difficult objects does not count, and is ignored.

    Raises:
        ValueError: if an object is of another class.
    """
    import torch

    labels = np.array([label_of(each.name, classes) for each in annotation.objects], np.int64)
    counts, every = [not each.difficult for each in annotation.objects], np.arange(len(classes))
    targets = np.isin(every, labels[counts])
    ignored = np.isin(every, labels) & ~targets
    return Beside({"targets": torch.from_numpy(targets.astype(np.float32)), "ignored": torch.from_numpy(ignored)})
