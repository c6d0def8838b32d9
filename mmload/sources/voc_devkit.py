"""Finds the folders and lists of a VOCdevkit (years, lists of a split, images of a list) and parses annotations.

Document types are refused, so there are no entities to expand and nothing to fetch. It opens no image.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from mmload.errors import SourceError, shown
from mmload.sources.annotation_values import flag, number
from mmload.sources.file_kinds import describe_content
from mmload.sources.files import EXTENSIONS, inner_name, read_text
from mmload.store.manifest import is_name


def read_list(path: Path, images: Path) -> list[str]:
    """Reads the image names of a list; of a class's list (``name 1``, ``name -1``) those that have the class.

    A line that is the name of an image in the folder is that, whatever follows a space in it.

    Raises:
        SourceError: if it cannot be read, or a line in it is no plain name.
    """
    if not path.exists():
        lists = sorted(other.stem for other in path.parent.glob("*.txt"))
        raise SourceError(f"cannot read the list {path} (no such file); choose from {', '.join(lists)}")
    lines = read_text(path).splitlines()
    listed = (_listed_name(line.strip(), images, f"{path}, line {number}") for number, line in enumerate(lines, 1))
    return [name for name in listed if name]


def _listed_name(line: str, images: Path, where: str) -> str:
    """Returns the image name in a line, "" if there is none or the image does not have the list's class.

    Tools also write the path of the image, of its annotation, or of both.
    """
    words, whole = line.split(), _below_folders(line)
    if len(words) > 1 and inner_name(whole) and any((images / f"{whole}{each}").is_file() for each in EXTENSIONS):
        return whole
    paths = [_below_folders(word) for word in words]
    if len(words) == 2 and paths[0] == paths[1]:
        words = words[:1]
    if len(words) > 2 or (len(words) == 2 and words[1] not in ("-1", "0", "1")):
        raise SourceError(f"{where}: {line[:60]!r} is not an image name")
    if not words:
        return ""
    if inner_name(paths[0]) is None:
        raise SourceError(f"{where}: {words[0][:60]!r} is not the name of a file in JPEGImages")
    return paths[0] if words[1:] in ([], ["1"]) else ""


def _below_folders(path: str) -> str:
    """Returns a path relative to JPEGImages or Annotations, without the ending of an image or annotation."""
    parts = path.replace("\\", "/").split("/")
    first = max((place + 1 for place, part in enumerate(parts) if part in ("JPEGImages", "Annotations")), default=0)
    stem, ending = posixpath.splitext("/".join(parts[first:]))
    return stem if ending.lower() in (*EXTENSIONS, ".xml") else stem + ending


def is_stem(name: str) -> bool:
    """Returns whether a text is a file name without a folder."""
    return not set(name) & set("/\\\0") and name not in ("", ".", "..")


def find_years(root: Path) -> tuple[Path, dict[str, str]]:
    """Returns the folder that holds the year folders, and year -> folder name."""
    if _is_year(root):
        resolved = root.resolve()
        return resolved.parent, {resolved.name.removeprefix("VOC"): resolved.name}
    for devkit in (root, root / "VOCdevkit", root / "TrainVal" / "VOCdevkit"):
        if devkit.is_dir():
            names = sorted(folder.name for folder in devkit.iterdir() if _is_year(folder))
            if names:
                return devkit, {name.removeprefix("VOC"): name for name in names}
    return root / "VOCdevkit", {}


def _is_year(folder: Path) -> bool:
    return (folder / "JPEGImages").is_dir() and (folder / "ImageSets").is_dir()


def find_annotated(root: Path) -> tuple[dict[str, tuple[Path, Path]], list[str]]:
    """Returns split -> (folder of images, folder of annotations) where XML lies beside images, without a devkit.

    The split is the root itself, named train, or each folder in it that has annotations; the others are returned, too.
    """
    if (own := _annotated(root)) is not None:
        return {"train": own}, []
    pairs = {folder.name: _annotated(folder) for folder in sorted(root.iterdir()) if folder.is_dir()}
    splits = {name: pair for name, pair in pairs.items() if pair is not None and is_name(name)}
    return splits, [name for name in pairs if name not in splits]


def _annotated(folder: Path) -> tuple[Path, Path] | None:
    """Returns the folders of images and of annotations of a folder; None if it has no annotations."""
    for name in ("", "annotations", "Annotations", "annotations/xmls"):
        if any((folder / name).glob("*.[xX][mM][lL]")):
            images = [folder / each for each in ("JPEGImages", "images", "Images") if name]
            return next(filter(Path.is_dir, images), folder), folder / name
    return None


def default_sets(folders: list[Path], lists: str) -> dict[str, list[str]]:
    """Maps each split to ``year/list`` entries: train, val and test if they exist, else trainval as train."""

    def entries_of(name: str) -> list[str]:
        matching = [folder for folder in folders if (folder / "ImageSets" / lists / f"{name}.txt").is_file()]
        return [f"{folder.name.removeprefix('VOC')}/{name}" for folder in matching]

    sets = {name: entries_of(name) for name in ("train", "val", "test") if entries_of(name)}
    if sets:
        return sets
    if entries_of("trainval"):
        return {"train": entries_of("trainval")}
    raise SourceError(
        f"{folders[0] / 'ImageSets' / lists} has none of train.txt, val.txt, test.txt, trainval.txt; give image_set"
    )


def locate_lists(entries: Sequence[str], chosen: list[str], years: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the (year folder, list) pairs of entries ``year/list``, or ``list`` for every chosen year."""
    found = []
    for entry in entries:
        only, _, name = entry.rpartition("/")
        if only and only not in years:
            raise SourceError(f"image_set {entry!r}: year {only!r} does not exist; choose from {', '.join(years)}")
        found += [(years[year], name) for year in ([only] if only else chosen)]
    return found


MAX_BYTES = 16 * 2**20
MAX_DEPTH = 32
"""Limits on one annotation; PASCAL's largest is 30 KB, and 5 deep."""

T = TypeVar("T")

SIDES = ("xmin", "ymin", "xmax", "ymax")


class VocObject(NamedTuple):
    """One object: its class's name, its difficult flag, and xmin, ymin, xmax, ymax as written (or None)."""

    name: str
    difficult: bool
    box: tuple[float, float, float, float] | None


class VocAnnotation(NamedTuple):
    """Content of an annotation file.

    Attributes:
        objects: in the file's order; parts of objects (heads, hands) are left aside.
        size: (height, width) of the image that the boxes were drawn on; None where it is missing, 0 or no number.
    """

    objects: tuple[VocObject, ...]
    size: tuple[int, int] | None


def parse_annotation(data: bytes) -> VocAnnotation:
    """Returns the objects of an annotation, and the size that it gives for the image.

    Raises:
        ValueError: if it is not XML, has a document type (which VOC never has, and which attacks need), is no
            annotation, or an object in it has no name, several names, or a side that is no number; the message says
            which.
    """
    if what := describe_content(data):
        raise ValueError(f"it is {what}")
    parser = ElementTree.XMLParser(target=_Elements())
    try:
        parser.feed(data)
        root = parser.close()
    except (ElementTree.ParseError, LookupError) as error:  # LookupError: an unknown encoding
        raise ValueError(f"malformed XML ({error})") from error
    elements = list(root.iter("object"))
    if len(list(root.iter("bndbox"))) > sum(len(list(each.iter("bndbox"))) for each in elements):
        raise ValueError("a bndbox is in no <object>")
    objects = [each for place, element in enumerate(elements, 1) for each in _objects(place, element)]
    return VocAnnotation(tuple(objects), _size(root))


class _Elements(ElementTree.TreeBuilder):
    """Builder of elements with tags in lower case and without attributes.

    It refuses document types before an entity is expanded, and what is too deep or no annotation before it is built.
    """

    depth = 0

    def doctype(self, *_: object) -> None:
        raise ValueError("the XML has a document type, which VOC annotations never have; entities are refused")

    def start(self, tag: str, _: object) -> Element:
        self.depth += 1
        plain = _plain_tag(tag)
        if self.depth > MAX_DEPTH:
            raise ValueError(f"the XML is over {MAX_DEPTH} elements deep")
        if self.depth == 1 and plain != "annotation":
            raise ValueError(f"the XML is a <{plain[:40]}>, not an <annotation>")
        return super().start(plain, {})

    def end(self, tag: str) -> Element:
        self.depth -= 1
        return super().end(_plain_tag(tag))


def _plain_tag(tag: str) -> str:
    """Returns a tag in lower case and without its namespace."""
    return tag.rpartition("}")[2].lower()


def _texts(element: Element, path: str) -> list[str]:
    return [(each.text or "").strip() for each in element.findall(path)]


def _objects(place: int, element: Element) -> list[VocObject]:
    """Returns an object for each box of an ``<object>``, and one without a box if it has none."""
    names = set(_texts(element, "name")) - {""}
    if len(names) != 1:
        several = f"the names {', '.join(map(shown, sorted(names)))}" if names else "no name"
        raise ValueError(f"object {place} has {several}")
    (name,) = names
    where = f"object {place} ({name})"
    difficult = True in [_value(f"{where}: difficult", flag, text) for text in _texts(element, "difficult")]
    count = len(element.findall("bndbox"))
    sides = {side: _texts(element, f"bndbox/{side}") for side in SIDES}
    wrong = next((side for side, found in sides.items() if len(found) != count), None)
    if wrong is not None:
        raise ValueError(f"{where} has {count} bndbox and {len(sides[wrong])} {wrong}")
    boxes = zip(
        *([_value(f"{where}: {side}", number, text) for text in found] for side, found in sides.items()), strict=True
    )
    return [VocObject(name, difficult, box) for box in boxes] or [VocObject(name, difficult, None)]


def _size(root: Element) -> tuple[int, int] | None:
    """Returns (height, width); None if it is unknown: many tools write 0 or nothing."""
    try:
        height, width = (number("".join(_texts(root, f"size/{side}")[-1:])) for side in ("height", "width"))
    except ValueError:
        return None
    valid = all(side >= 1 and side.is_integer() for side in (height, width))
    return (int(height), int(width)) if valid else None


def _value(name: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise ValueError(f"{name} is {error}") from error
