"""An ImageFolder: ``ROOT/class/image.jpg``, or ``ROOT/{train,val,test}/class/image.jpg``.

Classes, their order, the extensions, and the order of the files are torchvision's ``ImageFolder``'s. The folder may lie
in object storage.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from mmload.cloud.urls import Location
from mmload.errors import RecipeError, SourceError, counted
from mmload.records import Sample
from mmload.sources.decode import Decoder
from mmload.sources.files import EXTENSIONS, check_fraction, local_root, read_image_and_jpeg
from mmload.sources.image_trees import ImageTree, LocalTree, RemoteTree
from mmload.sources.labels import alike
from mmload.sources.links import Links, reading
from mmload.sources.listing import Listing, with_held_out
from mmload.sources.remote_files import RemoteFiles
from mmload.store.manifest import is_name

UNREAD = frozenset(
    ["avif", "cr2", "cr3", "dng", "arw", "nef", "gif", "heic", "heif", "jfif", "jp2", "jpe", "jxl", "svg", "tga"]
)
"""Endings of pictures that an ImageFolder leaves out, in torchvision too: a build says how many there are."""

SPLIT_NAMES = ("train", "val", "valid", "validation", "test")


class ImageFile(NamedTuple):
    """One image: its path relative to the root with forward slashes, its class's index, its file's revision."""

    name: str
    target: int
    revision: str


class ImageFolderSource:
    """The splits of a folder: its train/val/test subfolders, or the whole of it as ``train``.

    Args:
        root: the folder, or where it lies in object storage.
        decoder: how its files become pixels.
        split_folders: which subfolders are splits; empty: none, the root holds the classes; None: those called train,
            val, valid, validation or test that hold subfolders (a class may be called ``train`` too).
        val_fraction: the share of ``train`` to hold out as ``val``, the same of every class; None for none.
        seed: which images are held out.
        allow_empty: let a class have no images in a split.
        allow_outside: follow links that lead out of the root.

    Raises:
        RecipeError: if an option is invalid.
        UsageError: if it lies in object storage, and obstore is not installed.
    """

    reads_urls: ClassVar[bool] = True

    def __init__(
        self,
        root: str | Path | Location,
        decoder: Decoder,
        *,
        split_folders: Sequence[str] | None = None,
        val_fraction: float | None = None,
        seed: int = 0,
        allow_empty: bool = False,
        allow_outside: bool = False,
    ) -> None:
        check_fraction(val_fraction, seed)
        if split_folders is not None and not _are_names(split_folders):
            raise RecipeError(f"split_folders is {split_folders!r}; write a list of plain folder names")
        if not isinstance(allow_empty, bool):
            raise RecipeError(f"allow_empty is {allow_empty!r}; use true or false")
        self.decoder, self.split_folders = decoder, split_folders
        self.val_fraction, self.seed, self.allow_empty = val_fraction, seed, allow_empty
        self._tree: ImageTree
        if isinstance(root, Location):
            self._tree = RemoteTree(RemoteFiles(root))
        else:
            self._tree = LocalTree(Path(root), Links(root, allow_outside))

    @property
    def root(self) -> Path:
        """The folder; UsageError if it is in object storage."""
        return local_root(self._tree.place)

    def splits(self) -> Mapping[str, ImageFolderSplit]:
        """The splits that are there, ``train`` first.

        Raises:
            SourceError: if there is no such folder, no class in it, no image in a class, the splits' classes differ, or
                a link leads out of the root.
            RecipeError: if ``val_fraction`` is given and there is no ``train`` to take it from, or a ``val`` already.
        """
        with reading(self._tree.place):
            return self._found()

    def _found(self) -> Mapping[str, ImageFolderSplit]:
        self._tree.need("", "the folder that holds one subfolder per class")
        names, notes = self._split_names()
        if not names:
            splits = {"train": self._scan("", ())}
        else:
            splits = {name: self._scan(name, notes if name == names[0] else ()) for name in names}
            _check_same_classes(self._tree, splits)
        return splits if self.val_fraction is None else self._hold_out(splits, self.val_fraction)

    def _split_names(self) -> tuple[list[str], tuple[str, ...]]:
        """The split folders, and a note on folders beside them."""
        if self.split_folders is not None:
            for name in self.split_folders:
                self._tree.need(name, "split_folders that are there")
            return list(self.split_folders), ()
        folders = set(self._tree.folders(""))
        names = [name for name in SPLIT_NAMES if name in folders and self._tree.folders(name)]
        beside = sorted(folders - set(names))
        if not names or not beside:
            return names, ()
        shown = ", ".join(beside[:5]) + (", ..." if len(beside) > 5 else "")
        return names, (f"not read beside the splits: {counted(len(beside), 'folder')} ({shown})",)

    def _scan(self, split: str, notes: tuple[str, ...]) -> ImageFolderSplit:
        folder = self._tree.at(split)
        classes = tuple(self._tree.folders(split))
        if not classes:
            raise SourceError(f"no class folders in {folder}; an ImageFolder has one subfolder of images per class")
        files = Listing(ImageFile)
        empty, unread = [], Counter[str]()
        for target, name in enumerate(classes):
            before = len(files)
            files.extend(_images(self._tree, posixpath.join(split, name), target, unread))
            if len(files) == before:
                empty.append(name)
        if empty and not self.allow_empty:
            raise SourceError(
                f"no images in {len(empty)} of {counted(len(classes), 'class folder')} of {folder} "
                f"({', '.join(empty[:5])}); images end in {' '.join(EXTENSIONS)}; "
                "set allow_empty to keep classes without images"
            )
        if not files:
            raise SourceError(f"no images under {folder}; images end in {' '.join(EXTENSIONS)}")
        if empty:
            notes += (f"{counted(len(empty), 'class', 'classes')} without images: {', '.join(empty[:5])}",)
        if unread:
            kinds = ", ".join(f"{count} .{ending}" for ending, count in sorted(unread.items()))
            notes += (f"not read, as an ImageFolder has no such endings: {kinds}; convert them to .jpg or .png",)
        return ImageFolderSplit(self._tree.place, self.decoder, classes, files, (*notes, *_odd_names(classes)))

    def _hold_out(self, splits: Mapping[str, ImageFolderSplit], fraction: float) -> dict[str, ImageFolderSplit]:
        files = {name: split.files for name, split in splits.items()}
        held = with_held_out(files, lambda file: file.name, lambda file: file.target, fraction, self.seed)
        return {name: splits[name if name in splits else "train"].only(own) for name, own in held.items()}


class ImageFolderSplit:
    """One split; holds a path, a class and a revision for each image.

    Args:
        place: what sample ids are relative to, and are read from.
        decoder: how files become pixels.
        classes: class names, sorted.
        files: the images in order.
        notes: for the build's summary.
    """

    def __init__(
        self,
        place: Path | RemoteFiles,
        decoder: Decoder,
        classes: tuple[str, ...],
        files: Listing[ImageFile],
        notes: tuple[str, ...] = (),
    ) -> None:
        self._place = place
        self.decoder = decoder
        self.classes = classes
        self.files = files
        self._notes = notes

    @property
    def root(self) -> Path:
        """What sample ids are relative to; UsageError if that is no folder of this machine."""
        return local_root(self._place)

    def only(self, files: Listing[ImageFile]) -> ImageFolderSplit:
        """The same split with only these images."""
        return ImageFolderSplit(self._place, self.decoder, self.classes, files, self._notes)

    def part(self, samples: Sequence[int]) -> ImageFolderSplit:
        """Only these images, in this order."""
        return self.only(self.files.only(samples))

    def __len__(self) -> int:
        return len(self.files)

    def notes(self) -> tuple[str, ...]:
        """Classes without images, and folders that are not part of any split."""
        return self._notes

    def id(self, index: int) -> str:
        """The image's path relative to the root, with forward slashes."""
        name: str = self.files.column("name")[index]
        return name

    def revision(self, index: int) -> str:
        """Class, size and modification time of the image's file."""
        return f"{self.files.column('target')[index]} {self.files.column('revision')[index]}"

    def fetch_ahead(self, samples: Sequence[int]) -> None:
        """See :class:`mmload.sources.FetchesAhead`."""
        if isinstance(self._place, RemoteFiles):
            self._place.fetch_ahead(map(self.id, samples))

    def read(self, index: int) -> Sample:
        """The image and its class.

        Returns:
            A sample with ``images`` uint8 [C, H, W] and ``targets`` int64 [].

        Raises:
            SampleError: if the file cannot be read or decoded.
        """
        name = self.id(index)
        target = torch.from_numpy(np.array(self.files.column("target")[index]))
        pixels, jpeg = read_image_and_jpeg(self._place, name, self.decoder, name)
        height, width = pixels.shape[-2:]
        return Sample(name, {"images": pixels, "targets": target}, (height, width), encoded=jpeg)


def _odd_names(classes: tuple[str, ...]) -> Iterator[str]:
    """Notes on folders that are probably not classes, or one class twice; torchvision accepts all of them."""
    hidden = [name for name in classes if name.startswith((".", "__"))]
    if hidden:
        yield f"{', '.join(hidden[:5])} may be no class: programs name folders of their own like that"
    yield from alike(classes)


def _are_names(names: object) -> bool:
    return isinstance(names, list | tuple) and all(isinstance(name, str) and is_name(name) for name in names)


def _check_same_classes(tree: ImageTree, splits: Mapping[str, ImageFolderSplit]) -> None:
    name, first = next(iter(splits.items()))
    for other, split in splits.items():
        if split.classes != first.classes:
            odd = sorted(set(split.classes) ^ set(first.classes))
            raise SourceError(
                f"{tree.at(other)} and {tree.at(name)} have different classes ({', '.join(odd[:5])}); "
                "give every split the same class folders, or name the splits in split_folders"
            )


def _images(tree: ImageTree, folder: str, target: int, unread: Counter[str]) -> Iterator[ImageFile]:
    """Images under a class folder in torchvision's order. Counts other pictures by their endings in ``unread``."""
    for name in tree.files(folder):
        if name.lower().endswith(EXTENSIONS):
            yield ImageFile(name, target, tree.revision(name))
        elif (ending := posixpath.splitext(name)[1].lower()[1:]) in UNREAD:
            unread[ending] += 1
