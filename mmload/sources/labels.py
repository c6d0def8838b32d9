"""Turns the labels of a list into the targets that are stored, and their class names."""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np

from mmload.errors import SourceError, UsageError
from mmload.remote.urls import Location, is_url, place
from mmload.sources.columns import Arrays
from mmload.sources.files import EXTENSIONS, Links, RemoteFiles, inner_name
from mmload.sources.tables import MAX_NUMBER, Label, Labels, ListRow, Table

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_BETWEEN = ("|", ";")
"""Separators of several labels; commas also occur in class names."""

_MISSING = frozenset(("", "?", "-", "n/a", "na", "<na>", "nan", "nat", "none", "null", "undefined"))
"""Common spellings of a missing label."""

_NUMBER = re.compile(r"[+-]?[0-9]{0,18}\.?[0-9]{1,18}([eE][+-]?[0-9]{1,2})?")

MAX_CLASSES = 1_000_000
"""Larger class numbers are refused as a mistake."""


class Targets(NamedTuple):
    """The targets of a list's labels.

    Attributes:
        values: of each row: int64 [] class indices, float32 [] or float32 [K].
        classes: class names by index; empty where labels are no classes.
        notes: what is probably a mistake.
    """

    values: Arrays
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def targets_of(rows: Table, classes: tuple[str, ...] | None) -> Targets:
    """Converts labels to arrays and class names, with notes.

    Class names and integers become int64 []; other numbers float32 []; lists of numbers float32 [K].

    Args:
        rows: of a list.
        classes: class names by index; None: the labels' own.

    Raises:
        SourceError: if the labels are not all of one kind; names the first that differs.
    """
    number = _reader(rows.labels)
    first = _kind(number(rows.labels[0]))
    for index, label in enumerate(rows.labels):
        if (kind := _kind(number(label))) != first:
            raise SourceError(f"{rows[index].where}: label {label!r:.60} is {kind}, the first row's is {first}")
    if first == "text":
        return _by_name(rows, classes)
    if first == "an integer":
        return _by_number(rows, number, classes)
    targets = Arrays(np.float32, np.shape(number(rows.labels[0])))
    for index, label in enumerate(rows.labels):
        value: Any = number(label)
        if isinstance(value, float) and not abs(value) < MAX_NUMBER:
            raise SourceError(f"{rows[index].where}: label {label!r:.60} is over 3e38, what float32 holds")
        targets.append(value)
    return Targets(targets)


def _reader(labels: Labels) -> Callable[[Any], Label]:
    """Returns a function that reads a label: as a number if all labels are numbers as text, as in CSV."""
    kinds = labels.kinds()
    if kinds == {str}:
        if all(_INTEGER.fullmatch(str(text)) for text in labels):
            return int
        if all(_NUMBER.fullmatch(str(text)) for text in labels):
            return float
    if float in kinds and str not in kinds:
        return lambda label: float(label) if isinstance(label, int) else label
    return lambda label: label


def _kind(label: Label) -> str:
    if isinstance(label, list):
        return f"a list of {len(label)} numbers"
    return {str: "text", int: "an integer"}.get(type(label), "a number")


def _by_name(rows: Table, classes: tuple[str, ...] | None) -> Targets:
    names = tuple(sorted({str(label) for label in rows.labels})) if classes is None else classes
    numbers: dict[Label, int] = {name: number for number, name in enumerate(names)}
    targets = Arrays(np.int64)
    for index, label in enumerate(rows.labels):
        if label not in numbers:
            raise SourceError(f"{rows[index].where}: {label!r:.60} is not one of the classes: {', '.join(names[:20])}")
        targets.append(numbers[label])
    return Targets(targets, names, tuple(_notes_on_names(names)))


def _by_number(rows: Table, number: Callable[[Any], Label], classes: tuple[str, ...] | None) -> Targets:
    limit = MAX_CLASSES if classes is None else len(classes)
    targets, spellings, other = Arrays(np.int64), dict[int, Label](), ""
    for index, label in enumerate(rows.labels):
        target: Any = number(label)
        if not 0 <= target < limit:
            raise SourceError(f"{rows[index].where}: class number {target} is not in 0 to {limit - 1}")
        targets.append(target)
        if spellings.setdefault(target, label) != label and not other:
            other = f"{spellings[target]!r} and {label!r} are both class number {target}"
    notes = [other] if other else []
    if classes is not None:
        return Targets(targets, classes, tuple(notes))
    names = tuple(map(str, range(max(spellings) + 1)))
    if len(spellings) < len(names):
        empty = next(islice((each for each in range(len(names)) if each not in spellings), 1))
        notes.append(
            f"{len(names) - len(spellings):,} of the class numbers 0 to {len(names) - 1} have no samples, the first is "
            f"{empty}; a model needs an output for each"
        )
    return Targets(targets, names, tuple(notes))


def _notes_on_names(names: tuple[str, ...]) -> Iterator[str]:
    """Yields notes on class names that look like several labels, missing labels or numbers with a typing error."""
    yield from similar_names(names)
    all_names = frozenset(names)
    for name in names:
        parts = [part.strip() for part in name.split(",")]
        if any(sign in name for sign in _BETWEEN) or (len(parts) > 1 and all_names.issuperset(parts)):
            yield (
                f"{name!a:.60} is one class, as a text is one label; for several labels write JSON Lines "
                "with a list of numbers, 1 for each class in the image"
            )
            break
    for name in names:
        if name.strip().casefold() in _MISSING:
            yield f"{name!a} is a class of its own; if it stands for a missing label, remove its rows from the list"
    odd = [name for name in names if not _NUMBER.fullmatch(name)]
    if len(odd) == 1 and len(names) > 2:
        yield f"labels are class names and not numbers, because {odd[0]!a:.60} is no number; all others are"


def similar_names(names: Iterable[str]) -> Iterator[str]:
    """Yields notes on class names that are hardly meant as different classes."""
    same: dict[str, list[str]] = {}
    for name in names:
        plain = unicodedata.normalize("NFKC", name).casefold().strip().strip("\"'").strip()
        same.setdefault(plain, []).append(name)
    for group in same.values():
        if len(group) > 1:
            both = " and ".join(map(ascii, group))
            yield f"{both} are classes of their own, but differ only in case, quotes, spaces or their Unicode form"


OBJECT = "object"
"""The revision of what lies in object storage: nothing is asked about it before it is read."""


class Item(NamedTuple):
    """One sample: its id in the list (may be empty), its file or URL, its target's index, its revision."""

    id: str
    file: str
    target: int
    revision: str

    @property
    def name(self) -> str:
        """Its id, else its file."""
        return self.id or self.file


class Finder(Protocol):
    """Makes an item of a row: where its file is, if it may be there.

    Attributes:
        urls: reads the items that lie in object storage; None while there is none.
    """

    urls: RemoteFiles | None

    def item(self, row: ListRow, index: int) -> Item:
        """Returns the item of row ``index``; raises SourceError if its file may not be read."""


class LocalFinder:
    """Finder of files in a folder.

    Args:
        folder: what paths are relative to.
        links: which links may be followed; with ``allow_outside`` a path may also be absolute or a URL.
        by_id: the rows name files without their endings.
    """

    def __init__(self, folder: str, links: Links, by_id: bool) -> None:
        self._folder, self._links, self._by_id = folder, links, by_id
        self.urls: RemoteFiles | None = None
        self._endings = [".pt", *EXTENSIONS, *(ending.upper() for ending in EXTENSIONS)]

    def item(self, row: ListRow, index: int) -> Item:
        found = _of_url(row, self._folder, self._links.allow_outside) if is_url(row.path) else None
        if isinstance(found, Location):
            self.urls = self.urls or RemoteFiles(folder_of(found))
            return Item(row.id or "", found.url, index, OBJECT)
        path = row.path if found is None else str(found)
        name = path if self._links.allow_outside else inner_name(path)
        if name is None or "\0" in name:
            raise SourceError(
                f"{row.where}: the path {row.path!r:.80} leaves {self._folder}; set allow_outside to follow it"
            )
        path = os.path.join(self._folder, name)
        self._links.check_folder(os.path.dirname(path))
        file, revision = self._by_ending(name, path) if self._by_id else (name, self._links.revision(path))
        return Item(row.id or "", file, index, revision)

    def _by_ending(self, name: str, path: str) -> tuple[str, str]:
        """Finds an ID's file; tries the ending that was found last first, as most files share it."""
        for ending in self._endings:
            revision = self._links.revision(path + ending)
            if revision != "missing":
                self._endings.remove(ending)
                self._endings.insert(0, ending)
                return name + ending, revision
        return name + ".pt", "missing"


class RemoteFinder:
    """Finder of objects below a URL.

    Args:
        files: what paths are relative to.
        allow_outside: whether a row may name the URL of any object.
    """

    def __init__(self, files: RemoteFiles, allow_outside: bool) -> None:
        self._files, self._allow_outside = files, allow_outside
        self.urls: RemoteFiles | None = files

    def item(self, row: ListRow, index: int) -> Item:
        if is_url(row.path):
            found = _of_url(row, str(self._files), self._allow_outside)
            name = found.url if isinstance(found, Location) else None
        else:
            name = inner_name(row.path)
        if name is None:
            raise SourceError(f"{row.where}: the path {row.path!r:.80} leaves {self._files}; name an object below it")
        return Item(row.id or "", name, index, OBJECT)


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


def location_below(root: Location, name: str, what: str) -> Location:
    """Returns the place ``root/name``; ``name`` may be empty.

    Raises:
        SourceError: if the name leaves the root; ``what`` says what it is the name of.
    """
    inner = inner_name(name) if name else ""
    if inner is None:
        raise SourceError(f"{what} is {name!r:.80}, which leaves {root}; give the place itself as the root")
    return Location(root.scheme, root.bucket, root.key(inner))


def folder_of(path: Location) -> Location:
    """Returns the place around an object."""
    return Location(path.scheme, path.bucket, posixpath.dirname(path.prefix))
