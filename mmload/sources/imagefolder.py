"""An ImageFolder: ``ROOT/class/image.jpg``, or ``ROOT/{train,val,test}/class/image.jpg``.

Classes, their order, the extensions, and the order of the files are torchvision's ``ImageFolder``'s. The folder may lie
in object storage.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from mmload.errors import SampleError, SourceError, counted
from mmload.remote.urls import Location
from mmload.sources import FilePath, Findings, Fraction, Names, Seed
from mmload.sources.decode import Decoder
from mmload.sources.files import (
    EXTENSIONS,
    RemoteFiles,
    SampleFiles,
    Tree,
    images_among,
    is_image_name,
    tree_of,
)
from mmload.sources.listed_split import (
    Beside,
    Item,
    ListedSplit,
    Listing,
    check_same_classes,
    checked_names,
    with_held_out,
)
from mmload.store.manifest import is_name

if TYPE_CHECKING:
    from mmload.records import FieldValue


_OF_PROGRAMS = (".", "__", "@", "$", "System Volume", "lost+found")  # how folders begin that programs make

SPLIT_NAMES = ("train", "val", "valid", "validation", "test")

SPLIT_WORDS = (*SPLIT_NAMES, "training", "testing")
"""Names of split folders in lower case, of which a class is suspicious."""


KAGGLE_FOLDER = "ILSVRC/Data/CLS-LOC"
KAGGLE_TABLE = "LOC_val_solution.csv"
_TINY_TABLE = "val/val_annotations.txt"
"""Tables of the classes of validation images that lie in no class folders: ImageNet's as Kaggle ships it, beside
:data:`KAGGLE_FOLDER`, and Tiny ImageNet's. A line of both begins with an image and its class."""


_LOOKED_INTO = 20  # folders
_OTHER_KINDS = {
    ("webdataset", "tars, as WebDataset's"): (".tar",),
    ("huggingface", "a dataset of Hugging Face"): (".parquet", ".arrow", "dataset_dict.json"),
}
"""Other kind of a source, and what it is made of -> how its files end."""


@dataclass
class ImageFolderSource:
    """The splits of a folder: its train/val/test subfolders, or the whole of it as ``train``.

    Attributes:
        root: the folder, or where it lies in object storage.
        decoder: decodes its files to pixels.
        split_folders: which subfolders are splits; empty: none, the root holds the classes; None: those called train,
            val, valid, validation or test that hold subfolders (a class may be called ``train`` too).
        val_fraction: the share of ``train`` to hold out as ``val``, the same of every class; None for none.
        seed: selects the images that are held out.
        allow_empty: let a class have no images in a split.
        class_names: file below the root whose lines are the name of a class folder and that of its class, with a space,
            comma or tab between them; None: classes are named as their folders.
        allow_outside: follow links that lead out of the root.

    Raises:
        RecipeError: if an option is invalid.
        UsageError: if it lies in object storage, and obstore is not installed.
    """

    reads_urls: ClassVar[bool] = True

    root: str | Path | Location
    decoder: Decoder
    _: KW_ONLY
    split_folders: Names = None
    val_fraction: Fraction = None
    seed: Seed = 0
    allow_empty: bool = False
    class_names: FilePath = None
    allow_outside: bool = False

    def __post_init__(self) -> None:
        checked_names("split_folders", self.split_folders or None, is_name)
        self._tree = tree_of(self.root, self.allow_outside)

    def splits(self) -> Mapping[str, ImageFolderSplit]:
        """Finds the splits, ``train`` first.

        Raises:
            SourceError: if there is no such folder, no class in it, no image in a class, the splits' classes differ, or
                a link leads out of the root.
            RecipeError: if ``val_fraction`` is given and there is no ``train`` to take it from, or a ``val`` already.
        """
        try:
            return self._splits()
        except (OSError, SourceError) as error:
            if other := _other_kind(self._tree):
                raise SourceError(other) from error
            raise

    def _splits(self) -> Mapping[str, ImageFolderSplit]:
        table, labels, base = "", dict[str, str](), ""
        if self.split_folders is None:
            base = KAGGLE_FOLDER if "ILSVRC" in self._tree.names("") else ""
            if {"train", "val"}.issubset(self._tree.names(base)):
                inner = self._tree.names(posixpath.join(base, "val"))
                table, labels = _read_validation_classes(self._tree.place) if inner in ([], ["images"]) else ("", {})
        names, notes = self._split_names(base, flat=["images"] if labels else [])
        folders = {name: posixpath.join(base, name) for name in names} or {"train": base}
        splits = {name: self._scan(folder) for name, folder in folders.items()}
        next(iter(splits.values())).add_notes(notes)
        named = {self._tree.display_name(folders[name]): split.classes for name, split in splits.items()}
        check_same_classes(named, "give every split the same class folders, or name the splits in split_folders")
        if labels:
            splits["val"] = self._labeled(posixpath.join(base, "val"), splits["train"].classes, table, labels)
        if self.class_names is not None:
            classes = self._named(self.class_names, next(iter(splits.values())).classes)
            for split in splits.values():
                split.classes, split.is_renamed = classes, True
        return with_held_out(splits, attrgetter("own"), self.val_fraction, self.seed)

    def _named(self, file: str, folders: Sequence[str]) -> tuple[str, ...]:
        """Returns the names of the classes of some folders; one that several share ends in its folder."""
        lines = self._tree.read(file).decode("utf-8-sig", "replace").splitlines()
        parts = (line.partition(sign) for sign in " ,\t" for line in lines)
        table = {folder: name.strip() for folder, _, name in parts if name.strip()}
        if missing := sorted(set(folders).difference(table)):
            raise SourceError(
                f"{file} has no name for the class folder {missing[0]!r}; write a line of it, a comma, and the name"
            )
        counts = Counter(map(table.__getitem__, folders))
        return tuple(f"{name} ({folder})" if counts[name := table[folder]] > 1 else name for folder in folders)

    def _labeled(self, folder: str, classes: tuple[str, ...], table: str, labels: dict[str, str]) -> ImageFolderSplit:
        """Returns the images below a folder with the classes in a table, ordered as if they lay in class folders."""
        indices, files = {name: index for index, name in enumerate(classes)}, []
        for name in filter(is_image_name, self._tree.files(folder)):
            label = labels.get(posixpath.splitext(posixpath.basename(name))[0], "")
            if label not in indices:
                raise SourceError(f"{table} gives {name} the class {label!r:.60}, which train does not have")
            files.append(self._item(name, indices[label]))
        listing = Listing(Item, sorted(files, key=lambda file: (file.own, file.files)))
        return ImageFolderSplit(self._tree.place, self.decoder, listing, classes, (f"classes are those in {table}",))

    def _split_names(self, base: str, flat: list[str]) -> tuple[list[str], tuple[str, ...]]:
        """Returns the split folders, none of which holds only ``flat``, and a note on folders beside them."""
        if self.split_folders is not None:
            return list(self.split_folders), ()
        folders = set(self._tree.names(base))
        inner = {name: self._tree.names(posixpath.join(base, name)) for name in folders if name.lower() in SPLIT_WORDS}
        names = [name for name in SPLIT_NAMES if inner.get(name, []) not in ([], flat)]
        if not names and inner and (any(inner.values()) or len(inner) == len(folders)):
            raise SourceError(
                f"{self._tree.display_name(base)} has folders that are named as splits and not as classes "
                f"({', '.join(sorted(inner))}); if they hold class folders, name them in split_folders; if they hold "
                "images without classes, use a source of kind coco, yolo or list; if they are classes, add "
                "--set split_folders=[]"
            )
        if not names:
            return [], ()
        findings, validation = Findings(), {"val"} if flat else set()
        findings.add("folders that are not splits are not read", *sorted(folders.difference(names, validation)))
        return names, findings.notes()

    def _scan(self, split: str) -> ImageFolderSplit:
        folder = self._tree.display_name(split)
        classes = tuple(self._tree.names(split))
        if not classes:
            raise SourceError(
                f"no class folders in {folder}; an ImageFolder has one subfolder of images per class; of ImageNet give "
                f"the folder that holds train and val, whose classes {KAGGLE_TABLE} lists"
            )
        findings, counts = Findings(), [0] * len(classes)
        files = Listing(Item, self._images(split, classes, counts, findings))
        empty = [name for name, count in zip(classes, counts, strict=True) if not count]
        if empty and not self.allow_empty:
            raise SourceError(
                f"no images in {len(empty)} of {counted(len(classes), 'class folder')} of {folder} "
                f"({', '.join(empty[:5])}); images end in {' '.join(EXTENSIONS)}; "
                "set allow_empty to keep classes without images"
            )
        findings.add(
            "images beside the class folders are left out",
            *filter(is_image_name, self._tree.names(split, of_files=True)),
        )
        findings.add("classes without images", *empty)
        hidden = [name for name in classes if name.startswith(_OF_PROGRAMS)]  # torchvision accepts them
        findings.add("classes that have names of folders that programs make; check that they are classes", *hidden)
        notes = findings.notes()
        if len(classes) == 1 and self._tree.names(posixpath.join(split, classes[0])):
            notes += (
                f"all images are of one class, {classes[0]}; if its folders are classes or splits, give it as ROOT",
            )
        return ImageFolderSplit(self._tree.place, self.decoder, files, classes, notes)

    def _images(self, split: str, classes: Sequence[str], counts: list[int], findings: Findings) -> Iterator[Item]:
        """Yields the images of the classes, and counts those of each."""
        for target, name in enumerate(classes):
            for image in images_among(self._tree.files(posixpath.join(split, name)), findings):
                counts[target] += 1
                yield self._item(image, target)

    def _item(self, name: str, target: int) -> Item:
        return Item((name,), f"{target} {self._tree.revision(name)}", own=target)


class ImageFolderSplit(ListedSplit):
    """One split: images and their classes."""

    is_renamed = False
    """Whether classes are named otherwise than their folders."""

    def beside(self, index: int, files: SampleFiles, image: FieldValue) -> Beside:
        """Returns the class as ``targets`` int64 []."""
        return Beside({"targets": np.array(self.items[index].own)})


def _other_kind(tree: Tree) -> str:
    """Returns what a folder is that is no ImageFolder, and the command for it; "" if that is unknown."""
    root, names = tree.display_name(""), list[str]()
    with suppress(OSError):
        for folder in ("", *tree.names("")[:_LOOKED_INTO]):
            names += tree.names(folder, of_files=True)
    if any(map(is_image_name, names)):
        return ""
    for (kind, what), endings in _OTHER_KINDS.items():
        if any(name.endswith(endings) for name in (root, *names)):
            return f"{root} holds {what}, and no class folders of images: mmload build {kind} {shlex.quote(root)} OUT"
    return ""


def _read_validation_classes(root: Path | RemoteFiles) -> tuple[str, dict[str, str]]:
    """Returns the name of the table below the root, and the class of each validation image by name without ending.

    The root may be :data:`KAGGLE_FOLDER` itself, whose table lies in the folder around. Both are empty if there is no
    table.
    """
    is_inner = isinstance(root, Path) and os.path.abspath(root).endswith(KAGGLE_FOLDER)
    for name in (f"../../../{KAGGLE_TABLE}" if is_inner else KAGGLE_TABLE, _TINY_TABLE):
        try:
            text = SampleFiles(root, name).read(name).decode("utf-8", "replace")
        except SampleError:
            continue
        rows = (re.split(r"[,\s]", line) for line in text.splitlines())
        return name, {posixpath.splitext(row[0])[0]: row[1] for row in rows if len(row) > 1}
    return "", {}
