"""An ImageFolder: ``ROOT/class/image.jpg``, or ``ROOT/{train,val,test}/class/image.jpg``.

Classes, their order, the extensions, and the order of the files are torchvision's ``ImageFolder``'s. A link to a
folder above it is not followed; torchvision follows it until the path is too long.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from mmload.errors import RecipeError, SourceError, counted
from mmload.records import Sample
from mmload.sources.decode import Decoder
from mmload.sources.files import EXTENSIONS, check_fraction, need_folder, read_image_and_jpeg
from mmload.sources.labels import alike
from mmload.sources.links import Links, is_absent, reading
from mmload.sources.listing import Listing, with_held_out
from mmload.store.manifest import is_name

MAX_DEPTH = 100
"""Folders inside one another in a class."""

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
        root: the folder.
        decoder: how its files become pixels.
        split_folders: which subfolders are splits; empty: none, the root holds the classes; None: those called train,
            val, valid, validation or test that hold subfolders (a class may be called ``train`` too).
        val_fraction: the share of ``train`` to hold out as ``val``, the same of every class; None for none.
        seed: which images are held out.
        allow_empty: let a class have no images in a split.
        allow_outside: follow links that lead out of the root.

    Raises:
        RecipeError: if an option is invalid.
    """

    def __init__(
        self,
        root: str | Path,
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
        self.root, self.decoder, self.split_folders = Path(root), decoder, split_folders
        self.val_fraction, self.seed, self.allow_empty = val_fraction, seed, allow_empty
        self._links = Links(root, allow_outside)

    def splits(self) -> Mapping[str, ImageFolderSplit]:
        """The splits that are there, ``train`` first.

        Raises:
            SourceError: if there is no such folder, no class in it, no image in a class, the splits' classes differ, or
                a link leads out of the root.
            RecipeError: if ``val_fraction`` is given and there is no ``train`` to take it from, or a ``val`` already.
        """
        with reading(self.root):
            return self._found()

    def _found(self) -> Mapping[str, ImageFolderSplit]:
        need_folder(self.root, "the folder that holds one subfolder per class")
        names, notes = self._split_names()
        if not names:
            splits = {"train": self._scan("", ())}
        else:
            splits = {name: self._scan(name, notes if name == names[0] else ()) for name in names}
            _check_same_classes(self.root, splits)
        return splits if self.val_fraction is None else self._hold_out(splits, self.val_fraction)

    def _split_names(self) -> tuple[list[str], tuple[str, ...]]:
        """The split folders, and a note on folders beside them."""
        if self.split_folders is not None:
            for name in self.split_folders:
                need_folder(self.root / name, "split_folders that are there")
            return list(self.split_folders), ()
        folders = {entry.name for entry in os.scandir(self.root) if _is_folder(entry)}
        names = [name for name in SPLIT_NAMES if name in folders and _has_folders(self.root / name)]
        beside = sorted(folders - set(names))
        if not names or not beside:
            return names, ()
        shown = ", ".join(beside[:5]) + (", ..." if len(beside) > 5 else "")
        return names, (f"not read beside the splits: {counted(len(beside), 'folder')} ({shown})",)

    def _scan(self, split: str, notes: tuple[str, ...]) -> ImageFolderSplit:
        folder = self.root / split
        classes = tuple(sorted(entry.name for entry in os.scandir(folder) if _is_folder(entry)))
        if not classes:
            raise SourceError(f"no class folders in {folder}; an ImageFolder has one subfolder of images per class")
        files = Listing(ImageFile)
        empty, unread = [], Counter[str]()
        for target, name in enumerate(classes):
            before = len(files)
            files.extend(_images(str(self.root), os.path.join(split, name), target, self._links, unread))
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
        return ImageFolderSplit(self.root, self.decoder, classes, files, (*notes, *_odd_names(classes)))

    def _hold_out(self, splits: Mapping[str, ImageFolderSplit], fraction: float) -> dict[str, ImageFolderSplit]:
        files = {name: split.files for name, split in splits.items()}
        held = with_held_out(files, lambda file: file.name, lambda file: file.target, fraction, self.seed)
        return {name: splits[name if name in splits else "train"].only(own) for name, own in held.items()}


class ImageFolderSplit:
    """One split; holds a path, a class and a revision for each image.

    Args:
        root: what sample ids are relative to.
        decoder: how files become pixels.
        classes: class names, sorted.
        files: the images in order.
        notes: for the build's summary.
    """

    def __init__(
        self,
        root: Path,
        decoder: Decoder,
        classes: tuple[str, ...],
        files: Listing[ImageFile],
        notes: tuple[str, ...] = (),
    ) -> None:
        self.root = root
        self.decoder = decoder
        self.classes = classes
        self.files = files
        self._notes = notes

    def only(self, files: Listing[ImageFile]) -> ImageFolderSplit:
        """The same split with only these images."""
        return ImageFolderSplit(self.root, self.decoder, self.classes, files, self._notes)

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

    def read(self, index: int) -> Sample:
        """The image and its class.

        Returns:
            A sample with ``images`` uint8 [C, H, W] and ``targets`` int64 [].

        Raises:
            SampleError: if the file cannot be read or decoded.
        """
        name = self.id(index)
        target = torch.from_numpy(np.array(self.files.column("target")[index]))
        pixels, jpeg = read_image_and_jpeg(self.root, name, self.decoder, name)
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


def _has_folders(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(_is_folder(entry) for entry in entries)


def _check_same_classes(root: Path, splits: Mapping[str, ImageFolderSplit]) -> None:
    name, first = next(iter(splits.items()))
    for other, split in splits.items():
        if split.classes != first.classes:
            odd = sorted(set(split.classes) ^ set(first.classes))
            raise SourceError(
                f"{root / other} and {root / name} have different classes ({', '.join(odd[:5])}); "
                "give every split the same class folders, or name the splits in split_folders"
            )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder or a link to one; a link that leads back to itself is a file that cannot be read.

    Raises:
        OSError: if the system cannot tell: a class must not be left out because of that.
    """
    try:
        return entry.is_dir()
    except OSError as error:
        if not is_absent(error):
            raise
        return False


def _images(root: str, folder: str, target: int, links: Links, unread: Counter[str]) -> Iterator[ImageFile]:
    """Images under a class folder in torchvision's order: folders as sorted(os.walk), files sorted in each.

    Counts other pictures by their endings in ``unread``.
    """
    skip = len(os.path.join(root, ""))
    for parent, names in sorted(_walk(os.path.join(root, folder), (), links)):
        for name in sorted(names):
            if name.lower().endswith(EXTENSIONS):
                path = os.path.join(parent, name)
                yield ImageFile(path[skip:].replace(os.sep, "/"), target, links.revision(path))
            elif (ending := os.path.splitext(name)[1].lower()[1:]) in UNREAD:
                unread[ending] += 1


def _walk(folder: str, above: tuple[tuple[int, int], ...], links: Links) -> Iterator[tuple[str, list[str]]]:
    """``os.walk`` with links followed, but never into a folder that is being walked already (``above``)."""
    links.check_folder(folder)
    status = os.stat(folder)
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    if len(above) > MAX_DEPTH:
        raise SourceError(f"{folder[:200]} ... is over {MAX_DEPTH} folders deep; no class is")
    with os.scandir(folder) as found:
        entries = list(found)
    yield folder, [entry.name for entry in entries if not _is_folder(entry)]
    for entry in entries:
        if _is_folder(entry):
            yield from _walk(entry.path, (*above, here), links)
