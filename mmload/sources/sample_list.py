"""A list of files with their labels or masks: CSV, JSON Lines, or JSON IDs with a folder of tensors or images.

In place of a list, a folder of images and one of masks may be given.

Tensors are loaded with ``weights_only``, so nothing in them runs. Paths that leave the folder are refused unless
allowed.
"""

from __future__ import annotations

import posixpath
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import filterfalse
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from mmload.errors import RecipeError, SampleError, SourceError, UsageError, choices, naming
from mmload.records import VOID
from mmload.remote.urls import Location, is_url, place
from mmload.sources import FilePath, Findings, Fraction, Names, Seed, Text
from mmload.sources.decode import Decoder
from mmload.sources.files import (
    EXTENSIONS,
    MISSING,
    OBJECT,
    LocalTree,
    RemoteFiles,
    SampleFiles,
    Tree,
    check_is_folder,
    images_among,
    inner_name,
    read_source,
    tree_of,
)
from mmload.sources.imagefolder import SPLIT_WORDS
from mmload.sources.list_rows import COLUMNS, ListRow, Target, Targets, read_rows, targets_of
from mmload.sources.listed_split import (
    Beside,
    Item,
    ListedSplit,
    Listing,
    checked_names,
    note_doubles,
    similar_names,
    size_of,
    unique_hashes,
    with_held_out,
)
from mmload.sources.objects import read_mask_of

if TYPE_CHECKING:
    from torch import Tensor

    from mmload.records import FieldValue

_MOST_BYTES = 2**34
_SPLIT_FOLDERS = tuple(f"{word}/" for word in SPLIT_WORDS)
_OF_IDS = (".pt", *EXTENSIONS, *map(str.upper, EXTENSIONS))
"""Endings of files that are listed by their ids."""


@dataclass
class ListSource:
    """The samples of a list.

    Attributes:
        root: the folder that the paths are relative to; or the list itself, which then lies in that folder. Either may
            lie in object storage.
        decoder: decodes image files.
        file: the list, relative to the root: ``.csv``, ``.jsonl``, or ``.json`` (IDs); None if ``root`` is the list.
        folder: a subfolder of the root that the paths or IDs are relative to.
        masks: a subfolder of masks, each of the name of an image in ``folder``: these are the samples, without a list.
        columns: ``path``, ``label``, ``split``, ``id`` or ``mask`` -> the name in the list, where that differs.
        classes: class names by index; None: the labels' own, sorted. Without labels, those of the numbers in masks.
        separator: text between the classes of a label that has several.
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
    file: FilePath = None
    folder: Annotated[str, Meta(description="a path")] = ""
    masks: FilePath = None
    columns: Annotated[
        dict[Annotated[str, Meta(pattern=f"^({'|'.join(COLUMNS)})$")], str] | None,
        Meta(description=f"a table of {choices(COLUMNS)} = the list's name for it"),
    ] = None
    classes: Names = None
    separator: Text = None
    val_fraction: Fraction = None
    seed: Seed = 0
    allow_outside: bool = False

    def __post_init__(self) -> None:
        if self.masks is not None and (self.file is not None or self.columns is not None):
            raise RecipeError("masks takes the place of a list; leave file and columns out, or list masks in a column")
        self._classes = checked_names("classes", self.classes)

    def splits(self) -> Mapping[str, ListSplit]:
        """Returns the splits in the order in which the list names them; without split names all is ``train``.

        Raises:
            SourceError: if the list is missing or wrong, a path leaves the folder, or labels differ in kind.
            RecipeError: if ``val_fraction`` is given and the list has a ``val`` already or no ``train``.
        """
        root, notes = self.root, tuple[str, ...]()
        if self.masks is not None:
            tree, path, rows, notes = self._pairs(tree_of(root, self.allow_outside), self.masks)
        else:
            found = self._remote_list(root) if isinstance(root, Location) else self._local_list(Path(root))
            tree, path, rows = found
        by_id = self.masks is None and str(path).lower().endswith(".json")
        splits = self._splits(path, rows, Finder(tree, self.allow_outside, _OF_IDS if by_id else ("",)))
        next(iter(splits.values())).add_notes(notes + tree.notes())
        return splits

    def _local_list(self, chosen: Path) -> tuple[Tree, Path, Listing[ListRow]]:
        """Returns the folder that names are relative to, the list, and its rows."""
        if chosen.is_dir() and self.file is None:
            raise RecipeError(
                f"{chosen} is a folder; give the list in it as file, the list itself as the root, or for a folder of "
                "images and one of masks, folder and masks"
            )
        root, path = (chosen.parent, chosen) if self.file is None else (chosen, chosen / self.file)
        folder = root / self.folder
        check_is_folder(folder, "the folder that holds what the list names")
        tree = LocalTree(folder, self.allow_outside, folder if _inner(self.folder) is None else root)
        if self.file is not None and _inner(self.file) is not None:  # a name that says that it leaves may do so
            LocalTree(root, self.allow_outside).check(path)
        return tree, path, self._rows(path, read_source(path, _MOST_BYTES))

    def _remote_list(self, root: Location) -> tuple[Tree, Location, Listing[ListRow]]:
        path = root if self.file is None else _location_below(root, self.file, "file")
        around = replace(root, prefix=posixpath.dirname(root.prefix)) if self.file is None else root
        files = RemoteFiles(_location_below(around, self.folder, "folder"))
        if path.prefix.lower().endswith(".json"):
            raise RecipeError(f"{path} is a list of ids, whose files are looked for on a disk; give a .csv or .jsonl")
        with naming("no such list: ", SampleError, to=SourceError):
            return files, path, self._rows(path, files.read(path.url))

    def _rows(self, path: Path | Location, content: bytes) -> Listing[ListRow]:
        return read_rows(path, content, self.columns or {}, several=self.separator is not None)

    def _pairs(self, tree: Tree, named: str) -> tuple[Tree, Path | Location, Listing[ListRow], tuple[str, ...]]:
        """Returns a tree of images and masks, the folder of the images, a row for each, and notes on what is left out.

        Folders of images that are named as splits are splits.
        """
        findings, folder, of_masks = Findings(), inner_name(self.folder) or "", inner_name(named)
        if of_masks is None:
            raise RecipeError(f"masks is {named!r}, which is no folder below {tree.display_name('')}; name one")
        masks = {_stem(name, of_masks): name for name in images_among(tree.files(of_masks), findings)}
        rows, among = [], set(masks.values())  # their folder may lie among the images
        for image in filterfalse(among.__contains__, images_among(tree.files(folder), findings)):
            stem = _stem(image, folder)
            mask = masks.pop(stem, None) or masks.pop(f"{stem}_mask", None)
            if mask is None:
                findings.add("images without a mask of their name are left out", image)
            else:
                split = stem.split("/")[0] if stem.lower().startswith(_SPLIT_FOLDERS) else None
                rows.append(ListRow(image, None, split, None, mask, tree.display_name(folder)))
        findings.add("masks without an image of their name are left out", *masks.values())
        if not rows:
            raise SourceError("; ".join((f"{tree.display_name(folder)} has no image with a mask", *findings.notes())))
        return tree, Path(tree.display_name(folder)), Listing(ListRow, rows), findings.notes()

    def _splits(self, path: Path | Location, rows: Listing[ListRow], finder: Finder) -> dict[str, ListSplit]:
        targets = targets_of(rows, self._classes, self.separator)
        findings, named = Findings(), any(row.split is not None for row in rows)
        members: dict[str, array[int]] = {}
        for number, row in enumerate(rows):
            members.setdefault("train" if row.split is None else row.split, array("q")).append(number)
            if named and row.split is None:
                findings.add("samples without a split, where others have one, are in train", row.where)
        items = Listing(Item, (finder.item(row, targets.read(row.label)) for row in rows))
        del rows  # one listing of a million paths at a time is enough
        notes = (*targets.notes, *findings.notes(), *similar_names(members, "splits"))
        splits = {
            name: ListSplit(finder, self.decoder, items.only(own), targets, notes) for name, own in members.items()
        }
        for name, split in splits.items():
            _check_ids(name, split, path)
        splits = with_held_out(
            splits, lambda item: str(item.own) if targets.classes else "", self.val_fraction, self.seed
        )
        note_doubles(splits, (), "file", ", under different ids")
        return splits


class ListSplit(ListedSplit):
    """One split."""

    def __init__(
        self, finder: Finder, decoder: Decoder, items: Listing[Item], targets: Targets, notes: tuple[str, ...]
    ) -> None:
        super().__init__(finder.tree.place, decoder, items, targets.classes, notes)
        self._urls, self._several = finder.urls, targets.several

    def known_targets(self) -> Tensor | None:
        """Returns the target of each sample: int64 [N] class indices, float32 [N] or [N, K]; None without labels."""
        import torch

        found = [target for target in map(self._target, self.items) if target is not None]
        return torch.stack(found) if found else None

    def _target(self, item: Item) -> Tensor | None:
        import torch

        if item.own is None:
            return None
        target = torch.tensor(item.own, dtype=torch.int64 if self.classes else torch.float32, device="cpu")
        if not self._several:
            return target
        return torch.zeros(len(self.classes), dtype=torch.float32, device="cpu").index_fill(0, target, 1)

    def revision(self, index: int) -> str:
        """Returns the target, the file and its size and modification time."""
        item = self.items[index]
        return f"{item.own} {item.files[0]} {item.revision}"

    def place_of(self, index: int) -> Path | RemoteFiles:
        return self._urls if self._urls is not None and is_url(self.files(index)[0]) else self.place

    def beside(self, index: int, files: SampleFiles, image: FieldValue) -> Beside:
        """Returns the label as ``targets``, and the mask as ``masks`` uint8 [H, W]."""
        item = self.items[index]
        target, most = self._target(item), len(self.classes) or VOID
        fields = {} if target is None else {"targets": target}
        for mask in item.files[1:]:
            classes = most if target is None else VOID
            fields["masks"] = read_mask_of(files, mask, size_of(image), classes, "name all in classes")
        return Beside(fields)


class Finder:
    """Finder of the files that a list names: below a folder or URL, and with ``allow_outside`` anywhere.

    Attributes:
        urls: reader of the files that are named by URLs; None if no file is.
    """

    def __init__(self, tree: Tree, allow_outside: bool, endings: Sequence[str]) -> None:
        self.tree, self._allow_outside, self._endings = tree, allow_outside, list(endings)
        self.urls: RemoteFiles | None = None

    def item(self, row: ListRow, target: Target) -> Item:
        """Returns the sample of a row, whose id is its listed name where the file is found under another one.

        Raises:
            SourceError: if its file may not be read.
        """
        name, file, revision = self._find(row, row.path)
        files, fault = [file], ""
        if revision == MISSING:
            fault = (
                f"no such file: {file} (paths are relative to the list's folder, or to the folder that option folder "
                "names)"
            )
        if row.mask:
            _, mask, of_mask = self._find(row, row.mask)
            files.append(mask)
            revision = f"{revision} {of_mask}"
        return Item(files, revision, fault, target, row.id or ("" if file == name else name))

    def _find(self, row: ListRow, path: str) -> tuple[str, str, str]:
        """Returns the name of a file in a row, the name that it was found by, and its revision."""
        named = self._of_url(row, path) if is_url(path) else path
        if isinstance(named, Location):
            self.urls = self.urls or RemoteFiles(replace(named, prefix=posixpath.dirname(named.prefix)))
            return named.url, named.url, OBJECT
        try:
            name = self.tree.inner(str(named))
        except ValueError as error:
            raise SourceError(f"{row.where}: {error}") from error
        found, revision = self.tree.find(*(name + ending for ending in self._endings))
        self._endings.sort(key=lambda ending: not found.endswith(ending))  # most files share it
        return name, found, revision

    def _of_url(self, row: ListRow, path: str) -> Location | Path:
        """Returns the place that a row names by a URL."""
        if not self._allow_outside:
            raise SourceError(
                f"{row.where}: {path!r:.80} is a URL, outside of {self.tree.display_name('')}; to read what the list "
                "names anywhere, add --set allow_outside=true"
            )
        with naming(f"{row.where}: ", UsageError, to=SourceError):
            return place(path)


def _inner(name: str) -> str | None:
    """Returns the plain form of a name, which may be empty; None if it leads out of its root."""
    return inner_name(name) if name else ""


def _location_below(root: Location, name: str, what: str) -> Location:
    """Returns the place ``root/name``, which must not leave the root; ``name`` may be empty."""
    inner = _inner(name)
    if inner is None:
        raise SourceError(f"{what} is {name!r:.80}, which leaves {root}; give the place itself as the root")
    return replace(root, prefix=root.key(inner))


def _stem(name: str, folder: str) -> str:
    """Returns the path of a file below a folder, without its ending."""
    return posixpath.splitext(posixpath.relpath(name, folder or "."))[0]


def _check_ids(name: str, split: ListSplit, path: Path | Location) -> None:
    if len(unique_hashes(map(split.id, range(len(split))))[0]) < len(split):
        sample, count = Counter(map(split.id, range(len(split)))).most_common(1)[0]
        if count > 1:
            raise SourceError(f"{path} names {sample!r:.80} twice in {name}; give every sample once, or its own id")
