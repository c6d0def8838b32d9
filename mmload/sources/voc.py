"""A VOCdevkit: ``VOCdevkit/VOC2012/{JPEGImages,Annotations,ImageSets,SegmentationClass}``, for one of four tasks.

Without a devkit, XML that lies beside images, or in a folder beside theirs, is read as well.

All annotations are read once when the splits are found, to determine the largest number of boxes or the images to keep.
An error in one image does not stop that: it becomes a SampleError when the image is read.
"""

from __future__ import annotations

import posixpath
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

from mmload.errors import RecipeError, SampleError, SourceError, choices, counted
from mmload.records import VOID, Sample
from mmload.sources.annotation_values import Findings
from mmload.sources.decode import Decoder
from mmload.sources.files import (
    EXTENSIONS,
    check_is_folder,
    checksum_of,
    inner_name,
    read_bytes,
    read_image_and_jpeg,
    read_text,
)
from mmload.sources.links import Links, reading
from mmload.sources.listing import ListedSplit, are_different_names, note_doubles
from mmload.sources.voc_annotations import MAX_BYTES, VocAnnotation, VocItem, VocTask, parse_annotation, read_mask
from mmload.store.manifest import is_name

PASCAL = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
"""The twenty classes of PASCAL VOC 2007 to 2012, in their own (alphabetical) order."""

TASKS = ("detection", "classification", "segmentation", "single-label")
BACKGROUND = "background"
"""Class 0 of masks; a list of classes may begin with it or leave it out."""


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
    task: str = "detection"
    year: str | int | Sequence[str | int] | None = None
    image_set: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None = None
    classes: str | Sequence[str] | None = None
    class_map: Mapping[str, str] | None = None
    target_classes: Sequence[str] | None = None
    one_based: bool = True
    clip_boxes: bool = False
    download: bool = False
    allow_outside: bool = False

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise RecipeError(f"task is {self.task!r}; use one of {choices(TASKS)}")
        if self.decoder.exif_orient and self.task in ("detection", "segmentation"):
            raise RecipeError("exif_orient rotates the image but not its boxes or mask; leave it out for VOC")
        if (self.task == "single-label") != (self.class_map is not None):
            raise RecipeError('task "single-label" needs a class_map, and no other task takes one')
        self._root = Path(self.root)
        self._years = [str(each) for each in ([self.year] if isinstance(self.year, str | int) else self.year or [])]
        self._sets = _checked_sets(self.image_set)
        self._classes = _checked_classes(self.classes, self.task)
        self._map, self._targets = _checked_map(self.class_map, self.target_classes)
        self._links = Links(self.root, self.allow_outside)

    def splits(self) -> Mapping[str, VocSplit]:
        """Returns the splits in the order of ``image_set``.

        Raises:
            SourceError: if a folder or a list is missing, no image is left, or a link leads out of the root.
            RecipeError: if the year has to be given.
        """
        with reading(self._root):
            lists = "Segmentation" if self.task == "segmentation" else "Main"
            devkit, years = self._devkit(lists)
            findings: dict[str, Findings] = defaultdict(Findings)
            if years:
                wanted = self._wanted(devkit, years, lists)
                items = {name: self._items(devkit, lists, sets) for name, sets in wanted.items()}
            else:
                devkit, items = self._root, self._annotated_items(findings)
            task = self._task(devkit, [item for split in items.values() for item in split], bool(years))
            splits = {name: self._split(devkit, name, split, task, findings[name]) for name, split in items.items()}
            note_doubles(splits, self._links.notes())
            return splits

    def _devkit(self, lists: str) -> tuple[Path, dict[str, str]]:
        """Returns the devkit, and the folder of each year in it; downloads what is missing."""
        if self.download and self._root.parent.is_dir():
            self._root.mkdir(exist_ok=True)
        check_is_folder(self._root, "a VOCdevkit, or the folder around it")
        devkit, years = find_years(self._root)
        if self.download:
            self._fetch(years, lists)
            devkit, years = find_years(self._root)
        return devkit, years

    def _wanted(self, devkit: Path, years: Mapping[str, str], lists: str) -> dict[str, list[tuple[str, str]]]:
        """Returns the (year folder, list) pairs of each split."""
        if not self._years and len(years) > 1:
            raise RecipeError(f"{devkit} holds several years ({', '.join(years)}); give the year, one or a list")
        chosen = self._years or list(years)
        for year in chosen:
            if year not in years:
                raise SourceError(f"{devkit} has no year {year!r}; it has {', '.join(years)}")
        sets = self._sets or default_sets([devkit / years[year] for year in chosen], lists)
        return {name: locate_lists(entries, chosen, years) for name, entries in sets.items()}

    def _annotated_items(self, findings: Mapping[str, Findings]) -> dict[str, list[VocItem]]:
        """Returns the images of each split with an annotation, where there is no devkit."""
        found, others = find_annotated(self._root)
        if not found or self._years or self._sets or self.task == "segmentation":
            raise SourceError(
                f"{self._root} is not a VOCdevkit: no folder in it has JPEGImages and ImageSets, "
                f"{'and XML beside images has no years, no lists and no masks' if found else 'or XML beside images'}; "
                "give the folder that holds VOC2007, VOC2012, ..., or set download to fetch one"
            )
        items: dict[str, list[VocItem]] = {}
        for split, (images, xml) in found.items():
            stems = sorted(path.stem for path in xml.iterdir() if path.suffix.lower() == ".xml")
            folders = [folder.relative_to(self._root).as_posix() for folder in (images, xml)]
            items[split] = [
                self._item(self._root, f"{folders[0]}/{stem}", f"{folders[1]}/{stem}.xml") for stem in stems
            ]
            read = {item.image for item in items[split]}
            for path in sorted(images.iterdir()):
                if path.suffix.lower() in EXTENSIONS and path.relative_to(self._root).as_posix() not in read:
                    findings[split].add("images without an annotation (.xml) of their own are left out", path.name)
        for name in others:
            findings[next(iter(found))].add("folders without annotations (.xml) are left out", name)
        return items

    def _fetch(self, years: Mapping[str, str], lists: str) -> None:
        from mmload.sources.download import download_voc

        if not self._years:
            raise RecipeError("download needs to know the year; give year, 2007 to 2012")
        sets = self._sets or {"train": ["train"], "val": ["val"]}
        for entry in [entry for entries in sets.values() for entry in entries]:
            only, _, name = entry.rpartition("/")
            for year in [only] if only else self._years:
                folder = find_years(self._root)[0] / years.get(year, f"VOC{year}")
                if not (folder / "ImageSets" / lists / f"{name}.txt").is_file():
                    download_voc(year, name, self._root)

    def _items(self, devkit: Path, lists: str, sets: list[tuple[str, str]]) -> list[VocItem]:
        folder, ending = ("SegmentationClass", ".png") if self.task == "segmentation" else ("Annotations", ".xml")
        items = []
        for year, name in sets:
            path = devkit / year / "ImageSets" / lists / f"{name}.txt"
            self._links.check(path)
            for stem in read_list(path, devkit / year / "JPEGImages"):
                items.append(self._item(devkit, f"{year}/JPEGImages/{stem}", f"{year}/{folder}/{stem}{ending}"))
        return items

    def _item(self, devkit: Path, base: str, beside: str) -> VocItem:
        """Returns the item of an image, of which the path without its ending is given, and its annotation or mask."""
        files = [posixpath.normpath(f"{base}{ending}") for ending in EXTENSIONS]
        name, image = self._links.find_first(devkit, files)
        beside, own = self._links.find(devkit, posixpath.normpath(beside))
        is_mask = self.task == "segmentation"
        found = VocAnnotation(fault="not annotated") if is_mask else _annotation(devkit, beside)
        return VocItem(name, f"{image} {own}", found, beside)

    def _task(self, devkit: Path, items: list[VocItem], has_devkit: bool) -> VocTask:
        classes = tuple(self._classes)
        if self.task == "single-label":
            classes = self._targets
        elif self._classes == "auto" or (self.classes is None and not has_devkit):
            names = {each.name for item in items for each in item.annotation.objects}
            classes = _numbered_classes(devkit, items) if self.task == "segmentation" else tuple(sorted(names))
        if self.task == "segmentation" and not _is_background(classes[0]):
            classes = (BACKGROUND, *classes)
        return VocTask(
            name=self.task,
            classes=classes,
            one_based=self.one_based,
            clip_boxes=self.clip_boxes,
            class_map=self._map,
        )

    def _split(self, devkit: Path, name: str, items: list[VocItem], task: VocTask, findings: Findings) -> VocSplit:
        reasons = [_dropped(item.annotation, task) for item in items]
        remaining = [item for item, reason in zip(items, reasons, strict=True) if not reason]
        counts = Counter(filter(None, reasons))
        notes = tuple(
            f"dropped {count:,} of {counted(len(items), 'image')}: {reason}" for reason, count in counts.most_common()
        )
        if not remaining:
            raise SourceError(f"split {name} of {devkit} has no image{'; ' + '; '.join(notes) if notes else ''}")
        most = max(1, *(len(item.annotation.objects) for item in remaining))
        return VocSplit(devkit, self.decoder, replace(task, most=most), remaining, notes + findings.notes())


class VocSplit(ListedSplit[VocItem]):
    """One split."""

    def __init__(
        self, root: Path, decoder: Decoder, task: VocTask, items: list[VocItem], notes: tuple[str, ...]
    ) -> None:
        super().__init__(items, task.classes, notes, boxes=task.name == "detection")
        self.root, self.decoder, self.task = root, decoder, task

    def revision(self, index: int) -> str:
        """Returns sizes and times of the image, its annotation and its mask."""
        return self.items[index].revision

    def checksum(self, index: int) -> str:
        item = self.items[index]
        return checksum_of(self.root, [item.image, item.beside], item.image)

    def read(self, index: int) -> Sample:
        """Reads the image as ``images`` uint8 [C, H, W], and the task's fields.

        Raises:
            SampleError: if the image, its annotation or its mask is missing or wrong.
        """
        item = self.items[index]
        pixels, jpeg, losses, _ = read_image_and_jpeg(
            self.root, item.image, self.decoder, item.image, boxes=self.has_boxes()
        )
        height, width = pixels.shape[-2:]
        fields, own = self.task.fields(item, self.root, (height, width))
        return Sample(item.image, {"images": pixels, **fields}, (height, width), losses | own, encoded=jpeg)


def _annotation(devkit: Path, name: str) -> VocAnnotation:
    try:
        return parse_annotation(read_bytes(devkit, name, name, MAX_BYTES))
    except SampleError as error:
        return VocAnnotation(fault=error.reason)
    except ValueError as error:
        return VocAnnotation(fault=f"{name}: {error}")


def _dropped(annotation: VocAnnotation, task: VocTask) -> str:
    """Returns why an image is not part of a split: for single-label, if it has not one object of a class in the map.

    An annotation that cannot be read is an error of its image.
    """
    if task.name != "single-label" or annotation.fault:
        return ""
    if len(annotation.objects) != 1:
        return "several objects" if annotation.objects else "no object"
    name = annotation.objects[0].name
    return "" if name in task.class_map else f"{name} is not in the class map"


def _numbered_classes(devkit: Path, items: Sequence[VocItem]) -> tuple[str, ...]:
    """Returns the background and a class per number up to the largest in the masks, which do not name their classes."""
    largest = 0
    for item in items:
        with suppress(SampleError):  # raised again when the sample is read
            mask = read_mask(devkit, item.beside, item.image)
            largest = max(largest, int(mask.masked_fill(mask == VOID, 0).max()))
    return (BACKGROUND, *(f"class {number}" for number in range(1, largest + 1)))


def _checked_sets(image_set: Any) -> dict[str, list[str]] | None:
    """Checks ``image_set`` and returns it in its long form."""
    if image_set is None:
        return None
    names = image_set if isinstance(image_set, Mapping) else _several(image_set)
    table = names if isinstance(names, Mapping) else {str(name).rpartition("/")[2]: name for name in names}
    sets = {name: _several(entry) for name, entry in table.items()}
    stems = [entry.rpartition("/")[2] if isinstance(entry, str) else "" for each in sets.values() for entry in each]
    if not sets or not all(map(is_name, sets)) or not all(sets.values()) or not all(map(is_stem, stems)):
        raise RecipeError(f'image_set is {image_set!r}; write list names, such as "train" or ["train", "val"]')
    return sets


def _several(names: Any) -> list[Any]:
    """Returns a name or a list of names as a list; an empty list for anything else."""
    return [names] if isinstance(names, str) else list(names) if isinstance(names, list | tuple) else []


def _is_background(name: object) -> bool:
    """Returns whether a class is the background, in upper or lower case."""
    return isinstance(name, str) and name.lower() == BACKGROUND


def _checked_classes(classes: Any, task: str) -> tuple[str, ...] | str:
    if classes is None:
        return PASCAL
    if classes == "auto" and task != "single-label":
        return "auto"
    names = classes if isinstance(classes, list | tuple) else ()
    if task == "segmentation" and (
        any(map(_is_background, names[1:])) or (len(names) == 1 and _is_background(names[0]))
    ):
        raise RecipeError(
            f"classes is {classes!r}; {BACKGROUND} is class 0 of masks: put it before the others, or leave it out"
        )
    if are_different_names(names) and len(names) < 255:
        return tuple(names)
    raise RecipeError(f'classes is {classes!r}; write a list of different names, or "auto" for those in the dataset')


def _checked_map(class_map: Any, target_classes: Any) -> tuple[dict[str, str], tuple[str, ...]]:
    if class_map is None:
        return {}, ()
    if not isinstance(class_map, Mapping) or not all(isinstance(name, str) for name in class_map.values()):
        raise RecipeError(f"class_map is {class_map!r}; write a table of VOC's name = \"the other's name\"")
    names = sorted(set(class_map.values())) if target_classes is None else target_classes
    if not are_different_names(names) or not set(names).issuperset(class_map.values()):
        raise RecipeError(
            f"target_classes is {target_classes!r}, and class_map {class_map!r}; write each class that class_map "
            "leads to once"
        )
    return dict(class_map), tuple(names)


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
    sets = sets or {"train": entries_of("trainval")}
    if not any(sets.values()):
        raise SourceError(
            f"{folders[0] / 'ImageSets' / lists} has none of train.txt, val.txt, test.txt, trainval.txt; give image_set"
        )
    return sets


def locate_lists(entries: Sequence[str], chosen: list[str], years: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the (year folder, list) pairs of entries ``year/list``, or ``list`` for every chosen year."""
    found = []
    for entry in entries:
        only, _, name = entry.rpartition("/")
        if only and only not in years:
            raise SourceError(f"image_set {entry!r}: year {only!r} does not exist; choose from {', '.join(years)}")
        found += [(years[year], name) for year in ([only] if only else chosen)]
    return found
