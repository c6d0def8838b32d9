"""A VOCdevkit: ``VOCdevkit/VOC2012/{JPEGImages,Annotations,ImageSets,SegmentationClass}``, for one of four tasks.

Without a devkit, XML that lies beside images, or in a folder beside theirs, is read as well.

Annotations are read with their images. Only where they say which classes or samples there are, all are read when the
splits are found, too: an error in one does not stop that, and becomes a SampleError when its image is read.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from msgspec import Meta

from mmload.errors import RecipeError, SampleError, SourceError, choices
from mmload.records import VOID
from mmload.sources.annotation_values import Findings
from mmload.sources.decode import Decoder
from mmload.sources.files import EXTENSIONS, LocalTree, SampleFiles, check_is_folder, inner_name, read_text, reading
from mmload.sources.listing import Beside, Item, ListedSplit, Listing, are_different_names, note_doubles, size_of
from mmload.sources.masks import read_mask, read_mask_of
from mmload.sources.options import Names, Table
from mmload.sources.voc_annotations import (
    VocAnnotation,
    classification_fields,
    detection_fields,
    read_annotation,
)
from mmload.store.manifest import is_name

if TYPE_CHECKING:
    from torch import Tensor

PASCAL = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
"""The twenty classes of PASCAL VOC 2007 to 2012, in their own (alphabetical) order."""

Task = Literal["detection", "classification", "segmentation", "single-label"]
BACKGROUND = "background"
"""Class 0 of masks; a list of classes may begin with it or leave it out."""


_SPLITS = ("train", "val", "test")
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
    classes: Annotated[str | list[str] | None, Meta(description='a list of different names, or "auto"')] = None
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
        self._years = [str(each) for each in ([self.year] if isinstance(self.year, str | int) else self.year or [])]
        self._sets = _checked_sets(self.image_set)
        self._map = self.class_map or {}
        self._classes = self._checked_targets() if self._map else _checked_classes(self.classes, self.task)

    def splits(self) -> Mapping[str, VocSplit]:
        """Returns the splits in the order of ``image_set``.

        Raises:
            SourceError: if a folder or a list is missing, no image is left, or a link leads out of the root.
            RecipeError: if the year has to be given.
        """
        with reading(self._root):
            findings: dict[str, Findings] = defaultdict(Findings)
            devkit, years = self._devkit()
            tree = LocalTree(devkit if years else self._root, self.allow_outside, self._root)
            if years:
                lists = self._lists(tree, years)
                items = {name: Listing(Item, self._items(tree, own)) for name, own in lists.items()}
            else:
                items = self._annotated_items(tree, findings)
            if self._map:
                items = {name: self._single(tree.place, split, findings[name]) for name, split in items.items()}
            for name, split in items.items():
                if not split:
                    raise SourceError(
                        "; ".join((f"split {name} of {tree.place} has no image", *findings[name].notes()))
                    )
            classes = self._own_classes(tree.place, items, PASCAL if years else "auto")
            splits = {
                name: VocSplit(self, tree.place, split, classes, findings[name].notes())
                for name, split in items.items()
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
        names = self.target_classes or sorted(set(self._map.values()))
        if not are_different_names(names) or not set(names).issuperset(self._map.values()):
            raise RecipeError(
                f"target_classes is {self.target_classes!r}, and class_map {self._map!r}; write each class that "
                "class_map leads to once"
            )
        return tuple(names)

    def _devkit(self) -> tuple[Path, dict[str, str]]:
        """Returns the devkit, and the folder of each year in it; downloads what is missing."""
        if self.download and self._root.parent.is_dir():
            self._root.mkdir(exist_ok=True)
        check_is_folder(self._root, "a VOCdevkit, or the folder around it")
        if self.download:
            self._fetch()
        return find_years(self._root)

    def _fetch(self) -> None:
        from mmload.sources.download import download_voc

        if not self._years:
            raise RecipeError("download needs to know the year; give year, 2007 to 2012")
        devkit, years = find_years(self._root)
        for entry in chain.from_iterable((self._sets or {"train": ["train"], "val": ["val"]}).values()):
            for year, name in _years_of(entry, self._years):
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
        for split, entries in (self._sets or {name: [name] for name in (*_SPLITS, "trainval")}).items():
            pairs = [pair for entry in entries for pair in _years_of(entry, chosen)]
            for year, _ in pairs:
                if year not in years:
                    raise SourceError(f"{tree.place} has no year {year!r}; it has {', '.join(years)}")
            own = [(years[year], name) for year, name in pairs]
            lists[split] = [each for each in own if self._sets or (tree.place / self._list(*each)).is_file()]
        if self._sets:
            return lists
        found = {split: lists[split] for split in _SPLITS if lists[split]} or {"train": lists["trainval"]}
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
            stems = [name[: -len(".xml")] for name in tree.names(xml, of_files=True) if name.lower().endswith(".xml")]
            own = [_item(tree, posixpath.join(images, stem), posixpath.join(xml, f"{stem}.xml")) for stem in stems]
            read = {posixpath.basename(each.files[0]) for each in own}
            for name in tree.names(images, of_files=True):
                if name.lower().endswith(EXTENSIONS) and name not in read:
                    findings[split].add("images without an annotation (.xml) of their own are left out", name)
            items[split] = Listing(Item, own)
        for name in others:
            findings[next(iter(found))].add("folders without annotations (.xml) are left out", name)
        return items

    def _single(self, devkit: Path, items: Listing[Item], findings: Findings) -> Listing[Item]:
        """Returns the images with one label; those whose annotation cannot be read are errors when they are read."""
        rows = []
        for row, item in enumerate(items):
            annotation = _annotation_of(devkit, item)
            try:
                rows += [row] if annotation is None or self.class_of(annotation) else []
            except ValueError as error:
                findings.add(f"images dropped, {error}", item.files[0])
        return items.only(rows)

    def _own_classes(
        self, devkit: Path, items: Mapping[str, Listing[Item]], default: tuple[str, ...] | str
    ) -> tuple[str, ...]:
        """Returns the names of the classes by index."""
        classes = self._classes or default
        if isinstance(classes, str):
            every = (item for split in items.values() for item in split)
            if self.task == "segmentation":
                classes = tuple(f"class {number}" for number in range(1, _largest_number(devkit, every) + 1))
            else:
                found = (_annotation_of(devkit, item) or VocAnnotation() for item in every)
                classes = tuple(sorted({each.name for annotation in found for each in annotation.objects}))
        if self.task == "segmentation" and not (classes and _is_background(classes[0])):
            classes = (BACKGROUND, *classes)
        return classes


def _years_of(entry: str, years: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the years and the name of a list: ``2007/train``, or ``train`` of all years."""
    only, _, name = entry.rpartition("/")
    return [(year, name) for year in ([only] if only else years)]


def _item(tree: LocalTree, base: str, beside: str) -> Item:
    """Returns the item of an image, of which the path without its ending is given, and its annotation or mask."""
    name, image = tree.find(*(posixpath.normpath(f"{base}{ending}") for ending in EXTENSIONS))
    beside, own = tree.find(posixpath.normpath(beside))
    return Item((name, beside), f"{image} {own}")


class VocSplit(ListedSplit[Item]):
    """One split: images and their annotations or masks."""

    def __init__(
        self, source: VocSource, devkit: Path, items: Listing[Item], classes: tuple[str, ...], notes: tuple[str, ...]
    ) -> None:
        super().__init__(devkit, source.decoder, items, classes, notes, boxes=source.task == "detection")
        self._source = source

    def beside(self, index: int, files: SampleFiles, image: Tensor) -> Beside:
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


def _annotation_of(devkit: Path, item: Item) -> VocAnnotation | None:
    """Returns the annotation of an image; None if it is an error, which is raised again when the sample is read."""
    with suppress(SampleError, ValueError):
        return read_annotation(SampleFiles(devkit, item.files[0]), item.files[1])
    return None


def _largest_number(devkit: Path, items: Iterator[Item]) -> int:
    """Returns the largest number of a class in masks, which do not name their classes."""
    largest = 0
    for item in items:
        with suppress(SampleError, ValueError):  # raised again when the sample is read
            mask = read_mask(SampleFiles(devkit, item.files[0]), item.files[1])
            largest = max(largest, int(mask.masked_fill(mask == VOID, 0).max()))
    return largest


def _checked_sets(image_set: str | list[str] | dict[str, str | list[str]] | None) -> dict[str, list[str]]:
    """Checks ``image_set`` and returns it in its long form; empty: not given."""
    if image_set is None:
        return {}
    names = [image_set] if isinstance(image_set, str) else image_set
    table = names if isinstance(names, dict) else {name.rpartition("/")[2]: name for name in names}
    sets = {split: [entry] if isinstance(entry, str) else entry for split, entry in table.items()}
    stems = [entry.rpartition("/")[2] for entries in sets.values() for entry in entries]
    if not sets or not all(map(is_name, sets)) or not all(sets.values()) or not all(map(_is_stem, stems)):
        raise RecipeError(f"image_set is {image_set!r}; use {_LISTS}")
    return sets


def _is_stem(name: str) -> bool:
    """Returns whether a text is a file name without a folder."""
    return not set(name) & set("/\\\0") and name not in ("", ".", "..")


def _is_background(name: str) -> bool:
    return name.lower() == BACKGROUND


def _checked_classes(classes: str | list[str] | None, task: str) -> tuple[str, ...] | str:
    """Checks ``classes``; "" if they are not given."""
    if classes is None or classes == "auto":
        return classes or ""
    if not are_different_names(classes) or len(classes) > 254:
        raise RecipeError(
            f'classes is {classes!r}; write a list of different names, or "auto" for those in the dataset'
        )
    if task == "segmentation" and (any(map(_is_background, classes[1:])) or _is_background(classes[-1])):
        raise RecipeError(
            f"classes is {classes!r}; {BACKGROUND} is class 0 of masks: put it before the others, or leave it out"
        )
    return tuple(classes)


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


def find_annotated(root: Path) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Returns split -> (folder of images, folder of annotations) where XML lies beside images, without a devkit.

    The split is the root itself, named train, or each folder in it that has annotations; the others are returned, too.
    """
    if (own := _annotated(root, "")) is not None:
        return {"train": own}, []
    pairs = {folder.name: _annotated(root, folder.name) for folder in sorted(root.iterdir()) if folder.is_dir()}
    splits = {name: pair for name, pair in pairs.items() if pair is not None and is_name(name)}
    return splits, [name for name in pairs if name not in splits]


def _annotated(root: Path, folder: str) -> tuple[str, str] | None:
    """Returns the folders of images and of annotations of a folder; None if it has no annotations."""
    for name in ("", "annotations", "Annotations", "annotations/xmls"):
        xml = posixpath.join(folder, name).rstrip("/")
        if any((root / xml).glob("*.[xX][mM][lL]")):
            images = [posixpath.join(folder, each) for each in ("JPEGImages", "images", "Images") if name]
            return next((each for each in images if (root / each).is_dir()), folder), xml
    return None
