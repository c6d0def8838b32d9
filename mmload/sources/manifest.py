"""A list of files and their labels: CSV, JSON Lines, or JSON IDs with a folder of ``ID.pt`` tensors or images.

Tensors are loaded with ``weights_only``, so nothing in them runs. Paths that leave the folder are refused unless
allowed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from mmload.errors import RecipeError, SampleError, SourceError, choices, counted
from mmload.records import Sample
from mmload.sources.columns import Arrays
from mmload.sources.decode import Decoder
from mmload.sources.files import (
    EXTENSIONS,
    check_fraction,
    inner_name,
    need_folder,
    read_image_and_jpeg,
    read_tensor,
)
from mmload.sources.labels import targets_of
from mmload.sources.links import Links, reading
from mmload.sources.listing import Listing, with_held_out
from mmload.sources.tables import COLUMNS, Labels, Row, read_rows
from mmload.store.manifest import is_name

_HASHED = 2**22
"""Names to check for duplicates at a time."""


class Item(NamedTuple):
    """One sample: its id in the list (may be empty), its file in the folder, its target's index, its revision."""

    id: str
    file: str
    target: int
    revision: str

    @property
    def name(self) -> str:
        """Its id, else its file."""
        return self.id or self.file


class ManifestSource:
    """The samples of a list.

    Args:
        root: the folder that the paths are relative to; or the list itself, which then lies in that folder.
        decoder: how image files become pixels.
        file: the list, relative to the root: ``.csv``, ``.jsonl``, or ``.json`` (IDs); None if ``root`` is the list.
        folder: a subfolder of the root that the paths or IDs are relative to.
        columns: ``path``, ``label``, ``split`` or ``id`` -> the name in the list, where that differs.
        classes: class names by index; None: the labels' own, sorted.
        val_fraction: the share of ``train`` to hold out as ``val``, the same of every class; None for none.
        seed: which samples are held out.
        allow_outside: let paths be absolute or lead out of the root, themselves or by links.

    Raises:
        RecipeError: if an option is invalid.
    """

    def __init__(
        self,
        root: str | Path,
        decoder: Decoder,
        *,
        file: str | None = None,
        folder: str = "",
        columns: Mapping[str, str] | None = None,
        classes: Sequence[str] | None = None,
        val_fraction: float | None = None,
        seed: int = 0,
        allow_outside: bool = False,
    ) -> None:
        check_fraction(val_fraction, seed)
        for name, value in (("file", "" if file is None else file), ("folder", folder)):
            if not isinstance(value, str):
                raise RecipeError(f"{name} is {value!r}; write a path")
        columns = {} if columns is None else columns
        if not isinstance(columns, Mapping) or set(columns) - set(COLUMNS):
            raise RecipeError(f"columns is {columns!r}; write a table of {choices(COLUMNS)} = the list's name for it")
        if classes is not None and (not _is_texts(classes) or len(set(classes)) != len(classes)):
            raise RecipeError(f"classes is {classes!r}; write a list of different names")
        self.root, self.decoder, self.file, self.folder, self.columns = Path(root), decoder, file, folder, columns
        self.classes = None if classes is None else tuple(classes)
        self.val_fraction, self.seed = val_fraction, seed
        self._allow_outside = Links(root, allow_outside).allow_outside

    def splits(self) -> Mapping[str, ManifestSplit]:
        """The splits in the order in which the list names them; without split names all is ``train``.

        Raises:
            SourceError: if the list is missing or wrong, a path leaves the folder, or labels differ in kind.
            RecipeError: if ``val_fraction`` is given and the list has a ``val`` already or no ``train``.
        """
        with reading(self.root):
            return self._splits()

    def _splits(self) -> dict[str, ManifestSplit]:
        root, path, links = self._paths()
        rows = read_rows(path, self.columns)
        targets = targets_of(rows, self.classes)
        finder = _Finder(root, links, by_id=path.suffix.lower() == ".json")
        items: dict[str, Listing[Item]] = {}
        for index, row in enumerate(rows):
            name = _split_name(row)
            if name not in items:
                items[name] = Listing(Item)
            items[name].append(finder.item(row, index))
        labels = rows.labels
        del rows  # two columns of a million paths at a time are enough
        for name, members in items.items():
            _check_ids(name, members, path)
        if self.val_fraction is not None:
            items = with_held_out(
                items, lambda item: item.name, partial(_stratum, labels), self.val_fraction, self.seed
            )
        doubles = _doubles(items)
        return {
            name: ManifestSplit(
                root,
                self.decoder,
                targets.classes,
                members,
                targets.values.only(members.column("target")),
                (*targets.notes, *doubles[name]),
            )
            for name, members in items.items()
        }

    def _paths(self) -> tuple[Path, Path, Links]:
        """The folder that paths are relative to, the list, and which links may be followed."""
        if self.file is None and not self.root.is_dir():
            root, path = self.root.parent, self.root
        elif self.file is None:
            raise RecipeError(f"{self.root} is a folder; give the list in it as file, or the list itself as the root")
        else:
            root, path = self.root, self.root / self.file
        if not path.is_file():
            raise SourceError(f"no such list: {path}")
        need_folder(root / self.folder, "the folder that holds what the list names")
        folder = root / self.folder
        if self.file is not None and inner_name(self.file) is not None:  # a name that says that it leaves may do so
            Links(root, self._allow_outside).check(path)
        links = Links(folder if self.folder and inner_name(self.folder) is None else root, self._allow_outside)
        links.check_folder(folder)
        return folder, path, links


class ManifestSplit:
    """One split.

    Args:
        root: what the items' files are relative to.
        decoder: how image files become pixels.
        classes: class names by index; empty where labels are no classes.
        items: the samples in order.
        targets: of each item: int64 [] class indices, float32 [] or float32 [K].
        noted: what is probably a mistake.
    """

    def __init__(
        self,
        root: Path,
        decoder: Decoder,
        classes: tuple[str, ...],
        items: Listing[Item],
        targets: Arrays,
        noted: tuple[str, ...] = (),
    ) -> None:
        self.root, self.decoder, self.classes, self.items = root, decoder, classes, items
        self.targets, self._noted = targets, noted

    def part(self, samples: Sequence[int]) -> ManifestSplit:
        """Only these samples, in this order."""
        items, targets = self.items.only(samples), self.targets.only(samples)
        return ManifestSplit(self.root, self.decoder, self.classes, items, targets, self._noted)

    def __len__(self) -> int:
        return len(self.items)

    def notes(self) -> tuple[str, ...]:
        """Labels that are probably mistakes, and files that are listed several times."""
        return self._noted

    def id(self, index: int) -> str:
        """The list's id, or the path."""
        return self.items[index].name

    def revision(self, index: int) -> str:
        """The target, the file and its size and modification time."""
        _, file, _, revision = self.items[index]
        return f"{self.targets[index].tolist()} {file} {revision}"

    def read(self, index: int) -> Sample:
        """The image (``images`` uint8 [C, H, W]) or tensor (``features``, its own dtype) and its ``targets``.

        Raises:
            SampleError: if the file is missing or cannot be read.
        """
        item = self.items[index]
        if item.revision == "missing":
            where = "paths are relative to the list's folder, or to the folder that option folder names"
            raise SampleError(item.name, f"no such file: {item.file} ({where})")
        jpeg = None
        if item.file.lower().endswith(".pt"):
            tensor = read_tensor(self.root, item.file, item.name)
        else:
            tensor, jpeg = read_image_and_jpeg(self.root, item.file, self.decoder, item.name)
        image = tensor.dtype == torch.uint8 and tensor.ndim == 3
        size = (tensor.shape[1], tensor.shape[2]) if image else None
        target = torch.from_numpy(np.array(self.targets[index]))
        return Sample(item.name, {"images" if image else "features": tensor, "targets": target}, size, encoded=jpeg)


class _Finder:
    """Makes an item of a row: where its file is, if it may be there."""

    def __init__(self, root: Path, links: Links, by_id: bool) -> None:
        self.root, self.links, self.by_id = str(root), links, by_id
        self.endings = [".pt", *EXTENSIONS, *(ending.upper() for ending in EXTENSIONS)]

    def item(self, row: Row, index: int) -> Item:
        name = row.path if self.links.allow_outside else inner_name(row.path)
        if name is None or "\0" in name:
            raise SourceError(
                f"{row.where}: the path {row.path!r:.80} leaves {self.root}; set allow_outside to follow it"
            )
        path = os.path.join(self.root, name)
        self.links.check_folder(os.path.dirname(path))
        file, revision = self.by_ending(name, path) if self.by_id else (name, self.links.revision(path))
        return Item(row.id or "", file, index, revision)

    def by_ending(self, name: str, path: str) -> tuple[str, str]:
        """The ID's file; tries the ending that was found last first, as most files share it."""
        for ending in self.endings:
            revision = self.links.revision(path + ending)
            if revision != "missing":
                self.endings.remove(ending)
                self.endings.insert(0, ending)
                return name + ending, revision
        return name + ".pt", "missing"


def _split_name(row: Row) -> str:
    name = "train" if row.split is None else row.split
    if not is_name(name):
        raise SourceError(f"{row.where}: split {name!r:.60} is no plain name of letters, digits, _ and -")
    return name


def _stratum(labels: Labels, item: Item) -> str:
    """The stratum of an item when some are held out: its class, if its label is one."""
    label = labels[item.target]
    return str(label) if isinstance(label, str | int) else ""


def _doubles(splits: Mapping[str, Listing[Item]]) -> dict[str, list[str]]:
    """Notes on files that are in a split several times, or in an earlier one too: validation on them proves nothing."""
    notes: dict[str, list[str]] = {}
    earlier: dict[str, np.ndarray] = {}
    for name, items in splits.items():
        files = np.unique(np.fromiter(map(hash, items.column("file")), np.int64))  # a set of a million takes 130 MB
        again = len(items) - len(files)
        notes[name] = [f"{counted(again, 'file')} listed more than once, under different ids"] if again else []
        for other, others in earlier.items():
            if shared := len(np.intersect1d(files, others, assume_unique=True)):
                notes[name].append(f"{counted(shared, 'file')} also in split {other}")
        earlier[name] = files
    return notes


def _check_ids(split: str, items: Listing[Item], path: Path) -> None:
    buckets = 1 + len(items) // _HASHED  # a set of a million texts would take 130 MB, their hashes take 8
    if all(_all_differ(hash(item.name) for item in items if hash(item.name) % buckets == b) for b in range(buckets)):
        return
    seen: set[str] = set()
    for name in (item.name for item in items):
        if name in seen:
            raise SourceError(f"{path} names {name!r:.80} twice in {split}; give every sample once, or its own id")
        seen.add(name)


def _all_differ(hashes: Iterable[int]) -> bool:
    numbers = np.fromiter(hashes, np.int64)
    numbers.sort()
    return bool((numbers[1:] != numbers[:-1]).all())


def _is_texts(names: object) -> bool:
    if not isinstance(names, list | tuple) or not names:
        return False
    return all(isinstance(name, str) and name.strip() for name in names)
