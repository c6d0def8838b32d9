"""A list of files and their labels: CSV, JSON Lines, or JSON IDs with a folder of ``ID.pt`` tensors or images.

Tensors are loaded with ``weights_only``, so nothing in them runs. Paths that leave the folder are refused unless
allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from mmload.errors import RecipeError, SampleError, SourceError, choices, counted
from mmload.records import Sample
from mmload.remote.urls import Location
from mmload.sources.columns import Arrays
from mmload.sources.decode import Decoder
from mmload.sources.files import (
    Links,
    RemoteFiles,
    inner_name,
    local_root,
    need_folder,
    read_image_and_jpeg,
    read_tensor,
    reading,
)
from mmload.sources.labels import OBJECT, Finder, Item, LocalFinder, RemoteFinder, folder_of, location_below, targets_of
from mmload.sources.listing import Listing, check_fraction, with_held_out
from mmload.sources.tables import COLUMNS, Labels, ListRow, Table, read_rows
from mmload.store.manifest import is_name

_HASHED = 2**22
"""Names to check for duplicates at a time."""


class ListSource:
    """The samples of a list.

    Args:
        root: the folder that the paths are relative to; or the list itself, which then lies in that folder. Either may
            lie in object storage.
        decoder: how image files become pixels.
        file: the list, relative to the root: ``.csv``, ``.jsonl``, or ``.json`` (IDs); None if ``root`` is the list.
        folder: a subfolder of the root that the paths or IDs are relative to.
        columns: ``path``, ``label``, ``split`` or ``id`` -> the name in the list, where that differs.
        classes: class names by index; None: the labels' own, sorted.
        val_fraction: the share of ``train`` to hold out as ``val``, the same of every class; None for none.
        seed: which samples are held out.
        allow_outside: let paths be absolute, URLs, or lead out of the root, themselves or by links.

    Raises:
        RecipeError: if an option is invalid.
    """

    reads_urls: ClassVar[bool] = True

    def __init__(
        self,
        root: str | Path | Location,
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
        self.root = root if isinstance(root, Location) else Path(root)
        self.decoder, self.file, self.folder, self.columns = decoder, file, folder, columns
        self.classes = None if classes is None else tuple(classes)
        self.val_fraction, self.seed = val_fraction, seed
        if not isinstance(allow_outside, bool):
            raise RecipeError(f"allow_outside is {allow_outside!r}; use true or false")
        self._allow_outside = allow_outside

    def splits(self) -> Mapping[str, ListSplit]:
        """Returns the splits in the order in which the list names them; without split names all is ``train``.

        Raises:
            SourceError: if the list is missing or wrong, a path leaves the folder, or labels differ in kind.
            RecipeError: if ``val_fraction`` is given and the list has a ``val`` already or no ``train``.
        """
        if isinstance(self.root, Location):
            return self._splits(*self._remote(self.root))
        with reading(self.root):
            folder, path, links = self._paths(self.root)
            finder = LocalFinder(str(folder), links, by_id=path.suffix.lower() == ".json")
            return self._splits(folder, path, read_rows(path, self.columns), finder)

    def _splits(
        self, place: Path | RemoteFiles, path: Path | Location, rows: Table, finder: Finder
    ) -> dict[str, ListSplit]:
        targets = targets_of(rows, self.classes)
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
            name: ListSplit(
                place,
                finder.urls,
                self.decoder,
                targets.classes,
                members,
                targets.values.only(members.column("target")),
                (*targets.notes, *doubles[name]),
            )
            for name, members in items.items()
        }

    def _remote(self, root: Location) -> tuple[RemoteFiles, Location, Table, Finder]:
        """Reads a list in object storage: returns the root of its paths, its place, its rows, and a finder."""
        path = root if self.file is None else location_below(root, self.file, "file")
        files = RemoteFiles(location_below(folder_of(root) if self.file is None else root, self.folder, "folder"))
        if path.prefix.lower().endswith(".json"):
            raise RecipeError(f"{path} is a list of ids, whose files are looked for on a disk; give a .csv or .jsonl")
        try:
            content = files.read(path.url, path.url)
        except SampleError as error:
            raise SourceError(f"no such list: {path}") from error
        rows = read_rows(path, self.columns, content)
        return files, path, rows, RemoteFinder(files, self._allow_outside)

    def _paths(self, chosen: Path) -> tuple[Path, Path, Links]:
        """Returns the folder that paths are relative to, the list, and which links may be followed."""
        if self.file is None and not chosen.is_dir():
            root, path = chosen.parent, chosen
        elif self.file is None:
            raise RecipeError(f"{chosen} is a folder; give the list in it as file, or the list itself as the root")
        else:
            root, path = chosen, chosen / self.file
        if not path.is_file():
            raise SourceError(f"no such list: {path}")
        need_folder(root / self.folder, "the folder that holds what the list names")
        folder = root / self.folder
        if self.file is not None and inner_name(self.file) is not None:  # a name that says that it leaves may do so
            Links(root, self._allow_outside).check(path)
        links = Links(folder if self.folder and inner_name(self.folder) is None else root, self._allow_outside)
        links.check_folder(folder)
        return folder, path, links


class ListSplit:
    """One split.

    Args:
        place: what the items' files are relative to, if they are no URLs.
        urls: reads the items that lie in object storage; None: none does.
        decoder: how image files become pixels.
        classes: class names by index; empty where labels are no classes.
        items: the samples in order.
        targets: of each item: int64 [] class indices, float32 [] or float32 [K].
        noted: what is probably a mistake.
    """

    def __init__(
        self,
        place: Path | RemoteFiles,
        urls: RemoteFiles | None,
        decoder: Decoder,
        classes: tuple[str, ...],
        items: Listing[Item],
        targets: Arrays,
        noted: tuple[str, ...] = (),
    ) -> None:
        self._place, self._urls = place, urls
        self.decoder, self.classes, self.items = decoder, classes, items
        self.targets, self._noted = targets, noted

    @property
    def root(self) -> Path:
        """Folder that files are relative to; UsageError if any may be in object storage."""
        return local_root(self._place if self._urls is None else self._urls)

    def part(self, samples: Sequence[int]) -> ListSplit:
        items, targets = self.items.only(samples), self.targets.only(samples)
        return ListSplit(self._place, self._urls, self.decoder, self.classes, items, targets, self._noted)

    def __len__(self) -> int:
        return len(self.items)

    def notes(self) -> tuple[str, ...]:
        """Returns notes on labels that are probably mistakes, and on files that are listed several times."""
        return self._noted

    def id(self, index: int) -> str:
        """Returns the list's id, or the path."""
        return self.items[index].name

    def revision(self, index: int) -> str:
        """Returns the target, the file and its size and modification time."""
        _, file, _, revision = self.items[index]
        return f"{self.targets[index].tolist()} {file} {revision}"

    def fetch_ahead(self, samples: Sequence[int]) -> None:
        if self._urls is not None:
            rows = (self.items[index] for index in samples)
            self._urls.fetch_ahead(item.file for item in rows if item.revision == OBJECT)

    def read(self, index: int) -> Sample:
        """Reads the image (``images`` uint8 [C, H, W]) or tensor (``features``, its own dtype) and its ``targets``.

        Raises:
            SampleError: if the file is missing or cannot be read.
        """
        item = self.items[index]
        if item.revision == "missing":
            where = "paths are relative to the list's folder, or to the folder that option folder names"
            raise SampleError(item.name, f"no such file: {item.file} ({where})")
        jpeg = None
        place = self._urls if self._urls is not None and item.revision == OBJECT else self._place
        if item.file.lower().endswith(".pt"):
            tensor = read_tensor(place, item.file, item.name)
        else:
            tensor, jpeg = read_image_and_jpeg(place, item.file, self.decoder, item.name)
        image = tensor.dtype == torch.uint8 and tensor.ndim == 3
        size = (tensor.shape[1], tensor.shape[2]) if image else None
        target = torch.from_numpy(np.array(self.targets[index]))
        return Sample(item.name, {"images" if image else "features": tensor, "targets": target}, size, encoded=jpeg)


def _split_name(row: ListRow) -> str:
    name = "train" if row.split is None else row.split
    if not is_name(name):
        raise SourceError(f"{row.where}: split {name!r:.60} is no plain name of letters, digits, _ and -")
    return name


def _stratum(labels: Labels, item: Item) -> str:
    """Returns an item's class, if its label is one: the stratum from which samples are held out."""
    label = labels[item.target]
    return str(label) if isinstance(label, str | int) else ""


def _doubles(splits: Mapping[str, Listing[Item]]) -> dict[str, list[str]]:
    """Returns notes on files that are in a split several times, or in an earlier split too."""
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


def _check_ids(split: str, items: Listing[Item], path: Path | Location) -> None:
    buckets = 1 + len(items) // _HASHED  # a set of a million texts would take 130 MB, their hashes take 8
    if all(_all_differ(hash(item.name) for item in items if hash(item.name) % buckets == b) for b in range(buckets)):
        return
    earlier: set[str] = set()
    for name in (item.name for item in items):
        if name in earlier:
            raise SourceError(f"{path} names {name!r:.80} twice in {split}; give every sample once, or its own id")
        earlier.add(name)


def _all_differ(hashes: Iterable[int]) -> bool:
    numbers = np.fromiter(hashes, np.int64)
    numbers.sort()
    return bool((numbers[1:] != numbers[:-1]).all())


def _is_texts(names: object) -> bool:
    if not isinstance(names, list | tuple) or not names:
        return False
    return all(isinstance(name, str) and name.strip() for name in names)
