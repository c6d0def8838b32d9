"""A list of files and their labels: CSV, JSON Lines, or JSON IDs with a folder of ``ID.pt`` tensors or images.

Tensors are loaded with ``weights_only``, so nothing in them runs. Paths that leave the folder are refused unless
allowed.
"""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from mmload.errors import RecipeError, SampleError, SourceError, UsageError, choices
from mmload.records import Sample
from mmload.remote.urls import Location, is_url, place
from mmload.sources.annotation_values import Findings
from mmload.sources.decode import Decoder
from mmload.sources.files import (
    EXTENSIONS,
    RemoteFiles,
    check_is_folder,
    checksum_of,
    inner_name,
    local_root,
    read_image_and_jpeg,
    read_tensor,
)
from mmload.sources.links import Links, reading
from mmload.sources.list_rows import COLUMNS, Label, ListRow, Targets, read_rows, targets_of
from mmload.sources.listing import (
    ListedSplit,
    Listing,
    are_different_names,
    check_fraction,
    note_doubles,
    similar_names,
    unique_hashes,
    with_held_out,
)
from mmload.store.manifest import is_name

if TYPE_CHECKING:
    from torch import Tensor

OBJECT = "object"
"""Revision of a file in object storage, whose own revision is unknown before it is read."""


class Item(NamedTuple):
    """One sample: its id in the list (may be empty), its file or URL, its label, its revision."""

    id: str
    file: str
    label: Label
    revision: str

    @property
    def name(self) -> str:
        """Its id, else its file."""
        return self.id or self.file


@dataclass
class ListSource:
    """The samples of a list.

    Attributes:
        root: the folder that the paths are relative to; or the list itself, which then lies in that folder. Either may
            lie in object storage.
        decoder: decodes image files.
        file: the list, relative to the root: ``.csv``, ``.jsonl``, or ``.json`` (IDs); None if ``root`` is the list.
        folder: a subfolder of the root that the paths or IDs are relative to.
        columns: ``path``, ``label``, ``split`` or ``id`` -> the name in the list, where that differs.
        classes: class names by index; None: the labels' own, sorted.
        val_fraction: the share of ``train`` to hold out as ``val``, the same of every class; None for none.
        seed: selects the samples that are held out.
        allow_outside: let paths be absolute, URLs, or lead out of the root, themselves or by links.

    Raises:
        RecipeError: if an option is invalid.
    """

    reads_urls: ClassVar[bool] = True

    root: str | Path | Location
    decoder: Decoder
    _: KW_ONLY
    file: str | None = None
    folder: str = ""
    columns: Mapping[str, str] | None = None
    classes: Sequence[str] | None = None
    val_fraction: float | None = None
    seed: int = 0
    allow_outside: bool = False

    def __post_init__(self) -> None:
        check_fraction(self.val_fraction, self.seed)
        for name, value in (("file", "" if self.file is None else self.file), ("folder", self.folder)):
            if not isinstance(value, str):
                raise RecipeError(f"{name} is {value!r}; write a path")
        self.columns = {} if self.columns is None else self.columns
        if not isinstance(self.columns, Mapping) or set(self.columns) - set(COLUMNS):
            raise RecipeError(
                f"columns is {self.columns!r}; write a table of {choices(COLUMNS)} = the list's name for it"
            )
        if self.classes is not None and not are_different_names(self.classes):
            raise RecipeError(f"classes is {self.classes!r}; write a list of different names")
        if not isinstance(self.allow_outside, bool):
            raise RecipeError(f"allow_outside is {self.allow_outside!r}; use true or false")

    def splits(self) -> Mapping[str, ListSplit]:
        """Returns the splits in the order in which the list names them; without split names all is ``train``.

        Raises:
            SourceError: if the list is missing or wrong, a path leaves the folder, or labels differ in kind.
            RecipeError: if ``val_fraction`` is given and the list has a ``val`` already or no ``train``.
        """
        if isinstance(self.root, Location):
            return self._remote_splits(self.root)
        with reading(self.root):
            return self._local_splits(Path(self.root))

    def _local_splits(self, chosen: Path) -> dict[str, ListSplit]:
        if self.file is None and not chosen.is_dir():
            root, path = chosen.parent, chosen
        elif self.file is None:
            raise RecipeError(f"{chosen} is a folder; give the list in it as file, or the list itself as the root")
        else:
            root, path = chosen, chosen / self.file
        if not path.is_file():
            raise SourceError(f"no such list: {path}")
        check_is_folder(root / self.folder, "the folder that holds what the list names")
        folder = root / self.folder
        if self.file is not None and inner_name(self.file) is not None:  # a name that says that it leaves may do so
            Links(root, self.allow_outside).check(path)
        links = Links(folder if self.folder and inner_name(self.folder) is None else root, self.allow_outside)
        links.check_folder(folder)
        finder = LocalFinder(str(folder), links, by_id=path.suffix.lower() == ".json")
        splits = self._splits(folder, path, read_rows(path, self.columns or {}), finder)
        next(iter(splits.values())).add_notes(links.notes())
        return splits

    def _remote_splits(self, root: Location) -> dict[str, ListSplit]:
        path = root if self.file is None else _location_below(root, self.file, "file")
        around = Location(root.scheme, root.bucket, posixpath.dirname(root.prefix)) if self.file is None else root
        files = RemoteFiles(_location_below(around, self.folder, "folder"))
        if path.prefix.lower().endswith(".json"):
            raise RecipeError(f"{path} is a list of ids, whose files are looked for on a disk; give a .csv or .jsonl")
        try:
            content = files.read(path.url, path.url)
        except SampleError as error:
            raise SourceError(f"no such list: {path}") from error
        rows = read_rows(path, self.columns or {}, content)
        return self._splits(files, path, rows, RemoteFinder(files, self.allow_outside))

    def _splits(
        self,
        place: Path | RemoteFiles,
        path: Path | Location,
        rows: Listing[ListRow],
        finder: LocalFinder | RemoteFinder,
    ) -> dict[str, ListSplit]:
        targets = targets_of(rows, None if self.classes is None else tuple(self.classes))
        items: dict[str, Listing[Item]] = {}
        findings, named = Findings(), any(row.split is not None for row in rows)
        for row in rows:
            name = _split_name(row)
            if named and row.split is None:
                findings.add("samples without a split, where others have one, are in train", row.where)
            if name not in items:
                items[name] = Listing(Item)
            listed, file, revision = finder.find(row)
            items[name].append(Item(row.id or ("" if file == listed else listed), file, row.label, revision))
        del rows  # one listing of a million paths at a time is enough
        for name, members in items.items():
            _check_ids(name, members, path)
        if self.val_fraction is not None:
            items = with_held_out(items, lambda item: item.name, _stratum, self.val_fraction, self.seed)
        files = Files(place, finder.urls, self.decoder)
        notes = (*targets.notes, *findings.notes(), *similar_names(items, "splits"))
        splits = {name: ListSplit(files, targets, members, notes) for name, members in items.items()}
        note_doubles(splits, (), lambda item: item.file, "file", ", under different ids")
        return splits


@dataclass(frozen=True)
class Files:
    """Folder or URL of the files of a list, a reader of those that are in object storage, and the decoder of images."""

    place: Path | RemoteFiles
    urls: RemoteFiles | None
    decoder: Decoder


class ListSplit(ListedSplit[Item]):
    """One split."""

    def __init__(self, files: Files, meanings: Targets, items: Listing[Item], notes: tuple[str, ...] = ()) -> None:
        super().__init__(items, meanings.classes, notes)
        self._files, self._meanings = files, meanings

    @property
    def root(self) -> Path:
        """Folder that files are relative to; UsageError if any may be in object storage."""
        return local_root(self._files.urls or self._files.place)

    @property
    def targets(self) -> Tensor:
        """Target of each sample: int64 [N] class indices, float32 [N] or float32 [N, K]."""
        import torch

        return torch.stack([self._meanings.tensor(item.label) for item in self.items])

    def id(self, index: int) -> str:
        """Returns the list's id, or the path."""
        return self.items[index].name

    def revision(self, index: int) -> str:
        """Returns the target, the file and its size and modification time."""
        item = self.items[index]
        return f"{self._meanings.value(item.label)} {item.file} {item.revision}"

    def checksum(self, index: int) -> str:
        item = self.items[index]
        is_object = self._files.urls is not None and item.revision == OBJECT
        return "" if is_object else checksum_of(self._files.place, [item.file], item.name)

    def fetch_ahead(self, samples: Sequence[int]) -> None:
        if self._files.urls is not None:
            rows = (self.items[index] for index in samples)
            self._files.urls.fetch_ahead(item.file for item in rows if item.revision == OBJECT)

    def read(self, index: int) -> Sample:
        """Reads the image (``images`` uint8 [C, H, W]) or tensor (``features``, its own dtype) and its ``targets``.

        Raises:
            SampleError: if the file is missing or cannot be read.
        """
        import torch

        item = self.items[index]
        if item.revision == "missing":
            raise SampleError(
                item.name,
                f"no such file: {item.file} (paths are relative to the list's folder, or to the folder that option "
                "folder names)",
            )
        jpeg, losses, files, checksum = None, dict[str, int](), self._files, ""
        place = files.urls if files.urls is not None and item.revision == OBJECT else files.place
        if item.file.lower().endswith(".pt"):
            tensor = read_tensor(place, item.file, item.name)
        else:
            tensor, jpeg, losses, checksum = read_image_and_jpeg(place, item.file, files.decoder, item.name)
        image = tensor.dtype == torch.uint8 and tensor.ndim == 3
        size = (tensor.shape[1], tensor.shape[2]) if image else None
        target = self._meanings.tensor(item.label)
        fields = {"images" if image else "features": tensor, "targets": target}
        return Sample(item.name, fields, size, losses, encoded=jpeg, checksum=checksum)


class LocalFinder:
    """Finder of files in a folder, by name or, with ``by_id``, by name without ending; of URLs if links may leave."""

    def __init__(self, folder: str, links: Links, by_id: bool) -> None:
        self._folder, self._links, self._by_id = folder, links, by_id
        self.urls: RemoteFiles | None = None
        self._endings = [".pt", *EXTENSIONS, *(ending.upper() for ending in EXTENSIONS)]

    def find(self, row: ListRow) -> tuple[str, str, str]:
        """Returns the listed name of a row's file or URL, its own and its revision; SourceError if it may not be read.

        The two names differ where :meth:`Links.find` finds it under another one.
        """
        found = _of_url(row, self._folder, self._links.allow_outside) if is_url(row.path) else None
        if isinstance(found, Location):
            around = Location(found.scheme, found.bucket, posixpath.dirname(found.prefix))
            self.urls = self.urls or RemoteFiles(around)
            return found.url, found.url, OBJECT
        path = row.path if found is None else str(found)
        name = path if self._links.allow_outside else inner_name(path)
        if name is None or "\0" in name:
            raise SourceError(
                f"{row.where}: the path {row.path!r:.80} leaves {self._folder}; set allow_outside to follow it"
            )
        self._links.check_folder(os.path.dirname(os.path.join(self._folder, name)))
        return name, *(self._by_ending(name) if self._by_id else self._links.find(self._folder, name))

    def _by_ending(self, name: str) -> tuple[str, str]:
        """Finds an ID's file; tries the ending that was found last first, as most files share it."""
        found, revision = self._links.find_first(self._folder, [name + ending for ending in self._endings])
        if revision == "missing":
            return f"{name}.pt", revision
        self._endings.sort(key=lambda ending: not found.endswith(ending))
        return found, revision


class RemoteFinder:
    """Finder of objects below a URL, and with ``allow_outside`` of any object that a row names by its URL."""

    def __init__(self, files: RemoteFiles, allow_outside: bool) -> None:
        self._files, self._allow_outside = files, allow_outside
        self.urls: RemoteFiles | None = files

    def find(self, row: ListRow) -> tuple[str, str, str]:
        """Returns the name or URL of a row's object, twice, and OBJECT; raises SourceError if it may not be read."""
        if is_url(row.path):
            found = _of_url(row, str(self._files), self._allow_outside)
            name = found.url if isinstance(found, Location) else None
        else:
            name = inner_name(row.path)
        if name is None:
            raise SourceError(f"{row.where}: the path {row.path!r:.80} leaves {self._files}; name an object below it")
        return name, name, OBJECT


def _of_url(row: ListRow, folder: str, allowed: bool) -> object:
    """Returns the place that a row names by a URL."""
    if not allowed:
        raise SourceError(
            f"{row.where}: {row.path!r:.80} is a URL, outside of {folder}; to read what the list names anywhere, add "
            "--set allow_outside=true"
        )
    try:
        return place(row.path)
    except UsageError as error:
        raise SourceError(f"{row.where}: {error}") from error


def _location_below(root: Location, name: str, what: str) -> Location:
    """Returns the place ``root/name``, which must not leave the root; ``name`` may be empty."""
    inner = inner_name(name) if name else ""
    if inner is None:
        raise SourceError(f"{what} is {name!r:.80}, which leaves {root}; give the place itself as the root")
    return Location(root.scheme, root.bucket, root.key(inner))


def _split_name(row: ListRow) -> str:
    name = "train" if row.split is None else row.split
    if not is_name(name):
        raise SourceError(f"{row.where}: split {name!r:.60} is not a plain name of letters, digits, _ and -")
    return name


def _stratum(item: Item) -> str:
    """Returns an item's class, if its label is one: the stratum from which samples are held out."""
    return str(item.label) if isinstance(item.label, str | int) else ""


def _check_ids(split: str, items: Listing[Item], path: Path | Location) -> None:
    if len(unique_hashes(item.name for item in items)[0]) < len(items):
        name, count = Counter(item.name for item in items).most_common(1)[0]
        if count > 1:
            raise SourceError(f"{path} names {name!r:.80} twice in {split}; give every sample once, or its own id")
