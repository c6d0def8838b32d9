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
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from mmload.errors import RecipeError, SampleError, SourceError, choices, counted
from mmload.records import VOID, Sample
from mmload.sources.annotation_values import Findings
from mmload.sources.decode import Decoder
from mmload.sources.files import EXTENSIONS, check_is_folder, checksum_of, read_bytes, read_image_and_jpeg
from mmload.sources.links import Links, reading
from mmload.sources.listing import ListedSplit, are_different_names, note_doubles
from mmload.sources.voc_devkit import (
    MAX_BYTES,
    VocAnnotation,
    default_sets,
    find_annotated,
    find_years,
    is_stem,
    locate_lists,
    parse_annotation,
    read_list,
)
from mmload.sources.voc_tasks import (
    Classification,
    Detection,
    Segmentation,
    SingleLabel,
    VocItem,
    VocTask,
    read_mask,
)
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
            self._links.check_folder(images)
            self._links.check_folder(xml)
            stems = sorted(path.stem for path in xml.iterdir() if path.suffix.lower() == ".xml")
            folders = [folder.relative_to(self._root).as_posix() for folder in (images, xml)]
            items[split] = [
                _item(self._root, f"{folders[0]}/{stem}", self._links, annotation=f"{folders[1]}/{stem}.xml")
                for stem in stems
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
        items = []
        for year, name in sets:
            for folder in ("JPEGImages", "Annotations", "SegmentationClass"):
                self._links.check_folder(devkit / year / folder)
            path = devkit / year / "ImageSets" / lists / f"{name}.txt"
            self._links.check(path)
            for stem in read_list(path, devkit / year / "JPEGImages"):
                beside = {"mask": f"{year}/SegmentationClass/{stem}.png"}
                if self.task != "segmentation":
                    beside = {"annotation": f"{year}/Annotations/{stem}.xml"}
                items.append(_item(devkit, f"{year}/JPEGImages/{stem}", self._links, **beside))
        return items

    def _task(self, devkit: Path, items: list[VocItem], has_devkit: bool) -> VocTask:
        classes = tuple(self._classes)
        if self._classes == "auto" or (self.classes is None and not has_devkit):
            classes = _numbered_classes(devkit, items) if self.task == "segmentation" else _seen_classes(items)
        if self.task == "segmentation":
            return Segmentation(classes=classes if _is_background(classes[0]) else (BACKGROUND, *classes))
        if self.task == "classification":
            return Classification(classes=classes)
        if self.task == "single-label":
            return SingleLabel(class_map=self._map, classes=self._targets)
        return Detection(classes=classes, one_based=self.one_based, clip_boxes=self.clip_boxes)

    def _split(self, devkit: Path, name: str, items: list[VocItem], task: VocTask, findings: Findings) -> VocSplit:
        reasons = [task.dropped(item) for item in items]
        remaining = [item for item, reason in zip(items, reasons, strict=True) if reason is None]
        counts = Counter(reason for reason in reasons if reason is not None)
        notes = tuple(
            f"dropped {count:,} of {counted(len(items), 'image')}: {reason}" for reason, count in counts.most_common()
        )
        if not remaining:
            raise SourceError(f"split {name} of {devkit} has no image{'; ' + '; '.join(notes) if notes else ''}")
        return VocSplit(devkit, self.decoder, task.fitted(remaining), remaining, notes + findings.notes())


class VocSplit(ListedSplit[VocItem]):
    """One split."""

    def __init__(
        self, root: Path, decoder: Decoder, task: VocTask, items: list[VocItem], notes: tuple[str, ...]
    ) -> None:
        super().__init__(items, task.classes, notes, boxes=isinstance(task, Detection))
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
        fields = self.task.fields(item, self.root, (height, width))
        losses |= self.task.losses(item, (height, width))
        return Sample(item.image, {"images": pixels, **fields}, (height, width), losses, encoded=jpeg)


def _item(devkit: Path, base: str, links: Links, *, annotation: str = "", mask: str = "") -> VocItem:
    """Returns the item of an image, of which the path without its ending is given, with an annotation or a mask."""
    files = [posixpath.normpath(f"{base}{ending}") for ending in EXTENSIONS]
    beside = posixpath.normpath(annotation or mask)
    for each in (files[0], beside):
        links.check_folder((devkit / each).parent)
    name, image = links.find_first(devkit, files)
    beside, own = links.find(devkit, beside)
    revision = f"{image} {own}"
    found = _annotation(devkit, beside) if annotation else "not annotated"
    if isinstance(found, str):
        return VocItem(name, revision, found, beside=beside)
    return VocItem(name, revision, found.objects, found.size, beside)


def _annotation(devkit: Path, name: str) -> VocAnnotation | str:
    try:
        return parse_annotation(read_bytes(devkit, name, name, MAX_BYTES))
    except SampleError as error:
        return error.reason
    except ValueError as error:
        return f"{name}: {error}"


def _seen_classes(items: Sequence[VocItem]) -> tuple[str, ...]:
    return tuple(sorted({each.name for item in items if not isinstance(item.objects, str) for each in item.objects}))


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
