"""WebDataset's tars: ``shards/train-{000..147}.tar``, whose members ``KEY.jpg``, ``KEY.cls`` and so on are a sample.

The members of a sample follow one another; their key is what stands before the first dot of the name of a file, and the
rest is the extension. Tars are indexed by their headers once, and images are read at their offsets, in order. Nothing
is unpickled, and no member is extracted.
"""

from __future__ import annotations

import fnmatch
import io
import json
import posixpath
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple

import numpy as np

from mmload.errors import RecipeError, SourceError, naming
from mmload.remote.urls import PARALLEL, Location
from mmload.sources import Findings, Fraction, Names, Seed, Table, Text
from mmload.sources.decode import Decoder, describe_content
from mmload.sources.files import (
    EXTENSIONS,
    MISSING,
    RemoteFiles,
    SampleFiles,
    Tree,
    part_of_file,
    tree_of,
)
from mmload.sources.imagefolder import SPLIT_NAMES
from mmload.sources.list_rows import ListRow, Targets, targets_of
from mmload.sources.listed_split import Item, Listing, ValuesSplit, checked_names, value_at, with_held_out
from mmload.sources.objects import read_mask

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})")
_WORD = re.compile(rf"(?:^|[^a-z])({'|'.join(SPLIT_NAMES)})(?=[^a-z]|$)")
_MOST_TARS = 1_000_000
_BLOCK = 512  # bytes of a header, and of zeros at the end
_LABEL = "cls"
_MOST_LABEL_BYTES = 2**16
_UNLABELED = "has no label, a file .cls, as others have"
_USUAL = {"text": "txt", "features": "npy"}
"""Fields that are stored if nothing else is said, and the extensions of their files."""


class TarSample(NamedTuple):
    """Sample as its tar has it.

    Attributes:
        tar: name of the tar.
        key: what the names of its members begin with.
        members: extension -> where the bytes of a member begin, and how many they are; the image first.
        label: content of its ``.cls``; "": it has none, or it is not used.
        revision: that of the tar.
        fault: why it cannot be read, or "".
    """

    tar: str
    key: str
    members: Mapping[str, tuple[int, int]]
    label: str
    revision: str
    fault: str


@dataclass
class WebDatasetSource:
    """Tars of samples.

    Attributes:
        root: a tar, several as ``shards/{000..147}.tar`` or ``shards/*.tar``, or the folder of all; they may lie in
            object storage.
        decoder: decodes images to pixels.
        shards: split -> its tars below the root, as above; None: train, or the split whose name a tar has in its own.
        image: extension of the image; None: the only one that is an image's.
        fields: further field -> extension, such as ``masks = "seg.png"`` or ``caption = "json.text"``, a value in JSON.
            None: ``text`` of txt and ``features`` of npy.
        classes: class names by index; None: the numbers or names in ``.cls`` themselves.
        val_fraction: the share of ``train`` to hold out as ``val``, the same of every class; None for none.
        seed: selects the samples that are held out.
        allow_outside: follow links that lead out of the folder of the tars.

    Raises:
        RecipeError: if an option is invalid.
    """

    reads_urls: ClassVar[bool] = True

    root: str | Path | Location
    decoder: Decoder
    _: KW_ONLY
    shards: Table = None
    image: Text = None
    fields: Table = None
    classes: Names = None
    val_fraction: Fraction = None
    seed: Seed = 0
    allow_outside: bool = False

    def __post_init__(self) -> None:
        self._classes = checked_names("classes", self.classes)

    def splits(self) -> Mapping[str, TarSplit]:
        """Indexes the tars.

        Raises:
            SourceError: if one is missing or no tar, or has a member that is not read, such as a link.
        """
        tree, tars = self._tars()
        findings, samples = Findings(), dict[str, list[TarSample]]()
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="mmload-source") as pool:
            for split, names in tars.items():
                samples[split] = []
                for tar, (found, is_open) in zip(names, pool.map(partial(self._indexed, tree), names), strict=True):
                    samples[split] += found
                    if is_open:
                        findings.add("tars end without a mark and may have been cut off", tar)
        targets, notes = self._targets(list(chain.from_iterable(samples.values()))), findings.notes()
        splits = {name: self._split(own, tree.place, targets, notes) for name, own in samples.items()}
        return with_held_out(splits, lambda item: str(item.own[0]), self.val_fraction, self.seed)

    def _tars(self) -> tuple[Tree, dict[str, list[str]]]:
        """Returns the folder of the tars, and their names by split, in order."""
        path = self.root.prefix if isinstance(self.root, Location) else str(self.root)
        is_folder = self.shards is not None or not re.search(r"\.tar$|[{*?\[]", path)
        folder = path if is_folder else posixpath.dirname(re.split(r"[{*?\[]", path)[0])
        tree = tree_of(
            replace(self.root, prefix=folder) if isinstance(self.root, Location) else folder, self.allow_outside
        )
        if self.shards is not None:
            return tree, {split: list(_matching(tree, pattern)) for split, pattern in self.shards.items()}
        names = list(_matching(tree, "*.tar" if is_folder else path[len(folder) :].lstrip("/")))
        found: dict[str, list[str]] = {word: [] for word in SPLIT_NAMES}
        for name in names:
            word = _WORD.search(name.lower())
            found[word[1] if word else "train"].append(name)
        return tree, {split: own for split, own in found.items() if own}

    def _indexed(self, tree: Tree, tar: str) -> tuple[list[TarSample], bool]:
        """Returns the samples of a tar, and whether it ends without a mark."""
        revision, is_labeled = tree.revision(tar), "targets" not in (self.fields or {})
        wanted = [self.image] if self.image else [ending[1:] for ending in EXTENSIONS]
        with tree.open(tar) as file:
            index = TarIndex(file, tar)
        samples = []
        for key, members in index.samples.items():
            images, fault = [extension for extension in members if extension in wanted], ""
            if len(images) == 1:
                members = {images[0]: members[images[0]], **members}
            else:
                there = f"{len(images) or 'no'} images among its members {', '.join(members)}"
                fault = f"has {there}; name the extension of one in image"
            if any(start + size > index.bytes for start, size in members.values()):
                fault = f"{tar} was cut off within it"
            label = index.labels.get(key, "") if is_labeled else ""
            samples.append(TarSample(tar, key, members, label, revision, fault))
        if index.fault:
            samples.append(TarSample(tar, f"byte {index.end}", {}, "", revision, f"{tar} {index.fault}"))
        return samples, index.is_open

    def _targets(self, samples: Sequence[TarSample]) -> Targets:
        """Returns the meaning of all labels."""
        sound = [each for each in samples if not each.fault]
        if not sound:
            first = next((f"; the first, {each.tar}/{each.key}, {each.fault}" for each in samples), "")
            raise SourceError(f"{self.root} has no sample that can be read{first}")
        rows = [ListRow(each.key, each.label, None, each.key, None, each.tar) for each in sound if each.label]
        return targets_of(rows, self._classes) if rows else Targets(lambda label: label, self._classes)

    def _split(
        self, samples: Sequence[TarSample], place: Path | RemoteFiles, targets: Targets, notes: tuple[str, ...]
    ) -> TarSplit:
        if any(each.label for each in samples):
            samples = [each if each.label or each.fault else each._replace(fault=_UNLABELED) for each in samples]
        first = next((each for each in samples if not each.fault), samples[0])
        fields: Mapping[str, str] = (
            {field: extension for field, extension in _USUAL.items() if extension in first.members}
            if self.fields is None
            else self.fields
        )
        stored = {*fields.values(), _LABEL, *list(first.members)[:1]}
        if rest := sorted(first.members.keys() - {key.split(".")[0] for key in stored} - stored):
            notes += (f"files that are not stored: {', '.join(rest)}; name those to store in fields",)
        if first.label:
            fields = {"targets": _LABEL, **fields}
        items = Listing(Item, (_item(each, fields, targets, isinstance(place, Path)) for each in samples))
        return TarSplit(place, self.decoder, items, targets.classes, targets.notes + notes, fields=fields)


class TarIndex:
    """Content of a tar by its headers.

    Attributes:
        samples: key -> extension -> begin and size of a file.
        labels: key -> content of its ``.cls``.
        bytes: size of the tar.
        end: where the last header was expected.
        fault: why the tar cannot be read beyond there; "" if it can.
        is_open: whether the mark at its end is missing.

    Raises:
        SourceError: if it is no tar, or has a member that is not read, or a sample in two places.
    """

    def __init__(self, file: BinaryIO, tar: str) -> None:
        self.samples: dict[str, dict[str, tuple[int, int]]] = {}
        self.labels: dict[str, str] = {}
        self.bytes, self.end, self.fault = file.seek(0, io.SEEK_END), 0, ""
        self._file, self._tar, self._last = file, tar, ""
        file.seek(0)
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive, suppress(tarfile.HeaderError):
                while True:  # until what follows is no header
                    file.seek(self.end)
                    member = tarfile.TarInfo.fromtarfile(archive)
                    self._add(member)
                    self.end = member.offset_data + member.isreg() * -(-member.size // _BLOCK) * _BLOCK
        except tarfile.ReadError as error:  # its first header
            file.seek(0)
            raise SourceError(f"{tar} is {describe_content(file.read(_BLOCK)) or f'no tar ({error})'}") from error
        file.seek(self.end)
        after = file.read(_BLOCK)
        self.is_open = self.end == self.bytes
        if self.end > self.bytes:
            self.fault = f"was cut off at byte {self.bytes:,}"
        elif after.strip(b"\0") or 0 < len(after) < _BLOCK:
            self.fault = f"is damaged at byte {self.end:,}: what follows is no header of a file"

    def _add(self, member: tarfile.TarInfo) -> None:
        """Adds a file, but for those that WebDataset leaves out, and reads a label while it is near."""
        name = member.name.removeprefix("./")
        if member.isdir():
            return
        is_outside = name.startswith("/") or ".." in name.split("/")
        if is_outside or not member.isreg() or member.issparse():
            kind = "a name that leaves the tar" if is_outside else "a link, a sparse file or a device"
            raise SourceError(f"{self._tar} has the member {member.name!r:.80}, {kind}, which is not read; remove it")
        folder, slash, file = name.rpartition("/")
        stem, dot, extension = file.partition(".")
        if not stem or not dot or stem.startswith("__"):
            return
        key, extension = f"{folder}{slash}{stem}", extension.lower()
        files = self.samples.setdefault(key, {})
        if extension in files or (files and key != self._last):
            raise SourceError(
                f"{self._tar} has files of the sample {key!r:.80} twice or in two places; write each once, and those "
                "of a sample one after another, as tar --sort=name does"
            )
        self._last, files[extension] = key, (member.offset_data, member.size)
        if extension == _LABEL and member.size <= _MOST_LABEL_BYTES:
            self._file.seek(member.offset_data)
            self.labels[key] = self._file.read(member.size).decode("utf-8", "replace").strip()


def _item(sample: TarSample, fields: Mapping[str, str], targets: Targets, is_local: bool) -> Item:
    """Returns a sample as it is read: its image, its label, and the files of which values are stored."""
    known = {_LABEL: targets.read(sample.label)} if sample.label and not sample.fault else {}
    others = sample.members.keys() - known.keys()
    used = dict.fromkeys(filter(None, (_extension_of(key, others) for key in fields.values())))
    image = list(sample.members)[:1]
    words = sample.revision.split()  # a tar that has grown has samples that have not changed
    sizes = [str(size) for _, size in sample.members.values()]
    revision = " ".join((str(known.get(_LABEL)), *sizes, *(words[-1:] if is_local else words)))
    files = [part_of_file(sample.tar, *sample.members[extension]) for extension in (*image, *used)]
    return Item(files, revision, sample.fault, (known, list(used)), ".".join((f"{sample.tar}/{sample.key}", *image)))


def _matching(tree: Tree, pattern: str) -> Iterator[str]:
    """Yields the tars that a pattern names, in its order: ``{000..147}``, ``{a,b}``, and wildcards.

    Raises:
        SourceError: if one does not exist or leaves the folder, or wildcards match none.
    """
    for name in dict.fromkeys(_expanded(pattern)):
        if re.search(r"[*?\[]", name):
            found = fnmatch.filter(tree.files(""), name)
        else:
            found = [name] if tree.revision(name) != MISSING else []
        if not found:
            raise SourceError(f"no such tar: {tree.display_name(name)}; name them as in shards/{{000..147}}.tar")
        yield from found


def _expanded(pattern: str) -> Iterator[str]:
    """Yields what a pattern with braces stands for, as in a shell."""
    braces = _BRACES.search(pattern)
    if braces is None:
        yield pattern
        return
    span = _RANGE.fullmatch(braces[1])
    words = braces[1].split(",")
    if span:
        first, last = int(span[1]), int(span[2])
        if last - first >= _MOST_TARS:
            raise RecipeError(f"{pattern} names {last - first + 1:,} tars; correct it")
        words = [f"{number:0{len(span[1])}d}" for number in range(first, last + 1)]
    for word in words:
        yield from _expanded(pattern[: braces.start()] + word + pattern[braces.end() :])


class TarSplit(ValuesSplit):
    """One split: samples in the order of the tars and of their members."""

    def values(self, index: int, files: SampleFiles) -> dict[str, Any]:
        """Returns the values of a sample by field."""
        known, extensions = self.items[index].own
        contents = dict(known)  # the row itself is shared
        for extension, name in zip(extensions, self.files(index)[1:], strict=True):
            is_mask = self.fields.get("masks") == extension
            contents[extension] = read_mask(files, name) if is_mask else _decoded(extension, files.read(name))
        values = {}
        for field, key in self.fields.items():
            extension = _extension_of(key, contents)
            if not extension:
                raise ValueError(f"has no file .{key}")
            with naming(f"its {extension} "):
                values[field] = value_at(contents[extension], key[len(extension) :])
        return values


def _extension_of(key: str, extensions: Iterable[str]) -> str:
    """Returns the longest extension that a key such as ``json.text`` begins with; "" if there is none."""
    return max((each for each in extensions if f"{key}.".startswith(f"{each}.")), key=len, default="")


def _decoded(extension: str, data: bytes) -> Any:
    """Returns the value in a file of a sample; raises ValueError if it is broken, or of a kind that is not read."""
    kind = extension.rpartition(".")[2]
    if kind not in _KINDS:
        raise ValueError(f"its {extension} is of a kind that is not read; name others in fields: json, txt, cls, npy")
    with naming(f"its {extension} cannot be read: ", ValueError, EOFError, RecursionError):
        return _KINDS[kind](data)


_KINDS: Mapping[str, Callable[[bytes], Any]] = {
    "json": json.loads,
    **dict.fromkeys(("txt", "text", "caption"), bytes.decode),
    **dict.fromkeys((_LABEL, "id", "index"), int),
    "npy": lambda data: np.load(io.BytesIO(data), allow_pickle=False),
}
"""Last part of an extension -> what reads the bytes of such a file."""
