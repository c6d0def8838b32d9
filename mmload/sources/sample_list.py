"""A list of files and their labels: CSV, JSON Lines, or JSON IDs with a folder of ``ID.pt`` tensors or images.

Tensors are loaded with ``weights_only``, so nothing in them runs. Paths that leave the folder are refused unless
allowed.
"""

from __future__ import annotations

import posixpath
from array import array
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
from mmload.sources.list_rows import COLUMNS, ListRow, Target, read_rows, targets_of
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
    """One sample: its id in the list (may be empty), its file or URL, its target, its revision."""

    id: str
    file: str
    target: Target
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
        finder = Finder(folder, self.allow_outside, links, by_id=path.suffix.lower() == ".json")
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
        return self._splits(files, path, rows, Finder(files, self.allow_outside))

    def _splits(
        self,
        place: Path | RemoteFiles,
        path: Path | Location,
        rows: Listing[ListRow],
        finder: Finder,
    ) -> dict[str, ListSplit]:
        targets = targets_of(rows, None if self.classes is None else tuple(self.classes))
        findings, named = Findings(), any(row.split is not None for row in rows)
        members: dict[str, array[int]] = {}
        for number, row in enumerate(rows):
            members.setdefault(_split_name(row), array("q")).append(number)
            if named and row.split is None:
                findings.add("samples without a split, where others have one, are in train", row.where)
        items = Listing(Item, (finder.item(row, targets.read(row.label)) for row in rows))
        del rows  # one listing of a million paths at a time is enough
        files = Files(place, finder.urls, self.decoder)
        notes = (*targets.notes, *findings.notes(), *similar_names(members, "splits"))
        splits = {name: ListSplit(files, targets.classes, items.only(own), notes) for name, own in members.items()}
        for name, split in splits.items():
            _check_ids(name, split.items, path)
        if self.val_fraction is not None:
            splits = with_held_out(
                splits, lambda item: item.target if targets.classes else 0, self.val_fraction, self.seed
            )
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

    def __init__(
        self, files: Files, classes: tuple[str, ...], items: Listing[Item], notes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(items, classes, notes)
        self._files = files

    @property
    def root(self) -> Path:
        """Folder that files are relative to; UsageError if any may be in object storage."""
        return local_root(self._files.urls or self._files.place)

    @property
    def targets(self) -> Tensor:
        """Target of each sample: int64 [N] class indices, float32 [N] or float32 [N, K]."""
        return self._tensor([item.target for item in self.items])

    def _tensor(self, target: Target | list[Target]) -> Tensor:
        import torch

        return torch.tensor(target, dtype=torch.int64 if self.classes else torch.float32, device="cpu")

    def id(self, index: int) -> str:
        """Returns the list's id, or the path."""
        return self.items[index].name

    def revision(self, index: int) -> str:
        """Returns the target, the file and its size and modification time."""
        item = self.items[index]
        return f"{item.target} {item.file} {item.revision}"

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
        fields = {"images" if image else "features": tensor, "targets": self._tensor(item.target)}
        return Sample(item.name, fields, size, losses, encoded=jpeg, checksum=checksum)


class Finder:
    """Finder of the files that a list names: below a folder or URL, and with ``allow_outside`` anywhere.

    On a disk, where there are ``links`` to check, ids are names without an ending.
    """

    def __init__(
        self, place: Path | RemoteFiles, allow_outside: bool, links: Links | None = None, by_id: bool = False
    ) -> None:
        self._place, self._allow_outside, self._links, self._by_id = place, allow_outside, links, by_id
        self.urls, self._folder = (place if isinstance(place, RemoteFiles) else None), str(place)
        self._endings = [".pt", *EXTENSIONS, *(ending.upper() for ending in EXTENSIONS)]

    def item(self, row: ListRow, target: Target) -> Item:
        """Returns the sample of a row, whose id is its listed name where :meth:`Links.find` finds it under another one.

        Raises:
            SourceError: if its file may not be read.
        """
        named = self._of_url(row) if is_url(row.path) else row.path
        if isinstance(named, Location):
            around = Location(named.scheme, named.bucket, posixpath.dirname(named.prefix))
            self.urls = self.urls or RemoteFiles(around)
            return Item(row.id or "", named.url, target, OBJECT)
        name = str(named) if self._allow_outside and self._links is not None else inner_name(str(named))
        if name is None or "\0" in name:
            advice = "name an object below it" if self._links is None else "set allow_outside to follow it"
            raise SourceError(f"{row.where}: the path {row.path!r:.80} leaves {self._place}; {advice}")
        if self._links is None:
            return Item(row.id or "", name, target, OBJECT)
        file, revision = self._by_ending(self._links, name) if self._by_id else self._links.find(self._folder, name)
        return Item(row.id or ("" if file == name else name), file, target, revision)

    def _by_ending(self, links: Links, name: str) -> tuple[str, str]:
        """Finds an ID's file; tries the ending that was found last first, as most files share it."""
        found, revision = links.find_first(self._folder, [name + ending for ending in self._endings])
        if revision == "missing":
            return f"{name}.pt", revision
        self._endings.sort(key=lambda ending: not found.endswith(ending))
        return found, revision

    def _of_url(self, row: ListRow) -> Location | Path:
        """Returns the place that a row names by a URL."""
        if not self._allow_outside:
            raise SourceError(
                f"{row.where}: {row.path!r:.80} is a URL, outside of {self._place}; to read what the list names "
                "anywhere, add --set allow_outside=true"
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


def _check_ids(split: str, items: Listing[Item] | list[Item], path: Path | Location) -> None:
    if len(unique_hashes(item.name for item in items)[0]) < len(items):
        name, count = Counter(item.name for item in items).most_common(1)[0]
        if count > 1:
            raise SourceError(f"{path} names {name!r:.80} twice in {split}; give every sample once, or its own id")
